//! The child's side: loads the library and asks for every name.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, CString, c_char, c_int, c_void},
    fs::{File, OpenOptions},
    io::{self, Write as _},
    mem,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::Path,
    process::ExitCode,
    ptr,
};

use nix::{
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::dup2_stdout,
};

use super::{Answer, ProcAddresses};
use crate::cuda::FunctionId;

/// Every CUDA version that a program may ask with: 2.0 to 19.9.
const VERSIONS: std::ops::Range<c_int> = 2000..20_000;
/// The number of CUDA 2.1 minus that of 2.0.
const VERSION_STEP: usize = 10;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`; 0 means
/// the first.
const FLAGS: [u64; 2] = [1, 2];

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// The main function of `gputrace libcuda-child`: prints what the library answers, or why it does not.
#[must_use]
pub fn child_main(library: &Path) -> ExitCode {
    let print = || -> io::Result<()> {
        // Whoever asked is not kept waiting by what is left of this process.
        set_pdeathsig(Signal::SIGKILL)?;
        // What the library prints must not get into the answer.
        let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        dup2_stdout(OpenOptions::new().write(true).open("/dev/null")?)?;
        let answer = Loaded::open(library).and_then(|library| library.addresses());
        serde_json::to_writer(&mut output, &answer)?;
        output.flush()
    };
    let code = i32::from(print().is_err());
    // Not by exit(3): it would call into the library to clean up.
    // SAFETY: it ends the process and touches no memory.
    unsafe { libc::_exit(code) }
}

/// A loaded library.
struct Loaded {
    handle: *mut c_void,
}

/// Where an address is, as the loader knows it.
struct Location {
    /// The file's name without its folder.
    file: String,
    /// Where the file begins in memory.
    base: usize,
    /// The exported symbol that begins exactly there.
    symbol: Option<String>,
}

/// Which function an address is.
enum Place {
    /// An exported symbol of this library.
    Exported(String),
    /// Nothing that has a name.
    Elsewhere(String),
}

impl Loaded {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: the name is a C string; that constructors run is what the user was told.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: takes nothing.
            let reason = unsafe { libc::dlerror() };
            if reason.is_null() {
                return Err("it cannot be loaded".to_owned());
            }
            // SAFETY: not null, so it is the C string that the loader keeps for this thread.
            let reason = unsafe { CStr::from_ptr(reason) };
            return Err(reason.to_string_lossy().into_owned());
        }
        Ok(Self { handle })
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is that of a loaded library, the name a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// Asks for every name, in every version.
    fn addresses(&self) -> Result<ProcAddresses, String> {
        let get = self
            .get_proc_address()
            .ok_or("it has no cuGetProcAddress: programs can only use its symbols")?;
        let mut exported = BTreeMap::new();
        for symbol in FunctionId::all().map(FunctionId::symbol) {
            let name = CString::new(symbol).map_err(|error| error.to_string())?;
            if let Some(address) = self.symbol(&name) {
                exported.insert(address.addr(), symbol);
            }
        }
        let names: BTreeSet<&str> = FunctionId::all()
            .map(|function| base_name(function.symbol()))
            .collect();
        let base = exported
            .keys()
            .find_map(|&address| Some(locate(ptr::without_provenance_mut(address))?.base));
        let mut found = ProcAddresses::default();
        let mut given = BTreeSet::new();
        for name in names {
            let text = CString::new(name).map_err(|error| error.to_string())?;
            for flags in FLAGS {
                let mut latest = ptr::null_mut();
                for version in VERSIONS.step_by(VERSION_STEP) {
                    let address = get(&text, version, flags);
                    if address.is_null() {
                        continue;
                    }
                    found.answers += 1;
                    if let Some(symbol) = exported.get(&address.addr()) {
                        given.insert(*symbol);
                    } else if address != latest {
                        let (list, address) = match place(address, base) {
                            Place::Exported(symbol) => (&mut found.not_probed, symbol),
                            Place::Elsewhere(place) => (&mut found.hidden, place),
                        };
                        list.push(Answer {
                            name: name.to_owned(),
                            since: version.unsigned_abs(),
                            per_thread: flags == 2,
                            address,
                        });
                    }
                    latest = address;
                }
            }
        }
        found.not_given = exported
            .values()
            .filter(|symbol| !given.contains(*symbol))
            .map(|&symbol| symbol.to_owned())
            .collect();
        found.given = given.into_iter().map(str::to_owned).collect();
        // What it answers for both kinds of streams is told once.
        for list in [&mut found.hidden, &mut found.not_probed] {
            let known: BTreeSet<(String, String)> = list
                .iter()
                .filter(|it| !it.per_thread)
                .map(|it| (it.name.clone(), it.address.clone()))
                .collect();
            list.retain(|it| {
                !it.per_thread || !known.contains(&(it.name.clone(), it.address.clone()))
            });
        }
        Ok(found)
    }

    /// The newest form of the function that this library has.
    fn get_proc_address(&self) -> Option<impl Fn(&CStr, c_int, u64) -> *mut c_void> {
        let (newest, second) = (
            self.symbol(c"cuGetProcAddress_v2"),
            self.symbol(c"cuGetProcAddress"),
        );
        if newest.is_none() && second.is_none() {
            return None;
        }
        Some(move |name: &CStr, version, flags| {
            let mut address = ptr::null_mut();
            if let Some(get) = newest {
                // SAFETY: this is the function's signature in the CUDA driver API (12.0 and later).
                let get = unsafe { mem::transmute::<*mut c_void, GetProcAddressV2>(get) };
                let mut status = 0;
                // SAFETY: every pointer is valid, and it may be called without cuInit.
                unsafe {
                    get(
                        name.as_ptr(),
                        &raw mut address,
                        version,
                        flags,
                        &raw mut status,
                    )
                };
            } else if let Some(get) = second {
                // SAFETY: this is the function's signature in the CUDA driver API (11.3 and later).
                let get = unsafe { mem::transmute::<*mut c_void, GetProcAddress>(get) };
                // SAFETY: as above.
                unsafe { get(name.as_ptr(), &raw mut address, version, flags) };
            }
            address
        })
    }
}

/// The name under which `cuGetProcAddress` knows a symbol.
fn base_name(symbol: &str) -> &str {
    let name = symbol
        .strip_suffix("_ptsz")
        .or_else(|| symbol.strip_suffix("_ptds"))
        .unwrap_or(symbol);
    match name.rsplit_once("_v") {
        Some((base, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// What lies at an address that is none of the probed functions', in a library that begins at `base`.
fn place(address: *mut c_void, base: Option<usize>) -> Place {
    let Some(location) = locate(address) else {
        return Place::Elsewhere("no file's code".to_owned());
    };
    let offset = address.addr().wrapping_sub(location.base);
    match location.symbol {
        Some(symbol) if Some(location.base) == base => Place::Exported(symbol),
        _ => Place::Elsewhere(format!("{}+{offset:#x}", location.file)),
    }
}

fn locate(address: *mut c_void) -> Option<Location> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: it takes any address, and info is valid for the write.
    if unsafe { libc::dladdr(address, &raw mut info) } == 0 {
        return None;
    }
    let text = |pointer: *const c_char| {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: what dladdr gives is null or a C string of the loaded file.
        Some(
            unsafe { CStr::from_ptr(pointer) }
                .to_string_lossy()
                .into_owned(),
        )
    };
    let path = text(info.dli_fname).unwrap_or_default();
    Some(Location {
        file: path.rsplit('/').next().unwrap_or_default().to_owned(),
        base: info.dli_fbase.addr(),
        symbol: text(info.dli_sname).filter(|_| info.dli_saddr == address),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_is_known_by_its_name_without_suffixes() {
        for (symbol, name) in [
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemAllocAsync_ptsz", "cuMemAllocAsync"),
            ("cuMemPrefetchAsync_v2_ptsz", "cuMemPrefetchAsync"),
            ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"),
            ("cuCtxSetCurrent", "cuCtxSetCurrent"),
            ("cu_valid", "cu_valid"),
        ] {
            assert_eq!(base_name(symbol), name);
        }
    }

    #[test]
    fn only_an_exact_address_is_a_symbol() {
        let loader = Loaded::open(Path::new("libc.so.6")).unwrap();
        let address = loader.symbol(c"strtoull").unwrap();
        let base = Some(locate(address).unwrap().base);
        assert!(matches!(place(address, base), Place::Exported(_)));
        let inside = address.wrapping_byte_add(1);
        for (address, base) in [(inside, base), (address, Some(1)), (address, None)] {
            assert!(matches!(place(address, base), Place::Elsewhere(it) if it.contains("libc")));
        }
        assert!(matches!(place(ptr::null_mut(), base), Place::Elsewhere(_)));
    }
}
