//! The programs under test, built as they are shipped.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use gputrace_test_rig::scenario::Paths;
use libtest_mimic::Failed;
use serde_json::Value;

/// The programs and libraries; built when they are first asked for.
///
/// They are optimised in any case: what is tested is what users run, and a rate that a debug build
/// cannot keep up with says nothing.
pub fn paths() -> Result<&'static Paths, Failed> {
    static BUILT: OnceLock<Result<Paths, String>> = OnceLock::new();
    BUILT
        .get_or_init(build)
        .as_ref()
        .map_err(|message| Failed::from(message.clone()))
}

/// The top of this repository.
pub fn root() -> PathBuf {
    // What cargo says now, since a checkout may have been moved after this test was built.
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package
        .ancestors()
        .nth(2)
        .map_or_else(PathBuf::new, Path::to_owned)
}

/// Names a folder with programs that are built already, such as those of a package.
const BUILT_ALREADY: &str = "GPUTRACE_TEST_PROGRAMS";

fn build() -> Result<Paths, String> {
    if let Some(folder) = env::var_os(BUILT_ALREADY) {
        let paths = Paths::in_folder(Path::new(&folder));
        return match paths.missing() {
            Some(file) => Err(format!("{BUILT_ALREADY}: {} is missing", file.display())),
            None => Ok(paths),
        };
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The selection of `cargo xtask build`: another one would build shared dependencies once more.
    cargo.current_dir(root()).args([
        "build",
        "--release",
        "--workspace",
        "--exclude=xtask",
        "--exclude=gputrace-ebpf",
        "--message-format=json-render-diagnostics",
    ]);
    // These describe this test; what is built must not depend on who asks for it.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "the programs under test cannot be built: {}",
            output.status
        ));
    }
    let made = artifacts(&String::from_utf8_lossy(&output.stdout));
    let find = |name: &str| {
        made.get(name)
            .cloned()
            .ok_or_else(|| format!("cargo did not say where {name} is"))
    };
    Ok(Paths {
        gputrace: find("gputrace")?,
        actor: find("actor")?,
        libcuda: find("libcuda.so")?,
        libcudart: find("libcudart.so")?,
        libnvml: find("libnvidia_ml.so")?,
    })
}

/// Every file that cargo says it made, by its name.
fn artifacts(messages: &str) -> HashMap<String, PathBuf> {
    let lines = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut made = HashMap::new();
    for message in lines.filter(|message| message["reason"] == "compiler-artifact") {
        let files = message["filenames"].as_array().into_iter().flatten();
        for file in files.filter_map(Value::as_str).map(PathBuf::from) {
            if let Some(name) = file.file_name() {
                made.insert(name.to_string_lossy().into_owned(), file.clone());
            }
        }
    }
    made
}
