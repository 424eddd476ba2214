//! Allocations that give a device pointer.

use crate::common::{CONTEXT, call, ready};
use gputrace_test_rig::functions;
use std::ffi::{c_int, c_uint, c_void};

functions! {
    struct Functions {
        alloc_v1 = "cuMemAlloc": fn(*mut u32, c_uint);
        free_v1 = "cuMemFree": fn(u32);
        pitch = "cuMemAllocPitch_v2": fn(*mut u64, *mut usize, usize, usize, c_uint);
        managed = "cuMemAllocManaged": fn(*mut u64, usize, c_uint);
        alloc_async = "cuMemAllocAsync": fn(*mut u64, usize, u64);
        alloc_async_ptsz = "cuMemAllocAsync_ptsz": fn(*mut u64, usize, u64);
        free_async = "cuMemFreeAsync": fn(u64, u64);
        range = "cuMemGetAddressRange_v2": fn(*mut u64, *mut usize, u64);
        attribute = "cuPointerGetAttribute": fn(*mut c_void, c_uint, u64);
        attributes = "cuPointerGetAttributes": fn(c_uint, *const c_uint, *const *mut c_void, u64);
    }
}

#[test]
fn rows_are_padded_to_the_pitch() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let (mut pointer, mut pitch) = (0, 0);
    assert_eq!(
        call!(f.pitch, &raw mut pointer, &raw mut pitch, 1000, 10, 4),
        0
    );
    assert_eq!(pitch, 1024);
    assert_eq!(cuda.used(), CONTEXT + 10 * 1024);
    assert_eq!(
        call!(f.pitch, &raw mut pointer, &raw mut pitch, 1000, 10, 3),
        1
    );
    assert_eq!(
        call!(f.pitch, &raw mut pointer, &raw mut pitch, 0, 10, 4),
        1
    );
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn managed_memory_is_the_programs_too() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let mut pointer: u64 = 0;
    assert_eq!(call!(f.managed, &raw mut pointer, 3 << 20, 0), 1);
    assert_eq!(call!(f.managed, &raw mut pointer, 3 << 20, 1), 0);
    let memory = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(pointer).unwrap());
    // SAFETY: so many bytes were allocated, for the program to use.
    unsafe { memory.write_bytes(7, 3 << 20) };
    let mut is_managed: c_uint = 9;
    assert_eq!(
        call!(f.attribute, (&raw mut is_managed).cast(), 8, pointer),
        0
    );
    assert_eq!(is_managed, 1);
    assert_eq!(cuda.used(), CONTEXT + (3 << 20));
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn the_old_functions_give_32_bits() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let (mut first, mut second) = (0, 0);
    assert_eq!(call!(f.alloc_v1, &raw mut first, 4 << 20), 0);
    assert_eq!(call!(f.alloc_v1, &raw mut second, 4 << 20), 0);
    assert_ne!(first, second);
    assert_eq!(cuda.used(), CONTEXT + (8 << 20));
    assert_eq!(call!(f.free_v1, first), 0);
    assert_eq!(cuda.free(u64::from(second)), 0, "the same memory");
    cuda.destroy(context);
}

#[test]
fn asynchronous_frees_are_for_asynchronous_allocations() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let (mut first, mut second) = (0, 0);
    assert_eq!(call!(f.alloc_async, &raw mut first, 1 << 20, 0), 0);
    assert_eq!(call!(f.alloc_async_ptsz, &raw mut second, 1 << 20, 2), 0);
    assert_eq!(call!(f.alloc_async, &raw mut second, 1 << 20, 12345), 400);
    assert_eq!(cuda.used(), CONTEXT + (2 << 20));
    assert_eq!(call!(f.free_async, first, 0), 0);
    assert_eq!(call!(f.free_async, first, 0), 1, "freed twice");
    assert_eq!(cuda.free(second), 0, "either function frees it");
    let plain = cuda.alloc(4096).unwrap();
    assert_eq!(call!(f.free_async, plain, 0), 1);
    assert_eq!(cuda.free(plain), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn an_address_inside_belongs_to_its_allocation() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(1);
    let pointer = cuda.alloc(1 << 20).unwrap();
    let (mut base, mut size) = (0, 0);
    assert_eq!(
        call!(f.range, &raw mut base, &raw mut size, pointer + 4096),
        0
    );
    assert_eq!((base, size), (pointer, 1 << 20));
    assert_eq!(
        call!(f.range, &raw mut base, &raw mut size, pointer + (1 << 20)),
        1
    );
    let (mut device, mut kind): (c_int, c_uint) = (9, 9);
    let asked = [9, 2];
    let places = [(&raw mut device).cast(), (&raw mut kind).cast()];
    assert_eq!(
        call!(
            f.attributes,
            2,
            asked.as_ptr(),
            places.as_ptr(),
            pointer + 1
        ),
        0
    );
    assert_eq!((device, kind), (1, 2));
    assert_eq!(
        call!(f.attributes, 2, asked.as_ptr(), places.as_ptr(), 77),
        0
    );
    assert_eq!((device, kind), (0, 0), "unknown");
    assert_eq!(call!(f.attribute, (&raw mut kind).cast(), 2, 77), 1);
    cuda.destroy(context);
}
