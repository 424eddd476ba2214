//! Scenario files.
#![no_main]

use std::path::Path;

use gputrace_test_rig::scenario::Scenario;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Scenario::parse(Path::new("fuzz.toml"), text) {
        Ok(scenario) => {
            let numbers = scenario.steps.iter().map(|step| step.number);
            assert!(numbers.eq(1..=scenario.steps.len()));
            for expectation in &scenario.always {
                assert!(!expectation.to_string().is_empty());
            }
        }
        // A mistake is said with a line that the file has.
        Err(error) => {
            assert!(
                (1..=text.lines().count() + 1).contains(&error.line),
                "{error}"
            );
            assert!(!error.message.is_empty());
        }
    }
});
