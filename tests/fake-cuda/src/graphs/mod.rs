//! Graphs: what is recorded once and launched many times.
//!
//! Memory that a graph allocates when it is launched belongs to the device's graph memory, which
//! keeps what was freed until it is trimmed.

mod executable;
mod memory;

pub use executable::*;
pub use memory::*;

use crate::activity;
use crate::current;
use crate::device;
use crate::driver::{Driver, driver};
use crate::faults::{Family, strike};
use crate::memory::{Block, Origin};
use crate::objects::{Kind, Objects};
use crate::pools;
use crate::result::{Code, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, code, give};
use crate::streams;
use gputrace_test_rig::config::MAX_GPUS;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocParameters {
    pool: pools::Properties,
    access: u64,
    access_count: usize,
    bytes: usize,
    address: u64,
}

const _: () = assert!(size_of::<AllocParameters>() == 120);

#[derive(Debug, Clone, Copy)]
enum Action {
    Alloc {
        address: u64,
        bytes: u64,
        gpu: usize,
    },
    Free {
        address: u64,
    },
    Other,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    graph: u64,
    /// Counts up over all nodes.
    number: u64,
    action: Action,
}

#[derive(Debug, Clone)]
struct Exec {
    actions: Vec<Action>,
    gpu: usize,
    bytes: u64,
}

/// The graph memory of a device: what is in use, and what has been taken from the device for it.
#[derive(Debug, Clone, Copy, Default)]
struct Pool {
    used: u64,
    reserved: u64,
    used_most: u64,
    reserved_most: u64,
}

/// The graphs of this process.
pub struct Graphs {
    graphs: Objects<()>,
    nodes: Objects<Node>,
    last_node: AtomicU64,
    execs: Objects<Exec>,
    memory: Mutex<[Pool; MAX_GPUS]>,
}

impl Graphs {
    /// None yet.
    pub fn new() -> Self {
        Self {
            graphs: Objects::new(Kind::Graph),
            nodes: Objects::new(Kind::Node),
            last_node: AtomicU64::new(0),
            execs: Objects::new(Kind::Exec),
            memory: Mutex::new([Pool::default(); MAX_GPUS]),
        }
    }

    /// The handle of a graph without nodes.
    pub fn new_graph(&self) -> u64 {
        self.graphs.insert(())
    }

    fn memory(&self) -> MutexGuard<'_, [Pool; MAX_GPUS]> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back what a graph allocated.
    pub fn give_back(&self, block: Block) {
        let pool = &mut self.memory()[block.gpu];
        pool.used = pool.used.saturating_sub(block.bytes);
    }

    /// Gives back to the device what is not in use.
    pub fn trim(&self, driver: &Driver, gpu: usize) {
        let pool = &mut self.memory()[gpu];
        driver.client.unhide(gpu, pool.reserved - pool.used);
        pool.reserved = pool.used;
    }

    fn take(&self, driver: &Driver, gpu: usize, bytes: u64) -> Result<(), Code> {
        let pool = &mut self.memory()[gpu];
        let used = pool.used + bytes;
        let more = used.saturating_sub(pool.reserved);
        driver
            .client
            .hide(gpu, more)
            .map_err(|_no_room| OUT_OF_MEMORY)?;
        pool.used = used;
        pool.reserved += more;
        pool.used_most = pool.used_most.max(pool.used);
        pool.reserved_most = pool.reserved_most.max(pool.reserved);
        Ok(())
    }

    fn check(&self, graph: u64) -> Result<(), Code> {
        if self.graphs.has(graph) {
            Ok(())
        } else {
            Err(INVALID_HANDLE)
        }
    }

    fn actions_of(&self, graph: u64) -> Vec<Action> {
        let nodes = self.nodes.lock();
        let mut of_graph: Vec<_> = nodes
            .iter()
            .map(|(_, node)| node)
            .filter(|node| node.graph == graph)
            .collect();
        of_graph.sort_by_key(|node| node.number);
        of_graph.into_iter().map(|node| node.action).collect()
    }

    fn new_node(&self, graph: u64, action: Action) -> u64 {
        let number = self.last_node.fetch_add(1, Relaxed);
        self.nodes.insert(Node {
            graph,
            number,
            action,
        })
    }
}

/// `cuGraphCreate`.
pub unsafe extern "C" fn create(to: *mut u64, flags: c_uint) -> Code {
    code(driver().and_then(|driver| {
        if to.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, driver.graphs.new_graph()) }
    }))
}

