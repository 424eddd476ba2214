//! Where in a function to put a probe.
//!
//! A uprobe replaces an instruction by a breakpoint. Some instructions the kernel then emulates;
//! any other it runs out of line with single-stepping, which costs a second trap: measured 0.4
//! against 15 microseconds per hit in a virtual machine, and three times as much on real hardware.
//! Every exported function of libcuda begins with a ten-byte compare, which is single-stepped,
//! followed by a conditional jump, which is emulated:
//!
//! ```text
//! cmpl $imm32, state(%rip)     <- the symbol
//! je   not_initialised         <- the symbol + 10
//! jmp  *slot(%rip)
//! ```
//!
//! At the jump the registers and the stack are still those of the caller, so a probe there sees the
//! same arguments and the same return address, and a return probe works as well.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far into a function a probe may move, in bytes. The trampolines of libcuda have 32.
pub const WINDOW: usize = 64;

/// From this length on a nop is never chosen: newer kernels turn a probed nop of five bytes (and
/// later ones other lengths) into a call, and the first versions of that wrote into the red zone
/// below the stack pointer.
const LONG_NOP: usize = 5;

/// Where to put the probe of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// Bytes from the function's first byte. Always the start of an instruction inside the code
    /// that was looked at, except that it is 0 where there is no code.
    pub offset: u64,
    /// What the kernel will do with the instruction there.
    pub kind: PlacementKind,
}

/// What the kernel does with the probed instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlacementKind {
    /// It emulates it: one trap.
    Emulated {
        /// The instruction, as `je +0x14` (targets relative to the function).
        instruction: String,
    },
    /// It runs a copy with single-stepping: two traps, slow but right.
    SingleStepped {
        /// Why no better place was found.
        reason: String,
    },
    /// There is no instruction here that is known to be safe to probe; do not attach.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Chooses the place for a probe in the function whose first bytes are `code` (the end of the
/// function cuts it) and which is loaded at `address` (any address at which it could be; only
/// jumps within the function are looked at).
///
/// It is the first instruction that the kernel emulates, if all instructions before it change
/// nothing (`endbr64`, nops) or only flags (`cmp`, `test`), so that it is reached on every path, in
/// the caller's state, once per call. Otherwise it is the function's first byte.
pub fn place(code: &[u8], address: u64) -> Placement {
    let code = &code[..code.len().min(WINDOW)];
    let mut offset = 0;
    // The first place that is right although slow.
    let mut fallback = None;
    let stop = loop {
        let Some(instruction) = decode(code, address, offset) else {
            break format!("the bytes at +{offset:#x} are not a whole instruction");
        };
        let end = offset + instruction.len();
        if is_emulated(&code[offset..end]) {
            if jumps_back(code, address, offset) {
                break format!("a jump returns to +{offset:#x}, which would count a call twice");
            }
            return Placement {
                offset: offset as u64,
                kind: PlacementKind::Emulated {
                    instruction: text(&instruction, address),
                },
            };
        }
        if !is_long_nop(&instruction) {
            fallback.get_or_insert(offset);
        }
        if !changes_nothing(&instruction) {
            break format!(
                "'{}' at +{offset:#x} changes the state of the caller and is not emulated",
                text(&instruction, address)
            );
        }
        offset = end;
        if offset >= code.len() {
            break format!("no emulated instruction in the first {offset} bytes");
        }
    };
    match fallback {
        Some(offset) => Placement {
            offset: offset as u64,
            kind: PlacementKind::SingleStepped { reason: stop },
        },
        None => Placement {
            offset: 0,
            kind: PlacementKind::Refused { reason: stop },
        },
    }
}

/// The instruction at `offset`, if it is a valid one and lies inside `code` as a whole.
fn decode(code: &[u8], address: u64, offset: usize) -> Option<Instruction> {
    let ip = address.wrapping_add(offset as u64);
    let mut decoder = Decoder::with_ip(64, code.get(offset..)?, ip, DecoderOptions::NONE);
    let instruction = decoder.can_decode().then(|| decoder.decode())?;
    (!instruction.is_invalid()).then_some(instruction)
}

/// Whether every kernel since 4.18 emulates exactly these bytes (`branch_setup_xol_ops` and
/// `push_setup_xol_ops` in arch/x86/kernel/uprobes.c).
///
/// Only forms without prefixes, but for the REX.B that `push %r8` to `%r15` need: the kernel
/// refuses jumps with an operand-size prefix or a branch hint, takes `xchg %rax,%r8` (REX.B and the
/// opcode of nop) for a nop in some versions, and single-steps a `push` with any other prefix.
/// Longer nops are emulated by the newest kernels only.
fn is_emulated(bytes: &[u8]) -> bool {
    matches!(
        *bytes,
        [0x90]                                  // nop
            | [0x50..=0x57]                     // push %rax ... %rdi
            | [0x41, 0x50..=0x57]               // push %r8 ... %r15
            | [0xeb | 0x70..=0x7f, _]           // jmp, jcc with 8 bits
            | [0xe8 | 0xe9, _, _, _, _]         // call, jmp with 32 bits
            | [0x0f, 0x80..=0x8f, _, _, _, _] // jcc with 32 bits
    )
}

