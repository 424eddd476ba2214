//! What tests use that is not this project's own: NVIDIA's libcuda from Debian's non-free section,
//! NVIDIA's Python bindings, and a Rust client's crates. Only downloaded, below the target folder;
//! never part of the repository.

use std::{
    collections::HashMap, fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration,
};

use anyhow::{Context as _, bail};
use gputrace_test_rig::real::{BRANCHES, Real};

use super::{
    Step,
    debian::{self, Suite},
    say, step,
};
use crate::workspace::{Workspace, in_path, quietly};

/// Where Debian has libcuda of a branch: suite and package, the likeliest to stay first.
fn packages(branch: &str) -> &'static [(&'static str, &'static str)] {
    match branch {
        "470" => &[
            ("bookworm", "libnvidia-tesla-470-cuda1"),
            ("bullseye", "libcuda1"),
            ("sid", "libnvidia-tesla-470-cuda1"),
        ],
        "535" => &[
            ("bookworm", "libcuda1"),
            ("trixie", "libnvidia-tesla-535-cuda1"),
            ("sid", "libnvidia-tesla-535-cuda1"),
        ],
        "550" => &[("trixie", "libcuda1"), ("sid", "libcuda1")],
        _ => &[],
    }
}

/// Fetches what is not there yet. What cannot be had is no error: its tests are skipped and say why.
pub fn install(workspace: &Workspace) {
    let real = Real::of(&workspace.target);
    let mut debian = Debian::default();
    for branch in BRANCHES {
        let file = real.libcuda(branch);
        part(&real, &format!("libcuda {branch}"), &file, || {
            debian.libcuda(branch, &file)
        });
    }
    let requirements = workspace.root.join("tests/clients/python/requirements.txt");
    let python = real.python();
    step_with_note(&real, "cuda-bindings", &python, || {
        bindings(&python, &requirements)
    });
    // Cargo itself knows what is there.
    step_with_note(&real, "cudarc", &real.cudarc(), || crates(workspace));
}

/// One part: nothing to do where its file is there.
fn part(real: &Real, name: &str, file: &Path, fetch: impl FnOnce() -> anyhow::Result<Step>) {
    step_with_note(real, name, file, || {
        if file.is_file() {
            return Ok(Step::Present(file.display().to_string()));
        }
        fetch()
    });
}

/// Leaves the reason of a part that is skipped where its tests find it.
fn step_with_note(
    real: &Real,
    name: &str,
    file: &Path,
    install: impl FnOnce() -> anyhow::Result<Step>,
) {
    let outcome = step(name, install);
    let reason = match &outcome {
        Step::Skipped(why) => Some(why.as_str()),
        Step::Present(_) | Step::Installed(_) => None,
    };
    if let Err(error) = real.note(file, reason) {
        say(name, &format!("{}: {error}", real.folder().display()));
    }
}

/// Debian's archive, each index fetched once.
#[derive(Default)]
struct Debian {
    work: Option<tempfile::TempDir>,
    mirrors: Vec<String>,
    /// By mirror and suite; `None` where it cannot be had.
    suites: HashMap<(String, &'static str), Option<Suite>>,
    /// Why nothing more is tried.
    gone: Option<String>,
}

impl Debian {
    fn libcuda(&mut self, branch: &str, file: &Path) -> anyhow::Result<Step> {
        if !cfg!(target_arch = "x86_64") {
            bail!("only the library for x86-64 is tested");
        }
        if let Some(gone) = &self.gone {
            bail!("{gone}");
        }
        if self.work.is_none() {
            self.mirrors = debian::available()?;
            self.work = Some(tempfile::tempdir()?);
        }
        let mut problem = None;
        for mirror in self.mirrors.clone() {
            for &(suite, package) in packages(branch) {
                match self.from(&mirror, suite, package, branch, file) {
                    Ok(Some(version)) => {
                        return Ok(Step::Installed(format!("{version}, Debian {suite}")));
                    }
                    Ok(None) => {}
                    Err(error) => {
                        let out_of_reach = debian::is_out_of_reach(&error);
                        // The first mirror is Debian's; what others lack says little.
                        problem.get_or_insert(error);
                        if out_of_reach {
                            break;
                        }
                    }
                }
            }
        }
        let problem =
            problem.unwrap_or_else(|| anyhow::anyhow!("no suite of Debian has this branch"));
        if debian::is_out_of_reach(&problem) {
            self.gone = Some(format!("{problem:#}"));
        }
        Err(problem)
    }

