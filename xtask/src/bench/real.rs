//! What a probe costs in NVIDIA's own libcuda, as far as `cargo xtask setup` has fetched it: calls that
//! the library refuses at once, since nothing is initialised, without probes and with gputrace's.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    fs, mem,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::Instant,
};

use anyhow::{Context as _, bail};
use gputrace_test_rig::real::{BRANCHES, Real};

use super::{
    measured::Measured,
    median,
    tracers::{Running, Tracer},
};

/// An odd number, so that the median is one of the values.
const ROUNDS: usize = 5;

/// Calls without probes are so quick that many are needed; with them, few make a long time.
const UNPROBED: u64 = 20_000_000;
const PROBED: u64 = 200_000;

/// What is called: one that allocates, and one of those that only count.
const FUNCTIONS: [&str; 2] = ["cuMemAlloc_v2", "cuLaunchKernel"];

/// What a function returns before `cuInit`.
const NOT_INITIALIZED: c_int = 3;

/// Measures every library that is there, and prints what it found.
pub fn measure(programs: &Path) -> anyhow::Result<()> {
    let gputrace = programs.join("gputrace");
    // Programs lie in a folder of the target folder.
    let real = Real::of(programs.parent().unwrap_or(programs));
    println!(
        "\nNVIDIA's libcuda, one thread, calls that it refuses with 3 (not initialised), gputrace \
         without stacks, median of {ROUNDS} rounds. A refused launch is an event; one that succeeds is \
         only counted, which costs less:\n"
    );
    println!(
        "{:<22} {:<16} {:>12} {:>12} {:>12} {:>10}",
        "", "", "no probe, ns", "probed, ns", "added, ns", "ratio"
    );
    for branch in BRANCHES {
        let library = match real.have(real.libcuda(branch)) {
            Ok(link) => fs::canonicalize(link)?,
            Err(reason) => {
                println!("libcuda {branch}: skipped: {reason}");
                continue;
            }
        };
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        for function in FUNCTIONS {
            let (unprobed, probed) = measure_one(&gputrace, &library, function)
                .with_context(|| format!("{name}, {function}"))?;
            println!(
                "{name:<22} {function:<16} {unprobed:>12.1} {probed:>12.0} {:>12.0} {:>9.0}x",
                probed - unprobed,
                probed / unprobed
            );
        }
    }
    Ok(())
}

/// Nanoseconds of a call without probes and with them.
fn measure_one(gputrace: &Path, library: &Path, function: &str) -> anyhow::Result<(f64, f64)> {
    let mut caller = start(library, function)?;
    let (mut unprobed, mut probed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        unprobed.push(caller.measure(UNPROBED)?);
        let tracer = Tracer::Gputrace { stacks: false };
        let running = Running::start(tracer, gputrace, library, caller.pid())?
            .context("gputrace is not started")?;
        probed.push(caller.measure(PROBED)?);
        // A tracer that missed calls would be cheap for the wrong reason.
        let seen = running.stop(caller.pid())?;
        let failures = seen.failures.get(function).copied().unwrap_or(0);
        if failures + seen.lost < PROBED {
            bail!("{PROBED} calls were made, and it saw {failures}");
        }
    }
    Ok((median(&unprobed), median(&probed)))
}

/// Starts the measured program with this library, and a first time with it: then it is loaded, and
/// the processor at its speed.
fn start(library: &Path, function: &str) -> anyhow::Result<Measured> {
    let arguments = ["bench-caller".as_ref(), library.as_ref(), function.as_ref()];
    let mut caller = Measured::start(arguments, &[])?;
    caller.measure(UNPROBED / 100)?;
    Ok(caller)
}

/// More than either function takes; those behind the sixth are on the stack.
#[rustfmt::skip]
type Function = unsafe extern "C" fn(
    *mut u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
) -> c_int;

/// The program itself: a number on a line of its input is a number of calls to make, and the answer is
/// their nanoseconds.
pub fn run_caller(library: &Path, function: &str) -> anyhow::Result<()> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string; the library's constructors touch no device.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        bail!("{} cannot be loaded", library.display());
    }
    let function = symbol(handle, &CString::new(function)?)?;
    for line in std::io::stdin().lines() {
        let calls: u64 = line?.trim().parse()?;
        let mut place = 0;
        let start = Instant::now();
        for _ in 0..calls {
            // SAFETY: the first argument is a valid pointer, all that either function follows.
            let result = unsafe { function(&raw mut place, 1 << 20, 1, 1, 1, 1, 1, 0, 0, 0, 0) };
            if result != NOT_INITIALIZED {
                bail!("a call returned {result}");
            }
        }
        println!("{}", start.elapsed().as_nanos());
    }
    Ok(())
}

fn symbol(handle: *mut c_void, name: &CStr) -> anyhow::Result<Function> {
    // SAFETY: the handle is a loaded library, the name a C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        bail!("no {name:?}");
    }
    // SAFETY: a function of the driver API takes integers and pointers, and more arguments than it
    // takes do no harm in the C calling convention.
    Ok(unsafe { mem::transmute::<*mut c_void, Function>(address) })
}
