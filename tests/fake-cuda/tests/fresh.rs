//! Before `cuInit`. A test binary of its own, since what is initialised stays so.

mod common;

use common::{Cuda, Pointer, cuda, in_child};
use std::ffi::c_int;
use std::ptr;

fn init(cuda: &Cuda, flags: u32) -> c_int {
    // SAFETY: takes any value.
    unsafe { (cuda.init)(flags) }
}

#[test]
fn initialisation_comes_first() {
    let (_turn, cuda) = cuda();
    let (mut count, mut context): (c_int, Pointer) = (0, ptr::null_mut());
    // SAFETY: valid for a write each.
    unsafe {
        assert_eq!((cuda.device_get_count)(&raw mut count), 3);
        assert_eq!((cuda.ctx_create)(&raw mut context, 0, 0), 3);
        assert_eq!((cuda.ctx_set_current)(context), 3);
        let name = c"cuMemAlloc".as_ptr();
        assert_eq!((cuda.get_proc_address)(name, &raw mut context, 12040, 0), 0);
    }
    assert_eq!(cuda.alloc(4096), Err(3));
    assert_eq!(cuda.free(4096), 3);
    assert_eq!(init(cuda, 1), 1);
    assert_eq!(cuda.alloc(4096), Err(3));

    // A child that was forked before may initialise the driver for itself.
    let code = in_child(|| {
        assert_eq!(init(cuda, 0), 0);
        cuda.create(0);
        c_int::from(cuda.alloc(4096).is_ok())
    });
    assert_eq!(code, 1);

    assert_eq!(cuda.alloc(4096), Err(3), "the child's is not ours");
    assert_eq!(init(cuda, 0), 0);
    assert_eq!(init(cuda, 0), 0);
    assert_eq!(cuda.alloc(4096), Err(201));
}
