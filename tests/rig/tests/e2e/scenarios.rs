//! Every scenario is a test; besides, every line that gputrace prints in one must be valid by the
//! documented schema.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gputrace_test_rig::scenario::{self, Options, Outcome};
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::Value;

use crate::{programs, recordings};

pub fn trials() -> Vec<Trial> {
    files()
        .into_iter()
        .map(|file| {
            let name = file
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            Trial::ignorable_test(format!("scenario::{name}"), move || run(&file))
        })
        .collect()
}

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(programs::root().join("tests/scenarios"));
    let mut files: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    files
}

fn run(file: &Path) -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let options = Options {
        folder: folder.path().to_owned(),
        record: true,
        keep: true,
        ..Options::new(programs::paths()?.clone())
    };
    match scenario::run_file(file, &options) {
        Outcome::Passed(passed) => {
            for note in passed.notes.iter().filter(|note| !note.starts_with("kept")) {
                eprintln!("     {note}");
            }
            check_lines(folder.path())?;
            recordings::check(folder.path())?;
            Ok(Completion::Completed)
        }
        Outcome::Skipped(reasons) => Ok(Completion::ignored_with(reasons.join("; "))),
        failed => {
            // Whoever looks into it needs what was printed.
            let kept = folder.keep();
            Err(Failed::from(format!(
                "{failed}\nall of it: {}",
                kept.display()
            )))
        }
    }
}

/// Validates what each gputrace of a run printed as NDJSON.
fn check_lines(folder: &Path) -> Result<(), Failed> {
    for rig in fs::read_dir(folder)? {
        for entry in fs::read_dir(rig?.path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "stdout") {
                let text = fs::read_to_string(&path)?;
                // What is for people begins with no brace.
                text.lines()
                    .filter(|line| line.starts_with('{'))
                    .try_for_each(check_line)?;
            }
        }
    }
    Ok(())
}

/// Validates one line by `docs/report.schema.json`.
pub fn check_line(line: &str) -> Result<(), Failed> {
    static SCHEMA: OnceLock<Result<jsonschema::Validator, String>> = OnceLock::new();
    let validator = SCHEMA
        .get_or_init(|| {
            let path = programs::root().join("docs/report.schema.json");
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let schema: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            jsonschema::validator_for(&schema).map_err(|error| error.to_string())
        })
        .as_ref()
        .map_err(|message| Failed::from(message.clone()))?;
    let value: Value = serde_json::from_str(line)
        .map_err(|error| Failed::from(format!("a line is not JSON ({error}): {line}")))?;
    validator.validate(&value).map_err(|error| {
        let place = error.instance_path().to_string();
        Failed::from(format!(
            "a line does not fit the schema at {place}: {error}"
        ))
    })
}
