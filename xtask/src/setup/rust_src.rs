//! The source of `core`, which `-Z build-std` compiles for the BPF target.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};

use super::{Step, say};
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
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !os.lines().any(|l| l == "ID=debian") || !in_path("apt-get") || !in_path("dpkg-deb") {
        bail!("this is not Debian");
    }
    let rust = rustc.sysroot.join("lib/rustlib/src/rust");
    fs::create_dir_all(&rust)
        .with_context(|| format!("{}: run this as its owner", rust.display()))?;
    let work = tempfile::tempdir_in(&rust)?;
    let mirrors = mirrors();
    if mirrors.is_empty() {
        bail!("apt has no mirror");
    }
    let mut problem = None;
    for mirror in &mirrors {
        for suite in SUITES {
            say("rust-src", &format!("looking in Debian {suite}, {mirror}"));
            match package_of_suite(rustc, mirror, suite, work.path()) {
                Ok(Some(package)) => return unpack(&package, &rustc.library_source(), work.path()),
                Ok(None) => {}
                Err(error) => {
                    let text = format!("{error:#}");
                    problem = Some(error);
                    // Out of reach: so are its other suites.
                    if ["resolv", "connect", "timed out", "longer than"]
                        .iter()
                        .any(|sign| text.contains(sign))
                    {
                        break;
                    }
                }
            }
        }
    }
    Err(problem.unwrap_or_else(|| anyhow::anyhow!("no suite has version {}", rustc.release)))
}

/// The mirrors of the machine's own apt sources, without that of security updates; those that look
/// like Debian's come first.
fn mirrors() -> Vec<String> {
    let mut files: Vec<PathBuf> = vec!["/etc/apt/sources.list".into()];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|e| e.path()));
    }
    let mut seen = BTreeSet::new();
    let mut mirrors = Vec::new();
    for text in files.iter().filter_map(|f| fs::read_to_string(f).ok()) {
        for line in text
            .lines()
            .filter(|l| l.starts_with("deb ") || l.starts_with("URIs:"))
        {
            for word in line.split_whitespace().filter(|w| w.starts_with("http")) {
                if !word.contains("security") && seen.insert(word.to_owned()) {
                    mirrors.push(word.to_owned());
                }
            }
        }
    }
    mirrors.sort_by_key(|mirror| !mirror.trim_end_matches('/').ends_with("/debian"));
    mirrors
}

/// Downloads the package if that suite has it. Apt gets a state of its own in `work`.
fn package_of_suite(
    rustc: &Rustc,
    mirror: &str,
    suite: &str,
    work: &Path,
) -> anyhow::Result<Option<PathBuf>> {
    let state = work.join(suite);
    fs::create_dir_all(state.join("lists/partial"))?;
    fs::create_dir_all(state.join("cache/archives/partial"))?;
    let sources = state.join("sources.list");
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    fs::write(
        &sources,
        format!("deb [signed-by={keyring}] {mirror} {suite} main\n"),
    )?;

    let option = |key: &str, path: &Path| {
        let mut option = OsString::from(key);
        option.push("=");
        option.push(path);
        option
    };
    let apt = |program: &str| {
        let mut apt = Command::new(program);
        apt.current_dir(&state).arg("-qq");
        for setting in [
            option("Dir::Etc::sourcelist", &sources),
            option("Dir::State::Lists", &state.join("lists")),
            option("Dir::Cache", &state.join("cache")),
        ] {
            apt.arg("-o").arg(setting);
        }
        for setting in [
            "Dir::Etc::sourceparts=/dev/null",
            // Without this a failed download is no error.
            "APT::Update::Error-Mode=any",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            "Acquire::Retries=1",
            "Acquire::http::Timeout=15",
            "APT::Update::Post-Invoke=",
            "APT::Update::Post-Invoke-Success=",
        ] {
            apt.args(["-o", setting]);
        }
        apt
    };
    quietly(apt("apt-get").arg("update"), Duration::from_secs(120))?;
    let known = stdout(apt("apt-cache").args(["madison", "rust-src"]))?;
    let wanted = format!("{}+dfsg", rustc.release);
    let version = known
        .lines()
        .filter_map(|line| line.split('|').nth(1).map(str::trim))
        .find(|version| version.starts_with(&wanted));
    let Some(version) = version else {
        return Ok(None);
    };
    say(
        "rust-src",
        &format!("unpacking Debian's rust-src {version}"),
    );
    let mut download = apt("apt-get");
    download.arg("download").arg(format!("rust-src={version}"));
    quietly(&mut download, Duration::from_secs(300))?;
    let package = fs::read_dir(&state)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "deb"));
    package.map(Some).context("apt-get downloaded nothing")
}

/// Puts the package's `library` folder where rustc looks for it.
fn unpack(package: &Path, library: &Path, work: &Path) -> anyhow::Result<()> {
    let unpacked = work.join("unpacked");
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.arg("--extract").arg(package).arg(&unpacked);
    quietly(&mut dpkg, Duration::from_secs(300))?;
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
