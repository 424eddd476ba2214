//! How an amount of outstanding memory has developed: a fixed number of time slots, whatever the
//! duration.

use super::Amount;
use crate::event::BootTime;

/// Slots kept. Two neighbours are merged into one when they run out, so that between half of
/// them and all of them always cover the whole time.
pub const SLOTS: usize = 64;
/// Width of a slot at first: 50 ms.
const FIRST_WIDTH_NS: u64 = 50_000_000;

/// The least amount that was outstanding in each slot of time.
///
/// The least, because memory that is given back between two looks is no growth: a loop that
/// allocates and frees has a floor that stays where it is.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    started: BootTime,
    width_ns: u64,
    /// The last one is the current slot.
    floors: Vec<u64>,
    /// The most that was outstanding in each slot.
    peaks: Vec<u64>,
    current: u64,
}

/// A time at which what is outstanding had come down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Low {
    /// Begin of the slot.
    pub at: BootTime,
    /// The most that had been outstanding in the slots before it.
    pub peak_before: u64,
}

/// The amount from which memory has never come down again since that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Begin of the slot.
    pub at: BootTime,
    /// What was outstanding then and ever since.
    pub amount: u64,
}

impl Growth {
    /// A series that begins with nothing outstanding.
    #[must_use]
    pub fn new(started: BootTime) -> Self {
        Self {
            started,
            width_ns: FIRST_WIDTH_NS,
            floors: vec![0],
            peaks: vec![0],
            current: 0,
        }
    }

    /// The outstanding amount is now `amount`. A time before the latest one counts as that one.
    pub fn set(&mut self, at: BootTime, amount: u64) {
        self.advance(at);
        self.current = amount;
        if let Some(floor) = self.floors.last_mut() {
            *floor = (*floor).min(amount);
        }
        if let Some(peak) = self.peaks.last_mut() {
            *peak = (*peak).max(amount);
        }
    }

    fn slot(&self, at: BootTime) -> usize {
        usize::try_from(at.since(self.started) / self.width_ns.max(1)).unwrap_or(usize::MAX)
    }

    fn advance(&mut self, at: BootTime) {
        while self.slot(at) >= SLOTS {
            self.merge();
        }
        let slot = self.slot(at);
        if slot >= self.floors.len() {
            self.floors.resize(slot + 1, self.current);
            self.peaks.resize(slot + 1, self.current);
        }
    }

    fn merge(&mut self) {
        let merged = |slots: &[u64], of: fn(u64, u64) -> u64| {
            slots
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(of).unwrap_or(0))
                .collect()
        };
        self.floors = merged(&self.floors, u64::min);
        self.peaks = merged(&self.peaks, u64::max);
        self.width_ns = self.width_ns.saturating_mul(2);
    }

    /// What was outstanding at the begin of each slot and has been ever since, up to `now`; it
    /// never decreases. The last one is what is outstanding now.
    #[must_use]
    pub fn retained(&self, now: BootTime) -> Vec<Retained> {
        let mut series = self.clone();
        series.advance(now);
        let mut least = series.current;
        let mut retained: Vec<Retained> = series
            .floors
            .iter()
            .enumerate()
            .rev()
            .map(|(slot, &floor)| {
                least = least.min(floor);
                let at = series.begin(slot);
                Retained { at, amount: least }
            })
            .collect();
        retained.reverse();
        retained.push(Retained {
            at: now,
            amount: series.current,
        });
        retained
    }

    /// The latest slot up to `now` in which no more than `level` was outstanding for a moment.
    #[must_use]
    pub fn last_low(&self, now: BootTime, level: u64) -> Option<Low> {
        let mut series = self.clone();
        series.advance(now);
        let slot = series.floors.iter().rposition(|&floor| floor <= level)?;
        Some(Low {
            at: series.begin(slot),
            peak_before: series.peak_before(slot),
        })
    }

    /// The most that had been outstanding before `at`.
    #[must_use]
    pub fn peak_up_to(&self, at: BootTime) -> u64 {
        self.peak_before(self.slot(at))
    }

    fn peak_before(&self, slot: usize) -> u64 {
        self.peaks.iter().take(slot).copied().max().unwrap_or(0)
    }

    fn begin(&self, slot: usize) -> BootTime {
        BootTime(
            self.started
                .0
                .saturating_add((slot as u64).saturating_mul(self.width_ns)),
        )
    }
}

/// How outstanding memory has developed: its bytes, and the number of allocations in it.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Bytes.
    pub bytes: Growth,
    /// Number of allocations.
    pub count: Growth,
}

impl History {
    /// A history that begins with nothing outstanding.
    #[must_use]
    pub fn new(started: BootTime) -> Self {
        Self {
            bytes: Growth::new(started),
            count: Growth::new(started),
        }
    }

    /// What is outstanding now.
    pub fn set(&mut self, at: BootTime, amount: Amount) {
        self.bytes.set(at, amount.bytes);
        self.count.set(at, amount.count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_given_back_is_not_retained() {
        let mut growth = Growth::new(BootTime(0));
        for i in 0..100 {
            growth.set(BootTime(i * 100 * MS), 10 + i);
            growth.set(BootTime(i * 100 * MS + 10 * MS), i);
        }
        growth.set(BootTime(10_000 * MS), 3);
        let retained = growth.retained(BootTime(11_000 * MS));
        assert!(retained.iter().all(|r| r.amount <= 3));
        assert_eq!(retained.last().map(|r| r.amount), Some(3));
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_never_decreases(
            steps in prop::collection::vec((0_u64..10_000, 0_u64..1000), 1..300)
        ) {
            let mut growth = Growth::new(BootTime(0));
            let mut at = 0;
            for (after, bytes) in steps {
                at += after * MS;
                growth.set(BootTime(at), bytes);
                prop_assert!(growth.floors.len() <= SLOTS);
            }
            let retained = growth.retained(BootTime(at + MS));
            prop_assert!(retained.len() <= SLOTS + 1);
            prop_assert!(retained.windows(2).all(|w| w[0].amount <= w[1].amount && w[0].at <= w[1].at));
        }
    }
}
