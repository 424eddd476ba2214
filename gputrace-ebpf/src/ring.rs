//! The ring buffer: who may put an event in, and when the reader is woken.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    maps::ring_buf::RingBufEntry,
};
use gputrace_ebpf::{CONTROL_EPISODE, LossCause, ProcessState};

use crate::{
    loss::add,
    maps::{CONTROL, EVENTS},
    offsets::{CONGESTED_AT, SHARE, WAKE_AT},
};

/// Bytes that have been reserved and not yet read.
#[inline(always)]
fn backlog() -> u64 {
    EVENTS.query(u64::from(BPF_RB_AVAIL_DATA))
}

#[inline(always)]
fn control(slot: u32) -> u64 {
    CONTROL.get(slot).copied().unwrap_or(0)
}

/// Room for an event of `process`.
///
/// While the ring is filling up, each process may add only a fixed number of events until the
/// reader has caught up: one noisy process cannot cost a quiet one its events.
#[inline(always)]
pub fn reserve_shared<T: 'static>(
    process: *mut ProcessState,
) -> Result<RingBufEntry<T>, LossCause> {
    if backlog() > CONGESTED_AT.load() {
        let episode = control(CONTROL_EPISODE);
        // SAFETY: a map value. Two threads that start an episode at once may both clear `spent`;
        // the share is a limit against floods, not an account.
        unsafe {
            if (*process).episode != episode {
                (*process).episode = episode;
                (*process).spent = 0;
            }
            if (*process).spent >= SHARE.load() {
                return Err(LossCause::OverShare);
            }
            add(&raw mut (*process).spent, 1);
        }
    }
    EVENTS.reserve::<T>(0).ok_or(LossCause::RingFull)
}

/// Room for an event that is rare and that much depends on: no share applies.
#[inline(always)]
pub fn reserve<T: 'static>() -> Option<RingBufEntry<T>> {
    EVENTS.reserve::<T>(0)
}

/// Submits an event and wakes the reader when the backlog crosses the mark; its timer does the
/// rest. A wake-up for every event above the mark would cost the traced program three times more.
#[inline(always)]
pub fn submit<T: 'static>(entry: RingBufEntry<T>) {
    // Producers that reserve at the same moment see each other's bytes: the crossing is a band.
    let band = 16 * size_of::<T>() as u64;
    let flags = if backlog().wrapping_sub(WAKE_AT.load()) < band {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    entry.submit(u64::from(flags));
}

/// Submits a rare event at once.
#[inline(always)]
pub fn submit_now<T: 'static>(entry: RingBufEntry<T>) {
    entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
}
