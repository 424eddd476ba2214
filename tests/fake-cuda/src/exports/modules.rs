//! Modules, libraries, functions, launches.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{activity, modules, streams};
use std::ffi::{c_char, c_int, c_uint, c_void};

exports! {
    /// Loads a module from a file.
    cuModuleLoad(module: *mut u64, name: *const c_char) => modules::load, "cuModuleLoad", 2000;
    /// Loads a module.
    cuModuleLoadData(module: *mut u64, image: *const c_void) => modules::load_data, "cuModuleLoadData", 2000;
    /// Loads a module, with options.
    cuModuleLoadDataEx(module: *mut u64, image: *const c_void) => modules::load_data, "cuModuleLoadDataEx", 2010;
    /// Loads a module from code for several sorts of devices.
    cuModuleLoadFatBinary(module: *mut u64, image: *const c_void) => modules::load_data, "cuModuleLoadFatBinary", 2000;
    /// Unloads a module.
    cuModuleUnload(module: u64) => modules::unload, "cuModuleUnload", 2000;
    /// A function of a module.
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char)
        => modules::get_function, "cuModuleGetFunction", 2000;
    /// The number of functions of a module.
    cuModuleGetFunctionCount(count: *mut c_uint) => modules::count, "cuModuleGetFunctionCount", 12040;
    /// A variable of a module.
    cuModuleGetGlobal_v2() => modules::no_variable, "cuModuleGetGlobal", 3020;
    /// A texture of a module.
    cuModuleGetTexRef() => modules::no_variable, "cuModuleGetTexRef", 2000;
    /// A surface of a module.
    cuModuleGetSurfRef() => modules::no_variable, "cuModuleGetSurfRef", 3000;
    /// Whether functions are loaded when they are first used.
    cuModuleGetLoadingMode(mode: *mut c_uint) => modules::loading_mode, "cuModuleGetLoadingMode", 11070;

    /// Loads a library.
    cuLibraryLoadData(library: *mut u64, image: *const c_void) => modules::load_library, "cuLibraryLoadData", 12000;
    /// Loads a library from a file.
    cuLibraryLoadFromFile(library: *mut u64, name: *const c_char)
        => modules::load_library_file, "cuLibraryLoadFromFile", 12000;
    /// Unloads a library.
    cuLibraryUnload(library: u64) => modules::unload_library, "cuLibraryUnload", 12000;
    /// A kernel of a library.
    cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char)
        => modules::get_kernel, "cuLibraryGetKernel", 12000;
    /// The number of kernels of a library.
    cuLibraryGetKernelCount(count: *mut c_uint) => modules::count, "cuLibraryGetKernelCount", 12040;
    /// A library's module in the current context.
    cuLibraryGetModule(module: *mut u64, library: u64) => modules::library_module, "cuLibraryGetModule", 12000;
    /// A variable of a library.
    cuLibraryGetGlobal() => modules::no_variable, "cuLibraryGetGlobal", 12000;
    /// A managed variable of a library.
    cuLibraryGetManaged() => modules::no_variable, "cuLibraryGetManaged", 12000;
    /// A kernel's function in the current context.
    cuKernelGetFunction(function: *mut u64, kernel: u64) => modules::kernel_function, "cuKernelGetFunction", 12000;
    /// The library of a kernel.
    cuKernelGetLibrary(library: *mut u64, kernel: u64) => modules::code_of, "cuKernelGetLibrary", 12050;
    /// A property of a kernel.
    cuKernelGetAttribute(value: *mut c_int, attribute: c_uint, kernel: u64, device: c_int)
        => modules::kernel_attribute, "cuKernelGetAttribute", 12000;
    /// Changes a property of a kernel.
    cuKernelSetAttribute(attribute: c_uint, value: c_int, kernel: u64)
        => modules::accept_third, "cuKernelSetAttribute", 12000;
    /// Changes how memory is divided for a kernel.
    cuKernelSetCacheConfig(kernel: u64) => modules::accept, "cuKernelSetCacheConfig", 12000;
    /// The name of a kernel.
    cuKernelGetName(name: *mut *const c_char, kernel: u64) => modules::name, "cuKernelGetName", 12030;

    /// A property of a function.
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: u64)
        => modules::attribute, "cuFuncGetAttribute", 2020;
    /// Changes a property of a function.
    cuFuncSetAttribute(function: u64) => modules::accept, "cuFuncSetAttribute", 9000;
    /// Changes how memory is divided for a function.
    cuFuncSetCacheConfig(function: u64) => modules::accept, "cuFuncSetCacheConfig", 3000;
    /// Changes how shared memory is arranged for a function.
    cuFuncSetSharedMemConfig(function: u64) => modules::accept, "cuFuncSetSharedMemConfig", 4020;
    /// The module of a function.
    cuFuncGetModule(module: *mut u64, function: u64) => modules::code_of, "cuFuncGetModule", 11000;
    /// The name of a function.
    cuFuncGetName(name: *mut *const c_char, function: u64) => modules::name, "cuFuncGetName", 12030;
    /// Whether a function is loaded.
    cuFuncIsLoaded(state: *mut c_uint, function: u64) => modules::is_loaded, "cuFuncIsLoaded", 12040;
    /// Loads a function.
    cuFuncLoad(function: u64) => modules::accept, "cuFuncLoad", 12040;

    /// How many blocks fit a processor.
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: u64, block: c_int)
        => modules::active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050;
    /// How many blocks fit a processor.
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int, function: u64, block: c_int)
        => modules::active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000;
    /// A good size of blocks.
    cuOccupancyMaxPotentialBlockSize(grid: *mut c_int, block: *mut c_int, function: u64)
        => modules::potential_block_size, "cuOccupancyMaxPotentialBlockSize", 6050;
    /// A good size of blocks.
    cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut c_int, block: *mut c_int, function: u64)
        => modules::potential_block_size, "cuOccupancyMaxPotentialBlockSizeWithFlags", 7000;
    /// How much shared memory is left for each block.
    cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: u64)
        => modules::available_shared, "cuOccupancyAvailableDynamicSMemPerBlock", 10020;

    /// Begins to link code.
    cuLinkCreate_v2() => activity::not_supported, "cuLinkCreate", 6050;

    /// Launches a function.
    cuLaunchKernel(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: u64
    ) => activity::launch, "cuLaunchKernel", 4000;
    /// Launches a function.
    cuLaunchKernel_ptsz(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: u64
    ) => activity::launch, "cuLaunchKernel", 7000;
    /// Launches a function as it is described.
    cuLaunchKernelEx(config: *const activity::Config, function: u64) => activity::launch_config, "cuLaunchKernelEx", 11060;
    /// Launches a function as it is described.
    cuLaunchKernelEx_ptsz(config: *const activity::Config, function: u64)
        => activity::launch_config, "cuLaunchKernelEx", 11060;
    /// Launches a function whose blocks wait for each other.
    cuLaunchCooperativeKernel(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: u64
    ) => activity::launch, "cuLaunchCooperativeKernel", 9000;
    /// Launches a function whose blocks wait for each other.
    cuLaunchCooperativeKernel_ptsz(
        function: u64, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: u64
    ) => activity::launch, "cuLaunchCooperativeKernel", 9000;
    /// Launches a function on several devices.
    cuLaunchCooperativeKernelMultiDevice() => activity::not_supported, "cuLaunchCooperativeKernelMultiDevice", 9000;
    /// Calls a function of the program in the order of a stream.
    cuLaunchHostFunc(stream: u64, function: streams::HostFunction, data: *mut c_void)
        => streams::host_function, "cuLaunchHostFunc", 10000;
    /// Calls a function of the program in the order of a stream.
    cuLaunchHostFunc_ptsz(stream: u64, function: streams::HostFunction, data: *mut c_void)
        => streams::host_function, "cuLaunchHostFunc", 10000;
    /// Launches a function once.
    cuLaunch(function: u64) => activity::launch_one, "cuLaunch", 2000;
    /// Launches a function.
    cuLaunchGrid(function: u64, width: c_int, height: c_int) => activity::launch_grid, "cuLaunchGrid", 2000;
    /// Launches a function in the order of a stream.
    cuLaunchGridAsync(function: u64, width: c_int, height: c_int) => activity::launch_grid, "cuLaunchGridAsync", 2000;
}
