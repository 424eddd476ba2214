//! The measured program, seen from the bench: it is xtask itself, started with other arguments. A
//! number on a line of its input is a number of repetitions, and the answer is their nanoseconds.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::Context as _;

/// Such a program; killed when it is dropped.
pub struct Measured {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Measured {
    /// Starts it with these arguments and additions to its environment.
    pub fn start<'a>(
        arguments: impl IntoIterator<Item = &'a OsStr>,
        environment: &[(&str, &Path)],
    ) -> anyhow::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Repeats so many times and returns the nanoseconds that one took on average.
    pub fn measure(&mut self, times: u64) -> anyhow::Result<f64> {
        writeln!(self.input, "{times}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let nanoseconds: f64 = line
            .trim()
            .parse()
            .with_context(|| format!("the measured program said {line:?}"))?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(nanoseconds / times as f64)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
