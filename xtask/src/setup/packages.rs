//! Packages of the distribution.

use std::{process::Command, time::Duration};

use anyhow::bail;

use super::{Step, say};
use crate::workspace::{in_path, is_root, quietly};

/// Installs the package of this name, which has a program of the same name.
pub fn install(package: &str, without: &str) -> anyhow::Result<Step> {
    if in_path(package) {
        return Ok(Step::Present("present".to_owned()));
    }
    match apt_install(package) {
        Ok(()) if in_path(package) => Ok(Step::Installed("by apt".to_owned())),
        Ok(()) => Ok(Step::Skipped(format!(
            "apt installed no program of this name; {without}"
        ))),
        Err(error) => Ok(Step::Skipped(format!("{error:#}; {without}"))),
    }
}

/// On Debian and Ubuntu, as root.
pub fn apt_install(package: &str) -> anyhow::Result<()> {
    if !in_path("apt-get") {
        bail!("no apt-get here: install {package} with your distribution's tool");
    }
    if !is_root() {
        bail!("not root: sudo apt-get install {package}");
    }
    say(package, "installing by apt");
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt.args([
            "-qq",
            "-o",
            "Acquire::Retries=1",
            "-o",
            "Acquire::http::Timeout=15",
        ]);
        apt
    };
    let install = || {
        let mut install = apt();
        install.args(["install", "--yes", "--no-install-recommends", package]);
        quietly(&mut install, Duration::from_secs(300))
    };
    // A fresh machine has no package lists, an old one lists that are out of date.
    install().or_else(|_| {
        quietly(apt().arg("update"), Duration::from_secs(120))?;
        install()
    })
}
