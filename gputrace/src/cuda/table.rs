//! The table itself: prototypes are those of NVIDIA's `cuda.h`, 64-bit form.
//!
//! A row may name several symbols with the same arguments and meaning: older names, and the
//! per-thread-stream forms (`_ptsz`, `_ptds`). The order of rows is free.

use gputrace_ebpf::{
    CLASS_ALLOCATE, CLASS_COPY, CLASS_FREE, CLASS_LAUNCH, CLASS_OTHER, CLASS_SYNCHRONIZE,
    FunctionSpec, INPUT_ARRAY_2D, INPUT_ARRAY_3D, INPUT_DIGEST, INPUT_LOCATION, INPUT_NONE, NO_ARG,
    OUT_DIGEST,
};

use super::{Function, Observed};
use crate::{
    event::Op,
    resource::{Activity, Place, Resource},
};

const PLAIN: FunctionSpec = FunctionSpec {
    out: [NO_ARG; 2],
    class: CLASS_OTHER,
    bytes_arg: NO_ARG,
    stack: 0,
    input: INPUT_NONE,
    input_arg: NO_ARG,
    padding: 0,
};

/// Gives something that is kept account of: a pointer or handle through argument `out`, bytes in
/// argument `bytes`.
const fn gives(out: u8, bytes: u8) -> FunctionSpec {
    FunctionSpec {
        class: CLASS_ALLOCATE,
        bytes_arg: bytes,
        ..makes(out)
    }
}

/// Makes a context, through argument `out`.
const fn makes(out: u8) -> FunctionSpec {
    FunctionSpec {
        out: [out, NO_ARG],
        stack: 1,
        ..PLAIN
    }
}

/// Takes it back.
const TAKES: FunctionSpec = FunctionSpec {
    class: CLASS_FREE,
    ..PLAIN
};

/// Also reads what argument `arg` points at.
const fn reading(spec: FunctionSpec, input: u8, arg: u8) -> FunctionSpec {
    FunctionSpec {
        input,
        input_arg: arg,
        ..spec
    }
}

/// Is counted only.
const fn counted(class: u8) -> FunctionSpec {
    FunctionSpec { class, ..PLAIN }
}

const fn allocate(call: &Observed, kind: Resource, bytes: u64, place: Place) -> Op {
    Op::Allocate {
        kind,
        bytes,
        address: call.out[0],
        place,
    }
}

/// An object: it is counted, its bytes are not known.
const fn object(call: &Observed, kind: Resource, place: Place) -> Op {
    allocate(call, kind, 0, place)
}

const fn free(call: &Observed, kind: Resource) -> Op {
    Op::Free {
        kind,
        address: call.args[0],
    }
}

/// An `int` argument: the upper half of its register may hold anything.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low32(register: u64) -> u32 {
    register as u32
}

const fn device(register: u64) -> Place {
    Place::Device {
        ordinal: low32(register),
    }
}

/// From a `CUmemLocation`, read as one word: its type below, its id above. Types above 1 are all
/// host memory.
const fn location(call: &Observed, argument: usize) -> Place {
    if !call.input_is_read {
        return Place::Unknown;
    }
    let word = call.args[argument];
    match low32(word) {
        0 => Place::Unknown,
        1 => device(word >> 32),
        _ => Place::Host,
    }
}

/// Bits of one texel, by `CUarray_format` and number of channels. `None`: a format that is not known
/// here.
const fn texel_bits(format: u32, channels: u64) -> Option<u64> {
    Some(match format {
        0x01 | 0x08 => 8 * channels,         // 8-bit integers
        0x02 | 0x09 | 0x10 => 16 * channels, // 16-bit integers, half
        0x03 | 0x0a | 0x20 => 32 * channels, // 32-bit integers, float
        0xb0 => 12,                          // NV12
        0x91 | 0x92 | 0x97 | 0x98 => 4,      // BC1, BC4
        0x93..=0x96 | 0x99..=0x9e => 8,      // BC2, BC3, BC5 to BC7
        0xc0 | 0xc6 => 8,                    // normalised 8-bit integers, 1, 2 or 4 channels
        0xc1 | 0xc7 => 16,
        0xc2 | 0xc8 => 32,
        0xc3 | 0xc9 => 16, // normalised 16-bit integers
        0xc4 | 0xca => 32,
        0xc5 | 0xcb => 64,
        _ => return None,
    })
}

