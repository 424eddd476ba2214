//! Tables of what the application knows by a handle.

use crate::context::Context;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values by handle. Handles look like heap addresses, are never null, and are reused at once, as
/// those of the real driver are.
pub struct Slots<T> {
    live: HashMap<u64, T>,
    unused: Vec<u64>,
    next: u64,
}

/// Between two handles, and between the first and the last one of a kind: a handle of one kind is
/// never one of another.
const STRIDE: u64 = 0x40;
const KIND: u64 = 0x1_0000_0000;
const FIRST: u64 = 0x5620_0000_0000;

/// What handles can stand for.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub enum Kind {
    /// Physical memory.
    Physical = 1,
    /// Arrays.
    Array,
    /// Mipmapped arrays.
    Mipmap,
    /// Memory pools.
    Pool,
    /// Green contexts.
    Green,
    /// Streams.
    Stream,
    /// Events.
    Event,
    /// Modules.
    Module,
    /// Libraries.
    Library,
    /// Functions and kernels.
    Function,
    /// Graphs.
    Graph,
    /// Nodes of graphs.
    Node,
    /// Executable graphs.
    Exec,
    /// External memory.
    External,
}

impl<T> Slots<T> {
    /// Nothing yet.
    pub fn new(kind: Kind) -> Self {
        Self {
            live: HashMap::new(),
            unused: Vec::new(),
            next: FIRST + kind as u64 * KIND,
        }
    }

    /// The handle of something new.
    pub fn insert(&mut self, value: T) -> u64 {
        let handle = self.unused.pop().unwrap_or_else(|| {
            let handle = self.next;
            self.next += STRIDE;
            handle
        });
        self.live.insert(handle, value);
        handle
    }

    /// What the handle stands for.
    pub fn get(&self, handle: u64) -> Option<&T> {
        self.live.get(&handle)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.live.get_mut(&handle)
    }

    /// Ends it.
    pub fn remove(&mut self, handle: u64) -> Option<T> {
        let value = self.live.remove(&handle)?;
        self.unused.push(handle);
        Some(value)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.live.iter().map(|(handle, value)| (*handle, value))
    }

    /// All of them, to be changed, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.live.values_mut()
    }

    /// Ends all those of which `which` says so.
    pub fn extract(&mut self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let gone: Vec<_> = self.live.extract_if(|_, value| which(value)).collect();
        self.unused.extend(gone.iter().map(|(handle, _)| handle));
        gone.into_iter().map(|(_, value)| value).collect()
    }
}

/// [`Slots`] for all threads.
pub struct Objects<T>(Mutex<Slots<T>>);

impl<T> Objects<T> {
    /// Nothing yet.
    pub fn new(kind: Kind) -> Self {
        Self(Mutex::new(Slots::new(kind)))
    }

    /// For several steps at once.
    pub fn lock(&self) -> MutexGuard<'_, Slots<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of something new.
    pub fn insert(&self, value: T) -> u64 {
        self.lock().insert(value)
    }

    /// Ends it.
    pub fn remove(&self, handle: u64) -> Option<T> {
        self.lock().remove(handle)
    }

    /// Whether the handle stands for anything.
    pub fn has(&self, handle: u64) -> bool {
        self.lock().get(handle).is_some()
    }

    /// A copy of what the handle stands for.
    pub fn get(&self, handle: u64) -> Option<T>
    where
        T: Clone,
    {
        self.lock().get(handle).cloned()
    }
}

/// What goes with a context.
pub trait OfContext {
    /// The context, if it is of one.
    fn context(&self) -> Option<Context>;
}

impl<T: OfContext> Objects<T> {
    /// Ends all that belongs to a context.
    pub fn extract_of(&self, context: Context) -> Vec<T> {
        self.lock()
            .extract(|value| value.context() == Some(context))
    }
}
