//! The call sites: real functions, each at an address of its own, that call the driver.
//!
//! A stack that is taken in the driver's function shows the site as the direct caller and
//! [`run_command`] as the site's. Both are written out, since optimised Rust keeps no frame pointers
//! and may jump where it could call. `run_command` ends the chain of frames: behind it would be
//! whatever the optimiser had in the frame pointer's register.

use gputrace_test_rig::protocol::Site;
use std::ffi::c_int;
use std::mem::offset_of;

/// A function of the driver or of the runtime, whatever its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function(usize);

impl Function {
    /// The function at this address.
    pub fn at(address: std::ptr::NonNull<std::ffi::c_void>) -> Self {
        Self(address.as_ptr().expose_provenance())
    }
}

/// A call with all that it passes, as [`run_command`] and the sites read it.
#[repr(C)]
struct Call {
    registers: [u64; 6],
    /// What is passed on the stack; an even number of words, so that the stack stays aligned.
    stack: *const u64,
    words: usize,
    function: usize,
    site: unsafe extern "C" fn(),
}

/// A function that passes a [`Call`] on. It is not called by Rust: its argument is in r10.
macro_rules! passes_on {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Only for [`run_command`], which leaves the call in r10 and its arguments in their
        /// registers.
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "mov rax, [r10 + {words}]",
                "mov r11, [r10 + {stack}]",
                "jmp 3f",
                "2:",
                "push qword ptr [r11 + rax * 8]",
                "3:",
                "sub rax, 1",
                "jnc 2b",
                "call qword ptr [r10 + {function}]",
                "leave",
                "ret",
                words = const offset_of!(Call, words),
                stack = const offset_of!(Call, stack),
                function = const offset_of!(Call, function),
            )
        }
    };
}

macro_rules! sites {
    ($($site:ident)*) => {
        $(
            passes_on! {
                /// A call site.
                $site
            }
        )*

        static SITES: [unsafe extern "C" fn(); Site::COUNT] = [$($site),*];
    };
}

sites! {
    site_A site_B site_C site_D site_E site_F site_G site_H site_I site_J site_K site_L site_M
    site_N site_O site_P site_Q site_R site_S site_T site_U site_V site_W site_X site_Y site_Z
}

passes_on! {
    /// The call site of everything that gives back.
    release
}

/// Makes a call through its site, as the outermost frame that a stack shows.
///
/// # Safety
/// The call must be one that its function can be called with.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn run_command(call: *const Call) -> c_int {
    core::arch::naked_asm!(
        "push rbp",
        "xor ebp, ebp",
        "mov r10, rdi",
        "mov rdi, [r10 + {registers}]",
        "mov rsi, [r10 + {registers} + 8]",
        "mov rdx, [r10 + {registers} + 16]",
        "mov rcx, [r10 + {registers} + 24]",
        "mov r8, [r10 + {registers} + 32]",
        "mov r9, [r10 + {registers} + 40]",
        "call qword ptr [r10 + {site}]",
        "pop rbp",
        "ret",
        registers = const offset_of!(Call, registers),
        site = const offset_of!(Call, site),
    )
}

fn make(
    site: unsafe extern "C" fn(),
    function: Function,
    registers: [u64; 6],
    stack: &[u64],
) -> c_int {
    debug_assert!(stack.len().is_multiple_of(2));
    let call = Call {
        registers,
        stack: stack.as_ptr(),
        words: stack.len(),
        function: function.0,
        site,
    };
    // SAFETY: whoever names the function gives it the arguments that it takes, and pointers to
    // what outlives the call.
    unsafe { run_command(&raw const call) }
}

/// The registers for a call with at most six arguments.
fn registers(arguments: &[u64]) -> [u64; 6] {
    let mut registers = [0; 6];
    let count = arguments.len().min(6);
    registers[..count].copy_from_slice(&arguments[..count]);
    registers
}

/// Calls a function from a site, with at most six integers or pointers and, beyond them, words on
/// the stack (an even number): the result code.
#[inline]
pub fn call(site: Site, function: Function, arguments: &[u64], stack: &[u64]) -> c_int {
    make(SITES[site.index()], function, registers(arguments), stack)
}

/// Calls a function that takes something back, with at most six integers: the result code.
#[inline]
pub fn give_back(function: Function, arguments: &[u64]) -> c_int {
    make(release, function, registers(arguments), &[])
}

/// A pointer as an argument.
pub fn pointer<T>(to: &mut T) -> u64 {
    std::ptr::from_mut(to).expose_provenance() as u64
}

/// Allocates from a site with a function that takes a pointer and a size: the result code and, where
/// that is 0, the address.
#[inline]
pub fn allocate(site: Site, function: Function, bytes: u64) -> (c_int, u64) {
    let mut address = 0_u64;
    let code = call(site, function, &[pointer(&mut address), bytes], &[]);
    (code, address)
}

/// Frees with a function that takes an address: the result code.
#[inline]
pub fn free(function: Function, address: u64) -> c_int {
    give_back(function, &[address])
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

    fn function(function: unsafe extern "C" fn(*mut u64, usize) -> c_int) -> Function {
        Function((function as *const ()).addr())
    }

    #[test]
    fn a_stack_shows_the_site_and_ends_behind_it() {
        assert_eq!(allocate(Site::named('C'), function(look), 4096), (7, 4096));
        let [direct, next, end] = [&SEEN[0], &SEEN[1], &SEEN[2]].map(|seen| seen.load(SeqCst));
        let within =
            |address: u64, function: *const ()| address.wrapping_sub(function.addr() as u64) < 64;
        assert!(within(direct, site_C as *const ()));
        assert!(within(next, run_command as *const ()));
        assert_eq!(end, 0);
    }

    /// Eleven arguments, as `cuLaunchKernel` has; each is a digit of what comes back.
    unsafe extern "C" fn digits(
        a: u32,
        b: u64,
        c: u32,
        d: u32,
        e: u32,
        f: u32,
        g: u32,
        h: u64,
    ) -> c_int {
        let digits = [
            u64::from(a),
            b,
            c.into(),
            d.into(),
            e.into(),
            f.into(),
            g.into(),
            h,
        ];
        digits
            .iter()
            .fold(0, |sum, digit| sum * 10 + i32::try_from(*digit).unwrap())
    }

    #[test]
    fn arguments_beyond_six_are_on_the_stack() {
        let function = Function((digits as *const ()).addr());
        let code = call(Site::default(), function, &[1, 2, 3, 4, 5, 6], &[7, 8]);
        assert_eq!(code, 12_345_678);
    }
}