/// A `CUDA_ARRAY3D_DESCRIPTOR` as the programs report it.
struct Descriptor {
    extent: [u64; 3],
    format: u32,
    channels: u64,
    layered: bool,
}

impl Descriptor {
    const fn read(call: &Observed) -> Self {
        const LAYERED: u64 = 1;
        let [_, width, height, depth, word, _] = call.args;
        Self {
            extent: [width, height, depth],
            format: low32(word),
            channels: word >> 32 & 0xff,
            layered: word >> 40 & LAYERED != 0,
        }
    }

    /// Bytes of all texels in `levels` mipmap levels. `None` where they cannot be told.
    fn bytes(&self, levels: u64) -> Option<u64> {
        let bits = texel_bits(self.format, self.channels)?;
        let [mut width, mut height, mut depth] = self.extent.map(|n| n.max(1));
        let mut sum = 0_u64;
        // 64 halvings make everything 1.
        for _ in 0..levels.clamp(1, 64) {
            let texels = width.checked_mul(height)?.checked_mul(depth)?;
            sum = sum.checked_add(texels.checked_mul(bits)?.div_ceil(8))?;
            (width, height) = ((width / 2).max(1), (height / 2).max(1));
            if !self.layered {
                depth = (depth / 2).max(1);
            }
        }
        Some(sum)
    }
}

/// An array whose size cannot be told is not followed: it has no address.
fn array(call: &Observed, levels: u64) -> Op {
    let bytes = call
        .input_is_read
        .then(|| Descriptor::read(call).bytes(levels))
        .flatten();
    Op::Allocate {
        kind: Resource::Array,
        bytes: bytes.unwrap_or(0),
        address: call.out[0].filter(|_| bytes.is_some()),
        place: Place::Current,
    }
}

/// Pitched memory has the pitch that the driver chose; a failed call is known by what it asked for.
const fn pitched(call: &Observed) -> Op {
    let row = match call.out[1] {
        Some(pitch) => pitch,
        None => call.args[2],
    };
    allocate(
        call,
        Resource::Device,
        row.saturating_mul(call.args[3]),
        Place::Current,
    )
}

macro_rules! table {
    ($( [ $($symbol:literal),+ ] $spec:expr, $decode:expr; )*) => {
        /// Every probed function: what gives and takes memory, what decides to which context or
        /// device it belongs, and what shows that the GPU is used.
        pub static FUNCTIONS: &[Function] = &[ $($(
            Function { symbol: $symbol, spec: $spec, decode: $decode },
        )+)* ];
    };
}

