//! A program as its author would write it with cudarc: it allocates on two streams, in page-locked
//! and in managed memory, keeps some, forgets some, and says when it is done. It ends with its input.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;

use cudarc::driver::sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
use cudarc::driver::{CudaContext, CudaStream, result};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    balanced(&stream)?;
    forgotten(&stream)?;
    let _kept = stream.alloc_zeros::<f32>(3 * MIB)?;

    let second = context.new_stream()?;
    // SAFETY: the memory is only written.
    let mut copied = unsafe { second.alloc::<u8>(5 * KIB)? };
    second.memcpy_htod(&vec![7; 5 * KIB], &mut copied)?;
    second.synchronize()?;
    drop(copied);

    // SAFETY: the memory is never read, and freed at most once.
    unsafe {
        let freed = context.alloc_pinned::<u8>(2 * MIB)?;
        std::mem::forget(context.alloc_pinned::<u8>(MIB)?);
        drop(freed);
        let managed = result::malloc_managed(8 * MIB, CU_MEM_ATTACH_GLOBAL)?;
        result::malloc_managed(4 * MIB, CU_MEM_ATTACH_GLOBAL)?;
        result::free_sync(managed)?;
        let plain = result::malloc_sync(6 * MIB)?;
        result::free_sync(plain)?;
    }

    println!("done");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// 64 times 1 MiB, all given back.
#[inline(never)]
fn balanced(stream: &Arc<CudaStream>) -> Result<(), Box<dyn Error>> {
    for _ in 0..64 {
        drop(stream.alloc_zeros::<u8>(MIB)?);
    }
    Ok(())
}

/// 10 times 2 MiB, none given back.
#[inline(never)]
fn forgotten(stream: &Arc<CudaStream>) -> Result<(), Box<dyn Error>> {
    for _ in 0..10 {
        stream.alloc_zeros::<u8>(2 * MIB)?.leak();
    }
    Ok(())
}
