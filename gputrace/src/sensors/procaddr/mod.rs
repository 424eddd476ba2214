//! What a copy of libcuda answers to `cuGetProcAddress`: the addresses of exported functions, which
//! are probed, or others, whose calls would not be seen.
//!
//! Programs that link the CUDA runtime take every function from there. Up to driver 555 each answer is
//! known to be an exported symbol; a later driver need not keep to that, so it can be asked. To ask is
//! to load the library, which runs its constructors: that happens in a child process, and never
//! without the user's wish. `cuInit` is not called.

mod child;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncReadExt as _, time::timeout};

pub use child::child_main;

use crate::{
    evidence::Evidence,
    identity::escape_at_most,
    sensors::child::{self as child_process, SELF},
};

/// Longest answer read; a library that hides everything has some 100 kB.
const MAX_ANSWER: u64 = 4 << 20;

/// What one copy of the library answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcAddresses {
    /// How many addresses it gave, over all names, CUDA versions and kinds of default stream.
    pub answers: u64,
    /// Probed functions whose address it gives.
    pub given: Vec<String>,
    /// Exported functions that gputrace probes and whose address it gives under no name: programs
    /// reach them by their symbol only.
    pub not_given: Vec<String>,
    /// Answers that are no exported function's address: what is called there is not seen.
    pub hidden: Vec<Answer>,
    /// Answers that are another exported function's, which gputrace does not probe.
    pub not_probed: Vec<Answer>,
}

impl ProcAddresses {
    /// Whether every call through these addresses is seen.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.hidden.is_empty()
    }

    /// Safe to print: what it says is the library's own.
    fn escaped(mut self) -> Self {
        for answer in self.hidden.iter_mut().chain(&mut self.not_probed) {
            answer.address = escape_at_most(answer.address.as_bytes(), 256);
        }
        self
    }
}

/// Where a name led that it should not lead to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// The name that was asked for.
    pub name: String,
    /// The first CUDA version for which the answer is so: 12040 is 12.4.
    pub since: u32,
    /// Whether it was asked for as by programs with a default stream for each thread.
    pub per_thread: bool,
    /// The exported symbol, or the file and the offset in it.
    pub address: String,
}

/// How to ask.
#[derive(Clone, Debug)]
pub struct ProcAddressOptions {
    /// The program that has [`child_main`]; usually `/proc/self/exe`.
    pub executable: PathBuf,
    /// Its arguments, without the library.
    pub arguments: Vec<OsString>,
}

impl Default for ProcAddressOptions {
    fn default() -> Self {
        Self {
            executable: PathBuf::from(SELF),
            arguments: vec![OsString::from("libcuda-child")],
        }
    }
}

/// Loads the library in a child process and asks it, for at most `limit`. After that the child is
/// killed and not waited for. Needs a Tokio runtime with I/O and time.
pub async fn ask(
    options: &ProcAddressOptions,
    library: &Path,
    limit: Duration,
) -> Evidence<ProcAddresses> {
    match timeout(limit, answer(options, library)).await {
        Ok(Ok(Ok(addresses))) => Evidence::Value(addresses.escaped()),
        Ok(Ok(Err(reason))) => Evidence::not_available(escape_at_most(reason.as_bytes(), 512)),
        Ok(Err(error)) => Evidence::not_available(format!("the process that loads it: {error}")),
        Err(_) => Evidence::not_available(format!("no answer within {} s", limit.as_secs_f64())),
    }
}

async fn answer(
    options: &ProcAddressOptions,
    library: &Path,
) -> io::Result<Result<ProcAddresses, String>> {
    let mut child = child_process::command(&options.executable)
        .args(&options.arguments)
        .arg("--library")
        // A name without a slash would be looked for elsewhere.
        .arg(std::path::absolute(library)?)
        .spawn()?;
    let output = child.stdout.take();
    let mut text = Vec::new();
    if let Some(output) = output {
        output.take(MAX_ANSWER).read_to_end(&mut text).await?;
    }
    let status = child.wait().await?;
    if !status.success() {
        return Ok(Err(format!("the process that loads it ended ({status})")));
    }
    // Only the kind: the text of the error repeats parts of the answer.
    serde_json::from_slice(&text).map_err(|error| {
        io::Error::other(format!("gave no proper answer ({:?})", error.classify()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of a child that runs this shell script.
    async fn answer_of(script: &str, limit: Duration) -> Evidence<ProcAddresses> {
        let options = ProcAddressOptions {
            executable: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".into(), script.into()],
        };
        ask(&options, Path::new("libcuda.so.1"), limit).await
    }

    #[tokio::test]
    async fn whatever_the_child_does_there_is_an_answer() {
        let long = Duration::from_secs(60);
        let good = "echo '{\"Ok\":{\"answers\":3,\"given\":[],\"not_given\":[],\"hidden\":[],\"not_probed\":[]}}'";
        let answer = answer_of(good, long).await;
        assert_eq!(answer.value().map(|it| it.answers), Some(3));
        for (script, reason) in [
            (
                "echo '{\"Err\":\"no \\u001b such file\"}'",
                "no \\x1b such file",
            ),
            ("kill -SEGV $$", "signal"),
            ("exit 1", "exit status: 1"),
            ("echo nonsense", "no proper answer"),
            ("", "no proper answer"),
        ] {
            let answer = answer_of(script, long).await;
            let found = answer.reason().unwrap_or_default();
            assert!(found.contains(reason), "{script}: {found}");
        }
        let answer = answer_of("sleep 600", Duration::from_millis(50)).await;
        assert!(answer.reason().is_some_and(|it| it.contains("within")));
    }
}
