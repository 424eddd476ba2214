//! Memory pools.

use crate::common::{CONTEXT, Cuda, call, ready};
use gputrace_test_rig::functions;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

#[repr(C)]
struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: [c_int; 2],
    rest: [u64; 9],
}

functions! {
    struct Functions {
        create = "cuMemPoolCreate": fn(*mut u64, *const Properties);
        destroy = "cuMemPoolDestroy": fn(u64);
        trim = "cuMemPoolTrimTo": fn(u64, usize);
        attribute = "cuMemPoolGetAttribute": fn(u64, c_uint, *mut c_void);
        set_attribute = "cuMemPoolSetAttribute": fn(u64, c_uint, *const c_void);
        default_pool = "cuDeviceGetDefaultMemPool": fn(*mut u64, c_int);
        current = "cuDeviceGetMemPool": fn(*mut u64, c_int);
        set_current = "cuDeviceSetMemPool": fn(c_int, u64);
        alloc = "cuMemAllocFromPoolAsync": fn(*mut u64, usize, u64, u64);
        alloc_current = "cuMemAllocAsync": fn(*mut u64, usize, u64);
        free = "cuMemFreeAsync": fn(u64, u64);
        reset_primary = "cuDevicePrimaryCtxReset_v2": fn(c_int);
    }
}

const MIB: usize = 1 << 20;
const RELEASE_THRESHOLD: c_uint = 4;
const RESERVED: c_uint = 5;
const USED: c_uint = 7;

impl Functions {
    fn new(cuda: &Cuda) -> Self {
        Self::load(|name| cuda.find(name)).unwrap()
    }

    fn created(&self, device: c_int) -> u64 {
        let mut pool = 0;
        let properties = Properties {
            kind: 1,
            handle_types: 0,
            location: [1, device],
            rest: [0; 9],
        };
        assert_eq!(call!(self.create, &raw mut pool, &raw const properties), 0);
        pool
    }

    fn allocated(&self, pool: u64, bytes: usize) -> u64 {
        let mut pointer = 0;
        assert_eq!(call!(self.alloc, &raw mut pointer, bytes, pool, 0), 0);
        pointer
    }

    fn value(&self, pool: u64, attribute: c_uint) -> u64 {
        let mut value: u64 = 0;
        assert_eq!(
            call!(self.attribute, pool, attribute, (&raw mut value).cast()),
            0
        );
        value
    }
}

#[test]
fn a_pool_keeps_what_is_freed_up_to_its_threshold() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let pool = f.created(0);
    let first = f.allocated(pool, 8 * MIB);
    let second = f.allocated(pool, 4 * MIB);
    assert_eq!(cuda.used(), CONTEXT + 12 * MIB);
    assert_eq!(call!(f.free, first, 0), 0);
    assert_eq!(cuda.used(), CONTEXT + 4 * MIB, "nothing is kept");
    let threshold: u64 = 10 << 20;
    let value = (&raw const threshold).cast();
    assert_eq!(call!(f.set_attribute, pool, RELEASE_THRESHOLD, value), 0);
    let first = f.allocated(pool, 8 * MIB);
    assert_eq!(call!(f.free, first, 0), 0);
    assert_eq!(cuda.used(), CONTEXT + 10 * MIB, "some is kept");
    assert_eq!(f.value(pool, USED), 4 << 20);
    assert_eq!(f.value(pool, RESERVED), 10 << 20);
    let third = f.allocated(pool, 7 * MIB);
    assert_eq!(cuda.used(), CONTEXT + 11 * MIB, "and used again");
    assert_eq!(call!(f.free, third, 0), 0);
    assert_eq!(call!(f.trim, pool, 6 * MIB), 0);
    assert_eq!(cuda.used(), CONTEXT + 6 * MIB);
    assert_eq!(call!(f.destroy, pool), 0);
    assert_eq!(cuda.used(), CONTEXT + 4 * MIB, "what is allocated stays");
    let mut pointer = 0;
    assert_eq!(call!(f.alloc, &raw mut pointer, MIB, pool, 0), 1);
    assert_eq!(call!(f.destroy, pool), 1);
    assert_eq!(cuda.free(second), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn each_device_has_a_current_pool() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let (mut default, mut current) = (0, 0);
    assert_eq!(call!(f.default_pool, &raw mut default, 0), 0);
    assert_eq!(call!(f.current, &raw mut current, 0), 0);
    assert_eq!(current, default);
    assert_eq!(call!(f.destroy, default), 1, "never");
    let pool = f.created(0);
    assert_eq!(call!(f.set_current, 1, pool), 1, "of another device");
    assert_eq!(call!(f.set_current, 0, pool), 0);
    let mut pointer = 0;
    assert_eq!(call!(f.alloc_current, &raw mut pointer, MIB, 0), 0);
    assert_eq!(f.value(pool, USED), 1 << 20);
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(call!(f.destroy, pool), 0);
    assert_eq!(call!(f.current, &raw mut current, 0), 0);
    assert_eq!(current, default, "again");
    let elsewhere = f.created(1);
    let pointer = f.allocated(elsewhere, MIB);
    assert_eq!(cuda.used(), CONTEXT, "on the other device");
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(call!(f.destroy, elsewhere), 0);
    cuda.destroy(context);
}

#[test]
fn pooled_memory_outlives_contexts_but_not_the_primary_one() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let mut pointer = 0;
    assert_eq!(call!(f.alloc_current, &raw mut pointer, MIB, 0), 0);
    cuda.destroy(context);
    let context = cuda.create(0);
    assert_eq!(cuda.used(), CONTEXT + MIB);
    let mut primary = ptr::null_mut();
    assert_eq!(call!(cuda.primary_retain, &raw mut primary, 0), 0);
    assert_eq!(call!(f.reset_primary, 0), 0);
    assert_eq!(call!(cuda.primary_release, 0), 201, "ended by the reset");
    assert_eq!(cuda.used(), CONTEXT);
    assert_eq!(cuda.free(pointer), 1);
    cuda.destroy(context);
}
