//! Graphs and the memory that they allocate.

use crate::common::{CONTEXT, Pointer, call, ready};
use gputrace_test_rig::functions;
use std::ffi::{c_int, c_uint};
use std::ptr;

#[repr(C)]
struct AllocParameters {
    kind: c_uint,
    handle_types: c_uint,
    location: [c_int; 2],
    rest: [u64; 9],
    access: u64,
    access_count: usize,
    bytes: usize,
    pointer: u64,
}

functions! {
    struct Functions {
        create = "cuGraphCreate": fn(*mut u64, c_uint);
        destroy = "cuGraphDestroy": fn(u64);
        add_empty = "cuGraphAddEmptyNode": fn(*mut u64, u64, *const u64, usize);
        add_alloc = "cuGraphAddMemAllocNode": fn(*mut u64, u64, *const u64, usize, *mut AllocParameters);
        add_free = "cuGraphAddMemFreeNode": fn(*mut u64, u64, *const u64, usize, u64);
        instantiate = "cuGraphInstantiateWithFlags": fn(*mut u64, u64, u64);
        instantiate_v2 = "cuGraphInstantiate_v2": fn(*mut u64, u64, *mut u64, Pointer, usize);
        instantiate_parameters = "cuGraphInstantiateWithParams": fn(*mut u64, u64, *mut [u64; 4]);
        destroy_exec = "cuGraphExecDestroy": fn(u64);
        launch = "cuGraphLaunch": fn(u64, u64);
        trim = "cuDeviceGraphMemTrim": fn(c_int);
    }
}

#[test]
fn a_graphs_memory_comes_with_its_launch_and_goes_with_a_trim() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let (mut graph, mut node, mut exec) = (0, 0, 0);
    assert_eq!(call!(f.create, &raw mut graph, 0), 0);
    assert_eq!(call!(f.add_empty, &raw mut node, graph, ptr::null(), 0), 0);
    let mut parameters = AllocParameters {
        kind: 1,
        handle_types: 0,
        location: [1, 0],
        rest: [0; 9],
        access: 0,
        access_count: 0,
        bytes: 8 << 20,
        pointer: 0,
    };
    let none = ptr::null();
    assert_eq!(
        call!(
            f.add_alloc,
            &raw mut node,
            graph,
            none,
            0,
            &raw mut parameters
        ),
        0
    );
    let pointer = parameters.pointer;
    assert_ne!(pointer, 0);
    assert_eq!(call!(f.instantiate, &raw mut exec, graph, 0), 0);
    assert_eq!(cuda.used(), CONTEXT, "not launched yet");
    assert_eq!(call!(f.launch, exec, 0), 0);
    assert_eq!(cuda.used(), CONTEXT + (8 << 20));
    assert_eq!(call!(f.launch, exec, 0), 1, "not freed since");
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(cuda.used(), CONTEXT + (8 << 20), "kept for the next launch");
    assert_eq!(call!(f.launch, exec, 0), 0);
    assert_eq!(cuda.used(), CONTEXT + (8 << 20));
    assert_eq!(call!(f.trim, 0), 0);
    assert_eq!(cuda.used(), CONTEXT + (8 << 20), "in use");
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(call!(f.trim, 0), 0);
    assert_eq!(cuda.used(), CONTEXT);

    assert_eq!(call!(f.add_free, &raw mut node, graph, none, 0, pointer), 0);
    let mut balanced = 0;
    let null: Pointer = ptr::null_mut();
    assert_eq!(
        call!(
            f.instantiate_v2,
            &raw mut balanced,
            graph,
            null.cast(),
            null,
            0
        ),
        0
    );
    for _ in 0..3 {
        assert_eq!(call!(f.launch, balanced, 0), 0);
    }
    assert_eq!(cuda.free(pointer), 1, "freed by the graph");
    let mut values = [0, 0, 77, 77];
    let mut third = 0;
    assert_eq!(
        call!(
            f.instantiate_parameters,
            &raw mut third,
            graph,
            &raw mut values
        ),
        0
    );
    assert_eq!((values[2], values[3] & 0xffff_ffff), (0, 0));
    for exec in [exec, balanced, third] {
        assert_eq!(call!(f.destroy_exec, exec), 0);
        assert_eq!(call!(f.launch, exec, 0), 400);
    }
    assert_eq!(call!(f.destroy_exec, exec), 400);
    assert_eq!(call!(f.destroy, graph), 0);
    assert_eq!(call!(f.instantiate, &raw mut exec, graph, 0), 400);
    assert_eq!(call!(f.trim, 0), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}