    /// The version that was put in place, if that suite has the branch.
    fn from(
        &mut self,
        mirror: &str,
        suite: &'static str,
        package: &str,
        branch: &str,
        file: &Path,
    ) -> anyhow::Result<Option<String>> {
        let work = self.work.as_ref().context("not begun")?.path();
        let index = match self.suites.entry((mirror.to_owned(), suite)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                say("libcuda", &format!("looking in Debian {suite}, {mirror}"));
                let fetched = Suite::fetch(mirror, suite, "non-free", work);
                match fetched {
                    Ok(suite) => new.insert(Some(suite)),
                    Err(error) => {
                        new.insert(None);
                        return Err(error);
                    }
                }
            }
        };
        let Some(index) = index else {
            return Ok(None);
        };
        let Some(version) = index.version(package, &format!("{branch}."))? else {
            return Ok(None);
        };
        put(&index.unpack(package, &version)?, file)?;
        Ok(Some(version))
    }
}

/// Takes the library out of an unpacked package: under its own name, with the usual link to it.
fn put(unpacked: &Path, link: &Path) -> anyhow::Result<()> {
    let mut folders = vec![unpacked.to_owned()];
    let mut library = None;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("libcuda.so.")
            {
                library = Some(entry.path());
            }
        }
    }
    let library = library.context("the package has no libcuda")?;
    let name = library.file_name().context("it has no name")?;
    let folder = link.parent().context("it has no folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(&library, folder.join(name))?;
    // The link last: it says that all is there.
    if link.is_symlink() {
        fs::remove_file(link)?;
    }
    symlink(name, link)?;
    Ok(())
}

/// A virtual environment with NVIDIA's bindings, which bring no library of the driver.
fn bindings(python: &Path, requirements: &Path) -> anyhow::Result<Step> {
    let environment = python.ancestors().nth(2).context("no folder")?;
    // What the environment was made from, kept in it.
    let made_from = |folder: &Path| folder.join("requirements.txt");
    let wanted = fs::read(requirements)?;
    if python.is_file() && fs::read(made_from(environment)).is_ok_and(|it| it == wanted) {
        return Ok(Step::Present(environment.display().to_string()));
    }
    if !in_path("python3") {
        bail!("no python3 here");
    }
    // The interpreter appears before the packages do, so the environment moves into place last. Its
    // programs name their folder and are not used; the interpreter finds its own.
    let parent = environment.parent().context("no folder")?;
    fs::create_dir_all(parent)?;
    let work = tempfile::tempdir_in(parent)?;
    let made = work.path().join("python");
    let mut create = Command::new("python3");
    create.args(["-m", "venv"]).arg(&made);
    quietly(&mut create, Duration::from_secs(120))?;
    let mut pip = Command::new(made.join("bin/python3"));
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--retries", "1", "--timeout", "15", "install"]);
    pip.args(["--only-binary", ":all:", "--requirement"]);
    pip.arg(requirements);
    quietly(&mut pip, Duration::from_secs(300))?;
    fs::write(made_from(&made), wanted)?;
    if environment.exists() {
        fs::remove_dir_all(environment)?;
    }
    fs::rename(&made, environment)?;
    Ok(Step::Installed(environment.display().to_string()))
}

/// Fetches the crates of the client that uses cudarc; its test builds it. It is a workspace of its
/// own, so that nobody who builds gputrace builds 20,000 lines of bindings.
fn crates(workspace: &Workspace) -> anyhow::Result<Step> {
    let mut fetch = workspace.cargo();
    fetch.args(["fetch", "--locked", "--manifest-path"]);
    fetch.arg(workspace.root.join("tests/clients/cudarc/Cargo.toml"));
    fetch.env("CARGO_NET_RETRY", "1");
    quietly(&mut fetch, Duration::from_secs(300))?;
    Ok(Step::Present("its crates are there".to_owned()))
}
