//! Calls functions of a libcuda, NVIDIA's own as well, with arguments that the caller chooses. It
//! never calls `cuInit`, so that no call reaches a driver: every one is refused, most with 3.
//!
//! `call-libcuda LIBRARY` says `ready PID` once the library is loaded. Each line of its input is
//!
//! ```text
//! dlsym SYMBOL ARGUMENT...       the address that the dynamic loader gives
//! procaddr SYMBOL ARGUMENT...    the address that cuGetProcAddress gives
//! ```
//!
//! with hexadecimal arguments, the missing ones 0. The answer is `result N`, N being what the function
//! returned; `absent` where the library has no such symbol; `unreachable` where cuGetProcAddress gives
//! its address under no name, version or flag. Pointers can be made into [`BUFFER`].

use std::ffi::{CStr, CString, c_int, c_void};
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::{mem, ptr};

/// Where [`BUFFER_LENGTH`] bytes of zeros lie: a fixed address, so that arguments can be chosen
/// without asking, far from where a program's own memory is.
const BUFFER: usize = 0x1234_5670_0000;
const BUFFER_LENGTH: usize = 1 << 20;

/// More than any function of the driver API takes; those behind the sixth are on the stack.
const ARGUMENTS: usize = 14;

/// Any function of the driver API: integers and pointers only.
#[rustfmt::skip]
type Function = unsafe extern "C" fn(
    u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64,
) -> c_int;
type GetProcAddress = unsafe extern "C" fn(*const i8, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 =
    unsafe extern "C" fn(*const i8, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("call-libcuda: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let path = std::env::args().nth(1).ok_or("name a library")?;
    map_buffer()?;
    let library = Library::open(&path)?;
    let mut output = std::io::stdout().lock();
    let mut say = |text: &str| {
        writeln!(output, "{text}")
            .and_then(|()| output.flush())
            .map_err(|error| error.to_string())
    };
    say(&format!("ready {}", std::process::id()))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let mut words = line.split_whitespace();
        let (Some(way), Some(symbol)) = (words.next(), words.next()) else {
            return Err(format!("not a call: {line}"));
        };
        let mut arguments = [0; ARGUMENTS];
        for (argument, word) in arguments.iter_mut().zip(words) {
            *argument = u64::from_str_radix(word.trim_start_matches("0x"), 16)
                .map_err(|error| format!("{word}: {error}"))?;
        }
        let address = match (way, library.symbol(symbol)) {
            (_, None) => Err("absent"),
            ("dlsym", Some(address)) => Ok(address),
            (_, Some(address)) => library.proc_address(symbol, address).ok_or("unreachable"),
        };
        match address {
            Ok(address) => say(&format!("result {}", call(address, &arguments)))?,
            Err(answer) => say(answer)?,
        }
    }
    Ok(())
}

fn map_buffer() -> Result<(), String> {
    // SAFETY: the flag refuses an address where something is mapped already.
    let mapped = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(BUFFER),
            BUFFER_LENGTH,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    if mapped.addr() == BUFFER {
        Ok(())
    } else {
        Err("the buffer's address is taken".to_owned())
    }
}

#[inline(never)]
fn call(address: *mut c_void, a: &[u64; ARGUMENTS]) -> c_int {
    // SAFETY: what is asked for is a function of the driver API, which takes integers and pointers;
    // more arguments than it takes do no harm in the C calling convention of x86-64.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(address) };
    // SAFETY: without cuInit a function looks at its arguments at most, and whoever wrote the plan
    // gave it pointers into the buffer.
    unsafe {
        function(
            a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13],
        )
    }
}

/// A loaded library; never unloaded.
struct Library(*mut c_void);

impl Library {
    fn open(path: &str) -> Result<Self, String> {
        let name = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: the path is a C string; the caller wants this library's constructors to run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: after a failure this is a C string.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(reason.to_string_lossy().into_owned());
        }
        Ok(Self(handle))
    }

    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is that of a loaded library, the name a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// The same address, from `cuGetProcAddress`: by the name without its suffixes, in the first CUDA
    /// version in which the name means this symbol.
    fn proc_address(&self, symbol: &str, wanted: *mut c_void) -> Option<*mut c_void> {
        // CU_GET_PROC_ADDRESS_DEFAULT and CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
        let per_thread = symbol
            .strip_suffix("_ptsz")
            .or_else(|| symbol.strip_suffix("_ptds"));
        let (name, flags) = per_thread.map_or((symbol, 0), |name| (name, 2));
        let name = match name.rsplit_once("_v") {
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => name,
        };
        let name = CString::new(name).ok()?;
        (2000..14000)
            .step_by(10)
            .map(|version| self.get_proc_address(&name, version, flags))
            .find(|&address| address == wanted)
    }

    fn get_proc_address(&self, name: &CStr, version: c_int, flags: u64) -> *mut c_void {
        let mut address = ptr::null_mut();
        // SAFETY: these are the signatures that the CUDA driver API documents for the names, and all
        // pointers are valid. Both work without cuInit.
        unsafe {
            if let Some(get) = self.symbol("cuGetProcAddress_v2") {
                let get = mem::transmute::<*mut c_void, GetProcAddressV2>(get);
                get(
                    name.as_ptr(),
                    &raw mut address,
                    version,
                    flags,
                    ptr::null_mut(),
                );
            } else if let Some(get) = self.symbol("cuGetProcAddress") {
                let get = mem::transmute::<*mut c_void, GetProcAddress>(get);
                get(name.as_ptr(), &raw mut address, version, flags);
            }
        }
        address
    }
}
