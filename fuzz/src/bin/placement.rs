//! Machine code: where to put a probe in it. The first 8 bytes of the input are its address.
#![no_main]

use gputrace::sensors::cuda::placement::{PlacementKind, WINDOW, place};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((address, code)) = bytes.split_first_chunk() else {
        return;
    };
    let address = u64::from_le_bytes(*address);
    let placement = place(code, address);
    let window = &code[..code.len().min(WINDOW)];
    assert_eq!(placement, place(window, address));
    let at = usize::try_from(placement.offset).unwrap();
    match placement.kind {
        PlacementKind::Refused { reason } => assert!(at == 0 && !reason.is_empty()),
        PlacementKind::SingleStepped { reason } => assert!(at < window.len() && !reason.is_empty()),
        PlacementKind::Emulated { .. } => {
            // Relative jumps and calls, pushes and the nop; nothing that the kernel single-steps.
            let found = &window[at..];
            assert!(
                matches!(
                    found,
                    [0x90 | 0x50..=0x57 | 0xeb | 0x70..=0x7f | 0xe8 | 0xe9, ..]
                        | [0x41, 0x50..=0x57, ..]
                        | [0x0f, 0x80..=0x8f, ..]
                ),
                "{found:x?}"
            );
        }
    }
});