/// Whether a probe behind the instruction sees what one before it does: it changes nothing, or only
/// flags, which no calling convention passes on and which a probe does not disturb.
fn changes_nothing(instruction: &Instruction) -> bool {
    is_nop(instruction)
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Endbr64 | Mnemonic::Cmp | Mnemonic::Test
        )
}

/// A nop proper. `xchg %eax,%eax` with a REX prefix and `pause` have other mnemonics or codes.
fn is_nop(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Nop
}

fn is_long_nop(instruction: &Instruction) -> bool {
    is_nop(instruction) && instruction.len() >= LONG_NOP
}

/// Whether a jump in `code` leads to `offset`, or to a place behind the function's start from which
/// `offset` is reached again: a probe there would fire more often than the function is called.
/// (A jump to the very start is a call of its own, as a tail-recursive function makes it.)
fn jumps_back(code: &[u8], address: u64, offset: usize) -> bool {
    let mut at = 0;
    // Behind an unconditional jump there may be data, which decodes to nonsense; at worst that
    // makes this answer yes and the probe slower.
    while let Some(instruction) = decode(code, address, at) {
        let is_jump = matches!(
            instruction.flow_control(),
            FlowControl::ConditionalBranch
                | FlowControl::UnconditionalBranch
                | FlowControl::XbeginXabortXend
        );
        if is_jump {
            let distance = instruction.near_branch_target().wrapping_sub(address);
            if (1..=offset as u64).contains(&distance) && instruction.near_branch_target() != 0 {
                return true;
            }
        }
        at += instruction.len();
    }
    false
}