table! {
    // Pointers to GPU memory.

    // (CUdeviceptr *dptr, size_t bytesize)
    ["cuMemAlloc_v2"] gives(0, 1),
        |c| allocate(c, Resource::Device, c.args[1], Place::Current);
    // The same with 32-bit pointers and sizes, for programs made for CUDA 3.1 and older.
    ["cuMemAlloc"] gives(0, 1), |c| Op::Allocate {
        kind: Resource::Device,
        bytes: u64::from(low32(c.args[1])),
        address: c.out[0].map(|it| u64::from(low32(it))),
        place: Place::Current,
    };
    // (CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element_size)
    ["cuMemAllocPitch_v2"] FunctionSpec { out: [0, 1], ..gives(0, NO_ARG) }, pitched;
    ["cuMemAllocPitch"] FunctionSpec { out: [0, 1], ..gives(0, NO_ARG) }, |c| pitched(&Observed {
        args: c.args.map(|it| u64::from(low32(it))),
        out: c.out.map(|it| it.map(|it| u64::from(low32(it)))),
        ..*c
    });
    // (CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
    ["cuMemAllocManaged"] gives(0, 1),
        |c| allocate(c, Resource::Managed, c.args[1], Place::Current);
    // (CUdeviceptr *dptr, size_t bytesize, CUstream stream)
    ["cuMemAllocAsync", "cuMemAllocAsync_ptsz"] gives(0, 1),
        |c| allocate(c, Resource::Device, c.args[1], Place::CurrentDevice);
    // (CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
    ["cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"] gives(0, 1),
        |c| allocate(c, Resource::Device, c.args[1], Place::Pool { pool: c.args[2] });
    // (CUdeviceptr dptr)
    ["cuMemFree_v2"] TAKES, |c| free(c, Resource::Device);
    ["cuMemFree"] TAKES, |c| Op::Free {
        kind: Resource::Device,
        address: u64::from(low32(c.args[0])),
    };
    // (CUdeviceptr dptr, CUstream stream)
    ["cuMemFreeAsync", "cuMemFreeAsync_ptsz"] TAKES, |c| free(c, Resource::Device);

    // Host memory.

    // (void **pp, size_t bytesize, unsigned int flags)
    ["cuMemHostAlloc"] gives(0, 1),
        |c| allocate(c, Resource::PinnedHost, c.args[1], Place::Current);
    // (void **pp, size_t bytesize)
    ["cuMemAllocHost_v2"] gives(0, 1),
        |c| allocate(c, Resource::PinnedHost, c.args[1], Place::Current);
    ["cuMemAllocHost"] gives(0, 1),
        |c| allocate(c, Resource::PinnedHost, u64::from(low32(c.args[1])), Place::Current);
    // (void *p, size_t bytesize, unsigned int flags)
    ["cuMemHostRegister_v2", "cuMemHostRegister"]
        FunctionSpec { out: [NO_ARG; 2], ..gives(NO_ARG, 1) }, |c| Op::Allocate {
            kind: Resource::PinnedHost,
            bytes: c.args[1],
            address: Some(c.args[0]),
            // Not among what the documentation of cuCtxDestroy says that it frees.
            place: Place::Process,
        };
    // (void *p)
    ["cuMemFreeHost", "cuMemHostUnregister"] TAKES, |c| free(c, Resource::PinnedHost);

    // The virtual-memory API.

    // (handle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags);
    // the location lies 8 bytes into the properties
    ["cuMemCreate"] reading(gives(0, 1), INPUT_LOCATION, 2), |c| Op::CreateHandle {
        bytes: c.args[1],
        handle: c.out[0],
        place: location(c, 2),
    };
    // (handle)
    ["cuMemRelease"] TAKES, |c| Op::ReleaseHandle { handle: c.args[0] };
    // (handle *out, void *addr)
    ["cuMemRetainAllocationHandle"] makes(0), |c| Op::RetainHandle {
        handle: c.out[0],
        address: c.args[1],
    };
    // (CUdeviceptr ptr, size_t size, size_t offset, handle, unsigned long long flags)
    ["cuMemMap"] PLAIN, |c| Op::Map {
        address: c.args[0],
        bytes: c.args[1],
        offset: c.args[2],
        handle: c.args[3],
    };
    // (CUdeviceptr ptr, size_t size)
    ["cuMemUnmap"] PLAIN, |c| Op::Unmap { address: c.args[0], bytes: c.args[1] };
    // (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, flags)
    ["cuMemAddressReserve"] gives(0, 1),
        |c| allocate(c, Resource::Addresses, c.args[1], Place::Process);
    // (CUdeviceptr ptr, size_t size)
    ["cuMemAddressFree"] TAKES, |c| free(c, Resource::Addresses);
    // (void *out, handle, CUmemAllocationHandleType type, flags)
    ["cuMemExportToShareableHandle"] PLAIN, |c| Op::ExportHandle { handle: c.args[1] };
    // (handle *out, void *os_handle, CUmemAllocationHandleType type)
    ["cuMemImportFromShareableHandle"] gives(0, NO_ARG), |c| Op::ImportHandle { handle: c.out[0] };
    // (handle *out, const CUmulticastObjectProp *prop): memory of several GPUs under one handle
    ["cuMulticastCreate"] gives(0, NO_ARG), |c| Op::ImportHandle { handle: c.out[0] };

    // Arrays.

    // (CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc)
    ["cuArrayCreate_v2"] reading(gives(0, NO_ARG), INPUT_ARRAY_2D, 1), |c| array(c, 1);
    // (CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
    ["cuArray3DCreate_v2"] reading(gives(0, NO_ARG), INPUT_ARRAY_3D, 1), |c| array(c, 1);
    // (CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
    ["cuMipmappedArrayCreate"] reading(gives(0, NO_ARG), INPUT_ARRAY_3D, 1),
        |c| array(c, u64::from(low32(c.args[5])));
    // (CUarray), (CUmipmappedArray)
    ["cuArrayDestroy", "cuMipmappedArrayDestroy"] TAKES, |c| free(c, Resource::Array);

    // Memory of others.

    // (CUipcMemHandle *out, CUdeviceptr dptr)
    ["cuIpcGetMemHandle"] FunctionSpec { out: [OUT_DIGEST, NO_ARG], ..PLAIN },
        |c| Op::ExportPointer { address: c.args[1], key: c.out[0] };
    // (CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags); the handle is 64 bytes by value
    ["cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle"] reading(gives(0, NO_ARG), INPUT_DIGEST, 2),
        |c| Op::OpenPointer {
            address: c.out[0],
            key: if c.input_is_read { Some(c.args[2]) } else { None },
        };
    // (CUdeviceptr dptr)
    ["cuIpcCloseMemHandle"] TAKES, |c| free(c, Resource::Alias);
    // (CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
    ["cuImportExternalMemory"] gives(0, NO_ARG),
        |c| object(c, Resource::Alias, Place::Current);
    // (CUdeviceptr *out, CUexternalMemory mem, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc):
    // freed by cuMemFree
    ["cuExternalMemoryGetMappedBuffer"] gives(0, NO_ARG),
        |c| object(c, Resource::Alias, Place::Current);
    // (CUexternalMemory mem)
    ["cuDestroyExternalMemory"] TAKES, |c| free(c, Resource::Alias);
    // (CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data): freed by cuMemFree
    ["cuMemPoolImportPointer"] gives(0, NO_ARG),
        |c| object(c, Resource::Alias, Place::Pool { pool: c.args[1] });
    // (CUmemPoolPtrExportData *out, CUdeviceptr ptr)
    ["cuMemPoolExportPointer"] PLAIN, |_| Op::Other;

    // Pools.

    // (CUmemoryPool *out, const CUmemPoolProps *props): the location lies 8 bytes into them
    ["cuMemPoolCreate"] reading(gives(0, NO_ARG), INPUT_LOCATION, 1),
        |c| object(c, Resource::Pool, location(c, 1));
    // (CUmemoryPool *out, void *handle, CUmemAllocationHandleType type, flags)
    ["cuMemPoolImportFromShareableHandle"] gives(0, NO_ARG),
        |c| object(c, Resource::Pool, Place::Unknown);
    // (CUmemoryPool pool)
    ["cuMemPoolDestroy"] TAKES, |c| free(c, Resource::Pool);
    // (CUmemoryPool *out, CUdevice dev)
    ["cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool"] FunctionSpec { out: [0, NO_ARG], ..PLAIN },
        |c| Op::DevicePool { device: low32(c.args[1]), pool: c.out[0] };
    // (CUmemoryPool pool, size_t keep), (void *out, CUmemoryPool pool, type, flags),
    // (CUdevice dev, CUmemoryPool pool)
    ["cuMemPoolTrimTo", "cuMemPoolExportToShareableHandle", "cuDeviceSetMemPool"] PLAIN,
        |_| Op::Other;

    // Contexts.

    // (CUcontext *out, unsigned int flags, CUdevice dev)
    ["cuCtxCreate_v2", "cuCtxCreate"] makes(0),
        |c| Op::CreateContext { device: low32(c.args[2]), context: c.out[0] };
    // (CUcontext *out, CUexecAffinityParam *params, int count, unsigned int flags, CUdevice dev)
    ["cuCtxCreate_v3"] makes(0),
        |c| Op::CreateContext { device: low32(c.args[4]), context: c.out[0] };
    // (CUcontext *out, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
    ["cuCtxCreate_v4"] makes(0),
        |c| Op::CreateContext { device: low32(c.args[3]), context: c.out[0] };
    // (CUcontext ctx)
    ["cuCtxDestroy_v2", "cuCtxDestroy"] PLAIN, |c| Op::DestroyContext { context: c.args[0] };
    ["cuCtxSetCurrent"] PLAIN, |c| Op::SetContext { context: c.args[0] };
    ["cuCtxPushCurrent_v2", "cuCtxPushCurrent"] PLAIN, |c| Op::PushContext { context: c.args[0] };
    // (CUcontext *out)
    ["cuCtxPopCurrent_v2", "cuCtxPopCurrent"] PLAIN, |_| Op::PopContext;
    // (CUcontext *out, CUdevice dev)
    ["cuDevicePrimaryCtxRetain"] makes(0),
        |c| Op::RetainPrimary { device: low32(c.args[1]), context: c.out[0] };
    // (CUdevice dev)
    ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"] PLAIN,
        |c| Op::ReleasePrimary { device: low32(c.args[0]) };
    ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"] PLAIN,
        |c| Op::ResetPrimary { device: low32(c.args[0]) };
    // (CUgreenCtx *out, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
    ["cuGreenCtxCreate"] makes(0),
        |c| Op::CreateGreenContext { device: low32(c.args[2]), green: c.out[0] };
    // (CUgreenCtx ctx)
    ["cuGreenCtxDestroy"] PLAIN, |c| Op::DestroyContext { context: c.args[0] };
    // (CUcontext *out, CUgreenCtx ctx)
    ["cuCtxFromGreenCtx"] FunctionSpec { out: [0, NO_ARG], ..PLAIN },
        |c| Op::NameGreenContext { green: c.args[1], context: c.out[0] };

    // Code.

    // (CUmodule *out, ...)
    ["cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary"] gives(0, NO_ARG),
        |c| object(c, Resource::Module, Place::Current);
    // (CUlibrary *out, ...): loaded into every context, so it belongs to none
    ["cuLibraryLoadData", "cuLibraryLoadFromFile"] gives(0, NO_ARG),
        |c| object(c, Resource::Module, Place::Process);
    // (CUmodule), (CUlibrary)
    ["cuModuleUnload", "cuLibraryUnload"] TAKES, |c| free(c, Resource::Module);

    // Graphs.

    // (CUgraphExec *out, CUgraph graph, ...)
    ["cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags",
     "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"] gives(0, NO_ARG),
        |c| object(c, Resource::Graph, Place::Current);
    // (CUgraphExec exec)
    ["cuGraphExecDestroy"] TAKES, |c| free(c, Resource::Graph);
    // What such nodes allocate comes and goes with launches, inside the driver's graph pool.
    ["cuGraphAddMemAllocNode", "cuGraphAddMemFreeNode", "cuDeviceGraphMemTrim"] PLAIN,
        |_| Op::Other;

    // Counted only; a failed one is an event.

    ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz",
     "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz",
     "cuLaunchCooperativeKernelMultiDevice", "cuGraphLaunch", "cuGraphLaunch_ptsz"]
        counted(CLASS_LAUNCH), |_| Op::Activity { activity: Activity::Launch };
    ["cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize", "cuEventSynchronize"]
        counted(CLASS_SYNCHRONIZE), |_| Op::Activity { activity: Activity::Synchronization };
    ["cuMemcpy", "cuMemcpy_ptds", "cuMemcpyAsync", "cuMemcpyAsync_ptsz",
     "cuMemcpyPeer", "cuMemcpyPeer_ptds", "cuMemcpyPeerAsync", "cuMemcpyPeerAsync_ptsz",
     "cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoDAsync_v2",
     "cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds",
     "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoD_v2",
     "cuMemcpyDtoD_v2_ptds", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz",
     "cuMemcpyDtoA_v2", "cuMemcpyDtoA_v2_ptds", "cuMemcpyAtoD_v2", "cuMemcpyAtoD_v2_ptds",
     "cuMemcpyHtoA_v2", "cuMemcpyHtoA_v2_ptds", "cuMemcpyAtoH_v2", "cuMemcpyAtoH_v2_ptds",
     "cuMemcpyAtoA_v2", "cuMemcpyAtoA_v2_ptds", "cuMemcpyHtoAAsync_v2",
     "cuMemcpyHtoAAsync_v2_ptsz", "cuMemcpyAtoHAsync_v2", "cuMemcpyAtoHAsync_v2_ptsz",
     "cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2",
     "cuMemcpy2DUnaligned_v2_ptds", "cuMemcpy2DAsync_v2", "cuMemcpy2DAsync_v2_ptsz",
     "cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds", "cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz",
     "cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds", "cuMemcpy3DPeerAsync", "cuMemcpy3DPeerAsync_ptsz",
     "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz", "cuMemcpy3DBatchAsync",
     "cuMemcpy3DBatchAsync_ptsz",
     "cuMemsetD8_v2", "cuMemsetD8_v2_ptds", "cuMemsetD16_v2", "cuMemsetD16_v2_ptds",
     "cuMemsetD32_v2", "cuMemsetD32_v2_ptds", "cuMemsetD2D8_v2", "cuMemsetD2D8_v2_ptds",
     "cuMemsetD2D16_v2", "cuMemsetD2D16_v2_ptds", "cuMemsetD2D32_v2", "cuMemsetD2D32_v2_ptds",
     "cuMemsetD8Async", "cuMemsetD8Async_ptsz", "cuMemsetD16Async", "cuMemsetD16Async_ptsz",
     "cuMemsetD32Async", "cuMemsetD32Async_ptsz", "cuMemsetD2D8Async", "cuMemsetD2D8Async_ptsz",
     "cuMemsetD2D16Async", "cuMemsetD2D16Async_ptsz", "cuMemsetD2D32Async",
     "cuMemsetD2D32Async_ptsz",
     "cuMemPrefetchAsync", "cuMemPrefetchAsync_ptsz", "cuMemPrefetchAsync_v2",
     "cuMemPrefetchAsync_v2_ptsz"]
        counted(CLASS_COPY), |_| Op::Activity { activity: Activity::Copy };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array_of(extent: [u64; 3], word: u64) -> Descriptor {
        Descriptor::read(&Observed {
            args: [0, extent[0], extent[1], extent[2], word, 0],
            out: [None; 2],
            input_is_read: true,
        })
    }

    #[test]
    fn arrays_have_the_bytes_of_their_texels() {
        const FLOAT: u64 = 0x20;
        let float4 = FLOAT | 4 << 32;
        assert_eq!(array_of([1024, 0, 0], float4).bytes(1), Some(16 << 10));
        assert_eq!(array_of([64, 32, 0], FLOAT | 1 << 32).bytes(1), Some(8192));
        assert_eq!(array_of([8, 8, 8], float4).bytes(1), Some(8192));
        // 8^3 + 4^3 + 2^3 + 1, 16 bytes each
        assert_eq!(array_of([8, 8, 8], float4).bytes(4), Some(585 * 16));
        // Layers are not halved.
        let layered = float4 | 1 << 40;
        assert_eq!(
            array_of([4, 4, 3], layered).bytes(2),
            Some((16 + 4) * 3 * 16)
        );
        assert_eq!(array_of([4, 4, 0], 0x91 | 4 << 32).bytes(1), Some(8));
    }

    #[test]
    fn an_array_that_cannot_be_understood_has_no_bytes() {
        assert_eq!(array_of([4, 4, 0], 0xff | 4 << 32).bytes(1), None);
        assert_eq!(array_of([u64::MAX, 2, 0], 0x20 | 4 << 32).bytes(1), None);
    }
}