/// `cuGraphClone`.
pub unsafe extern "C" fn clone(to: *mut u64, graph: u64) -> Code {
    code(driver().and_then(|driver| {
        driver.graphs.check(graph)?;
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let copy = driver.graphs.new_graph();
        for action in driver.graphs.actions_of(graph) {
            driver.graphs.new_node(copy, action);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        unsafe { give(to, copy) }
    }))
}

/// `cuGraphDestroy`.
pub unsafe extern "C" fn destroy(graph: u64) -> Code {
    code(driver().and_then(|driver| {
        driver.graphs.graphs.remove(graph).ok_or(INVALID_HANDLE)?;
        driver
            .graphs
            .nodes
            .lock()
            .extract(|node| node.graph == graph);
        Ok(())
    }))
}

/// `cuGraphDestroyNode`.
pub unsafe extern "C" fn destroy_node(node: u64) -> Code {
    code(driver().and_then(|driver| {
        let gone = driver.graphs.nodes.remove(node);
        gone.map(drop).ok_or(INVALID_HANDLE)
    }))
}

fn add(to: *mut u64, graph: u64, action: Action) -> Result<(), Code> {
    let driver = driver()?;
    driver.graphs.check(graph)?;
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    let node = driver.graphs.new_node(graph, action);
    // SAFETY: the caller of the driver API vouches for its pointer.
    unsafe { give(to, node) }
}

/// Adds a node that allocates nothing: `cuGraphAddKernelNode`, `cuGraphAddEmptyNode`, ...
pub unsafe extern "C" fn add_node(to: *mut u64, graph: u64) -> Code {
    code(add(to, graph, Action::Other))
}

/// `cuGraphAddMemAllocNode`: the address is known at once, the memory comes with the launch.
pub unsafe extern "C" fn add_alloc(
    to: *mut u64,
    graph: u64,
    _dependencies: *const u64,
    _count: usize,
    parameters: *mut AllocParameters,
) -> Code {
    code(driver().and_then(|driver| {
        driver.graphs.check(graph)?;
        if to.is_null() || parameters.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller of the driver API vouches for its pointer.
        let mut values = unsafe { parameters.read_unaligned() };
        let bytes = values.bytes as u64;
        let gpu = device::index(values.pool.device()).map_err(|_| INVALID_VALUE)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // Stays the graph's for good: the node may be copied, and the graph launched many times.
        let address = driver.memory.take_address(bytes)?;
        values.address = address;
        // SAFETY: as above.
        unsafe { parameters.write_unaligned(values) };
        add(
            to,
            graph,
            Action::Alloc {
                address,
                bytes,
                gpu,
            },
        )
    }))
}

/// `cuGraphAddMemFreeNode`.
pub unsafe extern "C" fn add_free(
    to: *mut u64,
    graph: u64,
    _dependencies: *const u64,
    _count: usize,
    address: u64,
) -> Code {
    code(add(to, graph, Action::Free { address }))
}

/// Calls on a graph that change nothing that could be seen.
pub unsafe extern "C" fn accept(graph: u64) -> Code {
    code(driver().and_then(|driver| driver.graphs.check(graph)))
}

/// Calls on a node that change nothing that could be seen.
pub unsafe extern "C" fn accept_node(node: u64) -> Code {
    code(driver().and_then(|driver| {
        if driver.graphs.nodes.has(node) {
            Ok(())
        } else {
            Err(INVALID_HANDLE)
        }
    }))
}

/// `cuGraphGetNodes`: how many there are, and as many as there is room for.
pub unsafe extern "C" fn nodes(graph: u64, to: *mut u64, count: *mut usize) -> Code {
    code(driver().and_then(|driver| {
        driver.graphs.check(graph)?;
        if count.is_null() {
            return Err(INVALID_VALUE);
        }
        let nodes = driver.graphs.nodes.lock();
        let mut handles: Vec<u64> = nodes
            .iter()
            .filter(|(_, node)| node.graph == graph)
            .map(|(handle, _)| handle)
            .collect();
        handles.sort_unstable();
        if !to.is_null() {
            // SAFETY: the caller of the driver API vouches for its pointers, and for the room.
            let room = unsafe { count.read_unaligned() };
            for (place, handle) in handles.iter().take(room).enumerate() {
                // SAFETY: as above.
                unsafe { to.add(place).write_unaligned(*handle) };
            }
        }
        // SAFETY: as above.
        unsafe { give(count, handles.len()) }
    }))
}
