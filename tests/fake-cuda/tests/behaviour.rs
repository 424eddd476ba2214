//! The library behaves as the real driver API does, as far as a tracer can tell.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{CONTEXT, Cuda, TOTAL, call, cuda, in_child, ready};
use std::collections::HashSet;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn devices_are_those_of_the_rig() {
    let (_turn, cuda) = ready();
    let (mut count, mut total, mut uuid, mut name) = (0, 0, [0; 16], [1_u8; 6]);
    // SAFETY: valid for a write each, the name for 6 bytes.
    unsafe {
        assert_eq!((cuda.device_get_count)(&raw mut count), 0);
        assert_eq!((cuda.device_total_mem)(&raw mut total, 1), 0);
        assert_eq!((cuda.device_total_mem)(&raw mut total, 2), 101);
        assert_eq!((cuda.device_get_uuid)(&raw mut uuid, 1), 0);
        assert_eq!((cuda.device_get_name)(name.as_mut_ptr().cast(), 6, 0), 0);
    }
    assert_eq!((count, total, uuid[15]), (2, TOTAL, 1));
    assert_eq!(&name, b"Fake \0");
}

#[test]
fn an_allocation_needs_a_context_and_a_size() {
    let (_turn, cuda) = ready();
    assert_eq!(cuda.alloc(4096), Err(201));
    assert_eq!(cuda.free(4096), 201);
    let context = cuda.create(0);
    assert_eq!(cuda.alloc(0), Err(1));
    // SAFETY: null is refused.
    assert_eq!(unsafe { (cuda.mem_alloc)(ptr::null_mut(), 1) }, 1);
    assert_eq!(cuda.free(0), 0);
    assert_eq!(cuda.free(0xdead), 1);
    let pointer = cuda.alloc(4096).unwrap();
    assert_eq!(cuda.free(pointer), 0);
    assert_eq!(cuda.free(pointer), 1, "freed twice");
    cuda.destroy(context);
}

#[test]
fn contexts_cost_memory_and_take_theirs_along() {
    let (_turn, cuda) = ready();
    let outer = cuda.create(0);
    assert_eq!(cuda.used(), CONTEXT);
    let inner = cuda.create(0);
    let pointer = cuda.alloc(1 << 30).unwrap();
    assert_eq!(cuda.used(), 2 * CONTEXT + (1 << 30));
    cuda.destroy(inner);
    assert_eq!(cuda.used(), CONTEXT, "the outer one is current again");
    assert_eq!(cuda.free(pointer), 1, "gone with its context");
    cuda.destroy(outer);
    assert_eq!(cuda.alloc(1), Err(201));
}

#[test]
fn the_stack_of_contexts_is_the_threads_own() {
    let (_turn, cuda) = ready();
    let first = cuda.create(0);
    let second = cuda.create(1);
    let current = || {
        let mut context = ptr::null_mut();
        // SAFETY: valid for a write.
        assert_eq!(unsafe { (cuda.ctx_get_current)(&raw mut context) }, 0);
        context
    };
    assert_eq!(current(), second);
    let shared = first as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let first = shared as common::Pointer;
            assert!(current().is_null());
            assert_eq!(cuda.alloc(1), Err(201));
            // SAFETY: takes any value.
            unsafe {
                assert_eq!((cuda.ctx_set_current)(first), 0);
                assert_eq!(current(), first);
                assert_eq!((cuda.ctx_set_current)(ptr::null_mut()), 0);
                assert_eq!((cuda.ctx_set_current)(ptr::dangling_mut()), 201);
            }
            assert!(current().is_null());
        });
    });
    let mut popped = ptr::null_mut();
    // SAFETY: valid for a write, and any value.
    unsafe {
        assert_eq!((cuda.ctx_pop)(&raw mut popped), 0);
        assert_eq!((popped, current()), (second, first));
        assert_eq!((cuda.ctx_push)(second), 0);
    }
    cuda.destroy(first);
    cuda.destroy(second);
    assert_eq!(
        cuda.alloc(1),
        Err(709),
        "the first is current, and destroyed"
    );
    // SAFETY: takes any value.
    assert_eq!(unsafe { (cuda.ctx_set_current)(ptr::null_mut()) }, 0);
}

#[test]
fn the_primary_context_lives_as_long_as_it_is_retained() {
    let (_turn, cuda) = ready();
    let (mut first, mut again) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: valid for a write each.
    unsafe {
        assert_eq!((cuda.primary_retain)(&raw mut first, 0), 0);
        assert_eq!((cuda.primary_retain)(&raw mut again, 0), 0);
        assert_eq!(first, again);
        assert_eq!((cuda.ctx_set_current)(first), 0);
        assert_eq!((cuda.ctx_destroy)(first), 201);
        assert_eq!((cuda.primary_release)(0), 0);
        assert_eq!(cuda.used(), CONTEXT);
        assert_eq!((cuda.primary_release)(0), 0);
        assert_eq!((cuda.primary_release)(0), 201);
        assert_eq!(cuda.alloc(1), Err(709));
        assert_eq!((cuda.ctx_set_current)(ptr::null_mut()), 0);
    }
}

