//! What an actor holds, and how each thing is given back.

use crate::functions::{self as f, Named};
use gputrace_test_rig::protocol::{AllocKind, Kind};

/// Things with piles of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Memory.
    Memory,
    /// References to physical memory.
    Handles,
    /// Reserved addresses.
    Ranges,
    /// Opened IPC handles.
    Opened,
    /// Pools.
    Pools,
    /// Modules and libraries.
    Modules,
    /// Executable graphs.
    Graphs,
    /// External memory.
    External,
}

impl Family {
    /// How many there are.
    pub const COUNT: usize = 8;
}

/// What a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Memory that `alloc` made.
    Memory {
        /// Which.
        kind: AllocKind,
        /// By a `_ptsz` function.
        ptsz: bool,
    },
    /// A reference to physical memory; of another process if it was imported.
    Handle {
        /// It was imported.
        imported: bool,
    },
    /// Reserved addresses.
    Range,
    /// An opened IPC handle.
    Opened,
    /// A pool.
    Pool,
    /// A module.
    Module,
    /// A library.
    Library,
    /// An executable graph.
    Graph,
    /// Memory from a pool of another process.
    FromPool,
    /// External memory.
    External,
    /// What is mapped of external memory.
    Buffer,
}

/// Something on a pile.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// What it is.
    pub what: What,
    /// Its address or handle.
    pub address: u64,
    /// Its size; 0 where it has none.
    pub bytes: u64,
    /// The handle of the context that was current when it was made.
    pub context: usize,
}

/// Physical memory that this process can reach through a handle.
#[derive(Debug, Clone, Copy)]
pub struct Physical {
    /// [`Kind::Vmm`], or [`Kind::Alias`] if another process made it.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// The device where it lies.
    pub device: i32,
    /// Handles that were not released.
    pub references: u64,
    /// Addresses to which it is mapped.
    pub mappings: u64,
}

/// Physical memory at an address.
#[derive(Debug, Clone, Copy)]
pub struct Mapping {
    /// The address.
    pub address: u64,
    /// How much is mapped.
    pub bytes: u64,
    /// The handle of what is mapped.
    pub handle: u64,
}

impl What {
    /// The pile on which it is.
    pub fn family(self) -> Family {
        match self {
            Self::Memory { .. } | Self::FromPool | Self::Buffer => Family::Memory,
            Self::External => Family::External,
            Self::Handle { .. } => Family::Handles,
            Self::Range => Family::Ranges,
            Self::Opened => Family::Opened,
            Self::Pool => Family::Pools,
            Self::Module | Self::Library => Family::Modules,
            Self::Graph => Family::Graphs,
        }
    }

    /// As what it is counted.
    pub fn kind(self) -> Kind {
        match self {
            Self::Memory { kind, .. } => kind_of(kind),
            Self::Handle { imported: false } => Kind::Vmm,
            Self::Handle { imported: true }
            | Self::Opened
            | Self::FromPool
            | Self::External
            | Self::Buffer => Kind::Alias,
            Self::Range => Kind::Addresses,
            Self::Pool => Kind::Pool,
            Self::Module | Self::Library => Kind::Module,
            Self::Graph => Kind::Graph,
        }
    }

    /// Whether it ends with the context in which it was made. Pools and what comes from them,
    /// physical memory, addresses, libraries, graphs and registered memory belong to the device or
    /// to the process.
    pub fn is_contexts(self) -> bool {
        match self {
            Self::Memory { kind, .. } => !matches!(
                kind,
                AllocKind::Async | AllocKind::Pool | AllocKind::Register
            ),
            Self::Opened | Self::Module | Self::External | Self::Buffer => true,
            Self::Handle { .. }
            | Self::Range
            | Self::Pool
            | Self::FromPool
            | Self::Library
            | Self::Graph => false,
        }
    }

    /// Whether it comes from a pool, which the end of the primary context empties.
    pub fn is_pools(self) -> bool {
        matches!(
            self,
            Self::Memory {
                kind: AllocKind::Async | AllocKind::Pool,
                ..
            }
        )
    }

    /// The function that gives it back, and whether it is called in its `_ptsz` form.
    pub fn undo(self) -> (&'static Named, bool) {
        match self {
            Self::Memory { kind, ptsz } => free_of(kind, ptsz),
            Self::Handle { .. } => (&f::VMM_RELEASE, false),
            Self::Range => (&f::VMM_ADDRESS_FREE, false),
            Self::Opened => (&f::IPC_CLOSE, false),
            Self::Pool => (&f::POOL_DESTROY, false),
            Self::Module => (&f::MODULE_UNLOAD, false),
            Self::Library => (&f::LIBRARY_UNLOAD, false),
            Self::Graph => (&f::GRAPH_EXEC_DESTROY, false),
            Self::FromPool | Self::Buffer => (&f::MEM_FREE, false),
            Self::External => (&f::EXTERNAL_DESTROY, false),
        }
    }
}

impl Held {
    /// The arguments of the function that gives it back.
    pub fn arguments(&self) -> [u64; 2] {
        match self.what {
            What::Range => [self.address, self.bytes],
            // The stream for what is ordered by one; ignored by everything else.
            _ => [self.address, 0],
        }
    }
}

/// As what memory of this kind is counted.
pub fn kind_of(kind: AllocKind) -> Kind {
    match kind {
        AllocKind::Device | AllocKind::Pitch | AllocKind::Async | AllocKind::Pool => Kind::Device,
        AllocKind::Managed => Kind::Managed,
        AllocKind::Host | AllocKind::HostV2 | AllocKind::Register => Kind::PinnedHost,
        AllocKind::Array | AllocKind::Array3d | AllocKind::Mipmap => Kind::Array,
    }
}

/// The function that frees memory of this kind, and whether it is called in its `_ptsz` form.
pub fn free_of(kind: AllocKind, ptsz: bool) -> (&'static Named, bool) {
    match kind {
        AllocKind::Device | AllocKind::Pitch | AllocKind::Managed => (&f::MEM_FREE, false),
        AllocKind::Async | AllocKind::Pool => (&f::MEM_FREE_ASYNC, ptsz),
        AllocKind::Host | AllocKind::HostV2 => (&f::FREE_HOST, false),
        AllocKind::Register => (&f::HOST_UNREGISTER, false),
        AllocKind::Array | AllocKind::Array3d => (&f::ARRAY_DESTROY, false),
        AllocKind::Mipmap => (&f::MIPMAP_DESTROY, false),
    }
}
