//! The shape of an exported function.
//!
//! In the real library (470 to 555) every exported function is 32 bytes that jump to the hidden
//! implementation through a table of pointers:
//!
//! ```text
//! +0   cmpl $0x321cba00, state(%rip)   10 bytes
//! +10  je   +18                        2 bytes
//! +12  jmp  *slot(%rip)                6 bytes
//! +18  mov  $4, %eax; ret              CUDA_ERROR_DEINITIALIZED, after tear-down
//! ```

use std::sync::atomic::AtomicU32;

/// What [`STATE`] holds once the library has been torn down.
pub const TORN_DOWN: u32 = 0x321c_ba00;

/// What every trampoline compares with [`TORN_DOWN`]. Not exported, so that it is addressed directly.
pub static STATE: AtomicU32 = AtomicU32::new(0);

/// One function of the driver API, for `cuGetProcAddress`.
pub struct Export {
    /// The address of its trampoline.
    pub address: fn() -> usize,
    /// Its own name.
    pub symbol: &'static str,
    /// The name under which `cuGetProcAddress` knows it.
    pub base: &'static str,
    /// The first CUDA version (12040 is 12.4) in which the name means this symbol.
    pub since: i32,
}

impl Export {
    /// Whether its default stream is the thread's own rather than the one of the context.
    pub fn is_per_thread(&self) -> bool {
        self.symbol.ends_with("_ptsz") || self.symbol.ends_with("_ptds")
    }
}

/// Makes the trampolines: one row per exported function.
///
/// `symbol(arguments) => implementation, base name, since`; the implementation is a function with
/// the same arguments and the C calling convention.
macro_rules! exports {
    ($(
        $(#[$doc:meta])*
        $symbol:ident($($argument:ident: $type:ty),*) => $implementation:path, $base:literal, $since:literal;
    )*) => {
        $(
            #[allow(non_snake_case)]
            pub(crate) mod $symbol {
                use super::*;

                // The table of pointers: one slot for each function.
                static SLOT: unsafe extern "C" fn($($type),*) -> Code = $implementation;

                $(#[$doc])*
                ///
                /// # Safety
                /// As the driver API says: pointers must be valid for what it writes.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $symbol($($argument: $type),*) -> Code {
                    // The closing alignment makes the whole section, and with it the symbol,
                    // begin at a multiple of 32.
                    core::arch::naked_asm!(
                        "cmp dword ptr [rip + {state}], {torn_down}",
                        "je 2f",
                        "jmp qword ptr [rip + {slot}]",
                        "2:",
                        "mov eax, {deinitialized}",
                        "ret",
                        ".p2align 5, 0xcc",
                        state = sym $crate::trampoline::STATE,
                        torn_down = const $crate::trampoline::TORN_DOWN,
                        slot = sym SLOT,
                        deinitialized = const $crate::result::DEINITIALIZED,
                    )
                }
            }
        )*

        /// These functions of the driver API.
        pub static EXPORTS: &[$crate::trampoline::Export] = &[$(
            $crate::trampoline::Export {
                address: || $symbol::$symbol as *const () as usize,
                symbol: stringify!($symbol),
                base: $base,
                since: $since,
            },
        )*];
    };
}
pub(crate) use exports;