#[test]
fn what_the_device_does_not_have_is_refused() {
    let (_turn, cuda) = ready();
    let context = cuda.create(0);
    assert_eq!(cuda.alloc(TOTAL), Err(2));
    let all = cuda.alloc(TOTAL - CONTEXT).unwrap();
    assert_eq!(cuda.alloc(1), Err(2));
    let mut second = ptr::null_mut();
    // SAFETY: valid for a write.
    assert_eq!(unsafe { (cuda.ctx_create)(&raw mut second, 0, 0) }, 2);
    assert_eq!(cuda.free(all), 0);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn a_freed_address_is_the_next_one_of_its_size() {
    let (_turn, cuda) = ready();
    let context = cuda.create(0);
    let large: Vec<u64> = (0..3).map(|_| cuda.alloc(6 << 20).unwrap()).collect();
    let small = cuda.alloc(700).unwrap();
    assert!(large.iter().all(|pointer| pointer % (2 << 20) == 0));
    assert_eq!(small % 512, 0);
    assert_eq!(small >> 40, 0x7d);
    for pointer in &large {
        assert_eq!(cuda.free(*pointer), 0);
    }
    assert_eq!(cuda.alloc(600).unwrap(), small + 1024);
    let again: Vec<u64> = (0..3).map(|_| cuda.alloc(6 << 20).unwrap()).collect();
    assert!(again.iter().eq(large.iter().rev()));
    // To another thread as well.
    assert_eq!(cuda.free(again[1]), 0);
    let handle = context as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cuda.make_current(handle);
            assert_eq!(cuda.alloc(6 << 20), Ok(again[1]));
        });
    });
    cuda.destroy(context);
}

#[test]
fn sixty_four_threads_never_share_an_address() {
    let (_turn, cuda) = ready();
    let context = cuda.create(1);
    let handle = context as usize;
    let kept: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|number| scope.spawn(move || allocate_and_free(cuda, handle, number)))
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    assert_eq!(kept.len(), 64 * 8);
    assert_eq!(kept.iter().collect::<HashSet<_>>().len(), kept.len());
    assert_eq!(cuda.used(), CONTEXT + kept.len() * (64 << 10));
    for pointer in kept {
        assert_eq!(cuda.free(pointer), 0);
    }
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

fn allocate_and_free(cuda: &Cuda, context: usize, number: usize) -> Vec<u64> {
    cuda.make_current(context);
    let mut kept: Vec<u64> = (0..8).map(|_| cuda.alloc(64 << 10).unwrap()).collect();
    for turn in 0..2000 {
        let place = (turn * 7 + number) % kept.len();
        assert_eq!(cuda.free(kept[place]), 0);
        kept[place] = cuda.alloc(64 << 10).unwrap();
    }
    kept
}

#[test]
fn a_context_destroyed_under_its_threads_keeps_nothing() {
    let (_turn, cuda) = ready();
    for _ in 0..50 {
        let context = cuda.create(1) as usize;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    // SAFETY: takes any value; the context may be gone already.
                    unsafe { (cuda.ctx_set_current)(context as common::Pointer) };
                    // Every other allocation is left for the destruction.
                    while let Ok(pointer) = cuda.alloc(1 << 20) {
                        cuda.free(pointer);
                        let _ = cuda.alloc(1 << 20);
                    }
                });
            }
            cuda.destroy(context as common::Pointer);
        });
    }
    let context = cuda.create(1);
    assert_eq!(cuda.used(), CONTEXT);
    cuda.destroy(context);
}

#[test]
fn get_proc_address_gives_exported_symbols() {
    let (_turn, cuda) = cuda();
    let by_name = |name: &std::ffi::CStr, version| {
        let (mut pointer, mut status) = (ptr::null_mut(), 9);
        // SAFETY: a terminated string, valid for a write each.
        let code = unsafe {
            (cuda.get_proc_address_v2)(name.as_ptr(), &raw mut pointer, version, 0, &raw mut status)
        };
        (code, pointer, status)
    };
    let alloc = cuda.symbol("cuMemAlloc_v2");
    let v2 = cuda.symbol("cuGetProcAddress_v2");
    let v1 = cuda.symbol("cuGetProcAddress");
    assert_eq!(by_name(c"cuMemAlloc", 12040), (0, alloc, 0));
    assert_eq!(by_name(c"cuMemAlloc", 3020), (0, alloc, 0));
    let old = cuda.symbol("cuMemAlloc");
    assert_eq!(by_name(c"cuMemAlloc", 3010), (0, old, 0));
    assert_eq!(by_name(c"cuMemCreate", 10010), (0, ptr::null_mut(), 2));
    assert_eq!(by_name(c"cuMemAlloc_v2", 12040), (0, ptr::null_mut(), 1));
    assert_eq!(by_name(c"cuGetProcAddress", 12040), (0, v2, 0));
    assert_eq!(by_name(c"cuGetProcAddress", 11080), (0, v1, 0));
    let mut pointer = ptr::null_mut();
    // SAFETY: terminated strings, valid for a write.
    unsafe {
        let get = cuda.get_proc_address;
        assert_eq!(get(c"cuMemFree".as_ptr(), &raw mut pointer, 11040, 0), 0);
        assert_eq!(pointer, cuda.symbol("cuMemFree_v2"));
        assert_eq!(get(c"cuNothing".as_ptr(), &raw mut pointer, 11040, 0), 500);
    }
    assert!(pointer.is_null());
}

