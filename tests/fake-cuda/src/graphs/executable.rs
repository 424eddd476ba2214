//! Graphs that can be launched.

use super::*;

fn instantiated(to: *mut u64, graph: u64) -> Result<(), Code> {
    let driver = driver()?;
    strike(Family::Graph)?;
    driver.graphs.check(graph)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let gpu = current::context().map_or(0, |context| driver.contexts.gpu(context));
    let bytes = driver.client.devices().config().costs.graph;
    driver
        .client
        .hide(gpu, bytes)
        .map_err(|_no_room| OUT_OF_MEMORY)?;
    let exec = driver.graphs.execs.insert(Exec {
        actions: driver.graphs.actions_of(graph),
        gpu,
        bytes,
    });
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, exec) }
}

/// `cuGraphInstantiate` and `_v2`.
pub unsafe extern "C" fn instantiate(
    to: *mut u64,
    graph: u64,
    error_node: *mut u64,
    log: *mut c_char,
    size: usize,
) -> Code {
    if !error_node.is_null() {
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { error_node.write_unaligned(0) };
    }
    if !log.is_null() && size > 0 {
        // SAFETY: as above, for `size` bytes.
        unsafe { log.write(0) };
    }
    code(instantiated(to, graph))
}

/// `cuGraphInstantiateWithFlags`.
pub unsafe extern "C" fn instantiate_with_flags(to: *mut u64, graph: u64, _flags: u64) -> Code {
    code(instantiated(to, graph))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
pub struct InstantiateParameters {
    flags: u64,
    upload_stream: u64,
    error_node: u64,
    result: c_uint,
}

/// `cuGraphInstantiateWithParams`.
pub unsafe extern "C" fn instantiate_with_parameters(
    to: *mut u64,
    graph: u64,
    parameters: *mut InstantiateParameters,
) -> Code {
    /// `CUDA_GRAPH_INSTANTIATE_SUCCESS`, `CUDA_GRAPH_INSTANTIATE_ERROR`.
    const SUCCEEDED: c_uint = 0;
    const FAILED: c_uint = 1;
    if parameters.is_null() {
        return code(driver().and(Err(INVALID_VALUE)));
    }
    let result = instantiated(to, graph);
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe {
        (&raw mut (*parameters).error_node).write_unaligned(0);
        let value = if result.is_ok() { SUCCEEDED } else { FAILED };
        (&raw mut (*parameters).result).write_unaligned(value);
    }
    code(result)
}

/// `cuGraphExecDestroy`.
pub unsafe extern "C" fn destroy_exec(exec: u64) -> Code {
    code(driver().and_then(|driver| {
        strike(Family::Free)?;
        let exec = driver.graphs.execs.remove(exec).ok_or(INVALID_HANDLE)?;
        driver.client.unhide(exec.gpu, exec.bytes);
        Ok(())
    }))
}

/// Calls on an executable graph that change nothing that could be seen.
pub unsafe extern "C" fn accept_exec(exec: u64) -> Code {
    code(driver().and_then(|driver| {
        if driver.graphs.execs.has(exec) {
            Ok(())
        } else {
            Err(INVALID_HANDLE)
        }
    }))
}

fn launched(exec: u64, stream: u64) -> Result<(), Code> {
    let driver = driver()?;
    activity::launching(driver)?;
    streams::check(driver, stream)?;
    let exec = driver.graphs.execs.get(exec).ok_or(INVALID_HANDLE)?;
    for action in exec.actions {
        match action {
            Action::Other => {}
            Action::Alloc {
                address,
                bytes,
                gpu,
            } => {
                // Allocated by an earlier launch, and not freed since.
                if driver.memory.at(address).is_some() {
                    return Err(INVALID_VALUE);
                }
                driver.graphs.take(driver, gpu, bytes)?;
                let block = Block {
                    bytes,
                    context: None,
                    gpu,
                    origin: Origin::Graph,
                    share: None,
                };
                driver.place(address, block)?;
            }
            Action::Free { address } => driver.release_at(address, |_| true)?,
        }
    }
    Ok(())
}

/// `cuGraphLaunch`.
pub unsafe extern "C" fn launch(exec: u64, stream: u64) -> Code {
    code(launched(exec, stream))
}
