//! `build`, `run`, `scenario`, `demo`.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use gputrace_test_rig::scenario::{self, Options, Paths};

use crate::{
    setup,
    workspace::{self, Workspace, in_path, is_root},
};

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
    workspace::check(
        workspace
            .cargo()
            .args(["build", "--release", "--package=gputrace"]),
    )?;
    let program = workspace.release_binary("gputrace");
    let mut command = if !is_root() && in_path("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.arg("--preserve-env=GPUTRACE_LIBCUDA,GPUTRACE_NVML,GPUTRACE_RIG,RUST_LOG,NO_COLOR");
        sudo.arg("--").arg(program);
        sudo
    } else {
        // Without root it says itself what it may not do.
        Command::new(program)
    };
    let error = workspace::exec(command.args(args));
    Err(error).with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// Builds what scenarios need and runs these files.
pub fn scenario(workspace: &Workspace, files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    build(workspace)?;
    Ok(run_scenarios(workspace, files, false))
}

/// A leaking job beside a healthy one, and what gputrace says of them.
pub fn demo(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    setup::run(workspace)?;
    build(workspace)?;
    let file = workspace.root.join("tests/scenarios/demo.toml");
    Ok(run_scenarios(workspace, &[file], true))
}

fn run_scenarios(workspace: &Workspace, files: &[PathBuf], show: bool) -> ExitCode {
    let paths = Paths::in_folder(&workspace.target.join("release"));
    let options = Options {
        show,
        ..Options::new(paths)
    };
    let summary = scenario::run_files(files, &options);
    let (passed, failed, skipped) = summary.counts();
    if files.len() > 1 {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    if summary.is_success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
