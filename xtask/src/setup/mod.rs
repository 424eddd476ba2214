//! `cargo xtask setup`: puts in place what a machine lacks, in the cheapest way that works there.
//!
//! Nothing here is needed for `cargo build`, which has the checked-in eBPF object; so what cannot be
//! installed is skipped with the reason, and set-up fails only where that object is of no use either.

mod debian;
mod linker;
mod packages;
mod real;
mod rust_src;

use std::time::Instant;

use anyhow::bail;

use crate::{
    ebpf::toolchain::{Rustc, Toolchain},
    object_file,
    workspace::Workspace,
};

/// What became of one thing that set-up looks after.
pub enum Step {
    Present(String),
    Installed(String),
    /// Why not, and what the user can do.
    Skipped(String),
}

/// Sets up; quick where nothing is missing. `bench`: also what only measurements need; `tests`: also
/// the libraries and clients of others that tests use.
pub fn run(workspace: &Workspace, bench: bool, tests: bool) -> anyhow::Result<()> {
    let rustc = Rustc::active()?;
    show(
        "rustc",
        &Step::Present(format!("{}, LLVM {}", rustc.version, rustc.llvm)),
    );
    let rust_src = step("rust-src", || rust_src::install(&rustc));
    if matches!(rust_src, Step::Skipped(_)) {
        show(
            "bpf-linker",
            &Step::Skipped("of no use without rust-src".to_owned()),
        );
    } else {
        step("bpf-linker", || linker::install(&rustc));
    }
    if bench {
        step("bpftrace", || {
            packages::install("bpftrace", "`cargo xtask bench` leaves it out")
        });
    }

    if tests {
        real::install(workspace);
    }

    match (Toolchain::find(), object_file::is_usable(workspace)) {
        (Ok(_), _) => say("eBPF object", "will be built from source"),
        (Err(_), Ok(())) => say("eBPF object", "the checked-in one will be used"),
        (Err(error), Err(problem)) => bail!("no eBPF object: {error}; and {problem}"),
    }
    Ok(())
}

/// Does one step and shows what became of it. An error is a reason to go on without.
fn step(name: &str, install: impl FnOnce() -> anyhow::Result<Step>) -> Step {
    let start = Instant::now();
    let mut step = install().unwrap_or_else(|error| Step::Skipped(format!("{error:#}")));
    if let Step::Installed(what) = &mut step {
        *what = format!("{what} ({} s)", start.elapsed().as_secs());
    }
    show(name, &step);
    step
}

fn show(name: &str, step: &Step) {
    match step {
        Step::Present(what) => say(name, what),
        Step::Installed(what) => say(name, &format!("installed: {what}")),
        Step::Skipped(why) => say(name, &format!("skipped: {why}")),
    }
}

/// One line of progress, on stderr.
fn say(name: &str, text: &str) {
    eprintln!("{name:<13} {text}");
}
