//! `build`, `run`, `scenario`, `demo`.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use gputrace_test_rig::scenario::{self, Options, Paths};

use crate::{
    setup,
    workspace::{self, Workspace, in_path, is_root},
};

/// How scenarios are run.
#[derive(Clone, Copy, Default, clap::Args)]
pub struct Manner {
    /// Say what each step did
    #[arg(short, long)]
    verbose: bool,
    /// Leave the folder of a run that passed; that of a failed run is always left
    #[arg(long)]
    keep: bool,
    /// Pass on what a gputrace for people prints
    #[arg(long)]
    show: bool,
}

impl Manner {
    /// The flags that say the same.
    fn flags(self) -> impl Iterator<Item = PathBuf> {
        let flags = [
            (self.verbose, "--verbose"),
            (self.keep, "--keep"),
            (self.show, "--show"),
        ];
        let given = flags.into_iter().filter(|(given, _)| *given);
        given.map(|(_, flag)| flag.into())
    }
}

/// Builds everything that is run, in one go: cargo gives each selection of packages its own build of
/// what they share.
pub fn build(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args([
        "build",
        "--release",
        "--workspace",
        "--exclude=xtask",
        "--exclude=gputrace-ebpf",
    ]);
    workspace::check(&mut cargo)
}

/// Does not return if gputrace could be started.
pub fn run(workspace: &Workspace, args: &[String]) -> anyhow::Result<()> {
    build(workspace)?;
    let program = workspace.programs().join("gputrace");
    // Without sudo it says itself what it may not do.
    let mut command = if is_root() || !in_path("sudo") {
        Command::new(program)
    } else {
        sudo(&program)
    };
    Err(workspace::exec(command.args(args)))
}

/// Builds what scenarios need and runs these files.
pub fn scenario(
    workspace: &Workspace,
    manner: Manner,
    files: &[PathBuf],
) -> anyhow::Result<ExitCode> {
    build(workspace)?;
    let programs = workspace.programs();
    let command = [
        "run-scenarios".into(),
        "--programs".into(),
        programs.clone(),
    ];
    as_root(command.into_iter().chain(manner.flags()), files)?;
    Ok(run_scenarios(&programs, manner, files))
}

/// A leaking job beside a healthy one, and what gputrace says of them.
pub fn demo(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    setup::run(workspace, false, false)?;
    let manner = Manner {
        show: true,
        ..Manner::default()
    };
    let file = workspace.root.join("tests/scenarios/demo.toml");
    scenario(workspace, manner, &[file])
}

/// Where this process is not root and sudo is there, goes on as xtask with these arguments as root,
/// and does not return: what is built belongs to the user, and only what sets probes is run as root.
pub fn as_root(
    command: impl IntoIterator<Item = PathBuf>,
    files: &[PathBuf],
) -> anyhow::Result<()> {
    if is_root() || !in_path("sudo") {
        return Ok(());
    }
    eprintln!("setting probes needs root: going on through sudo");
    let mut sudo = sudo(&env::current_exe()?);
    Err(workspace::exec(sudo.args(command).args(files)))
}

fn sudo(program: &Path) -> Command {
    let mut sudo = Command::new("sudo");
    sudo.arg("--preserve-env=GPUTRACE_LIBCUDA,GPUTRACE_NVML,GPUTRACE_RIG,RUST_LOG,NO_COLOR,TMPDIR");
    sudo.arg("--").arg(program);
    sudo
}

/// Runs files with what was built before. Where what is printed is to be shown, a skipped run is a
/// failure: there was nothing to see.
pub fn run_scenarios(programs: &Path, manner: Manner, files: &[PathBuf]) -> ExitCode {
    let options = Options {
        verbose: manner.verbose,
        keep: manner.keep,
        show: manner.show,
        ..Options::new(Paths::in_folder(programs))
    };
    let summary = scenario::run_files(files, &options);
    let (passed, failed, skipped) = summary.counts();
    if files.len() > 1 {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    if summary.is_success() && !(manner.show && skipped > 0) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
