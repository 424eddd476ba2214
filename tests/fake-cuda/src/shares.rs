//! What this process holds together with others, and how many of its handles, mappings and pointers
//! hold it.

use gputrace_test_rig::device::{Client, Share};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counts. The devices know only whether a process holds a share.
pub struct Shares(Mutex<HashMap<Share, u32>>);

impl Shares {
    /// None yet.
    pub fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Share, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an allocation of this process one that others can join.
    pub fn make(&self, client: &Client, gpu: usize, bytes: u64) -> Option<Share> {
        let mut counts = self.lock();
        let share = client.share(gpu, bytes)?;
        counts.insert(share, 1);
        Some(share)
    }

    /// Holds it once more; false if it is gone.
    pub fn join(&self, client: &Client, share: Share) -> bool {
        let mut counts = self.lock();
        if let Some(count) = counts.get_mut(&share) {
            *count += 1;
            return true;
        }
        let joined = client.join(share);
        if joined {
            counts.insert(share, 1);
        }
        joined
    }

    /// Holds it once less.
    pub fn leave(&self, client: &Client, share: Share) {
        let mut counts = self.lock();
        let Some(count) = counts.get_mut(&share) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            counts.remove(&share);
            client.leave(share);
        }
    }
}
