//! Sizes and durations: those that users write, and those of scenarios.
#![no_main]

use std::time::Duration;

use gputrace::units::{Bytes, parse_duration, show_duration};
use gputrace_test_rig::{scenario::units::Units, units};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Bytes>() {
        Ok(bytes) => {
            // What is shown is at most 1 % off, and can be read.
            let shown: Bytes = bytes.to_string().parse().unwrap();
            assert!(shown.0.abs_diff(bytes.0) <= bytes.0 / 100, "{bytes}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match parse_duration(text) {
        Ok(duration) => {
            assert!(duration <= Duration::from_secs(100 * 366 * 86_400));
            assert!(!show_duration(duration.as_nanos().try_into().unwrap()).is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(bytes) = units::parse_bytes(text) {
        assert_eq!(units::parse_bytes(&bytes.to_string()), Ok(bytes));
    }
    let _ = units::parse_nanoseconds(text);
    // A unit of the scenario's own that is as large as can be.
    let mut own = Units::default();
    if let Ok(quantity) = own.parse(text) {
        own.define("whole", quantity);
        let _ = own.parse("1.5 wholes");
    }
    let _ = own.is_quantity(text);
});
