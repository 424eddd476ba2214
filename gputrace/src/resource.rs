//! What a process can hold through CUDA, and where it lies.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::text::{Hexadecimal, as_hex};

/// A kind of thing that a process asks the CUDA driver for and gives back. Each has its own
/// figures.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Memory of a GPU behind a pointer, stream-ordered allocations included.
    Device,
    /// Managed memory: reserved bytes; how many of them are in GPU memory is not known.
    Managed,
    /// CUDA arrays and mipmapped arrays: the texels asked for, without the driver's padding.
    Array,
    /// Physical memory behind a handle of the virtual-memory API.
    Vmm,
    /// Host memory that the driver pinned.
    PinnedHost,
    /// Reserved virtual addresses: no memory.
    Addresses,
    /// Memory of another process or API, opened or imported: no memory of this process.
    Alias,
    /// Loaded modules and libraries: objects whose bytes the API does not tell.
    Module,
    /// Executable graphs: objects whose bytes the API does not tell.
    Graph,
    /// Memory pools: objects whose bytes the API does not tell.
    Pool,
}

impl Resource {
    /// Number of kinds.
    pub const COUNT: usize = 10;

    /// Every kind, in the order of their declaration.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Device,
        Self::Managed,
        Self::Array,
        Self::Vmm,
        Self::PinnedHost,
        Self::Addresses,
        Self::Alias,
        Self::Module,
        Self::Graph,
        Self::Pool,
    ];

    /// Whether its bytes are memory that a GPU can have to provide.
    #[must_use]
    pub const fn is_gpu_memory(self) -> bool {
        matches!(self, Self::Device | Self::Managed | Self::Array | Self::Vmm)
    }

    /// Whether NVML counts its bytes as those of the process. It does not count managed memory.
    #[must_use]
    pub const fn is_in_nvml_figure(self) -> bool {
        matches!(self, Self::Device | Self::Array | Self::Vmm)
    }

    /// Whether it is counted only, since the API does not tell its bytes.
    #[must_use]
    pub const fn is_object(self) -> bool {
        matches!(self, Self::Module | Self::Graph | Self::Pool)
    }

    /// One of it, for people.
    #[must_use]
    pub const fn one(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Graph => "graph",
            Self::Pool => "memory pool",
            _ => "allocation",
        }
    }

    /// For people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Device => "device memory",
            Self::Managed => "managed memory",
            Self::Array => "arrays",
            Self::Vmm => "VMM memory",
            Self::PinnedHost => "pinned host memory",
            Self::Addresses => "reserved addresses",
            Self::Alias => "imported memory",
            Self::Module => "modules",
            Self::Graph => "graphs",
            Self::Pool => "memory pools",
        }
    }
}

/// Where something that was asked for lies, as far as the call tells.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
#[serde(tag = "at", rename_all = "snake_case")]
pub enum Place {
    /// In the context that is current to the thread.
    Current,
    /// On the device of that context, but not part of the context.
    CurrentDevice,
    /// On this device.
    Device {
        /// Ordinal, as the process counts devices.
        ordinal: u32,
    },
    /// In no context and on no device: it belongs to the process.
    Process,
    /// In host memory.
    Host,
    /// In a memory pool.
    Pool {
        /// Its handle.
        #[serde(with = "as_hex::one")]
        #[schemars(with = "Hexadecimal")]
        pool: u64,
    },
    /// The call does not tell, or what tells could not be read.
    Unknown,
}

/// What a call does that is counted only.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Launches a kernel or a graph.
    Launch,
    /// Copies, fills or prefetches memory.
    Copy,
    /// Waits for the GPU.
    Synchronization,
}

impl Activity {
    /// Number of them.
    pub const COUNT: usize = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_order() {
        for (i, kind) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
        }
    }
}
