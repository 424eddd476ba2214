//! The call sites: real functions, each at an address of its own, that call the driver.
//!
//! A stack that is taken in the driver's function shows the site as the direct caller and
//! [`run_command`] as the site's. Both are written out, since optimised Rust keeps no frame pointers
//! and may jump where it could call. `run_command` ends the chain of frames: behind it would be
//! whatever the optimiser had in the frame pointer's register.

use gputrace_test_rig::protocol::Site;
use std::ffi::c_int;

/// `cuMemAlloc_v2` or `cudaMalloc`.
pub type AllocFunction = unsafe extern "C" fn(*mut u64, usize) -> c_int;
/// `cuMemFree_v2` or `cudaFree`.
pub type FreeFunction = unsafe extern "C" fn(u64) -> c_int;
type AllocSite = unsafe extern "C" fn(*mut u64, usize, AllocFunction) -> c_int;

macro_rules! sites {
    ($($site:ident)*) => {
        $(
            #[doc = "A call site that allocates with the given function."]
            ///
            /// # Safety
            /// The pointer must be valid for a write, the function be one that allocates.
            #[allow(non_snake_case)]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $site(
                pointer: *mut u64,
                bytes: usize,
                function: AllocFunction,
            ) -> c_int {
                core::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "call rdx",
                    "pop rbp",
                    "ret",
                )
            }
        )*

        static SITES: [AllocSite; Site::COUNT] = [$($site),*];
    };
}

sites! {
    site_A site_B site_C site_D site_E site_F site_G site_H site_I site_J site_K site_L site_M
    site_N site_O site_P site_Q site_R site_S site_T site_U site_V site_W site_X site_Y site_Z
}

/// The call site of everything that frees.
///
/// # Safety
/// The function must be one that frees.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release(pointer: u64, unused: usize, function: FreeFunction) -> c_int {
    core::arch::naked_asm!("push rbp", "mov rbp, rsp", "call rdx", "pop rbp", "ret")
}

/// Calls a site with its three arguments, as the outermost frame that a stack shows.
///
/// # Safety
/// The first three arguments must be those that the site takes.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn run_command(
    first: u64,
    second: usize,
    function: *const (),
    site: *const (),
) -> c_int {
    core::arch::naked_asm!("push rbp", "xor ebp, ebp", "call rcx", "pop rbp", "ret")
}

/// Allocates from a site: the result code and, where that is 0, the address.
#[inline]
pub fn allocate(site: Site, function: AllocFunction, bytes: u64) -> (c_int, u64) {
    let mut pointer = 0_u64;
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: a site, and what it takes: a pointer to a local and a function that allocates.
    let code = unsafe {
        run_command(
            (&raw mut pointer).expose_provenance() as u64,
            size,
            function as *const (),
            SITES[site.index()] as *const (),
        )
    };
    (code, pointer)
}

/// Frees: the result code.
#[inline]
pub fn free(function: FreeFunction, pointer: u64) -> c_int {
    // SAFETY: `release`, and what it takes: an address, which may be any, and a function that frees.
    unsafe { run_command(pointer, 0, function as *const (), release as *const ()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    /// Return address, then what a walk along frame pointers finds: two of them and their ends.
    static SEEN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

    /// A function of the driver that looks at its caller as a tracer does.
    #[unsafe(naked)]
    unsafe extern "C" fn look(pointer: *mut u64, bytes: usize) -> c_int {
        core::arch::naked_asm!(
            "lea rdx, [rip + {seen}]",
            "mov rax, [rsp]",
            "mov [rdx], rax",
            "mov rax, [rbp + 8]",
            "mov [rdx + 8], rax",
            "mov rax, [rbp]",
            "mov [rdx + 16], rax",
            "mov qword ptr [rdi], rsi",
            "mov eax, 7",
            "ret",
            seen = sym SEEN,
        )
    }

    #[test]
    fn a_stack_shows_the_site_and_ends_behind_it() {
        assert_eq!(allocate(Site::named('C'), look, 4096), (7, 4096));
        let [direct, next, end] = [&SEEN[0], &SEEN[1], &SEEN[2]].map(|seen| seen.load(SeqCst));
        let within =
            |address: u64, function: *const ()| address.wrapping_sub(function.addr() as u64) < 16;
        assert!(within(direct, site_C as *const ()));
        assert!(within(next, run_command as *const ()));
        assert_eq!(end, 0);
    }
}
