//! Page-locked host memory.

use crate::common::{CONTEXT, Pointer, call, ready};
use gputrace_test_rig::functions;
use std::ffi::c_uint;
use std::ptr;

functions! {
    struct Functions {
        alloc = "cuMemHostAlloc": fn(*mut Pointer, usize, c_uint);
        alloc_plain = "cuMemAllocHost_v2": fn(*mut Pointer, usize);
        free = "cuMemFreeHost": fn(Pointer);
        register = "cuMemHostRegister_v2": fn(Pointer, usize, c_uint);
        unregister = "cuMemHostUnregister": fn(Pointer);
        device_pointer = "cuMemHostGetDevicePointer_v2": fn(*mut u64, Pointer, c_uint);
        flags = "cuMemHostGetFlags": fn(*mut c_uint, Pointer);
    }
}

#[test]
fn host_memory_can_be_written_and_takes_none_of_the_device() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let mut memory = ptr::null_mut();
    assert_eq!(
        call!(f.alloc, &raw mut memory, 1 << 20, 1),
        201,
        "no context"
    );
    let context = cuda.create(0);
    assert_eq!(call!(f.alloc, &raw mut memory, 0, 1), 1);
    assert_eq!(call!(f.alloc, &raw mut memory, 1 << 20, 3), 0);
    // SAFETY: so many bytes were allocated.
    unsafe { memory.cast::<u8>().write_bytes(7, 1 << 20) };
    let (mut device, mut flags) = (0, 0);
    assert_eq!(call!(f.device_pointer, &raw mut device, memory, 0), 0);
    assert_eq!(device, memory.expose_provenance() as u64);
    assert_eq!(call!(f.flags, &raw mut flags, memory), 0);
    assert_eq!(flags, 3);
    assert_eq!(cuda.used(), CONTEXT);
    assert_eq!(call!(f.free, memory), 0);
    assert_eq!(call!(f.free, memory), 1, "freed twice");
    assert_eq!(call!(f.alloc_plain, &raw mut memory, 4096), 0);
    cuda.destroy(context);
    let context = cuda.create(0);
    assert_eq!(call!(f.free, memory), 1, "gone with its context");
    assert_eq!(call!(f.free, ptr::null_mut()), 0);
    cuda.destroy(context);
}

#[test]
fn memory_is_registered_once() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let mut own = vec![0_u8; 1 << 20];
    let memory: Pointer = own.as_mut_ptr().cast();
    assert_eq!(call!(f.register, memory, 1 << 19, 0), 0);
    assert_eq!(call!(f.register, memory, 1 << 20, 0), 712);
    assert_eq!(call!(f.register, memory.wrapping_byte_add(4096), 1, 0), 712);
    assert_eq!(
        call!(f.register, memory.wrapping_byte_add(1 << 19), 1 << 19, 0),
        0
    );
    assert_eq!(call!(f.free, memory), 1, "the program's own");
    assert_eq!(
        call!(f.unregister, memory.wrapping_byte_add(4096)),
        713,
        "not where it begins"
    );
    assert_eq!(call!(f.unregister, memory), 0);
    assert_eq!(call!(f.unregister, memory), 713);
    assert_eq!(call!(f.register, ptr::null_mut(), 1, 0), 1);
    cuda.destroy(context);
    assert_eq!(own[0], 0, "still there");
}
