//! Puts the eBPF object at `$OUT_DIR/gputrace.bpf.o`.
//!
//! `GPUTRACE_BPF` decides how: `source` builds it, `prebuilt` takes the checked-in one, `auto` (the
//! default) builds where rust-src and a working bpf-linker are there, else takes the checked-in one.
//! That one is taken only if it is what its manifest says and was made from the sources as they are.
//! The crate's `env!("GPUTRACE_BPF_ORIGIN")` tells which it was and what made it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[path = "build/ebpf.rs"]
mod ebpf;

use ebpf::{
    manifest::{Manifest, sha256, source_digest},
    toolchain::Toolchain,
};

/// Why the build cannot go on, and what to do.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0} is not set: run this through cargo")]
    Environment(&'static str),
    #[error("GPUTRACE_BPF={0}: use source, prebuilt or auto")]
    Mode(String),
    #[error("GPUTRACE_BPF=source, but there are no eBPF sources here")]
    NoSources,
    #[error("GPUTRACE_BPF=source: {0}\n  run `cargo xtask setup`")]
    NoToolchain(ebpf::Error),
    #[error(
        "{0}\n  if the sources are right, run `cargo xtask setup`; \
         or set GPUTRACE_BPF=prebuilt to take the checked-in object"
    )]
    Build(ebpf::Error),
    #[error(
        "the checked-in eBPF object is for {object}, and this build for {wanted}{}",
        BUILD_IT
    )]
    Arch { object: String, wanted: String },
    #[error("{}: not the object that its manifest describes{}", path.display(), BUILD_IT)]
    Damaged { path: PathBuf },
    #[error(
        "the checked-in eBPF object was not made from gputrace-ebpf as it is now{}\n  \
         and, to keep a change of it, `cargo xtask update-object`",
        BUILD_IT
    )]
    Stale,
    #[error(transparent)]
    Ebpf(#[from] ebpf::Error),
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

const BUILD_IT: &str = "\n  to build it from source, run `cargo xtask setup && cargo xtask build`";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let variable = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .ok_or(Error::Environment(name))
    };
    let package = variable("CARGO_MANIFEST_DIR")?;
    let out_dir = variable("OUT_DIR")?;
    let arch = variable("CARGO_CFG_TARGET_ARCH")?.display().to_string();
    let workspace = package.parent().unwrap_or(&package).to_owned();
    let sources = ebpf::sources(&workspace);

    println!("cargo::rerun-if-env-changed=GPUTRACE_BPF");
    println!("cargo::rerun-if-env-changed=BPF_LINKER");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    if let Some(sources) = &sources {
        println!("cargo::rerun-if-changed={}", sources.display());
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join("Cargo.lock").display()
        );
    }

    let mode = env::var("GPUTRACE_BPF").unwrap_or_else(|_| "auto".to_owned());
    let build = |toolchain: Toolchain| -> Result<_, Error> {
        let object = ebpf::build(&toolchain, &workspace, &target_dir(&out_dir), &arch);
        let made_by = format!("{}, {}", toolchain.rustc.version, toolchain.linker_version);
        Ok((
            object.map_err(Error::Build)?,
            format!("built from source by {made_by}"),
        ))
    };
    let checked_in = || checked_in(&package, &workspace, sources.as_deref(), &arch);
    let (object, origin) = match (mode.as_str(), &sources) {
        ("source", None) => return Err(Error::NoSources),
        ("source", Some(_)) => build(Toolchain::find().map_err(Error::NoToolchain)?)?,
        ("auto", Some(_)) => match Toolchain::find() {
            Ok(toolchain) => build(toolchain)?,
            Err(problem) => {
                // Nothing installed is an ordinary machine; a tool that does not work is worth a word.
                if !matches!(
                    problem,
                    ebpf::Error::NoRustSrc { .. } | ebpf::Error::NoLinker
                ) {
                    println!("cargo::warning=taking the checked-in eBPF object: {problem}");
                }
                checked_in()?
            }
        },
        ("prebuilt", _) | ("auto", None) => checked_in()?,
        _ => return Err(Error::Mode(mode)),
    };
    println!("cargo::rustc-env=GPUTRACE_BPF_ORIGIN={origin}");
    let path = out_dir.join("gputrace.bpf.o");
    fs::write(&path, object).map_err(|source| Error::Write { path, source })
}

/// The checked-in object, after proof that it is the right one.
fn checked_in(
    package: &Path,
    workspace: &Path,
    sources: Option<&Path>,
    arch: &str,
) -> Result<(Vec<u8>, String), Error> {
    println!("cargo::rerun-if-changed=bpf");
    let manifest = Manifest::read(&package.join("bpf/manifest.toml"))?;
    if manifest.arch != arch {
        return Err(Error::Arch {
            object: manifest.arch,
            wanted: arch.to_owned(),
        });
    }
    let path = package.join("bpf/gputrace.bpf.o");
    let object = fs::read(&path).map_err(|source| ebpf::Error::File {
        path: path.clone(),
        source,
    })?;
    if sha256(&object) != manifest.object {
        return Err(Error::Damaged { path });
    }
    if let Some(sources) = sources
        && source_digest(sources, workspace)? != manifest.sources
    {
        return Err(Error::Stale);
    }
    let origin = format!(
        "checked in, built by {}, {}",
        manifest.rustc, manifest.linker
    );
    Ok((object, origin))
}

/// The eBPF build's own folder in the workspace's target folder, so that all profiles share it and
/// the outer cargo, which holds a lock on its profile's folder, is not waited for.
fn target_dir(out_dir: &Path) -> PathBuf {
    // Cargo marks the top of its target folder for backup programs.
    let top = out_dir
        .ancestors()
        .find(|a| a.join("CACHEDIR.TAG").is_file());
    top.unwrap_or(out_dir).join("ebpf")
}
