//! The names of the driver's functions that go through a call site.

/// A function and the names that lead to it.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its exported symbol in `libcuda.so.1`.
    pub symbol: &'static str,
    /// Its name for `cuGetProcAddress`.
    pub base: &'static str,
    /// The CUDA version for which that name means this symbol (12040 is 12.4).
    pub version: i32,
    /// There is a `_ptsz` form: the symbol with that ending, or the name with a flag.
    pub per_thread: bool,
    /// The runtime's function that takes the same arguments, if it has one.
    pub runtime: &'static str,
}

/// What most functions are asked for.
const VERSION: i32 = 12040;

const fn named(symbol: &'static str, base: &'static str) -> Named {
    Named {
        symbol,
        base,
        version: VERSION,
        per_thread: false,
        runtime: "",
    }
}

impl Named {
    const fn version(self, version: i32) -> Self {
        Self { version, ..self }
    }

    const fn per_thread(self) -> Self {
        Self {
            per_thread: true,
            ..self
        }
    }

    const fn runtime(self, runtime: &'static str) -> Self {
        Self { runtime, ..self }
    }
}

macro_rules! functions {
    ($($constant:ident = $symbol:literal, $base:literal $(, $method:ident($($argument:literal)?))*;)*) => {
        $(
            #[doc = concat!("`", $symbol, "`")]
            pub const $constant: Named = named($symbol, $base)$(.$method($($argument)?))*;
        )*
    };
}

