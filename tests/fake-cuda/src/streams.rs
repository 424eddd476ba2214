//! Streams and events. There never is any work that they would have to wait for.

use crate::context::Context;
use crate::current;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::objects::{Kind, Objects, OfContext};
use crate::result::{
    CONTEXT_IS_DESTROYED, Code, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, SUCCESS, code, give,
};
use std::ffi::{c_int, c_uint, c_void};

/// The stream of the context, and those two that stand for it and for the thread's.
const SPECIAL: std::ops::RangeInclusive<u64> = 0..=2;

#[derive(Debug, Clone, Copy)]
struct Stream {
    context: Context,
    flags: c_uint,
    priority: c_int,
    is_capturing: bool,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    context: Context,
}

impl OfContext for Stream {
    fn context(&self) -> Option<Context> {
        Some(self.context)
    }
}

impl OfContext for Event {
    fn context(&self) -> Option<Context> {
        Some(self.context)
    }
}

/// The streams and events of this process.
pub struct Streams {
    streams: Objects<Stream>,
    events: Objects<Event>,
}

impl Streams {
    /// None yet.
    pub fn new() -> Self {
        Self {
            streams: Objects::new(Kind::Stream),
            events: Objects::new(Kind::Event),
        }
    }

    /// Ends what belongs to a context that has just been destroyed.
    pub fn free_all_of(&self, context: Context) {
        self.streams.extract_of(context);
        self.events.extract_of(context);
    }
}

/// Whether this is a stream.
///
/// # Errors
/// [`INVALID_HANDLE`]
pub fn check(driver: &Driver, stream: u64) -> Result<(), Code> {
    if SPECIAL.contains(&stream) || driver.streams.streams.has(stream) {
        Ok(())
    } else {
        Err(INVALID_HANDLE)
    }
}

fn checked(stream: u64) -> Result<&'static Driver, Code> {
    let driver = driver()?;
    check(driver, stream)?;
    if SPECIAL.contains(&stream) {
        current::context()?;
    }
    Ok(driver)
}

fn checked_event(event: u64) -> Result<&'static Driver, Code> {
    let driver = driver()?;
    if driver.streams.events.has(event) {
        Ok(driver)
    } else {
        Err(INVALID_HANDLE)
    }
}

fn created(to: *mut u64, flags: c_uint, priority: c_int) -> Result<(), Code> {
    let driver = driver()?;
    let context = current::context()?;
    if to.is_null() || flags > 1 {
        return Err(INVALID_VALUE);
    }
    let stream = driver.streams.streams.insert(Stream {
        context,
        flags,
        priority,
        is_capturing: false,
    });
    if !driver.contexts.lives(context) {
        driver.streams.free_all_of(context);
        return Err(CONTEXT_IS_DESTROYED);
    }
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, stream) }
}

/// `cuStreamCreate`.
pub unsafe extern "C" fn create(to: *mut u64, flags: c_uint) -> Code {
    code(created(to, flags, 0))
}

/// `cuStreamCreateWithPriority`.
pub unsafe extern "C" fn create_with_priority(
    to: *mut u64,
    flags: c_uint,
    priority: c_int,
) -> Code {
    code(created(to, flags, priority.clamp(-5, 0)))
}

/// `cuStreamDestroy` and `_v2`.
pub unsafe extern "C" fn destroy(stream: u64) -> Code {
    code(driver().and_then(|driver| {
        let gone = driver.streams.streams.remove(stream);
        gone.map(drop).ok_or(INVALID_HANDLE)
    }))
}

/// Calls on a stream that have nothing to wait for: `cuStreamQuery`, `cuStreamWaitEvent`, ...
pub unsafe extern "C" fn accept(stream: u64) -> Code {
    code(checked(stream).map(drop))
}

/// `cuStreamSynchronize`.
pub unsafe extern "C" fn synchronize(stream: u64) -> Code {
    code(driver().and_then(|_| {
        strike(Family::Sync)?;
        checked(stream).map(drop)
    }))
}

fn give_of<T>(
    stream: u64,
    to: *mut T,
    of_special: T,
    choose: impl FnOnce(Stream) -> T,
) -> Result<(), Code> {
    let stream = checked(stream)?.streams.streams.get(stream);
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, stream.map_or(of_special, choose)) }
}

/// `cuStreamGetFlags`.
pub unsafe extern "C" fn flags(stream: u64, to: *mut c_uint) -> Code {
    code(give_of(stream, to, 0, |stream| stream.flags))
}

/// `cuStreamGetPriority`.
pub unsafe extern "C" fn priority(stream: u64, to: *mut c_int) -> Code {
    code(give_of(stream, to, 0, |stream| stream.priority))
}

/// `cuStreamGetId`.
pub unsafe extern "C" fn id(stream: u64, to: *mut u64) -> Code {
    code(give_of(stream, to, stream, |_| stream))
}