#[test]
fn versions_and_flags_choose_among_symbols() {
    let (_turn, cuda) = cuda();
    let find = |name: &str, version, flags| {
        let name = std::ffi::CString::new(name).unwrap();
        let (mut pointer, mut status) = (ptr::null_mut(), 9);
        let get = cuda.get_proc_address_v2;
        let code = call!(
            get,
            name.as_ptr(),
            &raw mut pointer,
            version,
            flags,
            &raw mut status
        );
        assert_eq!((code, status), (0, 0));
        pointer
    };
    for (name, version, flags, symbol) in [
        ("cuCtxCreate", 2000, 0, "cuCtxCreate"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuMemAllocAsync", 12050, 0, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 12050, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 12050, 2, "cuMemAllocAsync_ptsz"),
        ("cuMemcpyHtoD", 12050, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 12050, 0, "cuMemcpyHtoD_v2"),
        ("cuMemFree", 12050, 2, "cuMemFree_v2"),
        ("cuIpcOpenMemHandle", 10000, 0, "cuIpcOpenMemHandle"),
        ("cuIpcOpenMemHandle", 11000, 0, "cuIpcOpenMemHandle_v2"),
        ("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"),
        ("cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2"),
        (
            "cuGraphInstantiate",
            12000,
            0,
            "cuGraphInstantiateWithFlags",
        ),
        ("cuMemPrefetchAsync", 12020, 2, "cuMemPrefetchAsync_v2_ptsz"),
    ] {
        let found = find(name, version, flags);
        assert_eq!(found, cuda.symbol(symbol), "{name} {version} {flags}");
    }
    let mut pointer = ptr::null_mut();
    let get = cuda.get_proc_address;
    assert_eq!(
        call!(get, c"cuMemFree".as_ptr(), &raw mut pointer, 12050, 4),
        1
    );
}

#[test]
fn failures_are_injected_and_charge_nothing() {
    let (_turn, cuda) = ready();
    let context = cuda.create(0);
    cuda.set("alloc_fail_every", 4);
    cuda.set("alloc_fail_code", 46);
    let results: Vec<_> = (0..8).map(|_| cuda.alloc(1 << 20)).collect();
    cuda.set("alloc_fail_every", 0);
    cuda.set("alloc_fail_code", 0);
    for (index, result) in results.iter().enumerate() {
        assert_eq!(result.is_err(), index % 4 == 3);
    }
    assert_eq!(results[3], Err(46));
    assert_eq!(cuda.used(), CONTEXT + (6 << 20));
    cuda.set("free_fail_every", 1);
    let pointer = results[0].unwrap();
    assert_eq!(cuda.free(pointer), 1);
    cuda.set("free_fail_every", 0);
    assert_eq!(cuda.free(pointer), 0);
    cuda.destroy(context);
}

#[test]
fn a_forked_child_cannot_use_the_driver() {
    let (_turn, cuda) = ready();
    let context = cuda.create(0);
    let pointer = cuda.alloc(4096).unwrap();
    let code = in_child(|| {
        assert_eq!(cuda.free(pointer), 3);
        // SAFETY: takes any value.
        assert_eq!(unsafe { (cuda.init)(0) }, 3);
        cuda.alloc(4096).unwrap_err()
    });
    assert_eq!(code, 3);
    assert_eq!(cuda.free(pointer), 0, "the parent is as it was");
    cuda.destroy(context);
}

#[test]
fn after_tear_down_everything_gives_4() {
    let (_turn, cuda) = ready();
    let function = cuda.symbol("cuMemFree_v2").cast::<u8>();
    // SAFETY: the test of the shape shows that this is `cmpl $.., displacement(%rip)`, 10 bytes.
    let state = unsafe {
        let displacement = function.add(2).cast::<i32>().read_unaligned();
        let state = function.add(10).offset(displacement as isize);
        &*state.cast::<AtomicU32>()
    };
    let before = state.swap(0x321c_ba00, SeqCst);
    let code = cuda.free(0);
    state.store(before, SeqCst);
    assert_eq!(code, 4);
}
