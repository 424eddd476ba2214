//! Injected failures.

use crate::common::{CONTEXT, Pointer, call, ready};
use gputrace_test_rig::faults::Family;
use gputrace_test_rig::functions;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr;

functions! {
    struct Functions {
        rig_set = "gputrace_rig_set": fn(*const std::ffi::c_char, u64);
        managed = "cuMemAllocManaged": fn(*mut u64, usize, c_uint);
        create = "cuMemCreate": fn(*mut u64, usize, *const [u32; 8], u64);
        reserve = "cuMemAddressReserve": fn(*mut u64, usize, usize, u64, u64);
        host = "cuMemHostAlloc": fn(*mut Pointer, usize, c_uint);
        array = "cuArrayCreate_v2": fn(*mut u64, *const [u64; 3]);
        module = "cuModuleLoadData": fn(*mut u64, *const c_void);
        graph = "cuGraphInstantiateWithFlags": fn(*mut u64, u64, u64);
        ipc = "cuImportExternalMemory": fn(*mut u64, *const c_void);
        pool = "cuMemPoolCreate": fn(*mut u64, *const c_void);
        launch = "cuLaunch": fn(u64);
        copy = "cuMemcpyDtoD_v2": fn(u64, u64, usize);
        sync = "cuCtxSynchronize": fn();
    }
}

#[test]
fn every_family_can_be_made_to_fail() {
    let (_turn, cuda) = ready();
    let f = Functions::load(|name| cuda.find(name)).unwrap();
    let context = cuda.create(0);
    let kept = cuda.alloc(1 << 20).unwrap();
    let mut out = 0_u64;
    let out = &raw mut out;
    let mut pointer = ptr::null_mut();
    let pointer = &raw mut pointer;
    let properties: [u32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
    for family in Family::ALL {
        let name = family.name();
        cuda.set(&format!("{name}_fail_every"), 1);
        let call = || -> c_int {
            match family {
                Family::Alloc => call!(f.managed, out, 4096, 1),
                Family::Free => cuda.free(kept),
                Family::Vmm => call!(f.create, out, 2 << 20, &raw const properties, 0),
                Family::Reserve => call!(f.reserve, out, 2 << 20, 0, 0, 0),
                Family::Host => call!(f.host, pointer, 4096, 0),
                Family::Array => call!(f.array, out, &[16, 16, 0x1_0000_0020]),
                Family::Module => call!(f.module, out, c"code".as_ptr().cast()),
                Family::Graph => call!(f.graph, out, 0, 0),
                Family::Ipc => call!(f.ipc, out, ptr::null()),
                Family::Ctx => call!(cuda.ctx_create, pointer, 0, 0),
                Family::Pool => call!(f.pool, out, ptr::null()),
                Family::Launch => call!(f.launch, 0),
                Family::Copy => call!(f.copy, kept, kept, 1),
                Family::Sync => call!(f.sync),
            }
        };
        assert_eq!(call(), family.default_code(), "{name}");
        cuda.set(&format!("{name}_fail_code"), 46);
        assert_eq!(call(), 46, "{name}");
        cuda.set(&format!("{name}_fail_every"), 0);
        cuda.set(&format!("{name}_fail_code"), 0);
    }
    assert_eq!(
        cuda.used(),
        CONTEXT + (1 << 20),
        "nothing was taken or given back"
    );
    assert_eq!(cuda.free(kept), 0);
    for wrong in ["alloc_fails", "nothing_fail_every", "fail_every", ""] {
        let key = CString::new(wrong).unwrap();
        assert_eq!(call!(f.rig_set, key.as_ptr(), 1), 1, "{wrong}");
    }
    cuda.destroy(context);
}