functions! {
    CTX_CREATE_V2 = "cuCtxCreate_v2", "cuCtxCreate", version(11030);
    CTX_CREATE_V3 = "cuCtxCreate_v3", "cuCtxCreate", version(12040);
    CTX_CREATE_V4 = "cuCtxCreate_v4", "cuCtxCreate", version(12050);
    CTX_DESTROY = "cuCtxDestroy_v2", "cuCtxDestroy";
    CTX_SET_CURRENT = "cuCtxSetCurrent", "cuCtxSetCurrent";
    CTX_PUSH = "cuCtxPushCurrent_v2", "cuCtxPushCurrent";
    CTX_POP = "cuCtxPopCurrent_v2", "cuCtxPopCurrent";
    CTX_SYNCHRONIZE = "cuCtxSynchronize", "cuCtxSynchronize";
    GREEN_CREATE = "cuGreenCtxCreate", "cuGreenCtxCreate";
    GREEN_DESTROY = "cuGreenCtxDestroy", "cuGreenCtxDestroy";
    CTX_FROM_GREEN = "cuCtxFromGreenCtx", "cuCtxFromGreenCtx";
    DEVICE_RESOURCE = "cuDeviceGetDevResource", "cuDeviceGetDevResource";
    RESOURCE_DESCRIPTION = "cuDevResourceGenerateDesc", "cuDevResourceGenerateDesc";
    PRIMARY_RETAIN = "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain";
    PRIMARY_RELEASE = "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease";
    PRIMARY_RESET = "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset";

    MEM_INFO = "cuMemGetInfo_v2", "cuMemGetInfo", runtime("cudaMemGetInfo");
    MEM_ALLOC = "cuMemAlloc_v2", "cuMemAlloc", runtime("cudaMalloc");
    MEM_ALLOC_PITCH = "cuMemAllocPitch_v2", "cuMemAllocPitch";
    MEM_ALLOC_MANAGED = "cuMemAllocManaged", "cuMemAllocManaged", runtime("cudaMallocManaged");
    MEM_ALLOC_ASYNC = "cuMemAllocAsync", "cuMemAllocAsync", per_thread(), runtime("cudaMallocAsync");
    MEM_ALLOC_FROM_POOL = "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", per_thread(),
        runtime("cudaMallocFromPoolAsync");
    MEM_FREE = "cuMemFree_v2", "cuMemFree", runtime("cudaFree");
    MEM_FREE_ASYNC = "cuMemFreeAsync", "cuMemFreeAsync", per_thread(), runtime("cudaFreeAsync");
    HOST_ALLOC = "cuMemHostAlloc", "cuMemHostAlloc", runtime("cudaHostAlloc");
    ALLOC_HOST = "cuMemAllocHost_v2", "cuMemAllocHost", runtime("cudaMallocHost");
    FREE_HOST = "cuMemFreeHost", "cuMemFreeHost", runtime("cudaFreeHost");
    HOST_REGISTER = "cuMemHostRegister_v2", "cuMemHostRegister", runtime("cudaHostRegister");
    HOST_UNREGISTER = "cuMemHostUnregister", "cuMemHostUnregister", runtime("cudaHostUnregister");
    ARRAY_CREATE = "cuArrayCreate_v2", "cuArrayCreate";
    ARRAY_3D_CREATE = "cuArray3DCreate_v2", "cuArray3DCreate";
    ARRAY_DESTROY = "cuArrayDestroy", "cuArrayDestroy", runtime("cudaFreeArray");
    MIPMAP_CREATE = "cuMipmappedArrayCreate", "cuMipmappedArrayCreate";
    MIPMAP_DESTROY = "cuMipmappedArrayDestroy", "cuMipmappedArrayDestroy",
        runtime("cudaFreeMipmappedArray");

    VMM_CREATE = "cuMemCreate", "cuMemCreate";
    VMM_RELEASE = "cuMemRelease", "cuMemRelease";
    VMM_RETAIN = "cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle";
    VMM_RESERVE = "cuMemAddressReserve", "cuMemAddressReserve";
    VMM_ADDRESS_FREE = "cuMemAddressFree", "cuMemAddressFree";
    VMM_MAP = "cuMemMap", "cuMemMap";
    VMM_SET_ACCESS = "cuMemSetAccess", "cuMemSetAccess";
    VMM_UNMAP = "cuMemUnmap", "cuMemUnmap";
    VMM_EXPORT = "cuMemExportToShareableHandle", "cuMemExportToShareableHandle";
    VMM_IMPORT = "cuMemImportFromShareableHandle", "cuMemImportFromShareableHandle";

    IPC_GET = "cuIpcGetMemHandle", "cuIpcGetMemHandle";
    IPC_OPEN = "cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle";
    IPC_CLOSE = "cuIpcCloseMemHandle", "cuIpcCloseMemHandle";

    POOL_CREATE = "cuMemPoolCreate", "cuMemPoolCreate";
    POOL_DESTROY = "cuMemPoolDestroy", "cuMemPoolDestroy";
    POOL_TRIM = "cuMemPoolTrimTo", "cuMemPoolTrimTo";

    POOL_EXPORT = "cuMemPoolExportToShareableHandle", "cuMemPoolExportToShareableHandle";
    POOL_IMPORT = "cuMemPoolImportFromShareableHandle", "cuMemPoolImportFromShareableHandle";
    POOL_EXPORT_POINTER = "cuMemPoolExportPointer", "cuMemPoolExportPointer";
    POOL_IMPORT_POINTER = "cuMemPoolImportPointer", "cuMemPoolImportPointer";

    EXTERNAL_IMPORT = "cuImportExternalMemory", "cuImportExternalMemory";
    EXTERNAL_BUFFER = "cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedBuffer";
    EXTERNAL_DESTROY = "cuDestroyExternalMemory", "cuDestroyExternalMemory";

    MODULE_LOAD = "cuModuleLoad", "cuModuleLoad";
    MODULE_LOAD_DATA = "cuModuleLoadData", "cuModuleLoadData";
    MODULE_LOAD_DATA_EX = "cuModuleLoadDataEx", "cuModuleLoadDataEx";
    MODULE_LOAD_FATBIN = "cuModuleLoadFatBinary", "cuModuleLoadFatBinary";
    MODULE_UNLOAD = "cuModuleUnload", "cuModuleUnload";
    LIBRARY_LOAD_DATA = "cuLibraryLoadData", "cuLibraryLoadData";
    LIBRARY_LOAD_FILE = "cuLibraryLoadFromFile", "cuLibraryLoadFromFile";
    LIBRARY_UNLOAD = "cuLibraryUnload", "cuLibraryUnload";

    MODULE_FUNCTION = "cuModuleGetFunction", "cuModuleGetFunction";
    EVENT_CREATE = "cuEventCreate", "cuEventCreate";
    EVENT_DESTROY = "cuEventDestroy_v2", "cuEventDestroy";

    GRAPH_CREATE = "cuGraphCreate", "cuGraphCreate";
    GRAPH_INSTANTIATE_V2 = "cuGraphInstantiate_v2", "cuGraphInstantiate", version(11000);
    GRAPH_INSTANTIATE_FLAGS = "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags";
    GRAPH_INSTANTIATE_PARAMS = "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams",
        per_thread();
    GRAPH_ADD_ALLOC = "cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode";
    GRAPH_ADD_FREE = "cuGraphAddMemFreeNode", "cuGraphAddMemFreeNode";
    GRAPH_TRIM = "cuDeviceGraphMemTrim", "cuDeviceGraphMemTrim";
    GRAPH_EXEC_DESTROY = "cuGraphExecDestroy", "cuGraphExecDestroy";
    GRAPH_LAUNCH = "cuGraphLaunch", "cuGraphLaunch", per_thread();

    LAUNCH = "cuLaunchKernel", "cuLaunchKernel", per_thread();
    LAUNCH_EX = "cuLaunchKernelEx", "cuLaunchKernelEx", per_thread();
    LAUNCH_COOPERATIVE = "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel", per_thread();
    COPY_TO_DEVICE = "cuMemcpyHtoD_v2", "cuMemcpyHtoD";
    COPY_TO_DEVICE_ASYNC = "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync", per_thread();
    COPY_TO_HOST = "cuMemcpyDtoH_v2", "cuMemcpyDtoH";
    COPY_ON_DEVICE = "cuMemcpyDtoD_v2", "cuMemcpyDtoD";
    SET = "cuMemsetD8_v2", "cuMemsetD8";
    SET_ASYNC = "cuMemsetD8Async", "cuMemsetD8Async", per_thread();
    PREFETCH = "cuMemPrefetchAsync", "cuMemPrefetchAsync", version(12010), per_thread();
    STREAM_SYNCHRONIZE = "cuStreamSynchronize", "cuStreamSynchronize", per_thread();
    EVENT_SYNCHRONIZE = "cuEventSynchronize", "cuEventSynchronize";
}
