//! Streams and events.

use crate::result::Code;
use crate::trampoline::exports;
use crate::{activity, streams};
use std::ffi::{c_int, c_uint, c_void};

exports! {
    /// Creates a stream.
    cuStreamCreate(stream: *mut u64, flags: c_uint) => streams::create, "cuStreamCreate", 2000;
    /// Creates a stream with a priority.
    cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, priority: c_int)
        => streams::create_with_priority, "cuStreamCreateWithPriority", 5050;
    /// Destroys a stream.
    cuStreamDestroy(stream: u64) => streams::destroy, "cuStreamDestroy", 2000;
    /// Destroys a stream.
    cuStreamDestroy_v2(stream: u64) => streams::destroy, "cuStreamDestroy", 4000;
    /// Whether a stream's work is done.
    cuStreamQuery(stream: u64) => streams::accept, "cuStreamQuery", 2000;
    /// Whether a stream's work is done.
    cuStreamQuery_ptsz(stream: u64) => streams::accept, "cuStreamQuery", 7000;
    /// Waits for a stream's work.
    cuStreamSynchronize(stream: u64) => streams::synchronize, "cuStreamSynchronize", 2000;
    /// Waits for a stream's work.
    cuStreamSynchronize_ptsz(stream: u64) => streams::synchronize, "cuStreamSynchronize", 7000;
    /// Lets a stream wait.
    cuStreamWaitEvent(stream: u64) => streams::accept, "cuStreamWaitEvent", 3020;
    /// Lets a stream wait.
    cuStreamWaitEvent_ptsz(stream: u64) => streams::accept, "cuStreamWaitEvent", 7000;
    /// The flags of a stream.
    cuStreamGetFlags(stream: u64, flags: *mut c_uint) => streams::flags, "cuStreamGetFlags", 5050;
    /// The flags of a stream.
    cuStreamGetFlags_ptsz(stream: u64, flags: *mut c_uint) => streams::flags, "cuStreamGetFlags", 7000;
    /// The priority of a stream.
    cuStreamGetPriority(stream: u64, priority: *mut c_int) => streams::priority, "cuStreamGetPriority", 5050;
    /// The priority of a stream.
    cuStreamGetPriority_ptsz(stream: u64, priority: *mut c_int) => streams::priority, "cuStreamGetPriority", 7000;
    /// The number of a stream.
    cuStreamGetId(stream: u64, id: *mut u64) => streams::id, "cuStreamGetId", 12000;
    /// The number of a stream.
    cuStreamGetId_ptsz(stream: u64, id: *mut u64) => streams::id, "cuStreamGetId", 12000;
    /// The context of a stream.
    cuStreamGetCtx(stream: u64, context: *mut *mut c_void) => streams::context, "cuStreamGetCtx", 9020;
    /// The context of a stream.
    cuStreamGetCtx_ptsz(stream: u64, context: *mut *mut c_void) => streams::context, "cuStreamGetCtx", 9020;
    /// The device of a stream.
    cuStreamGetDevice(stream: u64, device: *mut c_int) => streams::device, "cuStreamGetDevice", 12080;
    /// The device of a stream.
    cuStreamGetDevice_ptsz(stream: u64, device: *mut c_int) => streams::device, "cuStreamGetDevice", 12080;
    /// Calls a function of the program.
    cuStreamAddCallback(stream: u64, callback: streams::Callback, data: *mut c_void, flags: c_uint)
        => streams::add_callback, "cuStreamAddCallback", 5000;
    /// Calls a function of the program.
    cuStreamAddCallback_ptsz(stream: u64, callback: streams::Callback, data: *mut c_void, flags: c_uint)
        => streams::add_callback, "cuStreamAddCallback", 7000;
    /// Ties managed memory to a stream.
    cuStreamAttachMemAsync(stream: u64) => streams::accept, "cuStreamAttachMemAsync", 6000;
    /// Ties managed memory to a stream.
    cuStreamAttachMemAsync_ptsz(stream: u64) => streams::accept, "cuStreamAttachMemAsync", 7000;
    /// Begins to record a stream.
    cuStreamBeginCapture(stream: u64, mode: c_uint) => streams::begin_capture, "cuStreamBeginCapture", 10000;
    /// Begins to record a stream.
    cuStreamBeginCapture_ptsz(stream: u64, mode: c_uint) => streams::begin_capture, "cuStreamBeginCapture", 10000;
    /// Begins to record a stream.
    cuStreamBeginCapture_v2(stream: u64, mode: c_uint) => streams::begin_capture, "cuStreamBeginCapture", 10010;
    /// Begins to record a stream.
    cuStreamBeginCapture_v2_ptsz(stream: u64, mode: c_uint) => streams::begin_capture, "cuStreamBeginCapture", 10010;
    /// Ends recording a stream.
    cuStreamEndCapture(stream: u64, graph: *mut u64) => streams::end_capture, "cuStreamEndCapture", 10000;
    /// Ends recording a stream.
    cuStreamEndCapture_ptsz(stream: u64, graph: *mut u64) => streams::end_capture, "cuStreamEndCapture", 10000;
    /// Whether a stream is being recorded.
    cuStreamIsCapturing(stream: u64, status: *mut c_uint) => streams::is_capturing, "cuStreamIsCapturing", 10000;
    /// Whether a stream is being recorded.
    cuStreamIsCapturing_ptsz(stream: u64, status: *mut c_uint) => streams::is_capturing, "cuStreamIsCapturing", 10000;
    /// Whether a stream is being recorded.
    cuStreamGetCaptureInfo(stream: u64, status: *mut c_uint)
        => streams::is_capturing, "cuStreamGetCaptureInfo", 10010;
    /// Whether a stream is being recorded.
    cuStreamGetCaptureInfo_ptsz(stream: u64, status: *mut c_uint)
        => streams::is_capturing, "cuStreamGetCaptureInfo", 10010;
    /// Whether a stream is being recorded.
    cuStreamGetCaptureInfo_v2(stream: u64, status: *mut c_uint)
        => streams::is_capturing, "cuStreamGetCaptureInfo", 11030;
    /// Whether a stream is being recorded.
    cuStreamGetCaptureInfo_v2_ptsz(stream: u64, status: *mut c_uint)
        => streams::is_capturing, "cuStreamGetCaptureInfo", 11030;
    /// Whether a stream is being recorded.
    cuStreamGetCaptureInfo_v3(stream: u64, status: *mut c_uint)
        => streams::is_capturing, "cuStreamGetCaptureInfo", 12030;
    /// Whether a stream is being recorded.
    cuStreamGetCaptureInfo_v3_ptsz(stream: u64, status: *mut c_uint)
        => streams::is_capturing, "cuStreamGetCaptureInfo", 12030;
    /// How a thread's calls affect a recording.
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint)
        => streams::exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010;
    /// Copies properties of a stream.
    cuStreamCopyAttributes(stream: u64) => streams::accept, "cuStreamCopyAttributes", 11000;
    /// Copies properties of a stream.
    cuStreamCopyAttributes_ptsz(stream: u64) => streams::accept, "cuStreamCopyAttributes", 11000;
    /// Changes a property of a stream.
    cuStreamSetAttribute(stream: u64) => streams::accept, "cuStreamSetAttribute", 11000;
    /// Changes a property of a stream.
    cuStreamSetAttribute_ptsz(stream: u64) => streams::accept, "cuStreamSetAttribute", 11000;
    /// A property of a stream.
    cuStreamGetAttribute() => activity::not_supported, "cuStreamGetAttribute", 11000;
    /// A property of a stream.
    cuStreamGetAttribute_ptsz() => activity::not_supported, "cuStreamGetAttribute", 11000;
    /// Creates an event.
    cuEventCreate(event: *mut u64, flags: c_uint) => streams::create_event, "cuEventCreate", 2000;
    /// Destroys an event.
    cuEventDestroy(event: u64) => streams::destroy_event, "cuEventDestroy", 2000;
    /// Destroys an event.
    cuEventDestroy_v2(event: u64) => streams::destroy_event, "cuEventDestroy", 4000;
    /// Lets an event stand for a stream's work.
    cuEventRecord(event: u64, stream: u64) => streams::record_event, "cuEventRecord", 2000;
    /// Lets an event stand for a stream's work.
    cuEventRecord_ptsz(event: u64, stream: u64) => streams::record_event, "cuEventRecord", 7000;
    /// Lets an event stand for a stream's work.
    cuEventRecordWithFlags(event: u64, stream: u64) => streams::record_event, "cuEventRecordWithFlags", 11010;
    /// Lets an event stand for a stream's work.
    cuEventRecordWithFlags_ptsz(event: u64, stream: u64) => streams::record_event, "cuEventRecordWithFlags", 11010;
    /// Whether what an event stands for is done.
    cuEventQuery(event: u64) => streams::accept_event, "cuEventQuery", 2000;
    /// Waits for what an event stands for.
    cuEventSynchronize(event: u64) => streams::synchronize_event, "cuEventSynchronize", 2000;
    /// The time between two events.
    cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64)
        => streams::elapsed_time, "cuEventElapsedTime", 2000;
    /// The time between two events.
    cuEventElapsedTime_v2(milliseconds: *mut f32, start: u64, end: u64)
        => streams::elapsed_time, "cuEventElapsedTime", 12080;
}
