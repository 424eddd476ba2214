//! The checked-in eBPF object: `update-object`, `check-object`.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};

use crate::{
    ebpf::{
        self,
        manifest::{Manifest, sha256, source_digest},
        toolchain::Toolchain,
    },
    workspace::{self, Outcome, Workspace},
};

/// The architecture whose object is checked in; others build from source.
pub const ARCH: &str = "x86_64";

const UPDATE: &str = "run `cargo xtask update-object`";

fn build(workspace: &Workspace, toolchain: &Toolchain) -> Result<Vec<u8>, ebpf::Error> {
    ebpf::build(
        toolchain,
        &workspace.root,
        &workspace.target.join("ebpf"),
        ARCH,
    )
}

fn sources(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    ebpf::sources(&workspace.root).context("this checkout has no gputrace-ebpf")
}

/// Builds from source and writes object and manifest.
pub fn update(workspace: &Workspace) -> anyhow::Result<()> {
    let toolchain = Toolchain::find().context("run `cargo xtask setup`")?;
    let object = build(workspace, &toolchain)?;
    let manifest = Manifest {
        arch: ARCH.to_owned(),
        object: sha256(&object),
        sources: source_digest(&sources(workspace)?, &workspace.root)?,
        rustc: toolchain.rustc.version,
        linker: toolchain.linker_version,
    };
    let folder = workspace.root.join("gputrace/bpf");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("gputrace.bpf.o"), &object)?;
    fs::write(folder.join("manifest.toml"), text(&manifest))?;
    println!(
        "{}: {} bytes",
        folder.join("gputrace.bpf.o").display(),
        object.len()
    );
    Ok(())
}

fn text(manifest: &Manifest) -> String {
    let Manifest {
        arch,
        object,
        sources,
        rustc,
        linker,
    } = manifest;
    format!(
        "# What gputrace.bpf.o was made of and with. Written by `cargo xtask update-object`.\n\
         arch = \"{arch}\"\n\
         object-sha256 = \"{object}\"\n\
         sources-sha256 = \"{sources}\"\n\
         rustc = \"{rustc}\"\n\
         bpf-linker = \"{linker}\"\n"
    )
}

/// Lints the eBPF programs, which the workspace's own lints leave out: they build for another target.
pub fn lint(workspace: &Workspace) -> anyhow::Result<Outcome> {
    let toolchain = match Toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(error) => return Ok(Outcome::Skipped(error.to_string())),
    };
    let target = workspace.target.join("ebpf");
    let mut clippy = ebpf::cargo(&toolchain, &workspace.root, &target, ARCH, "clippy");
    clippy.args(["--", "-D", "warnings"]);
    Ok(workspace::check(&mut clippy).into())
}

/// Whether the checked-in object is what its manifest says, was made from these sources, and is what
/// they give, byte for byte. The last needs the toolchain that the manifest names.
pub fn check(workspace: &Workspace) -> anyhow::Result<Outcome> {
    let folder = workspace.root.join("gputrace/bpf");
    let manifest = match Manifest::read(&folder.join("manifest.toml")) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Outcome::Failed(format!("{error}; {UPDATE}"))),
    };
    let path = folder.join("gputrace.bpf.o");
    let object = fs::read(&path).with_context(|| path.display().to_string())?;
    if sha256(&object) != manifest.object {
        return Ok(Outcome::Failed(format!(
            "not the object that its manifest describes; {UPDATE}"
        )));
    }
    if source_digest(&sources(workspace)?, &workspace.root)? != manifest.sources {
        return Ok(Outcome::Failed(format!(
            "not made from gputrace-ebpf as it is now; {UPDATE}"
        )));
    }
    let toolchain = match Toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(error) => {
            return Ok(Outcome::Skipped(format!(
                "digests agree; not built for comparison: {error}"
            )));
        }
    };
    for (here, there) in [
        (&toolchain.rustc.version, &manifest.rustc),
        (&toolchain.linker_version, &manifest.linker),
    ] {
        if here != there {
            return Ok(Outcome::Skipped(format!(
                "digests agree; not built for comparison: it was made by {there}, and here is {here}"
            )));
        }
    }
    let built = build(workspace, &toolchain)?;
    if built != object {
        return Ok(Outcome::Failed(format!(
            "the sources give another object ({} bytes, sha256 {}); {UPDATE}",
            built.len(),
            sha256(&built)
        )));
    }
    Ok(Outcome::Passed)
}

/// Whether `cargo build` gets an eBPF object without the eBPF toolchain; the error says why not.
pub fn is_usable(workspace: &Workspace) -> anyhow::Result<()> {
    if std::env::consts::ARCH != ARCH {
        bail!("the checked-in eBPF object is for {ARCH} only");
    }
    let manifest = Manifest::read(&workspace.root.join("gputrace/bpf/manifest.toml"))?;
    if source_digest(&sources(workspace)?, &workspace.root)? != manifest.sources {
        bail!("the checked-in eBPF object was not made from gputrace-ebpf as it is now");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_back() {
        let manifest = Manifest {
            arch: ARCH.to_owned(),
            object: sha256(b"object"),
            sources: sha256(b"sources"),
            rustc: "rustc 1.95.0 (59807616e 2026-04-14)".to_owned(),
            linker: "bpf-linker 0.13.0, LLVM 22.1.2".to_owned(),
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest.toml");
        fs::write(&path, text(&manifest)).unwrap();
        assert_eq!(Manifest::read(&path).unwrap(), manifest);
        fs::write(&path, "arch = \"x86_64\"\n").unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.ends_with("no `object-sha256`"), "{error}");
    }

    #[test]
    fn the_digest_follows_files_names_and_aya() {
        let folder = tempfile::tempdir().unwrap();
        let (root, sources) = (folder.path(), folder.path().join("gputrace-ebpf"));
        let digest = || source_digest(&sources, root).unwrap();
        let lock = |version: &str| {
            let package = |name: &str, version: &str| {
                format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n")
            };
            let text = package("aya-ebpf", version) + &package("clap", "4.6.0");
            fs::write(root.join("Cargo.lock"), text).unwrap();
        };
        fs::create_dir_all(sources.join("src")).unwrap();
        fs::write(sources.join("src/main.rs"), "1").unwrap();
        lock("0.2.1");
        let first = digest();
        assert_eq!(first, digest());
        fs::write(sources.join("src/.main.rs.swp"), "an editor's").unwrap();
        assert_eq!(first, digest());
        lock("0.2.2");
        let newer_aya = digest();
        assert_ne!(first, newer_aya);
        fs::write(sources.join("src/main.rs"), "2").unwrap();
        let changed = digest();
        assert_ne!(newer_aya, changed);
        fs::rename(sources.join("src/main.rs"), sources.join("src/lib.rs")).unwrap();
        assert_ne!(changed, digest());
    }
}
