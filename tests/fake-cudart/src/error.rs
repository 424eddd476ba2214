//! The last error of each thread.

use crate::Code;
use std::cell::Cell;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(0) };
}

/// Remembers a failure, and gives the code back.
pub extern "C" fn finish(code: Code) -> Code {
    if code != 0 {
        LAST.set(code);
    }
    code
}

/// The last error of this thread's calls, which is forgotten by asking.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> Code {
    LAST.take()
}
