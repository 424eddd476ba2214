use crate::workspace::Workspace;
use std::process::ExitCode;
pub fn run(_: &Workspace) -> anyhow::Result<ExitCode> {
    todo!()
}
