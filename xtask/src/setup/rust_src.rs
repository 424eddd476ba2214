//! The source of `core`, which `-Z build-std` compiles for the BPF target.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};

use super::{
    Step,
    debian::{self, Suite},
    say,
};
use crate::{
    ebpf::toolchain::Rustc,
    workspace::{in_path, quietly, stdout},
};

/// Suites of Debian that may have a package of the active rustc's version, the likeliest first.
const SUITES: [&str; 6] = [
    "trixie-backports",
    "trixie",
    "forky-backports",
    "forky",
    "testing",
    "sid",
];

pub fn install(rustc: &Rustc) -> anyhow::Result<Step> {
    if rustc.has_source() {
        return Ok(Step::Present(rustc.library_source().display().to_string()));
    }
    let mut tried = Vec::new();
    for (source, install) in [
        ("rustup", from_rustup as fn(&Rustc) -> anyhow::Result<()>),
        ("Debian's installed suite", from_apt),
        ("a Debian package", from_debian_package),
    ] {
        match install(rustc) {
            Ok(()) if rustc.has_source() => return Ok(Step::Installed(format!("from {source}"))),
            Ok(()) => tried.push(format!("{source}: it is still not there")),
            Err(error) => tried.push(format!("{source}: {error:#}")),
        }
    }
    Ok(Step::Skipped(format!(
        "not to be had here; where rustup is online: rustup component add rust-src\n    {}",
        tried.join("\n    ")
    )))
}

/// Where the toolchain is one of rustup's and its server is in reach.
fn from_rustup(rustc: &Rustc) -> anyhow::Result<()> {
    if !in_path("rustup") {
        bail!("not installed");
    }
    let home = stdout(Command::new("rustup").args(["show", "home"]))?;
    if !rustc.sysroot.starts_with(&home) {
        bail!("the active rustc is not one of its toolchains");
    }
    let toolchain = rustc
        .sysroot
        .file_name()
        .context("the toolchain has no name")?;
    say("rust-src", "asking rustup (at most 2 minutes)");
    let mut rustup = Command::new("rustup");
    rustup
        .args(["component", "add", "rust-src", "--toolchain"])
        .arg(toolchain);
    quietly(&mut rustup, Duration::from_secs(120))
}

/// Where rustc itself is the distribution's.
fn from_apt(rustc: &Rustc) -> anyhow::Result<()> {
    if rustc.sysroot != Path::new("/usr") {
        bail!("the active rustc is not the distribution's");
    }
    super::packages::apt_install("rust-src")
}

/// Debian's package of exactly this rustc's version, from a suite of the mirror that the machine
/// already uses: unpacked into the toolchain, not installed, apt's own state untouched. Its `core`
/// is the one that was released.
fn from_debian_package(rustc: &Rustc) -> anyhow::Result<()> {
    let mirrors = debian::available()?;
    let rust = rustc.sysroot.join("lib/rustlib/src/rust");
    fs::create_dir_all(&rust)
        .with_context(|| format!("{}: run this as its owner", rust.display()))?;
    let work = tempfile::tempdir_in(&rust)?;
    let mut problem = None;
    for mirror in &mirrors {
        for suite in SUITES {
            say("rust-src", &format!("looking in Debian {suite}, {mirror}"));
            match package_of_suite(rustc, mirror, suite, work.path()) {
                Ok(Some(unpacked)) => return put(&unpacked, &rustc.library_source()),
                Ok(None) => {}
                Err(error) => {
                    let out_of_reach = debian::is_out_of_reach(&error);
                    problem = Some(error);
                    if out_of_reach {
                        break;
                    }
                }
            }
        }
    }
    Err(problem.unwrap_or_else(|| anyhow::anyhow!("no suite has version {}", rustc.release)))
}

/// Downloads and unpacks the package if that suite has it.
fn package_of_suite(
    rustc: &Rustc,
    mirror: &str,
    suite: &str,
    work: &Path,
) -> anyhow::Result<Option<PathBuf>> {
    let suite = Suite::fetch(mirror, suite, "main", work)?;
    let wanted = format!("{}+dfsg", rustc.release);
    let Some(version) = suite.version("rust-src", &wanted)? else {
        return Ok(None);
    };
    say(
        "rust-src",
        &format!("unpacking Debian's rust-src {version}"),
    );
    suite.unpack("rust-src", &version).map(Some)
}

/// Puts the package's `library` folder where rustc looks for it.
fn put(unpacked: &Path, library: &Path) -> anyhow::Result<()> {
    let from = fs::read_dir(unpacked.join("usr/src"))?
        .flatten()
        .map(|entry| entry.path().join("library"))
        .find(|path| path.join("core/src/lib.rs").is_file())
        .context("the package has no library folder")?;
    if library.exists() {
        // Incomplete: has_source() was asked before.
        fs::remove_dir_all(library)?;
    }
    fs::rename(from, library)?;
    Ok(())
}
