//! From ledger to report: ordinary functions over values.

mod build;
mod closing;
mod leaks;
mod verdicts;

pub use build::{Filter, module_of, report};
pub use leaks::{Kind, RULE, Subject, Thresholds, Trend, Verdict, judge};
