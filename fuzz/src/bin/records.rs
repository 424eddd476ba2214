//! Bytes of the ring buffer.
#![no_main]

use gputrace::cuda::{FunctionId, Observed};
use gputrace_ebpf::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let size = match Record::from_bytes(bytes) {
        None => return,
        Some(Record::Call(call)) => {
            assert_eq!(call.exit_ns.to_ne_bytes(), bytes[16..24]);
            if let Some(function) = FunctionId::new(call.function) {
                assert_eq!(function.row(), call.function);
                let _ = function.decode(&Observed {
                    args: call.args,
                    out: call.out.map(Some),
                });
            }
            size_of_val(&call)
        }
        Some(Record::Process(process)) => {
            assert_eq!(process.comm, bytes[184..200]);
            size_of_val(&process)
        }
        Some(Record::Exit(exit)) => {
            assert_eq!(exit.status.to_ne_bytes(), bytes[24..28]);
            size_of_val(&exit)
        }
    };
    // What follows is not looked at, and nothing that is missing is made up.
    assert_eq!(
        Record::from_bytes(&bytes[..size]),
        Record::from_bytes(bytes)
    );
    assert_eq!(Record::from_bytes(&bytes[..size - 1]), None);
});
