//! Contexts of one process, and which is current to which of its threads.

use hashbrown::HashMap;

use super::allocations::ContextIndex;

/// Threads whose current context is remembered, per process; beyond that it is unknown.
const MAX_THREADS: usize = 16_384;

#[derive(Clone, Copy, Debug)]
struct Context {
    handle: u64,
    live: bool,
}

/// Contexts seen being created, and each thread's stack of current ones.
#[derive(Debug, Default)]
pub struct ContextTable {
    contexts: Vec<Context>,
    current: HashMap<u32, Vec<ContextIndex>>,
}

impl ContextTable {
    /// A context was created on a thread, which makes it current there.
    pub fn created(&mut self, tid: u32, handle: u64) -> ContextIndex {
        let Ok(index) = u32::try_from(self.contexts.len()) else {
            return ContextIndex::UNKNOWN;
        };
        self.contexts.push(Context { handle, live: true });
        self.push(tid, ContextIndex(index));
        ContextIndex(index)
    }

    fn push(&mut self, tid: u32, context: ContextIndex) {
        if self.current.len() < MAX_THREADS || self.current.contains_key(&tid) {
            self.current.entry(tid).or_default().push(context);
        }
    }

    fn find(&self, handle: u64) -> ContextIndex {
        self.contexts
            .iter()
            .rposition(|c| c.live && c.handle == handle)
            .and_then(|index| u32::try_from(index).ok())
            .map_or(ContextIndex::UNKNOWN, ContextIndex)
    }

    /// A context was made current on top of the thread's stack.
    pub fn pushed(&mut self, tid: u32, handle: u64) {
        let context = self.find(handle);
        self.push(tid, context);
    }

    /// The thread's current context was taken off.
    pub fn popped(&mut self, tid: u32) {
        if let Some(stack) = self.current.get_mut(&tid) {
            stack.pop();
        }
    }

    /// A context replaced the thread's current one; 0 takes it off.
    pub fn set(&mut self, tid: u32, handle: u64) {
        self.popped(tid);
        if handle != 0 {
            self.pushed(tid, handle);
        }
    }

    /// A context was destroyed. `None` if its creation was not seen.
    pub fn destroyed(&mut self, handle: u64) -> Option<ContextIndex> {
        let context = self.find(handle);
        let entry = self.contexts.get_mut(context.0 as usize)?;
        entry.live = false;
        self.current.retain(|_, stack| {
            stack.retain(|&c| c != context);
            !stack.is_empty()
        });
        Some(context)
    }

    /// The thread's current context.
    #[must_use]
    pub fn current(&self, tid: u32) -> ContextIndex {
        self.current
            .get(&tid)
            .and_then(|stack| stack.last())
            .copied()
            .unwrap_or(ContextIndex::UNKNOWN)
    }

    /// A new image has none.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_stack_of_its_own() {
        let mut table = ContextTable::default();
        let a = table.created(1, 0xa);
        let b = table.created(1, 0xb);
        assert_eq!(
            (table.current(1), table.current(2)),
            (b, ContextIndex::UNKNOWN)
        );
        table.set(2, 0xa);
        table.popped(1);
        assert_eq!((table.current(1), table.current(2)), (a, a));
        assert_eq!(table.destroyed(0xa), Some(a));
        assert_eq!(
            (table.current(1), table.current(2)),
            (ContextIndex::UNKNOWN, ContextIndex::UNKNOWN)
        );
        assert_eq!(table.destroyed(0xa), None);
        table.set(2, 0xb);
        table.set(2, 0);
        assert_eq!(table.current(2), ContextIndex::UNKNOWN);
    }

    #[test]
    fn a_handle_may_be_given_out_again() {
        let mut table = ContextTable::default();
        let first = table.created(1, 0xa);
        table.destroyed(0xa);
        let second = table.created(1, 0xa);
        assert_ne!(first, second);
        assert_eq!(table.destroyed(0xa), Some(second));
    }
}