/// The instruction in words: the mnemonic, and the register of a push or the target of a jump.
fn text(instruction: &Instruction, address: u64) -> String {
    let mnemonic = format!("{:?}", instruction.mnemonic()).to_lowercase();
    if instruction.mnemonic() == Mnemonic::Push && instruction.op0_register() != Register::None {
        return format!(
            "{mnemonic} {}",
            format!("{:?}", instruction.op0_register()).to_lowercase()
        );
    }
    match instruction.near_branch_target() {
        0 => mnemonic,
        target => {
            let distance = target.wrapping_sub(address).cast_signed();
            let sign = if distance < 0 { '-' } else { '+' };
            format!("{mnemonic} {sign}{:#x}", distance.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: u64 = 0x2b_6f40;

    /// The form of every exported function of the real libcuda.
    const TRAMPOLINE: [u8; 32] = [
        0x81, 0x3d, 0xd6, 0x13, 0x9c, 0x01, 0x00, 0xba, 0x1c,
        0x32, // cmpl $0x321cba00,x(%rip)
        0x74, 0x0c, // je +0x18
        0xff, 0x25, 0x5e, 0x4c, 0x93, 0x01, // jmp *slot(%rip)
        0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00, // nop
        0xb8, 0x04, 0x00, 0x00, 0x00, // mov $4,%eax
        0xc3, // ret
        0x66, 0x90, // nop
    ];

    fn emulated(code: &[u8]) -> (u64, String) {
        match place(code, ADDRESS) {
            Placement {
                offset,
                kind: PlacementKind::Emulated { instruction },
            } => (offset, instruction),
            other => panic!("{other:?}"),
        }
    }

    fn single_stepped(code: &[u8]) -> u64 {
        match place(code, ADDRESS) {
            Placement {
                offset,
                kind: PlacementKind::SingleStepped { reason },
            } => {
                assert!(!reason.is_empty());
                offset
            }
            other => panic!("{other:?}"),
        }
    }

    fn refused(code: &[u8]) {
        let placement = place(code, ADDRESS);
        assert!(
            matches!(placement.kind, PlacementKind::Refused { .. }),
            "{placement:?}"
        );
        assert_eq!(placement.offset, 0);
    }

    #[test]
    fn the_trampoline_of_libcuda_is_probed_at_its_jump() {
        assert_eq!(emulated(&TRAMPOLINE), (10, "je +0x18".into()));
    }

    #[test]
    fn a_cut_trampoline_is_probed_at_the_symbol() {
        for length in 10..12 {
            assert_eq!(single_stepped(&TRAMPOLINE[..length]), 0);
        }
        refused(&TRAMPOLINE[..9]);
    }

    #[test]
    fn an_ordinary_prologue() {
        // endbr64; push %rbp; mov %rsp,%rbp
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5];
        assert_eq!(emulated(&code), (4, "push rbp".into()));
        // push %r15
        assert_eq!(emulated(&[0x41, 0x57, 0xc3]), (0, "push r15".into()));
        // test %rdi,%rdi; je
        assert_eq!(emulated(&[0x48, 0x85, 0xff, 0x74, 0x10]).0, 3);
        // cmp %rsi,0x8(%rdi); jne with 32 bits
        let code = [0x48, 0x39, 0x77, 0x08, 0x0f, 0x85, 0x00, 0x01, 0x00, 0x00];
        assert_eq!(emulated(&code).0, 4);
    }

    #[test]
    fn a_change_of_stack_or_registers_ends_the_search() {
        // endbr64; sub $8,%rsp; push %rbp
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08, 0x55];
        assert_eq!(single_stepped(&code), 0);
        // mov %edi,%edi (the upper half is lost); push %rbp
        assert_eq!(single_stepped(&[0x8b, 0xff, 0x55]), 0);
        // xor %eax,%eax; je
        assert_eq!(single_stepped(&[0x31, 0xc0, 0x74, 0x02]), 0);
        // ret
        assert_eq!(single_stepped(&[0xc3]), 0);
        // jmp *%rax
        assert_eq!(single_stepped(&[0xff, 0xe0]), 0);
    }

    #[test]
    fn encodings_that_the_kernel_refuses_or_mistakes_are_not_chosen() {
        // push %rbp with a useless REX; with an operand-size prefix
        assert_eq!(single_stepped(&[0x40, 0x55]), 0);
        assert_eq!(single_stepped(&[0x66, 0x55]), 0);
        // xchg %r8,%rax is no nop
        assert_eq!(single_stepped(&[0x41, 0x90, 0x55]), 0);
        // je with a branch hint; jmp with a bound prefix
        assert_eq!(single_stepped(&[0x3e, 0x74, 0x02]), 0);
        assert_eq!(single_stepped(&[0xf2, 0xe9, 0, 0, 0, 0]), 0);
        // jrcxz and loop
        assert_eq!(single_stepped(&[0xe3, 0x02]), 0);
        assert_eq!(single_stepped(&[0xe2, 0x02]), 0);
    }

    #[test]
    fn long_nops_are_passed_over_and_never_chosen() {
        let nop5 = [0x0f, 0x1f, 0x44, 0x00, 0x00];
        // nop5; push %rbp
        assert_eq!(emulated(&[&nop5[..], &[0x55]].concat()).0, 5);
        // nop5; sub $8,%rsp: the subtraction is slow, but safe
        let code = [&nop5[..], &[0x48, 0x83, 0xec, 0x08]].concat();
        assert_eq!(single_stepped(&code), 5);
        refused(&nop5);
        // endbr64; nop5; sub
        let code = [&[0xf3, 0x0f, 0x1e, 0xfa], &code[..]].concat();
        assert_eq!(single_stepped(&code), 0);
        // A nop of one byte is fine; of two, older kernels refuse it: passed over.
        assert_eq!(emulated(&[0x90, 0x55]).0, 0);
        assert_eq!(emulated(&[0x66, 0x90, 0x55]).0, 2);
    }

    #[test]
    fn a_loop_at_the_start_is_not_counted_more_than_once() {
        // endbr64; L: cmpl $0,(%rdi); je L; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x83, 0x3f, 0x00, 0x74, 0xfb, 0xc3];
        assert_eq!(single_stepped(&code), 0);
        // endbr64; push %rbp; L: dec %eax; jne L; ret: the loop does not reach the probe
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xff, 0xc8, 0x75, 0xfc, 0x5d, 0xc3,
        ];
        assert_eq!(emulated(&code).0, 4);
    }

    #[test]
    fn code_that_is_none() {
        refused(&[]);
        refused(&[0x06]);
        refused(&[0x0f]);
        // Padding beyond the window is never reached.
        let padding = [0x66, 0x90].repeat(100);
        assert_eq!(single_stepped(&padding), 0);
    }

    fn boundaries(code: &[u8]) -> Vec<usize> {
        let mut offsets = Vec::new();
        let mut at = 0;
        while let Some(instruction) = decode(code, ADDRESS, at) {
            offsets.push(at);
            at += instruction.len();
        }
        offsets
    }

    fn check(code: &[u8], address: u64) {
        let placement = place(code, address);
        let offset = usize::try_from(placement.offset).unwrap();
        match placement.kind {
            PlacementKind::Refused { .. } => assert_eq!(offset, 0),
            _ => {
                assert!(offset < code.len().min(WINDOW));
                assert!(boundaries(code).contains(&offset));
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_place_on_a_boundary(
            code in proptest::collection::vec(any::<u8>(), 0..80),
            address in any::<u64>(),
        ) {
            check(&code, address);
        }

        /// Bytes that are mostly what the search passes over, so that it gets far.
        #[test]
        fn likely_prologues_give_a_place_on_a_boundary(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just(vec![0xf3, 0x0f, 0x1e, 0xfa]),
                    Just(vec![0x0f, 0x1f, 0x44, 0x00, 0x00]),
                    Just(vec![0x66, 0x90]),
                    Just(vec![0x48, 0x85, 0xff]),
                    any::<[u8; 2]>().prop_map(|[a, b]| vec![0x83, 0x3f, a, 0x74, b]),
                    any::<u8>().prop_map(|byte| vec![byte]),
                ],
                0..20,
            ),
            cut in 0usize..80,
        ) {
            let mut code = pieces.concat();
            code.truncate(cut);
            check(&code, ADDRESS);
        }
    }
}
