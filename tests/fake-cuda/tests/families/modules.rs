//! Modules, libraries, launches.

use crate::common::{CONTEXT, Cuda, Pointer, call, ready};
use gputrace_test_rig::functions;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

functions! {
    struct Functions {
        load = "cuModuleLoadData": fn(*mut u64, *const c_void);
        load_file = "cuModuleLoad": fn(*mut u64, *const c_char);
        unload = "cuModuleUnload": fn(u64);
        get_function = "cuModuleGetFunction": fn(*mut u64, u64, *const c_char);
        library_load = "cuLibraryLoadData":
            fn(*mut u64, *const c_void, Pointer, Pointer, c_uint, Pointer, Pointer, c_uint);
        library_unload = "cuLibraryUnload": fn(u64);
        library_kernel = "cuLibraryGetKernel": fn(*mut u64, u64, *const c_char);
        library_module = "cuLibraryGetModule": fn(*mut u64, u64);
        attribute = "cuFuncGetAttribute": fn(*mut c_int, c_uint, u64);
        launch = "cuLaunchKernel": fn(
            u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, Pointer, Pointer,
        );
        launch_ex = "cuLaunchKernelEx": fn(*const Config, u64, Pointer, Pointer);
        copy = "cuMemcpyHtoD_v2": fn(u64, *const c_void, usize);
        set = "cuMemsetD8_v2": fn(u64, u8, usize);
        synchronize = "cuCtxSynchronize": fn();
    }
}

#[repr(C)]
struct Config {
    sizes: [c_uint; 6],
    shared: c_uint,
    stream: u64,
    attributes: Pointer,
    count: c_uint,
}

const MODULE: usize = 2 << 20;

impl Functions {
    fn new(cuda: &Cuda) -> Self {
        Self::load(|name| cuda.find(name)).unwrap()
    }

    fn loaded(&self) -> u64 {
        let mut module = 0;
        assert_eq!(
            call!(self.load, &raw mut module, c"code".as_ptr().cast()),
            0
        );
        module
    }

    fn function(&self, module: u64) -> u64 {
        let mut function = 0;
        assert_eq!(
            call!(
                self.get_function,
                &raw mut function,
                module,
                c"kernel".as_ptr()
            ),
            0
        );
        function
    }

    fn launched(&self, function: u64) -> c_int {
        let null = ptr::null_mut();
        call!(self.launch, function, 1, 2, 3, 4, 5, 6, 0, 0, null, null)
    }
}

#[test]
fn what_is_loaded_costs_memory_until_it_is_unloaded() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let module = f.loaded();
    let function = f.function(module);
    assert_eq!(f.function(module), function);
    let null = ptr::null_mut();
    let mut library = 0;
    let image = c"code".as_ptr().cast();
    assert_eq!(
        call!(
            f.library_load,
            &raw mut library,
            image,
            null,
            null,
            0,
            null,
            null,
            0
        ),
        0
    );
    assert_eq!(cuda.used(), CONTEXT + 2 * MODULE);
    let (mut kernel, mut of_library) = (0, 0);
    assert_eq!(
        call!(f.library_kernel, &raw mut kernel, library, c"k".as_ptr()),
        0
    );
    assert_eq!(call!(f.library_module, &raw mut of_library, library), 0);
    assert_eq!(call!(f.unload, of_library), 400, "the library's");
    assert_eq!(f.launched(kernel), 0);
    assert_eq!(call!(f.library_unload, library), 0);
    assert_eq!(call!(f.library_unload, library), 400);
    assert_eq!(f.launched(kernel), 400);
    assert_eq!(call!(f.unload, module), 0);
    assert_eq!(call!(f.unload, module), 400);
    assert_eq!(f.launched(function), 400);
    assert_eq!(cuda.used(), CONTEXT);
    let mut module = 0;
    assert_eq!(call!(f.load, &raw mut module, ptr::null()), 1);
    assert_eq!(
        call!(f.load_file, &raw mut module, c"/nonexistent".as_ptr()),
        301
    );
    f.loaded();
    cuda.destroy(context);
    let context = cuda.create(0);
    assert_eq!(cuda.used(), CONTEXT, "gone with its context");
    cuda.destroy(context);
}

#[test]
fn launches_and_copies_look_at_their_arguments() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let function = f.function(f.loaded());
    let null = ptr::null_mut();
    assert_eq!(f.launched(function), 0);
    assert_eq!(f.launched(77), 400);
    assert_eq!(
        call!(f.launch, function, 1, 1, 1, 1, 1, 0, 0, 0, null, null),
        1
    );
    assert_eq!(
        call!(f.launch, function, 1, 1, 1, 1, 1, 1, 0, 77, null, null),
        400
    );
    let config = Config {
        sizes: [1; 6],
        shared: 0,
        stream: 0,
        attributes: null,
        count: 0,
    };
    assert_eq!(
        call!(f.launch_ex, &raw const config, function, null, null),
        0
    );
    assert_eq!(call!(f.launch_ex, ptr::null(), function, null, null), 1);
    let pointer = cuda.alloc(4096).unwrap();
    assert_eq!(call!(f.copy, pointer, c"text".as_ptr().cast(), 4), 0);
    assert_eq!(call!(f.copy, 0, c"text".as_ptr().cast(), 4), 1);
    assert_eq!(call!(f.set, pointer, 7, 4096), 0);
    assert_eq!(call!(f.set, 0, 7, 4096), 1);
    let mut threads = 0;
    assert_eq!(call!(f.attribute, &raw mut threads, 0, function), 0);
    assert_eq!(threads, 1024);
    assert_eq!(call!(f.synchronize), 0);
    cuda.destroy(context);
    assert_eq!(call!(f.synchronize), 201);
}

#[test]
fn a_launch_fails_after_so_many_or_without_room() {
    let (_turn, cuda) = ready();
    let f = Functions::new(cuda);
    let context = cuda.create(0);
    let function = f.function(f.loaded());
    cuda.set("launch_fail_after", 3);
    cuda.set("launch_fail_code", 2);
    let results: Vec<_> = (0..5).map(|_| f.launched(function)).collect();
    assert_eq!(results, [0, 0, 0, 2, 2]);
    cuda.set("launch_fail_after", 0);
    cuda.set("launch_fail_code", 0);
    cuda.set("launch_needs", 64 << 20);
    assert_eq!(f.launched(function), 0);
    let (mut free, mut total) = (0, 0);
    assert_eq!(call!(cuda.mem_get_info, &raw mut free, &raw mut total), 0);
    let most = cuda.alloc(free - (32 << 20)).unwrap();
    assert_eq!(f.launched(function), 2);
    assert_eq!(cuda.free(most), 0);
    assert_eq!(f.launched(function), 0);
    cuda.set("launch_needs", 0);
    cuda.destroy(context);
}
