//! Contexts of every sort.

use crate::common::{CONTEXT, Pointer, call, ready};
use gputrace_test_rig::functions;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

functions! {
    struct Functions {
        create_v1 = "cuCtxCreate": fn(*mut Pointer, c_uint, c_int);
        create_v3 = "cuCtxCreate_v3": fn(*mut Pointer, *const c_void, c_int, c_uint, c_int);
        create_v4 = "cuCtxCreate_v4": fn(*mut Pointer, *const c_void, c_uint, c_int);
        destroy_v1 = "cuCtxDestroy": fn(Pointer);
        attach = "cuCtxAttach": fn(*mut Pointer, c_uint);
        detach = "cuCtxDetach": fn(Pointer);
        device = "cuCtxGetDevice": fn(*mut c_int);
        primary_state = "cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
        primary_reset = "cuDevicePrimaryCtxReset_v2": fn(c_int);
        resource = "cuDeviceGetDevResource": fn(c_int, *mut [u64; 18], c_uint);
        describe = "cuDevResourceGenerateDesc": fn(*mut Pointer, *const [u64; 18], c_uint);
        green_create = "cuGreenCtxCreate": fn(*mut u64, Pointer, c_int, c_uint);
        green_destroy = "cuGreenCtxDestroy": fn(u64);
        from_green = "cuCtxFromGreenCtx": fn(*mut Pointer, u64);
        stream_create = "cuStreamCreate": fn(*mut u64, c_uint);
        stream_synchronize = "cuStreamSynchronize": fn(u64);
        event_create = "cuEventCreate": fn(*mut u64, c_uint);
        event_record = "cuEventRecord": fn(u64, u64);
        event_synchronize = "cuEventSynchronize": fn(u64);
    }
}

#[test]
fn every_way_to_create_a_context_makes_it_current() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let mut contexts = [ptr::null_mut(); 3];
    let [first, second, third] = &mut contexts;
    assert_eq!(call!(f.create_v1, first, 0, 0), 0);
    assert_eq!(call!(f.create_v3, second, ptr::null(), 0, 0, 0), 0);
    assert_eq!(call!(f.create_v4, third, ptr::null(), 0, 1), 0);
    assert_eq!(cuda.used(), CONTEXT, "of device 1");
    let mut device = 9;
    assert_eq!(call!(f.device, &raw mut device), 0);
    assert_eq!(device, 1);
    cuda.destroy(contexts[2]);
    assert_eq!(cuda.used(), 2 * CONTEXT, "of device 0");
    assert_eq!(
        call!(f.create_v4, &raw mut contexts[2], ptr::null(), 0, 2),
        101
    );
    assert_eq!(call!(f.destroy_v1, contexts[1]), 0);
    let mut again = ptr::null_mut();
    assert_eq!(call!(f.attach, &raw mut again, 0), 0);
    assert_eq!(again, contexts[0]);
    assert_eq!(call!(f.detach, again), 0);
    assert_eq!(cuda.used(), CONTEXT, "one use is left");
    assert_eq!(call!(f.detach, again), 0);
    assert_eq!(cuda.alloc(1), Err(201));
}

#[test]
fn a_reset_ends_the_primary_context_with_its_memory() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let mut primary = ptr::null_mut();
    let (mut flags, mut active) = (0, 9);
    for _ in 0..3 {
        assert_eq!(call!(cuda.primary_retain, &raw mut primary, 1), 0);
    }
    assert_eq!(
        call!(f.primary_state, 1, &raw mut flags, &raw mut active),
        0
    );
    assert_eq!(active, 1);
    cuda.make_current(primary.expose_provenance());
    cuda.alloc(1 << 20).unwrap();
    assert_eq!(call!(f.primary_reset, 1), 0);
    assert_eq!(cuda.alloc(1), Err(709));
    assert_eq!(
        call!(f.primary_state, 1, &raw mut flags, &raw mut active),
        0
    );
    assert_eq!(active, 0);
    assert_eq!(call!(f.primary_reset, 1), 0, "nothing to do");
    cuda.make_current(0);
    let context = cuda.create(1);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn green_contexts_live_in_the_primary_one() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let (mut resource, mut description) = ([0; 18], ptr::null_mut());
    assert_eq!(call!(f.resource, 0, &raw mut resource, 1), 0);
    assert_eq!(
        call!(f.describe, &raw mut description, &raw const resource, 1),
        0
    );
    let (mut first, mut second) = (0, 0);
    assert_eq!(
        call!(f.green_create, &raw mut first, description, 0, 0),
        1,
        "without its flag"
    );
    assert_eq!(call!(f.green_create, &raw mut first, description, 0, 1), 0);
    assert_eq!(call!(f.green_create, &raw mut second, description, 0, 1), 0);
    let mut context = ptr::null_mut();
    assert_eq!(call!(f.from_green, &raw mut context, first), 0);
    cuda.make_current(context.expose_provenance());
    cuda.alloc(1 << 20).unwrap();
    assert_eq!(cuda.used(), CONTEXT + (1 << 20));
    assert_eq!(call!(f.green_destroy, first), 0);
    assert_eq!(call!(f.green_destroy, first), 201);
    cuda.make_current(0);
    let own = cuda.create(0);
    assert_eq!(cuda.used(), 2 * CONTEXT);
    assert_eq!(call!(f.green_destroy, second), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(own);
}

#[test]
fn streams_and_events_go_with_their_context() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let (mut stream, mut event) = (0, 0);
    assert_eq!(call!(f.stream_create, &raw mut stream, 1), 0);
    assert_eq!(call!(f.event_create, &raw mut event, 0), 0);
    assert_eq!(call!(f.event_record, event, stream), 0);
    assert_eq!(call!(f.event_record, event, 77), 400);
    assert_eq!(call!(f.event_synchronize, event), 0);
    for known in [0, 1, 2, stream] {
        assert_eq!(call!(f.stream_synchronize, known), 0);
    }
    cuda.destroy(context);
    assert_eq!(call!(f.stream_synchronize, stream), 400);
    assert_eq!(call!(f.event_synchronize, event), 400);
}
