//! `fuzz`: builds and runs the libFuzzer targets in `fuzz/src/bin` (see docs/fuzzing.md).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail};

use crate::workspace::{self, Workspace};

/// What libFuzzer needs to see where an input leads. Stable compilers have it as well.
const INSTRUMENTATION: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Runs one target, or all of them one after the other, for so many seconds each.
pub fn run(workspace: &Workspace, target: Option<&str>, seconds: u64) -> anyhow::Result<ExitCode> {
    let mut targets = targets(&workspace.root.join("fuzz/src/bin"))?;
    if let Some(wanted) = target {
        let all = targets.join(", ");
        targets.retain(|name| name == wanted);
        if targets.is_empty() {
            bail!("no target \"{wanted}\"; there are {all}");
        }
    }
    let folder = workspace.target.join("fuzz");
    let programs = build(workspace, &folder, target)?;
    let mut code = ExitCode::SUCCESS;
    for target in &targets {
        eprintln!("{target}: {seconds} s");
        let finding = fuzz(workspace, &folder, &programs, target, seconds)?;
        if let Some(finding) = finding {
            println!("{target}: FAILED: {finding}");
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

fn targets(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let file = entry?.path();
        names.extend(file.file_stem().map(|name| name.display().to_string()));
    }
    names.sort();
    Ok(names)
}

/// Builds one target or all, and says where they are.
fn build(workspace: &Workspace, folder: &Path, target: Option<&str>) -> anyhow::Result<PathBuf> {
    // Named, so that build scripts and procedural macros are built without instrumentation.
    let host = workspace::stdout(Command::new("rustc").args(["--print", "host-tuple"]))?;
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "--manifest-path=fuzz/Cargo.toml"]);
    cargo.args(["--target", &host, "--target-dir"]).arg(folder);
    cargo.args(target.iter().flat_map(|target| ["--bin", target]));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", INSTRUMENTATION.join("\x1f"));
    workspace::check(&mut cargo)?;
    Ok(folder.join(host).join("release"))
}

/// Runs one target. What it found, if anything: the panic, and how to see it again.
fn fuzz(
    workspace: &Workspace,
    folder: &Path,
    programs: &Path,
    target: &str,
    seconds: u64,
) -> anyhow::Result<Option<String>> {
    // What it has found interesting stays, and is where the next run goes on.
    let corpus = folder.join("corpus").join(target);
    let findings = folder.join("findings").join(target);
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder)?;
    }
    let program = programs.join(target);
    let log = folder.join(format!("{target}.log"));
    let status = Command::new(&program)
        .args([&corpus, &workspace.root.join("fuzz/seeds").join(target)])
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
        .stderr(fs::File::create(&log)?)
        .status()
        .with_context(|| program.display().to_string())?;
    let text = fs::read(&log)?;
    let text = String::from_utf8_lossy(&text);
    let after = |mark| text.lines().find_map(|line| Some(line.split_once(mark)?.1));
    if status.success() {
        let runs = after("number_of_executed_units:").unwrap_or(" ?");
        println!("{target}: nothing found in{runs} runs");
        return Ok(None);
    }
    let panic: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains("panicked at"))
        .take_while(|line| !line.starts_with("stack backtrace"))
        .take(8)
        .chain(after("SUMMARY: "))
        .collect();
    let input = after("Test unit written to ").unwrap_or_default();
    Ok(Some(format!(
        "{}\n  all of it: {}\n  again: {} {input}",
        panic.join("\n  "),
        log.display(),
        program.display()
    )))
}
