//! The process that calls NVML: reads requests on its standard input, answers on its standard
//! output, and ends with its parent.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    os::fd::AsFd,
    path::PathBuf,
    process::ExitCode,
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::{
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::{dup2_stdin, dup2_stdout},
};

use super::{
    library::{DEFAULT_LIBRARY, Library},
    protocol::{Outcome, Reply, Request},
};

/// The main function of `gputrace nvml-child`, with the library to load or the one that the dynamic
/// loader finds. Ends when its standard input does.
pub fn child_main(library: Option<PathBuf>) -> ExitCode {
    let library = library.map_or_else(|| OsString::from(DEFAULT_LIBRARY), PathBuf::into_os_string);
    match serve(&library) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent sees that this process ended; there is nobody else to tell.
        Err(_) => ExitCode::from(2),
    }
}

fn serve(library: &OsStr) -> io::Result<()> {
    // The end of the input says that the parent is gone, but only to whoever reads it; this also
    // ends a process that sleeps in the driver.
    set_pdeathsig(Signal::SIGKILL)?;
    let (input, mut output) = take_standard_streams()?;
    let requests = read_requests(input);
    let mut opened: Option<Library> = None;
    for request in requests {
        let outcome = sample(library, &mut opened);
        if !request.keep_open {
            // Closes the device files before the answer, so that who has the answer can rely on it.
            opened = None;
        }
        let mut line = serde_json::to_vec(&Reply {
            request: request.request,
            outcome,
        })?;
        line.push(b'\n');
        output.write_all(&line)?;
    }
    Ok(())
}

fn sample(library: &OsStr, opened: &mut Option<Library>) -> Outcome {
    match opened.take().map_or_else(|| Library::open(library), Ok) {
        Ok(nvml) => {
            let sample = nvml.sample();
            // After an error NVML is opened anew: the driver may have been loaded again meanwhile.
            if sample.devices.is_available() {
                *opened = Some(nvml);
            }
            Outcome::Sample(sample)
        }
        Err(reason) => Outcome::Failure(reason),
    }
}

/// Moves the pipes away from where a library expects a terminal: what it prints must not get into
/// the answers.
fn take_standard_streams() -> io::Result<(File, File)> {
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok((input, output))
}

/// Passes requests on from a thread of its own, so that the end of the input ends this process even
/// while a call into the driver does not return. A line that is no request ends it as well.
fn read_requests(input: File) -> Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(input).lines() {
            let request = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            match request {
                Some(request) if sender.send(request).is_ok() => {}
                _ => break,
            }
        }
        // Not by returning: the main thread may be in the driver and never look again. And not by
        // exit(3): it would call into the library to clean up.
        // SAFETY: it ends the process and touches no memory.
        unsafe { libc::_exit(0) }
    });
    receiver
}
