//! End-to-end tests of the command as it is shipped: every scenario of `tests/scenarios`, and how
//! the command behaves when something is in its way.
//!
//! The tests run one after the other: some load every core, and rates are compared. What a machine
//! cannot run is ignored with the reason.

mod client;
mod command;
mod discovery;
mod programs;
mod real_clients;
mod real_libcuda;
mod recordings;
mod remains;
mod run;
mod scenarios;
mod tracer;
mod tracing;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What a test of this program is: it may find that it cannot run here.
type Test = fn() -> Result<Completion, Failed>;

fn main() -> ExitCode {
    if let Some(code) = client::main() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = command::trials();
    trials.extend(tracing::trials());
    trials.extend(discovery::trials());
    trials.extend(run::trials());
    trials.extend(recordings::trials());
    trials.extend(real_libcuda::trials());
    trials.extend(real_clients::trials());
    trials.extend(scenarios::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Tests with their names, below a common one.
fn named(group: &str, tests: &[(&str, Test)]) -> Vec<Trial> {
    let trial =
        |&(name, test): &(&str, Test)| Trial::ignorable_test(format!("{group}::{name}"), test);
    tests.iter().map(trial).collect()
}

/// A failure unless the condition holds.
fn require(condition: bool, otherwise: impl FnOnce() -> String) -> Result<(), Failed> {
    if condition {
        Ok(())
    } else {
        Err(Failed::from(otherwise()))
    }
}
