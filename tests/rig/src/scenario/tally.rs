//! What the workload itself knows about its calls, summed up over the commands of a process.

use std::collections::BTreeMap;

use super::number::Number;
use crate::protocol::{Amount, Kind, KindTally, Results, Tally};

/// The sums of one process.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// Of memory on a GPU.
    all: KindTally,
    kinds: BTreeMap<Kind, KindTally>,
    launches: Tally,
    copies: Tally,
    synchronizations: Tally,
    calls: Tally,
    live: Amount,
    live_kinds: BTreeMap<Kind, Amount>,
    live_at: u64,
}

/// Which of a process's sums is meant, besides its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Part {
    /// Of this call site alone.
    pub site: Option<String>,
    /// Of this kind alone; without it, of memory on a GPU.
    pub kind: Option<Kind>,
}

/// The names under which a scenario asks for the sums.
const NAMES: &str = "allocations, allocated_bytes, failed_allocations, failed_allocation_bytes, \
    frees, freed_bytes, failed_frees, live_count, live_bytes, launches, failed_launches, copies, \
    failed_copies, synchronizations, failed_synchronizations, calls, failed_calls";

impl Workload {
    /// Adds what one command did.
    pub fn add(&mut self, results: &Results) {
        self.all.merge(&KindTally {
            allocations: results.allocations.clone(),
            frees: results.frees.clone(),
            sites: results.sites.clone(),
        });
        for (kind, tally) in &results.kinds {
            self.kinds.entry(*kind).or_default().merge(tally);
        }
        self.launches.merge(&results.launches);
        self.copies.merge(&results.copies);
        self.synchronizations.merge(&results.synchronizations);
        self.calls.merge(&results.calls);
        // Commands of several threads end in any order; the last word is the youngest one's.
        if results.ended >= self.live_at {
            self.live_at = results.ended;
            self.live = results.live;
            self.live_kinds.clone_from(&results.live_kinds);
        }
    }

    /// One of the sums.
    ///
    /// # Errors
    /// There is no such sum; the message says which there are.
    pub fn get(&self, part: &Part, of: &str) -> Result<Number, String> {
        let (nothing, none) = (Tally::default(), KindTally::default());
        let (tally, live) = match part.kind {
            None => (&self.all, self.live),
            Some(kind) => (
                self.kinds.get(&kind).unwrap_or(&none),
                self.live_kinds.get(&kind).copied().unwrap_or_default(),
            ),
        };
        let allocations = match &part.site {
            None => &tally.allocations,
            Some(name) => {
                let mut sites = tally.sites.iter();
                let found = sites.find(|(site, _)| site.to_string() == *name);
                found.map_or(&nothing, |(_, tally)| tally)
            }
        };
        let value = match of {
            "allocations" => allocations.succeeded.count,
            "allocated_bytes" => allocations.succeeded.bytes,
            "failed_allocations" => allocations.failures().count,
            "failed_allocation_bytes" => allocations.failures().bytes,
            _ if part.site.is_some() => {
                return Err(format!(
                    "no \"{of}\" is kept for a call site, only for allocations"
                ));
            }
            "frees" => tally.frees.succeeded.count,
            "freed_bytes" => tally.frees.succeeded.bytes,
            "failed_frees" => tally.frees.failures().count,
            "live_count" => live.count,
            "live_bytes" => live.bytes,
            _ if part.kind.is_some() => {
                return Err(format!("no \"{of}\" is kept for a kind"));
            }
            "launches" => self.launches.succeeded.count,
            "failed_launches" => self.launches.failures().count,
            "copies" => self.copies.succeeded.count,
            "failed_copies" => self.copies.failures().count,
            "synchronizations" => self.synchronizations.succeeded.count,
            "failed_synchronizations" => self.synchronizations.failures().count,
            "calls" => self.calls.succeeded.count,
            "failed_calls" => self.calls.failures().count,
            _ => return Err(format!("no \"{of}\" is kept; there are {NAMES}")),
        };
        Ok(Number::Whole(i128::from(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Site;

    #[test]
    fn sums_grow_and_live_is_the_latest() {
        let mut first = Results {
            ended: 20,
            ..Results::default()
        };
        first.given(Kind::Device, Site::named('B'), 0, 100);
        first.given(Kind::Device, Site::named('A'), 2, 1000);
        first.given(Kind::PinnedHost, Site::named('B'), 0, 7);
        first.live = Amount {
            count: 1,
            bytes: 100,
        };
        let earlier = Results {
            ended: 10,
            live: Amount::default(),
            ..first.clone()
        };

        let whole = Part::default();
        let at = |site: &str| Part {
            site: Some(site.to_owned()),
            kind: None,
        };
        let mut workload = Workload::default();
        workload.add(&first);
        workload.add(&earlier);
        assert_eq!(workload.get(&whole, "allocations"), Ok(Number::Whole(2)));
        assert_eq!(
            workload.get(&whole, "failed_allocation_bytes"),
            Ok(Number::Whole(2000))
        );
        assert_eq!(workload.get(&whole, "live_bytes"), Ok(Number::Whole(100)));
        assert_eq!(
            workload.get(&at("site_B"), "allocated_bytes"),
            Ok(Number::Whole(200))
        );
        assert_eq!(
            workload.get(&at("site_C"), "allocations"),
            Ok(Number::Whole(0))
        );
        assert!(
            workload
                .get(&whole, "alocations")
                .unwrap_err()
                .contains("live_bytes")
        );
        assert!(workload.get(&at("site_B"), "frees").is_err());

        let pinned = Part {
            kind: Some(Kind::PinnedHost),
            ..at("site_B")
        };
        assert_eq!(
            workload.get(&pinned, "allocated_bytes"),
            Ok(Number::Whole(14))
        );
    }
}
