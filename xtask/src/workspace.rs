//! Where things are, and how other programs are run.

use std::{
    env,
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// This checkout.
pub struct Workspace {
    /// Top of the checkout.
    pub root: PathBuf,
    /// Cargo's target folder, wherever the user's configuration puts it.
    pub target: PathBuf,
}

impl Workspace {
    pub fn find() -> anyhow::Result<Self> {
        // What cargo says now, since a checkout may have been moved after xtask was built.
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let root = package
            .parent()
            .context("xtask does not lie in a workspace")?
            .to_owned();
        let mut metadata = cargo(&root);
        metadata.args(["metadata", "--no-deps", "--format-version=1", "--offline"]);
        let metadata: serde_json::Value = serde_json::from_str(&stdout(&mut metadata)?)?;
        let target = metadata["target_directory"]
            .as_str()
            .context("cargo metadata tells no target_directory")?
            .into();
        Ok(Self { root, target })
    }

    /// A cargo that works on this checkout.
    pub fn cargo(&self) -> Command {
        cargo(&self.root)
    }

    /// Where the optimised programs and libraries are.
    pub fn programs(&self) -> PathBuf {
        self.target.join("release")
    }
}

fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder);
    // `cargo run` describes xtask to us; it is not meant for the cargo that we start.
    for (name, _) in env::vars_os() {
        if let Some(text) = name.to_str()
            && (text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs to the end with output and input passed through; an error unless it succeeds.
pub fn check(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", name(command)))?;
    if !status.success() {
        bail!("{}: {status}", line(command));
    }
    Ok(())
}

/// What a command prints, trimmed; an error with its error output unless it succeeds.
pub fn stdout(command: &mut Command) -> anyhow::Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", name(command)))?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        bail!("{}: {}: {}", line(command), out.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Runs quietly, for at most `limit`; the error tells what it printed last.
pub fn quietly(command: &mut Command, limit: Duration) -> anyhow::Result<()> {
    let log = tempfile::NamedTempFile::new()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log.reopen()?)
        .stderr(log.reopen()?)
        .spawn()
        .with_context(|| format!("cannot start {}", name(command)))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!("{} took longer than {} s", line(command), limit.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    };
    if !status.success() {
        let text = std::fs::read(log.path())?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        let end = lines[lines.len().saturating_sub(5)..].join("\n    ");
        bail!("{}: {status}\n    {end}", line(command));
    }
    Ok(())
}

/// Whether a program of this name is in `$PATH`.
pub fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Replaces this process, so that signals and the exit status are the program's own. Returns why that
/// failed.
pub fn exec(command: &mut Command) -> anyhow::Error {
    use std::os::unix::process::CommandExt as _;
    anyhow::Error::new(command.exec()).context(format!("cannot start {}", name(command)))
}

fn name(command: &Command) -> String {
    command.get_program().display().to_string()
}

/// The command as one would type it; of a long one, the beginning.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    let line = words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ");
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// One part's result.
pub enum Outcome {
    Passed,
    /// Could not be checked here; why.
    Skipped(String),
    /// Why.
    Failed(String),
}

impl Outcome {
    /// Prints it; a skipped part is no failure.
    pub fn report(&self, part: &str) -> ExitCode {
        println!("{part}: {self}");
        match self {
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Passed | Self::Skipped(_) => ExitCode::SUCCESS,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
        }
    }
}

impl From<anyhow::Result<()>> for Outcome {
    fn from(result: anyhow::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) => Self::Failed(format!("{error:#}")),
        }
    }
}