/// `cuStreamGetCtx`.
pub unsafe extern "C" fn context(stream: u64, to: *mut *mut c_void) -> Code {
    code(driver().and_then(|_| {
        let current = current::context().map_or(std::ptr::null_mut(), Context::handle);
        give_of(stream, to, current, |stream| stream.context.handle())
    }))
}

/// `cuStreamGetDevice`.
pub unsafe extern "C" fn device(stream: u64, to: *mut c_int) -> Code {
    code(checked(stream).and_then(|driver| {
        let context = match driver.streams.streams.get(stream) {
            Some(stream) => stream.context,
            None => current::context()?,
        };
        let gpu = driver.contexts.gpu(context);
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, c_int::try_from(gpu).unwrap_or(c_int::MAX)) }
    }))
}

/// What `cuStreamAddCallback` calls.
pub type Callback = Option<unsafe extern "C" fn(u64, Code, *mut c_void)>;

/// `cuStreamAddCallback`: as there is no work, it is called at once.
pub unsafe extern "C" fn add_callback(
    stream: u64,
    callback: Callback,
    data: *mut c_void,
    _flags: c_uint,
) -> Code {
    code(checked(stream).and_then(|_| {
        let callback = callback.ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its function.
        unsafe { callback(stream, SUCCESS, data) };
        Ok(())
    }))
}

/// What `cuLaunchHostFunc` calls.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// `cuLaunchHostFunc`: as there is no work, it is called at once.
pub unsafe extern "C" fn host_function(
    stream: u64,
    function: HostFunction,
    data: *mut c_void,
) -> Code {
    code(checked(stream).and_then(|_| {
        let function = function.ok_or(INVALID_VALUE)?;
        // SAFETY: the caller of the driver API vouches for its function.
        unsafe { function(data) };
        Ok(())
    }))
}

/// `cuStreamBeginCapture` and `_v2`.
pub unsafe extern "C" fn begin_capture(stream: u64, _mode: c_uint) -> Code {
    code(driver().and_then(|driver| {
        let mut streams = driver.streams.streams.lock();
        let stream = streams.get_mut(stream).ok_or(INVALID_HANDLE)?;
        if stream.is_capturing {
            return Err(ILLEGAL_STATE);
        }
        stream.is_capturing = true;
        Ok(())
    }))
}

/// `cuStreamEndCapture`: the graph has none of what was captured.
pub unsafe extern "C" fn end_capture(stream: u64, graph: *mut u64) -> Code {
    code(driver().and_then(|driver| {
        let mut streams = driver.streams.streams.lock();
        let stream = streams.get_mut(stream).ok_or(INVALID_HANDLE)?;
        if !stream.is_capturing || graph.is_null() {
            return Err(ILLEGAL_STATE);
        }
        stream.is_capturing = false;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(graph, driver.graphs.new_graph()) }
    }))
}

/// `cuStreamIsCapturing`; `cuStreamGetCaptureInfo` and its versions, as far as they begin alike.
pub unsafe extern "C" fn is_capturing(stream: u64, to: *mut c_uint) -> Code {
    code(give_of(stream, to, 0, |stream| {
        c_uint::from(stream.is_capturing)
    }))
}

/// `cuThreadExchangeStreamCaptureMode`: stays as it is.
pub unsafe extern "C" fn exchange_capture_mode(mode: *mut c_uint) -> Code {
    code(driver().and_then(|_| {
        if mode.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(())
        }
    }))
}

/// `cuEventCreate`.
pub unsafe extern "C" fn create_event(to: *mut u64, _flags: c_uint) -> Code {
    code(driver().and_then(|driver| {
        let context = current::context()?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let event = driver.streams.events.insert(Event { context });
        if !driver.contexts.lives(context) {
            driver.streams.free_all_of(context);
            return Err(CONTEXT_IS_DESTROYED);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, event) }
    }))
}

/// `cuEventDestroy` and `_v2`.
pub unsafe extern "C" fn destroy_event(event: u64) -> Code {
    code(driver().and_then(|driver| {
        let gone = driver.streams.events.remove(event);
        gone.map(drop).ok_or(INVALID_HANDLE)
    }))
}

/// `cuEventQuery`: whatever it stands for has happened.
pub unsafe extern "C" fn accept_event(event: u64) -> Code {
    code(checked_event(event).map(drop))
}

/// `cuEventRecord` and `cuEventRecordWithFlags`.
pub unsafe extern "C" fn record_event(event: u64, stream: u64) -> Code {
    code(checked_event(event).and_then(|driver| check(driver, stream)))
}

/// `cuEventSynchronize`.
pub unsafe extern "C" fn synchronize_event(event: u64) -> Code {
    code(driver().and_then(|_| {
        strike(Family::Sync)?;
        checked_event(event).map(drop)
    }))
}

/// `cuEventElapsedTime` and `_v2`.
pub unsafe extern "C" fn elapsed_time(to: *mut f32, start: u64, end: u64) -> Code {
    code(checked_event(start).and_then(|_| {
        checked_event(end)?;
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, 0.0) }
    }))
}
