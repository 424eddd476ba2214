//! Packages of any suite of Debian, from the mirrors that the machine already uses: downloaded with
//! a state of apt's own that is thrown away, checked by apt against the signed index, not installed.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};

use crate::workspace::{in_path, quietly, stdout};

/// Keys that sign Debian's archive.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A suite's index, fetched.
pub struct Suite {
    /// apt's own state; also where a package is downloaded to.
    state: PathBuf,
}

/// An error unless this machine has Debian's own tools and keys, and a mirror.
pub fn available() -> anyhow::Result<Vec<String>> {
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !os.lines().any(|l| l == "ID=debian") || !in_path("apt-get") || !in_path("dpkg-deb") {
        bail!("this is not Debian");
    }
    let mirrors = mirrors();
    if mirrors.is_empty() {
        bail!("apt has no mirror");
    }
    Ok(mirrors)
}

/// Whether an error means that the mirror is out of reach, and so are its other suites.
pub fn is_out_of_reach(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    ["resolv", "connect", "timed out", "longer than"]
        .iter()
        .any(|sign| text.contains(sign))
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

impl Suite {
    /// Fetches the index of one component (`main`, `non-free`) of a suite, below `work`.
    pub fn fetch(mirror: &str, suite: &str, component: &str, work: &Path) -> anyhow::Result<Self> {
        let state = work.join(format!("{suite}-{component}"));
        fs::create_dir_all(state.join("lists/partial"))?;
        fs::create_dir_all(state.join("cache/archives/partial"))?;
        fs::write(
            state.join("sources.list"),
            format!("deb [signed-by={KEYRING}] {mirror} {suite} {component}\n"),
        )?;
        let suite = Self { state };
        quietly(suite.apt("apt-get").arg("update"), Duration::from_secs(120))?;
        Ok(suite)
    }

    /// The newest version of a package that begins so.
    pub fn version(&self, package: &str, beginning: &str) -> anyhow::Result<Option<String>> {
        let known = stdout(self.apt("apt-cache").args(["madison", package]))?;
        let mut versions = known
            .lines()
            .filter_map(|line| line.split('|').nth(1).map(str::trim));
        Ok(versions
            .find(|version| version.starts_with(beginning))
            .map(str::to_owned))
    }

    /// Downloads that version of a package and unpacks it into an empty folder, which is returned.
    pub fn unpack(&self, package: &str, version: &str) -> anyhow::Result<PathBuf> {
        let mut download = self.apt("apt-get");
        download.arg("download").arg(format!("{package}={version}"));
        quietly(&mut download, Duration::from_secs(300))?;
        let file = fs::read_dir(&self.state)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "deb"))
            .context("apt-get downloaded nothing")?;
        let unpacked = self.state.join(format!("unpacked-{package}"));
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.arg("--extract").arg(&file).arg(&unpacked);
        quietly(&mut dpkg, Duration::from_secs(300))?;
        fs::remove_file(file)?;
        Ok(unpacked)
    }

    /// One of apt's programs, which neither sees nor changes the state of the machine's own apt.
    fn apt(&self, program: &str) -> Command {
        let option = |key: &str, path: &str| {
            let mut option = OsString::from(key);
            option.push("=");
            option.push(self.state.join(path));
            option
        };
        let mut apt = Command::new(program);
        apt.current_dir(&self.state).arg("-qq");
        for setting in [
            option("Dir::Etc::sourcelist", "sources.list"),
            option("Dir::State::Lists", "lists"),
            option("Dir::Cache", "cache"),
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
    }
}
