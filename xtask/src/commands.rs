//! `build`, `run`, `scenario`, `demo`.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::Context as _;

use crate::workspace::{self, Workspace, in_path, is_root};

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

pub fn demo(_: &Workspace) -> anyhow::Result<ExitCode> {
    todo!()
}
pub fn scenario(_: &Workspace, _: &[PathBuf]) -> anyhow::Result<ExitCode> {
    todo!()
}
