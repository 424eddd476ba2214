//! Copying, setting and moving memory.

use crate::activity;
use crate::result::Code;
use crate::trampoline::exports;
use std::ffi::c_void;

exports! {
    /// Copies.
    cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyHtoD", 3020;
    /// Copies.
    cuMemcpyHtoD_v2_ptds(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyHtoD", 7000;
    /// Copies in the order of a stream.
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyHtoDAsync", 3020;
    /// Copies in the order of a stream.
    cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyHtoDAsync", 7000;
    /// Copies, by 32-bit addresses.
    cuMemcpyHtoD() => activity::copy_any, "cuMemcpyHtoD", 2000;
    /// Copies in the order of a stream, by 32-bit addresses.
    cuMemcpyHtoDAsync() => activity::copy_any, "cuMemcpyHtoDAsync", 2000;
    /// Copies.
    cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoH", 3020;
    /// Copies.
    cuMemcpyDtoH_v2_ptds(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoH", 7000;
    /// Copies in the order of a stream.
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoHAsync", 3020;
    /// Copies in the order of a stream.
    cuMemcpyDtoHAsync_v2_ptsz(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoHAsync", 7000;
    /// Copies, by 32-bit addresses.
    cuMemcpyDtoH() => activity::copy_any, "cuMemcpyDtoH", 2000;
    /// Copies in the order of a stream, by 32-bit addresses.
    cuMemcpyDtoHAsync() => activity::copy_any, "cuMemcpyDtoHAsync", 2000;
    /// Copies.
    cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoD", 3020;
    /// Copies.
    cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoD", 7000;
    /// Copies in the order of a stream.
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoDAsync", 3020;
    /// Copies in the order of a stream.
    cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyDtoDAsync", 7000;
    /// Copies, by 32-bit addresses.
    cuMemcpyDtoD() => activity::copy_any, "cuMemcpyDtoD", 2000;
    /// Copies in the order of a stream, by 32-bit addresses.
    cuMemcpyDtoDAsync() => activity::copy_any, "cuMemcpyDtoDAsync", 2000;
    /// Copies to or from an array.
    cuMemcpyDtoA_v2() => activity::copy_any, "cuMemcpyDtoA", 3020;
    /// Copies to or from an array.
    cuMemcpyDtoA_v2_ptds() => activity::copy_any, "cuMemcpyDtoA", 7000;
    /// Copies to or from an array.
    cuMemcpyAtoD_v2() => activity::copy_any, "cuMemcpyAtoD", 3020;
    /// Copies to or from an array.
    cuMemcpyAtoD_v2_ptds() => activity::copy_any, "cuMemcpyAtoD", 7000;
    /// Copies to or from an array.
    cuMemcpyHtoA_v2() => activity::copy_any, "cuMemcpyHtoA", 3020;
    /// Copies to or from an array.
    cuMemcpyHtoA_v2_ptds() => activity::copy_any, "cuMemcpyHtoA", 7000;
    /// Copies to or from an array.
    cuMemcpyAtoH_v2() => activity::copy_any, "cuMemcpyAtoH", 3020;
    /// Copies to or from an array.
    cuMemcpyAtoH_v2_ptds() => activity::copy_any, "cuMemcpyAtoH", 7000;
    /// Copies to or from an array.
    cuMemcpyAtoA_v2() => activity::copy_any, "cuMemcpyAtoA", 3020;
    /// Copies to or from an array.
    cuMemcpyAtoA_v2_ptds() => activity::copy_any, "cuMemcpyAtoA", 7000;
    /// Copies to or from an array in the order of a stream.
    cuMemcpyHtoAAsync_v2() => activity::copy_any, "cuMemcpyHtoAAsync", 3020;
    /// Copies to or from an array in the order of a stream.
    cuMemcpyHtoAAsync_v2_ptsz() => activity::copy_any, "cuMemcpyHtoAAsync", 7000;
    /// Copies to or from an array in the order of a stream.
    cuMemcpyAtoHAsync_v2() => activity::copy_any, "cuMemcpyAtoHAsync", 3020;
    /// Copies to or from an array in the order of a stream.
    cuMemcpyAtoHAsync_v2_ptsz() => activity::copy_any, "cuMemcpyAtoHAsync", 7000;
    /// Copies.
    cuMemcpy(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpy", 4000;
    /// Copies.
    cuMemcpy_ptds(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpy", 7000;
    /// Copies in the order of a stream.
    cuMemcpyAsync(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyAsync", 4000;
    /// Copies in the order of a stream.
    cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize) => activity::copy, "cuMemcpyAsync", 7000;
    /// Copies between devices.
    cuMemcpyPeer() => activity::copy_any, "cuMemcpyPeer", 4000;
    /// Copies between devices.
    cuMemcpyPeer_ptds() => activity::copy_any, "cuMemcpyPeer", 7000;
    /// Copies between devices in the order of a stream.
    cuMemcpyPeerAsync() => activity::copy_any, "cuMemcpyPeerAsync", 4000;
    /// Copies between devices in the order of a stream.
    cuMemcpyPeerAsync_ptsz() => activity::copy_any, "cuMemcpyPeerAsync", 7000;
    /// Copies what is described.
    cuMemcpy2D_v2(description: *const c_void) => activity::copy_at, "cuMemcpy2D", 3020;
    /// Copies what is described.
    cuMemcpy2D_v2_ptds(description: *const c_void) => activity::copy_at, "cuMemcpy2D", 7000;
    /// Copies what is described.
    cuMemcpy2DUnaligned_v2(description: *const c_void) => activity::copy_at, "cuMemcpy2DUnaligned", 3020;
    /// Copies what is described.
    cuMemcpy2DUnaligned_v2_ptds(description: *const c_void) => activity::copy_at, "cuMemcpy2DUnaligned", 7000;
    /// Copies what is described.
    cuMemcpy3D_v2(description: *const c_void) => activity::copy_at, "cuMemcpy3D", 3020;
    /// Copies what is described.
    cuMemcpy3D_v2_ptds(description: *const c_void) => activity::copy_at, "cuMemcpy3D", 7000;
    /// Copies what is described.
    cuMemcpy3DPeer(description: *const c_void) => activity::copy_at, "cuMemcpy3DPeer", 4000;
    /// Copies what is described.
    cuMemcpy3DPeer_ptds(description: *const c_void) => activity::copy_at, "cuMemcpy3DPeer", 7000;
    /// Copies what is described in the order of a stream.
    cuMemcpy2DAsync_v2(description: *const c_void) => activity::copy_at, "cuMemcpy2DAsync", 3020;
    /// Copies what is described in the order of a stream.
    cuMemcpy2DAsync_v2_ptsz(description: *const c_void) => activity::copy_at, "cuMemcpy2DAsync", 7000;
    /// Copies what is described in the order of a stream.
    cuMemcpy3DAsync_v2(description: *const c_void) => activity::copy_at, "cuMemcpy3DAsync", 3020;
    /// Copies what is described in the order of a stream.
    cuMemcpy3DAsync_v2_ptsz(description: *const c_void) => activity::copy_at, "cuMemcpy3DAsync", 7000;
    /// Copies what is described in the order of a stream.
    cuMemcpy3DPeerAsync(description: *const c_void) => activity::copy_at, "cuMemcpy3DPeerAsync", 4000;
    /// Copies what is described in the order of a stream.
    cuMemcpy3DPeerAsync_ptsz(description: *const c_void) => activity::copy_at, "cuMemcpy3DPeerAsync", 7000;
    /// Copies several things in the order of a stream.
    cuMemcpyBatchAsync() => activity::copy_any, "cuMemcpyBatchAsync", 12080;
    /// Copies several things in the order of a stream.
    cuMemcpyBatchAsync_ptsz() => activity::copy_any, "cuMemcpyBatchAsync", 12080;
    /// Copies several things in the order of a stream.
    cuMemcpy3DBatchAsync() => activity::copy_any, "cuMemcpy3DBatchAsync", 12080;
    /// Copies several things in the order of a stream.
    cuMemcpy3DBatchAsync_ptsz() => activity::copy_any, "cuMemcpy3DBatchAsync", 12080;
    /// Sets memory.
    cuMemsetD8_v2(to: *const c_void) => activity::copy_at, "cuMemsetD8", 3020;
    /// Sets memory.
    cuMemsetD8_v2_ptds(to: *const c_void) => activity::copy_at, "cuMemsetD8", 7000;
    /// Sets memory in the order of a stream.
    cuMemsetD8Async(to: *const c_void) => activity::copy_at, "cuMemsetD8Async", 3020;
    /// Sets memory in the order of a stream.
    cuMemsetD8Async_ptsz(to: *const c_void) => activity::copy_at, "cuMemsetD8Async", 7000;
    /// Sets memory.
    cuMemsetD16_v2(to: *const c_void) => activity::copy_at, "cuMemsetD16", 3020;
    /// Sets memory.
    cuMemsetD16_v2_ptds(to: *const c_void) => activity::copy_at, "cuMemsetD16", 7000;
    /// Sets memory in the order of a stream.
    cuMemsetD16Async(to: *const c_void) => activity::copy_at, "cuMemsetD16Async", 3020;
    /// Sets memory in the order of a stream.
    cuMemsetD16Async_ptsz(to: *const c_void) => activity::copy_at, "cuMemsetD16Async", 7000;
    /// Sets memory.
    cuMemsetD32_v2(to: *const c_void) => activity::copy_at, "cuMemsetD32", 3020;
    /// Sets memory.
    cuMemsetD32_v2_ptds(to: *const c_void) => activity::copy_at, "cuMemsetD32", 7000;
    /// Sets memory in the order of a stream.
    cuMemsetD32Async(to: *const c_void) => activity::copy_at, "cuMemsetD32Async", 3020;
    /// Sets memory in the order of a stream.
    cuMemsetD32Async_ptsz(to: *const c_void) => activity::copy_at, "cuMemsetD32Async", 7000;
    /// Sets memory.
    cuMemsetD2D8_v2(to: *const c_void) => activity::copy_at, "cuMemsetD2D8", 3020;
    /// Sets memory.
    cuMemsetD2D8_v2_ptds(to: *const c_void) => activity::copy_at, "cuMemsetD2D8", 7000;
    /// Sets memory in the order of a stream.
    cuMemsetD2D8Async(to: *const c_void) => activity::copy_at, "cuMemsetD2D8Async", 3020;
    /// Sets memory in the order of a stream.
    cuMemsetD2D8Async_ptsz(to: *const c_void) => activity::copy_at, "cuMemsetD2D8Async", 7000;
    /// Sets memory.
    cuMemsetD2D16_v2(to: *const c_void) => activity::copy_at, "cuMemsetD2D16", 3020;
    /// Sets memory.
    cuMemsetD2D16_v2_ptds(to: *const c_void) => activity::copy_at, "cuMemsetD2D16", 7000;
    /// Sets memory in the order of a stream.
    cuMemsetD2D16Async(to: *const c_void) => activity::copy_at, "cuMemsetD2D16Async", 3020;
    /// Sets memory in the order of a stream.
    cuMemsetD2D16Async_ptsz(to: *const c_void) => activity::copy_at, "cuMemsetD2D16Async", 7000;
    /// Sets memory.
    cuMemsetD2D32_v2(to: *const c_void) => activity::copy_at, "cuMemsetD2D32", 3020;
    /// Sets memory.
    cuMemsetD2D32_v2_ptds(to: *const c_void) => activity::copy_at, "cuMemsetD2D32", 7000;
    /// Sets memory in the order of a stream.
    cuMemsetD2D32Async(to: *const c_void) => activity::copy_at, "cuMemsetD2D32Async", 3020;
    /// Sets memory in the order of a stream.
    cuMemsetD2D32Async_ptsz(to: *const c_void) => activity::copy_at, "cuMemsetD2D32Async", 7000;
    /// Moves managed memory.
    cuMemPrefetchAsync(to: *const c_void) => activity::copy_at, "cuMemPrefetchAsync", 8000;
    /// Moves managed memory.
    cuMemPrefetchAsync_ptsz(to: *const c_void) => activity::copy_at, "cuMemPrefetchAsync", 8000;
    /// Moves managed memory.
    cuMemPrefetchAsync_v2(to: *const c_void) => activity::copy_at, "cuMemPrefetchAsync", 12020;
    /// Moves managed memory.
    cuMemPrefetchAsync_v2_ptsz(to: *const c_void) => activity::copy_at, "cuMemPrefetchAsync", 12020;
    /// Says how managed memory is used.
    cuMemAdvise(pointer: u64) => activity::advise, "cuMemAdvise", 8000;
    /// Says how managed memory is used.
    cuMemAdvise_v2(pointer: u64) => activity::advise, "cuMemAdvise", 12020;
    /// A property of managed memory.
    cuMemRangeGetAttribute() => activity::not_supported, "cuMemRangeGetAttribute", 8000;
    /// Properties of managed memory.
    cuMemRangeGetAttributes() => activity::not_supported, "cuMemRangeGetAttributes", 8000;
}
