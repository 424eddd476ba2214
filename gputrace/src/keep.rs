//! The file of `gputrace record`: how it is made, and what is said of it at the end.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::PathBuf,
    time::Instant,
};

use crate::{
    identity::escape_path,
    recording::{Header, Recorder, Recording, Summary},
    trace::{Asked, SAME_SIGNAL, Signals},
    units::{Bytes, counted},
};

/// It holds command lines.
const MODE: u32 = 0o600;

/// What kept a recording from being made.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// There is one.
    #[error("{file} is there already; --force overwrites it")]
    Exists {
        /// Which.
        file: String,
    },
    /// It cannot be written.
    #[error("{file} cannot be written: {source}")]
    Write {
        /// Which.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Ctrl-C while it was being written.
    #[error("interrupted again before {file} was written: it breaks off")]
    Impatient {
        /// Which.
        file: String,
    },
}

/// Where to keep what happens.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The file.
    pub file: PathBuf,
    /// Overwrite one that is there.
    pub force: bool,
}

/// A file that is open and not yet changed.
#[derive(Debug)]
pub(crate) struct OpenFile {
    path: PathBuf,
    file: File,
    made: Option<Made>,
}

/// A file that was made for a recording; removed, unless one is begun.
#[derive(Debug)]
struct Made {
    path: PathBuf,
    begun: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if !self.begun {
            // An empty file is a nuisance, no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A recording that goes on.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    recording: Recording,
}

impl Keep {
    /// Opens the file.
    pub(crate) fn open(self) -> Result<OpenFile, KeepError> {
        let Self { file: path, force } = self;
        let shown = escape_path(&path);
        let mut options = OpenOptions::new();
        options.write(true).mode(MODE);
        let (file, is_new) = match options.clone().create_new(true).open(&path) {
            Ok(file) => (Ok(file), true),
            // A pipe or a device has nothing that could be overwritten.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !force && std::fs::metadata(&path).is_ok_and(|it| it.is_file()) {
                    return Err(KeepError::Exists { file: shown });
                }
                // gputrace runs as root: a link that somebody else left must not lead it astray.
                (options.custom_flags(libc::O_NOFOLLOW).open(&path), false)
            }
            Err(error) => (Err(error), false),
        };
        match file {
            Ok(file) => Ok(OpenFile {
                made: is_new.then(|| Made {
                    path: path.clone(),
                    begun: false,
                }),
                path,
                file,
            }),
            Err(source) => Err(KeepError::Write {
                file: shown,
                source,
            }),
        }
    }
}

impl OpenFile {
    /// Begins the recording.
    pub(crate) fn start(self, header: &Header) -> Result<(Recorder, Kept), KeepError> {
        let Self { path, file, made } = self;
        let shown = escape_path(&path);
        let begin = || {
            if file.metadata()?.is_file() {
                file.set_permissions(Permissions::from_mode(MODE))?;
                file.set_len(0)?;
            }
            Recorder::start(file, header)
        };
        let (recorder, recording) = begin().map_err(|source| KeepError::Write {
            file: shown,
            source,
        })?;
        if let Some(mut made) = made {
            made.begun = true;
        }
        Ok((recorder, Kept { path, recording }))
    }
}

impl Kept {
    /// Its path, harmless for a terminal.
    pub(crate) fn shown(&self) -> String {
        escape_path(&self.path)
    }

    /// Waits until the file is written, and says on stderr what is in it.
    pub(crate) async fn wait(self, signals: &mut Signals) -> Result<(), KeepError> {
        let file = self.shown();
        let began = Instant::now();
        let mut written = tokio::task::spawn_blocking(move || self.recording.wait());
        let summary = loop {
            tokio::select! {
                summary = &mut written => break summary,
                asked = signals.next() => if matches!(asked, Asked::End(_)) && began.elapsed() > SAME_SIGNAL {
                    return Err(KeepError::Impatient { file });
                },
            }
        };
        match summary {
            Ok(summary) => tell(file, summary),
            Err(error) => Err(KeepError::Write {
                file,
                source: io::Error::other(error),
            }),
        }
    }
}

fn tell(file: String, summary: Summary) -> Result<(), KeepError> {
    // Nobody to tell if stderr is closed.
    let _ = writeln!(
        io::stderr(),
        "gputrace: recorded {} in {file} ({})",
        counted(summary.events, "event"),
        Bytes(summary.bytes)
    );
    if summary.not_recorded > 0 {
        let why = summary
            .error
            .as_ref()
            .map_or_else(|| "the disk was too slow".to_owned(), ToString::to_string);
        let _ = writeln!(
            io::stderr(),
            "gputrace: {} could not be recorded: {why}",
            counted(summary.not_recorded, "event")
        );
    }
    if summary.complete {
        return Ok(());
    }
    let source = summary
        .error
        .unwrap_or_else(|| io::Error::other("tracing ended before it was complete"));
    Err(KeepError::Write { file, source })
}
