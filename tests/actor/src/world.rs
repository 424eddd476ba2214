//! What the threads of an actor share.

use crate::cuda::Cuda;
use gputrace_test_rig::config::Rig;
use gputrace_test_rig::protocol::Amount;
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
    /// Handles of contexts by their labels.
    pub contexts: BTreeMap<String, usize>,
    /// Allocations by the labels of their piles.
    pub piles: BTreeMap<String, Vec<Held>>,
    /// What all piles hold.
    pub live: Amount,
    /// Process IDs of forked children by their names.
    pub children: BTreeMap<String, libc::pid_t>,
    /// Connections to the runner, of all threads.
    pub connections: Vec<RawFd>,
}

/// An allocation on a pile.
#[derive(Clone, Copy)]
pub struct Held {
    /// Its address.
    pub pointer: u64,
    /// Its size.
    pub bytes: u64,
    /// The handle of its context.
    pub context: usize,
}

impl State {
    /// Puts an allocation on a pile.
    pub fn push(&mut self, label: &str, held: Held) {
        self.live.add(held.bytes);
        match self.piles.get_mut(label) {
            Some(pile) => pile.push(held),
            None => {
                self.piles.insert(label.to_owned(), vec![held]);
            }
        }
    }

    /// Takes the newest allocation off a pile.
    pub fn pop(&mut self, label: &str) -> Option<Held> {
        let held = self.piles.get_mut(label)?.pop()?;
        self.live.count -= 1;
        self.live.bytes -= held.bytes;
        Some(held)
    }

    /// Forgets what belonged to a context.
    pub fn forget_context(&mut self, context: usize) {
        for pile in self.piles.values_mut() {
            for gone in pile.extract_if(.., |held| held.context == context) {
                self.live.count -= 1;
                self.live.bytes -= gone.bytes;
            }
        }
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
