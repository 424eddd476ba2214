//! What the fuzz targets share: properties that hold whatever the input was.
//!
//! A target fails by a panic; so does each of these.

use gputrace::{
    analysis::{Filter, Thresholds, report},
    evidence::Evidence,
    ledger::{Amount, Ledger, Limits},
    render::{
        ndjson,
        table::{Style, Table},
    },
    report::{EndedBy, Report},
    sensors::nvml::Sample,
};

/// One line that no terminal takes for anything but text.
pub fn assert_harmless(text: &str, max_chars: usize) {
    assert!(text.chars().count() <= max_chars, "too long: {text:?}");
    let bad = |c: &char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    assert_eq!(text.chars().find(bad), None, "{text:?}");
}

/// Limits so small that a short input reaches them, and large enough for a leak of two minutes.
pub const SMALL: Limits = Limits {
    live_allocations: 150,
    ended_processes: 2,
    processes: 4,
    sites_per_process: 3,
    stacks: 5,
    await_free_ns: 1_000_000_000,
};

/// Makes and shows reports in every way there is. What JSON holds is the report, to the last value.
pub fn show(ledger: &Ledger) {
    let everything = (Filter::default(), &[(false, 80), (false, 1)][..]);
    let little = Filter {
        min_bytes: 1 << 20,
        older_than_ns: 1_000_000_000,
        top: Some(1),
        ..Filter::default()
    };
    for (filter, styles) in [everything, (little, &[(true, 120)])] {
        let ended_by = filter.top.map(|_| EndedBy::Signal);
        let thresholds = Thresholds::default();
        let report = report(ledger, &filter, thresholds, ledger.now(), ended_by);
        let mut line = Vec::new();
        ndjson::report(&mut line, &report).unwrap();
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Report>(&line).unwrap(), report);
        for &(color, width) in styles {
            let style = Style { color, width };
            let report = &report;
            assert!(!Table { report, style }.to_string().is_empty());
        }
    }
}

/// What holds of a ledger after any events at all.
pub fn check(ledger: &Ledger, limits: Limits) {
    assert!(ledger.processes().count() <= limits.processes);
    let kept: usize = ledger.processes().map(|p| p.allocations().count()).sum();
    assert_eq!(kept, ledger.live_allocations());
    assert!(kept <= limits.live_allocations);
    for process in ledger.processes() {
        let memory = process.accounts.sum(|_| true);
        assert_eq!(memory.live.count, process.allocations().count() as u64);
        // Every allocation is in one place: none is counted twice.
        let ended = [
            memory.live,
            memory.awaiting_free,
            memory.freed,
            memory.not_followed,
            memory.released_by_exit,
            memory.released_by_exec,
            memory.released_by_context,
            process.kept_by_export,
        ];
        let places = ended.iter().map(|amount| amount.count).sum::<u64>() + memory.frees_not_seen;
        assert!(places <= memory.allocated.count, "{memory:?}");
    }
}

/// The call sites add up to their process. True as long as no sum of bytes has reached the end of
/// 64 bits.
pub fn check_sums(ledger: &Ledger) {
    for process in ledger.processes() {
        let sum = |of: fn(&gputrace::ledger::Site) -> Amount| {
            process.sites().iter().map(of).fold((0, 0), |sum, amount| {
                (sum.0 + amount.count, sum.1 + amount.bytes)
            })
        };
        let memory = process.accounts.sum(|_| true);
        let live = sum(|site| site.live);
        let expected = match process.ended() {
            None => memory.live,
            Some(_) => memory.released_by_exit,
        };
        assert_eq!(live, (expected.count, expected.bytes));
        let bytes: u64 = process.allocations().map(|a| a.bytes).sum();
        assert_eq!(memory.live.bytes, bytes);
        let (allocated, freed) = (memory.allocated, memory.freed);
        assert_eq!(
            sum(|site| site.allocated),
            (allocated.count, allocated.bytes)
        );
        assert_eq!(sum(|site| site.freed), (freed.count, freed.bytes));
    }
}

/// What holds of a sample that was checked.
pub fn check_sample(sample: &Sample) {
    const TEXT: usize = 128;
    const REASON: usize = 512;
    fn harmless<T>(evidence: &Evidence<T>, text: impl Fn(&T)) {
        match evidence {
            Evidence::Value(value) => text(value),
            Evidence::NotAvailable(reason) => assert_harmless(reason, REASON),
        }
    }
    let text = |it: &Evidence<String>| harmless(it, |it| assert_harmless(it, TEXT));
    text(&sample.driver_version);
    harmless(&sample.devices, |devices| {
        for device in devices {
            text(&device.uuid);
            text(&device.name);
            text(&device.pci_bus_id);
            harmless(&device.minor, |_| ());
            let total = device.total.value().copied().unwrap_or(1 << 50);
            for part in [&device.used, &device.reserved, &device.free] {
                harmless(part, |&bytes| assert!(bytes <= total));
            }
            for reason in &device.processes_incomplete {
                assert_harmless(reason, REASON);
            }
            harmless(&device.processes, |processes| {
                for process in processes {
                    assert_ne!(process.pid, 0);
                    harmless(&process.used, |&bytes| assert!(bytes <= total));
                }
            });
        }
    });
}
