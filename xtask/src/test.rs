//! `cargo xtask test`: every check, each one's result, and one summary of all in the form of Rust's
//! own test programs.

use std::{
    fmt,
    io::{BufRead as _, BufReader},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::Context as _;
use gputrace_test_rig::real;

use crate::{
    commands, object_file,
    workspace::{self, Outcome, Workspace},
};

/// What test programs said in all, with one more for each check that is none.
#[derive(Default)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs everything, also after a failure, so that one run tells all.
pub fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let mut totals = Totals::default();
    let mut table = Vec::new();
    let mut part = |name: &'static str, check: &dyn Fn() -> anyhow::Result<Outcome>| {
        eprintln!("\n=== {name}");
        let outcome = check().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        match &outcome {
            Outcome::Passed => totals.passed += 1,
            Outcome::Failed(_) => totals.failed += 1,
            Outcome::Skipped(_) => totals.ignored += 1,
        }
        eprintln!("{outcome}");
        table.push((name, outcome.to_string()));
    };

    part("format", &|| {
        cargo_tool(workspace, "fmt", &["--all", "--check"])
    });
    part("lints", &|| {
        cargo_tool(
            workspace,
            "clippy",
            &["--workspace", "--all-targets", "--", "-Dwarnings"],
        )
    });
    part("lints of the eBPF programs", &|| {
        object_file::lint(workspace)
    });
    part("documentation", &|| {
        let mut doc = workspace.cargo();
        doc.args([
            "doc",
            "--workspace",
            "--exclude=xtask",
            "--no-deps",
            "--quiet",
        ]);
        Ok(workspace::check(doc.env("RUSTDOCFLAGS", "-Dwarnings")).into())
    });
    part("eBPF object", &|| object_file::check(workspace));
    part("optimised build", &|| Ok(commands::build(workspace).into()));

    eprintln!("\n=== tests");
    let tests = run_tests(workspace)?;
    table.push(("tests", tests.to_string()));
    totals.passed += tests.totals.passed;
    totals.failed += tests.totals.failed;
    totals.ignored += tests.totals.ignored;

    println!();
    for (name, result) in &table {
        println!("{name:<27} {result}");
    }
    for line in &tests.ignored {
        println!("{:<27} {line}", "");
    }
    let Totals {
        passed,
        failed,
        ignored,
    } = totals;
    println!("\nThe checks above and all test programs together:");
    println!(
        "test result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         0 filtered out; finished in {:.2}s",
        if failed == 0 { "ok" } else { "FAILED" },
        start.elapsed().as_secs_f64()
    );
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A cargo subcommand that a toolchain need not have.
fn cargo_tool(workspace: &Workspace, tool: &str, args: &[&str]) -> anyhow::Result<Outcome> {
    if let Err(error) = workspace::stdout(workspace.cargo().args([tool, "--version"])) {
        return Ok(Outcome::Skipped(format!(
            "this toolchain has no cargo {tool}: {error}"
        )));
    }
    Ok(workspace::check(workspace.cargo().arg(tool).args(args)).into())
}

/// What the test programs said.
#[derive(Default)]
struct Tests {
    totals: Totals,
    /// `name ... ignored, reason`
    ignored: Vec<String>,
    /// `name ... FAILED`
    failed: Vec<String>,
}

fn run_tests(workspace: &Workspace) -> anyhow::Result<Tests> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    // The end-to-end tests would build the same once more.
    cargo.env("GPUTRACE_TEST_PROGRAMS", workspace.programs());
    cargo.env(real::REAL, real::Real::of(&workspace.target).folder());
    let mut tests = Tests::default();
    let succeeded = pass_through(&mut cargo, |line| tests.hear(line))?;
    if !succeeded && tests.totals.failed == 0 {
        // A program that could not be built, or that died.
        tests.totals.failed += 1;
        tests
            .failed
            .push("cargo test ended with an error".to_owned());
    }
    Ok(tests)
}

impl Tests {
    fn hear(&mut self, line: &str) {
        if let Some(numbers) = line.strip_prefix("test result: ") {
            let number = |what: &str| {
                let words: Vec<&str> = numbers.split([' ', ';', '.']).collect();
                let at = words.iter().position(|word| *word == what);
                at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok())
                    .unwrap_or(0)
            };
            self.totals.passed += number("passed");
            self.totals.failed += number("failed");
            self.totals.ignored += number("ignored");
        } else if let Some((name, result)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once("... "))
        {
            let text = format!("{}: {result}", name.trim());
            if result.starts_with("ignored") {
                self.ignored.push(text);
            } else if result.starts_with("FAILED") {
                self.failed.push(text);
            }
        }
    }
}

impl fmt::Display for Tests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals {
            passed,
            failed,
            ignored,
        } = self.totals;
        write!(f, "{passed} passed, {failed} failed, {ignored} ignored")?;
        self.failed
            .iter()
            .try_for_each(|name| write!(f, "\n{:<27} {name}", ""))
    }
}

/// Runs a command whose output a function hears and the user still sees; whether it succeeded.
fn pass_through(command: &mut Command, mut hear: impl FnMut(&str)) -> anyhow::Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("no output")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        hear(&line);
    }
    Ok(child.wait()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_added_up() {
        let mut tests = Tests::default();
        for line in [
            "test ledger::frees ... ok",
            "test scenario sh_05 ... ignored, it needs root",
            "test ledger::leaks ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 1.10s",
        ] {
            tests.hear(line);
        }
        let Totals {
            passed,
            failed,
            ignored,
        } = tests.totals;
        assert_eq!((passed, failed, ignored), (13, 1, 1));
        assert_eq!(tests.ignored, ["scenario sh_05: ignored, it needs root"]);
        assert_eq!(tests.failed, ["ledger::leaks: FAILED"]);
    }
}
