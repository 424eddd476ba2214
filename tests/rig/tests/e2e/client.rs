//! A CUDA program for tests of discovery: this test program itself, started again. It loads the copy
//! of the library that it is told to, when it is told to.
//!
//! Each line on its input is a command, answered by a line on its output:
//!
//! | command | answer |
//! |---|---|
//! | `load PATH` | the boot clock after `dlopen`, in nanoseconds |
//! | `alloc BYTES COUNT` | `ok`; creates a context first, if there is none |
//! | `pid` | its PID as `/proc` has it |
//!
//! `exit CODE` has none. It ends with its input. With arguments it takes each as a line instead.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::io::{BufRead, Write};
use std::process::{Command, ExitCode};

use gputrace_test_rig::config::RIG;
use libtest_mimic::Failed;

/// Makes this program a client.
const CLIENT: &str = "GPUTRACE_TEST_CLIENT";

/// A command that starts a client of the rig.
pub fn command(rig: &std::path::Path) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    environment(&mut command, rig);
    Ok(command)
}

/// What makes this program a client, for a command that executes it in the end.
pub fn environment(command: &mut Command, rig: &std::path::Path) {
    command.env(CLIENT, "1").env(RIG, rig);
}

/// Is the client, if this program was started as one.
pub fn main() -> Option<ExitCode> {
    std::env::var_os(CLIENT)?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut client = Client::default();
    let result = if arguments.is_empty() {
        std::io::stdin()
            .lock()
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| client.obey(&line))
    } else {
        arguments.iter().try_for_each(|line| client.obey(line))
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("client: {error}");
            ExitCode::FAILURE
        }
    })
}

#[derive(Default)]
struct Client {
    library: Option<*mut c_void>,
    has_context: bool,
}

impl Client {
    fn obey(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|error| format!("{text}: {error}"))
        };
        let answer = match words[..] {
            ["load", path] => {
                self.load(path)?;
                let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
                let now = now.map(std::time::Duration::from);
                now.map_err(|error| error.to_string())?
                    .as_nanos()
                    .to_string()
            }
            ["alloc", bytes, count] => {
                self.allocate(number(bytes)?, number(count)?)?;
                "ok".to_owned()
            }
            ["pid"] => std::fs::read_link("/proc/self")
                .map_err(|error| error.to_string())?
                .display()
                .to_string(),
            ["exit", code] => std::process::exit(code.parse().unwrap_or(1)),
            _ => return Err(format!("{line}: not a command")),
        };
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{answer}")
            .and_then(|()| stdout.flush())
            .map_err(|error| error.to_string())
    }

    fn load(&mut self, path: &str) -> Result<(), String> {
        let name = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: a C string; the library is the rig's own.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: dlopen has failed, so there is a message, valid until the next call.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("{path}: {}", why.to_string_lossy()));
        }
        self.library = Some(library);
        Ok(())
    }

    fn function(&self, name: &CStr) -> Result<*mut c_void, String> {
        let library = self.library.ok_or("no library is loaded")?;
        // SAFETY: an open library and a C string.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("no {name:?}"));
        }
        Ok(address)
    }

    fn allocate(&mut self, bytes: usize, count: usize) -> Result<(), String> {
        let checked = |what: &str, result: c_int| match result {
            0 => Ok(()),
            code => Err(format!("{what} gave {code}")),
        };
        if !self.has_context {
            // SAFETY: the prototypes are those of cuda.h.
            let (init, create) = unsafe {
                (
                    std::mem::transmute::<*mut c_void, extern "C" fn(c_uint) -> c_int>(
                        self.function(c"cuInit")?,
                    ),
                    std::mem::transmute::<
                        *mut c_void,
                        extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int,
                    >(self.function(c"cuCtxCreate_v2")?),
                )
            };
            checked("cuInit", init(0))?;
            let mut context = std::ptr::null_mut();
            checked("cuCtxCreate", create(&raw mut context, 0, 0))?;
            self.has_context = true;
        }
        // SAFETY: the prototype is that of cuda.h.
        let allocate = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut u64, usize) -> c_int>(
                self.function(c"cuMemAlloc_v2")?,
            )
        };
        for _ in 0..count {
            let mut address = 0;
            checked("cuMemAlloc", allocate(&raw mut address, bytes))?;
        }
        Ok(())
    }
}
