//! What the workload itself knows about its calls, summed up over the commands of a process.

use std::collections::BTreeMap;

use super::number::Number;
use crate::protocol::{Amount, Results, Site, Tally};

/// The sums of one process.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    allocations: Tally,
    frees: Tally,
    calls: Tally,
    sites: BTreeMap<Site, Tally>,
    live: Amount,
    live_at: u64,
}

/// The names under which a scenario asks for the sums.
const NAMES: &str = "allocations, allocated_bytes, failed_allocations, failed_allocation_bytes, \
    frees, freed_bytes, failed_frees, calls, failed_calls, live_count, live_bytes";

impl Workload {
    /// Adds what one command did.
    pub fn add(&mut self, results: &Results) {
        self.allocations.merge(&results.allocations);
        self.frees.merge(&results.frees);
        self.calls.merge(&results.calls);
        for (site, tally) in &results.sites {
            self.sites.entry(*site).or_default().merge(tally);
        }
        // Commands of several threads end in any order; the last word is the youngest one's.
        if results.ended >= self.live_at {
            self.live_at = results.ended;
            self.live = results.live;
        }
    }

    /// One of the sums, of the whole process or of the allocations at one call site.
    ///
    /// # Errors
    /// There is no such sum; the message says which there are.
    pub fn get(&self, site: Option<&str>, of: &str) -> Result<Number, String> {
        let nothing = Tally::default();
        let allocations = match site {
            None => &self.allocations,
            Some(name) => self
                .sites
                .iter()
                .find(|(s, _)| s.to_string() == name)
                .map_or(&nothing, |(_, t)| t),
        };
        let value = match of {
            "allocations" => allocations.succeeded.count,
            "allocated_bytes" => allocations.succeeded.bytes,
            "failed_allocations" => allocations.failures().count,
            "failed_allocation_bytes" => allocations.failures().bytes,
            _ if site.is_some() => {
                return Err(format!(
                    "no \"{of}\" is kept for a call site, only for allocations"
                ));
            }
            "frees" => self.frees.succeeded.count,
            "freed_bytes" => self.frees.succeeded.bytes,
            "failed_frees" => self.frees.failures().count,
            "calls" => self.calls.succeeded.count,
            "failed_calls" => self.calls.failures().count,
            "live_count" => self.live.count,
            "live_bytes" => self.live.bytes,
            _ => return Err(format!("no \"{of}\" is kept; there are {NAMES}")),
        };
        Ok(Number::Whole(i128::from(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_grow_and_live_is_the_latest() {
        let mut first = Results {
            ended: 20,
            ..Results::default()
        };
        first.allocations.add(0, 100);
        first.allocations.add(2, 1000);
        first.sites.entry(Site::named('B')).or_default().add(0, 100);
        first.live = Amount {
            count: 1,
            bytes: 100,
        };
        let earlier = Results {
            ended: 10,
            live: Amount::default(),
            ..first.clone()
        };

        let mut workload = Workload::default();
        workload.add(&first);
        workload.add(&earlier);
        assert_eq!(workload.get(None, "allocations"), Ok(Number::Whole(2)));
        assert_eq!(
            workload.get(None, "failed_allocation_bytes"),
            Ok(Number::Whole(2000))
        );
        assert_eq!(workload.get(None, "live_bytes"), Ok(Number::Whole(100)));
        assert_eq!(
            workload.get(Some("site_B"), "allocated_bytes"),
            Ok(Number::Whole(200))
        );
        assert_eq!(
            workload.get(Some("site_C"), "allocations"),
            Ok(Number::Whole(0))
        );
        assert!(
            workload
                .get(None, "alocations")
                .unwrap_err()
                .contains("live_bytes")
        );
        assert!(workload.get(Some("site_B"), "frees").is_err());
    }
}
