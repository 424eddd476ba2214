//! Libraries that are loaded while a program runs, as CUDA's are by everything that uses it.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Why a library or one of its functions cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The library cannot be loaded.
    #[error("{path}: {message}")]
    Library {
        /// Its path.
        path: PathBuf,
        /// What the dynamic linker said.
        message: String,
    },
    /// The library does not export it.
    #[error("{path} does not export {symbol}")]
    Symbol {
        /// The library's path.
        path: PathBuf,
        /// The symbol.
        symbol: String,
    },
}

/// A loaded library; it stays loaded for good, since its functions are handed out.
#[derive(Debug, Clone)]
pub struct Library {
    handle: NonNull<c_void>,
    path: PathBuf,
}

// SAFETY: a handle of dlopen may be used by any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads it with dlopen(3). `flags` are those of dlopen besides `RTLD_NOW`.
    pub fn open(path: &Path, flags: c_int) -> Result<Self, LoadError> {
        let failed = |message| LoadError::Library {
            path: path.to_owned(),
            message,
        };
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
        // SAFETY: a terminated path; what the library's constructors do is the test's own choice.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self {
                handle,
                path: path.to_owned(),
            }),
            None => Err(failed(last_error())),
        }
    }

    /// The address of an exported symbol, as dlsym(3) gives it.
    pub fn symbol(&self, name: &str) -> Result<NonNull<c_void>, LoadError> {
        let address = CString::new(name).ok().and_then(|name| {
            // SAFETY: a handle of dlopen and a terminated string.
            NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) })
        });
        address.ok_or_else(|| LoadError::Symbol {
            path: self.path.clone(),
            symbol: name.to_owned(),
        })
    }
}

fn last_error() -> String {
    // SAFETY: dlerror gives null or a terminated string that lives until the thread's next call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "unknown error".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// Makes a struct of C functions that give an `int`, with a `load` that finds them by name.
///
/// ```
/// gputrace_test_rig::functions! {
///     /// Functions of the C library.
///     pub struct Numbers {
///         /// Absolute value.
///         abs = "abs": fn(i32);
///     }
/// }
/// ```
///
/// `load` takes whatever turns a symbol's name into its address, or an error. The types must be those
/// of the functions: calling one is unsafe for that reason too.
#[macro_export]
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_doc:meta])* $field:ident = $symbol:literal: fn($($type:ty),* $(,)?);)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        $visibility struct $name {
            $(
                $(#[$field_doc])*
                pub $field: unsafe extern "C" fn($($type),*) -> ::std::ffi::c_int,
            )*
        }

        impl $name {
            /// Finds every function by its name.
            pub fn load<E>(
                find: impl Fn(&str) -> ::std::result::Result<
                    ::std::ptr::NonNull<::std::ffi::c_void>,
                    E,
                >,
            ) -> ::std::result::Result<Self, E> {
                Ok(Self {
                    $(
                        $field: {
                            type Function =
                                unsafe extern "C" fn($($type),*) -> ::std::ffi::c_int;
                            let address = find($symbol)?;
                            // SAFETY: a function pointer has the size of an address and is not
                            // null. That the type is the function's is for its caller to vouch for.
                            unsafe {
                                ::std::mem::transmute::<
                                    ::std::ptr::NonNull<::std::ffi::c_void>,
                                    Function,
                                >(address)
                            }
                        },
                    )*
                })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    functions! {
        /// Functions of the C library.
        struct Numbers {
            /// Absolute value.
            abs = "abs": fn(i32);
        }
    }

    #[test]
    fn functions_are_found_by_name() {
        let library = Library::open(Path::new("libc.so.6"), 0).unwrap();
        let numbers = Numbers::load(|name| library.symbol(name)).unwrap();
        // SAFETY: the C library's abs takes any value but the smallest.
        assert_eq!(unsafe { (numbers.abs)(-3) }, 3);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let missing = Library::open(Path::new("/nonexistent/libx.so"), 0).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/libx.so"));
        let library = Library::open(Path::new("libc.so.6"), 0).unwrap();
        let missing = library.symbol("no_such_function").unwrap_err();
        assert!(missing.to_string().ends_with("no_such_function"));
    }
}
