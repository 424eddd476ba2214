//! What the threads of an actor share.

use crate::cuda::Cuda;
use crate::things::{Family, Held, Mapping, Physical};
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::protocol::{Amount, Kind};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The process. It is never freed: its threads come and go as they are told.
pub struct World {
    /// Name of the process in the scenario.
    pub name: String,
    /// The rig.
    pub rig: Rig,
    /// CUDA.
    pub cuda: Cuda,
    state: Mutex<State>,
    /// The number of the next thread.
    next_thread: AtomicU32,
    /// `cuInit` has been called.
    initialised: AtomicBool,
}

/// What changes.
#[derive(Clone, Default)]
pub struct State {
    /// Contexts by their labels.
    pub contexts: BTreeMap<String, Context>,
    /// Of each device, its primary context and how often it is retained by this program itself.
    pub primaries: BTreeMap<i32, (usize, u64)>,
    /// By family: things by the labels of their piles.
    piles: [BTreeMap<String, Vec<Held>>; Family::COUNT],
    /// Physical memory by its handle, as long as it is referred to or mapped.
    pub physical: BTreeMap<u64, Physical>,
    /// By the first address of a range: what is mapped in it, in this order.
    pub mappings: BTreeMap<u64, Vec<Mapping>>,
    /// Files with shared memory behind them, by the labels under which they were exported.
    pub exports: BTreeMap<String, Vec<RawFd>>,
    /// What there is of each kind.
    pub live: BTreeMap<Kind, Amount>,
    /// Process IDs of forked children by their names.
    pub children: BTreeMap<String, libc::pid_t>,
    /// Connections to the runner, of all threads.
    pub connections: Vec<RawFd>,
}

/// A context with a label.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// Its handle.
    pub handle: usize,
    /// The green context behind it; 0 for none.
    pub green: usize,
}

impl State {
    fn add(&mut self, kind: Kind, bytes: u64) {
        self.live.entry(kind).or_default().add(bytes);
    }

    fn remove(&mut self, kind: Kind, bytes: u64) {
        if let Some(live) = self.live.get_mut(&kind) {
            live.count -= 1;
            live.bytes -= bytes;
        }
    }

    /// Puts something new on a pile.
    pub fn push(&mut self, label: &str, held: Held) {
        self.add(held.what.kind(), held.bytes);
        self.put_back(label, held);
    }

    /// Puts on a pile what exists already.
    pub fn put_back(&mut self, label: &str, held: Held) {
        let piles = &mut self.piles[held.what.family() as usize];
        match piles.get_mut(label) {
            Some(pile) => pile.push(held),
            None => {
                piles.insert(label.to_owned(), vec![held]);
            }
        }
    }

    /// Takes the newest thing off a pile.
    pub fn take(&mut self, family: Family, label: &str) -> Option<Held> {
        self.piles[family as usize].get_mut(label)?.pop()
    }

    /// What a pile holds, the oldest first.
    pub fn pile(&self, family: Family, label: &str) -> &[Held] {
        self.piles[family as usize]
            .get(label)
            .map_or(&[], Vec::as_slice)
    }

    /// A thing that was taken off its pile is gone.
    pub fn gone(&mut self, held: &Held) {
        self.remove(held.what.kind(), held.bytes);
    }

    /// A new handle of physical memory.
    pub fn created(&mut self, handle: u64, physical: Physical) {
        self.add(physical.kind, physical.bytes);
        self.physical.insert(handle, physical);
    }

    /// Changes a handle's references and mappings. If nothing is left, it is gone: what it was.
    pub fn change(&mut self, handle: u64, change: impl FnOnce(&mut Physical)) -> Option<Physical> {
        let physical = self.physical.get_mut(&handle)?;
        change(physical);
        let now = *physical;
        if now.references > 0 || now.mappings > 0 {
            return None;
        }
        self.physical.remove(&handle);
        self.remove(now.kind, now.bytes);
        Some(now)
    }

    /// Forgets what belonged to a context; with a primary one goes what pools gave as well.
    pub fn forget_context(&mut self, context: usize, primary: bool) {
        let ends = |held: &mut Held| {
            let with_it = held.what.is_contexts() || primary && held.what.is_pools();
            held.context == context && with_it
        };
        let mut all = Vec::new();
        for pile in self.piles.iter_mut().flat_map(BTreeMap::values_mut) {
            all.extend(pile.extract_if(.., ends));
        }
        for held in all {
            self.gone(&held);
        }
    }

    /// What there is of memory on a GPU.
    pub fn gpu_memory(&self) -> Amount {
        let mut sum = Amount::default();
        for (kind, amount) in &self.live {
            if kind.is_gpu_memory() {
                sum.merge(*amount);
            }
        }
        sum
    }
}

impl World {
    /// A process that has done nothing yet.
    pub fn new(name: String, rig: Rig) -> &'static Self {
        Self::with_state(name, rig, State::default())
    }

    /// A forked process, which starts with what its parent had.
    pub fn with_state(name: String, rig: Rig, state: State) -> &'static Self {
        Box::leak(Box::new(Self {
            name,
            cuda: Cuda::new(rig.clone()),
            rig,
            state: Mutex::new(state),
            next_thread: AtomicU32::new(1),
            initialised: AtomicBool::new(false),
        }))
    }

    /// What changes.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `cuInit` had been called before; from now on it counts as called.
    pub fn begin_initialisation(&self) -> bool {
        self.initialised.swap(true, Relaxed)
    }

    /// The number of a new thread.
    pub fn next_thread(&self) -> u32 {
        self.next_thread.fetch_add(1, Relaxed)
    }
}
