//! Memory of this process that a device pointer stands for.

mod addresses;
mod calls;
mod shards;

pub use calls::*;

use crate::context::Context;
use crate::current;
use crate::driver::Driver;
use crate::host_map;
use crate::result::{CONTEXT_IS_DESTROYED, Code, INVALID_VALUE, OUT_OF_MEMORY};
use addresses::Addresses;
use gputrace_test_rig::device::Share;
use shards::{Shard, shard};

/// By which function a pointer came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `cuMemAlloc`, `cuMemAllocPitch`.
    Device,
    /// `cuMemAllocManaged`: the program may use it as its own memory too.
    Managed,
    /// From the pool with this handle, whether that lives or not.
    Pool(u64),
    /// `cuMemPoolImportPointer`: somebody else's.
    Imported(Share),
    /// A memory node of a graph, whose memory is the graph's.
    Graph,
}

/// A live allocation.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// As it was asked for, which is also what the device is charged.
    pub bytes: u64,
    /// The context that takes it along when it is destroyed.
    pub context: Option<Context>,
    /// Index of the GPU.
    pub gpu: usize,
    /// How it came to be.
    pub origin: Origin,
    /// Once it has been exported.
    pub share: Option<Share>,
}

/// The allocations of this process.
pub struct Memory {
    live: Vec<Shard<Block>>,
    addresses: Addresses,
}

impl Memory {
    /// None yet.
    pub fn new() -> Self {
        Self {
            live: Shard::all(),
            addresses: Addresses::new(),
        }
    }

    /// The allocation that begins at this address.
    pub fn at(&self, address: u64) -> Option<Block> {
        shard(&self.live, address).lock().get(&address).copied()
    }

    /// The allocation in which this address lies, and where it begins.
    pub fn around(&self, address: u64) -> Option<(u64, Block)> {
        if let Some(block) = self.at(address) {
            return Some((address, block));
        }
        self.live.iter().find_map(|shard| {
            let blocks = shard.lock();
            let around = |(base, block): &(&u64, &Block)| {
                address >= **base && address - **base < block.bytes
            };
            blocks
                .iter()
                .find(around)
                .map(|(base, block)| (*base, *block))
        })
    }

    /// Does something with the allocation at this address while nobody can free it.
    pub fn change<R>(&self, address: u64, change: impl FnOnce(&mut Block) -> R) -> Option<R> {
        shard(&self.live, address)
            .lock()
            .get_mut(&address)
            .map(change)
    }

    fn remove_if(&self, address: u64, condition: impl FnOnce(&Block) -> bool) -> Option<Block> {
        let mut blocks = shard(&self.live, address).lock();
        if blocks.get(&address).is_some_and(condition) {
            blocks.remove(&address)
        } else {
            None
        }
    }

    /// An address that nothing else has, without an allocation.
    pub fn take_address(&self, bytes: u64) -> Result<u64, Code> {
        self.addresses.take(bytes, false).ok_or(OUT_OF_MEMORY)
    }

    /// Gives back what [`Memory::take_address`] gave.
    pub fn give_address_back(&self, address: u64, bytes: u64) {
        self.addresses.give_back(address, bytes);
    }

    fn release(&self, driver: &Driver, address: u64, block: Block) {
        match (block.origin, block.share) {
            (Origin::Imported(share), _) => driver.shares.leave(&driver.client, share),
            (Origin::Pool(pool), share) => driver.pools.give_back(driver, pool, block, share),
            (Origin::Graph, _) => driver.graphs.give_back(block),
            (_, Some(share)) => driver.shares.leave(&driver.client, share),
            (_, None) => driver.client.free(block.gpu, block.bytes),
        }
        match block.origin {
            // It has the address that the system gave it; a graph's belongs to its node.
            Origin::Managed => host_map::unmap(address, block.bytes),
            Origin::Graph => {}
            _ => self.addresses.give_back(address, block.bytes),
        }
    }

    /// Frees every allocation of which `which` says so.
    pub fn free_where(&self, driver: &Driver, which: impl Fn(&Block) -> bool) {
        for shard in &self.live {
            let gone: Vec<_> = shard.lock().extract_if(|_, block| which(block)).collect();
            for (address, block) in gone {
                self.release(driver, address, block);
            }
        }
    }
}

impl Driver {
    /// Makes a block the allocation at an address.
    pub fn place(&self, address: u64, block: Block) -> Result<(), Code> {
        shard(&self.memory.live, address)
            .lock()
            .insert(address, block);
        let Some(context) = block.context else {
            return Ok(());
        };
        if self.contexts.lives(context) {
            return Ok(());
        }
        // Destroyed meanwhile: either its destruction has taken the block along (and another
        // context may have the address by now), or we do.
        let ours = |found: &Block| found.context == Some(context);
        if let Some(block) = self.memory.remove_if(address, ours) {
            self.memory.release(self, address, block);
        }
        Err(CONTEXT_IS_DESTROYED)
    }

    /// Memory of the current context's device, which goes with the context.
    fn allocate(&self, bytes: u64, origin: Origin, low: bool) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let context = current::context()?;
        let gpu = self.contexts.gpu(context);
        self.client
            .allocate(gpu, bytes)
            .map_err(|_no_room| OUT_OF_MEMORY)?;
        let address = match origin {
            Origin::Managed => host_map::map(bytes),
            _ => self.memory.addresses.take(bytes, low),
        };
        let Some(address) = address else {
            self.client.free(gpu, bytes);
            return Err(OUT_OF_MEMORY);
        };
        let block = Block {
            bytes,
            context: Some(context),
            gpu,
            origin,
            share: None,
        };
        self.place(address, block)?;
        Ok(address)
    }

    /// Frees the allocation at an address, if `condition` agrees.
    pub fn release_at(
        &self,
        address: u64,
        condition: impl FnOnce(&Block) -> bool,
    ) -> Result<(), Code> {
        let block = self
            .memory
            .remove_if(address, condition)
            .ok_or(INVALID_VALUE)?;
        self.memory.release(self, address, block);
        Ok(())
    }
}
