//! Why a command could not be carried out as asked.

use gputrace_test_rig::dynamic::LoadError;
use gputrace_test_rig::protocol::{Command, Expect};
use std::ffi::c_int;
use std::io;

/// The reason; its text is what the runner shows.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A library of the rig, or a function in it, is missing.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call's result is not one that the command allows.
    #[error("{what} gave {code}; {} expected", expected(.expect))]
    Result {
        /// The call.
        what: String,
        /// Its result.
        code: c_int,
        /// What is allowed.
        expect: Expect,
    },
    /// No context has this label.
    #[error("there is no context `{0}`")]
    NoContext(String),
    /// More was to be freed than there is.
    #[error("the pile `{0}` is empty")]
    EmptyPile(String),
    /// Nothing is mapped in the addresses of this pile.
    #[error("nothing is mapped in the addresses `{0}`")]
    NoMapping(String),
    /// No child has this name, or it has been waited for.
    #[error("there is no child `{0}` to wait for")]
    NoChild(String),
    /// The fake driver has no such setting.
    #[error("the driver has no setting `{0}`")]
    NoSetting(String),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: String,
        /// What it said.
        source: io::Error,
    },
    /// A value of the command makes no sense.
    #[error("{0}")]
    Value(&'static str),
    /// The command may not stand inside another one.
    #[error("not inside another command: {0:?}")]
    Nested(Box<Command>),
    /// One of the command's own threads panicked.
    #[error("a thread panicked")]
    Panicked,
}

fn expected(expect: &Expect) -> String {
    match expect {
        Expect::Code(code) => code.to_string(),
        Expect::OneOf(codes) => {
            let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
            codes.join(" or ")
        }
        Expect::Any(_) => "anything".to_owned(),
    }
}

/// An error if the result is not one of those.
pub fn allowed(what: impl FnOnce() -> String, code: c_int, expect: &Expect) -> Result<(), Problem> {
    if expect.allows(code) {
        return Ok(());
    }
    Err(Problem::Result {
        what: what(),
        code,
        expect: expect.clone(),
    })
}
