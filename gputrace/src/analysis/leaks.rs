//! Leak, cache, preallocation or none of these: a verdict from how outstanding memory developed.
//!
//! The rule, `retained-growth/1`, is written down in `docs/leak-rule.md`. It looks at what is
//! *retained*: the amount from which outstanding memory has never come down again. In short:
//! - a **leak** is retained memory that has kept growing for at least `leak_after`, in each of five
//!   equal parts of that time, and in the last third of it not clearly slower than in the third
//!   before;
//! - what stopped growing at least `flat_after` ago was **reserved at start** if it had done so
//!   within `startup` of the process's first call, else it **grew and is flat**;
//! - all other growth is **too early** to tell.

use serde::{Deserialize, Serialize};

use crate::{
    event::BootTime,
    ledger::{Growth, Retained},
    units::{Bytes, show_duration},
};

/// Name of the rule in reports. The number changes when its verdicts can.
pub const RULE: &str = "retained-growth/1";
/// Parts of a time of growth, in each of which a leak must have grown.
const PARTS: u64 = 5;
/// A third that grew less than this share of the third before it is clearly slower.
const STEADY: f64 = 2.0 / 3.0;

/// Durations that decide a verdict, in nanoseconds. Each is a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Thresholds {
    /// What is reserved within this time of a process's first call belongs to its start.
    pub startup_ns: u64,
    /// Memory that has not grown for this long is flat.
    pub flat_after_ns: u64,
    /// Growth must have gone on for this long to be called a leak.
    pub leak_after_ns: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            startup_ns: 10 * SECOND,
            flat_after_ns: 30 * SECOND,
            leak_after_ns: 60 * SECOND,
        }
    }
}

/// What outstanding memory looks like, in the order of how much it should worry.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing is outstanding.
    Balanced,
    /// Reserved at the process's start and flat since: a preallocation, lifetime buffers.
    ReservedAtStart,
    /// It grew, and has been flat since: a cache, a pool, a high-water mark.
    GrewAndFlat,
    /// It grows, but not yet long or regularly enough to call it anything.
    GrowingTooEarly,
    /// Events were lost: it may be anything.
    Uncertain,
    /// It keeps growing.
    Leak,
}

impl Kind {
    /// For people.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::ReservedAtStart => "reserved at start",
            Self::GrewAndFlat => "grew, flat",
            Self::GrowingTooEarly => "growing, too early",
            Self::Uncertain => "uncertain",
            Self::Leak => "LEAK",
        }
    }
}

/// A verdict with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Verdict {
    /// What it is.
    pub kind: Kind,
    /// Why, in one sentence.
    pub reason: String,
    /// The rule that gave it.
    pub rule: String,
}

impl Verdict {
    /// A verdict by the growth rule.
    #[must_use]
    pub fn new(kind: Kind, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            rule: RULE.to_owned(),
        }
    }
}

/// How memory has grown in its latest time of growth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// When that time began.
    pub since: BootTime,
    /// Retained bytes gained since.
    pub bytes: u64,
    /// Gain in bytes a second, by least squares.
    pub bytes_per_second: f64,
}

/// What is known beside the series itself.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Bytes outstanding now.
    pub live_bytes: u64,
    /// Successful allocations so far.
    pub allocations: u64,
    /// The process's first call, if its start was traced; `None` for one that was there before.
    pub process_began: Option<BootTime>,
    /// Growth up to here may be no growth: events were lost.
    pub doubt_until: Option<BootTime>,
}

/// A time of growth: from `from` on, retained memory rose at the times of `rises`.
struct Run<'a> {
    points: &'a [Retained],
    began: BootTime,
    now: BootTime,
}

impl Run<'_> {
    fn length(&self) -> u64 {
        self.now.since(self.began)
    }

    /// Retained bytes at a moment, between the points.
    fn at(&self, at: BootTime) -> f64 {
        let after = self.points.partition_point(|p| p.at <= at);
        let Some(before) = after.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return self.points.first().map_or(0.0, |p| float(p.bytes));
        };
        let Some(next) = self.points.get(after) else {
            return float(before.bytes);
        };
        let share = float(at.since(before.at)) / float(next.at.since(before.at).max(1));
        float(before.bytes) + share * float(next.bytes - before.bytes)
    }

    fn moment(&self, part: u64, of: u64) -> BootTime {
        BootTime(self.began.0 + self.length() / of * part)
    }

    fn gained(&self, from: BootTime, to: BootTime) -> f64 {
        self.at(to) - self.at(from)
    }

    /// In how many of the equal parts it grew.
    fn parts_grown(&self) -> u64 {
        (0..PARTS)
            .filter(|&part| {
                self.gained(self.moment(part, PARTS), self.moment(part + 1, PARTS)) >= 1.0
            })
            .count() as u64
    }

    /// Gain in the last third as a share of that in the third before.
    fn steadiness(&self) -> f64 {
        let [a, b] = [1, 2].map(|part| self.moment(part, 3));
        self.gained(b, self.now) / self.gained(a, b).max(1.0)
    }

    fn trend(&self) -> Trend {
        let bytes = self.at(self.now) - self.at(self.began);
        Trend {
            since: self.began,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a difference of ordered u64"
            )]
            bytes: bytes.max(0.0) as u64,
            bytes_per_second: slope(self.points),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "shares and rates need no more than 53 bits"
)]
fn float(n: u64) -> f64 {
    n as f64
}

/// Least-squares slope in bytes a second.
fn slope(points: &[Retained]) -> f64 {
    let Some(first) = points.first() else {
        return 0.0;
    };
    let n = float(points.len() as u64);
    let x = |p: &Retained| float(p.at.since(first.at)) / 1e9;
    let mean_x = points.iter().map(x).sum::<f64>() / n;
    let mean_y = points.iter().map(|p| float(p.bytes)).sum::<f64>() / n;
    let (mut xy, mut xx) = (0.0, 0.0);
    for p in points {
        let dx = x(p) - mean_x;
        xy += dx * (float(p.bytes) - mean_y);
        xx += dx * dx;
    }
    if xx > 0.0 { xy / xx } else { 0.0 }
}

/// The verdict on a series, and its latest time of growth if it grows.
#[must_use]
pub fn judge(
    growth: &Growth,
    subject: Subject,
    now: BootTime,
    thresholds: Thresholds,
) -> (Verdict, Option<Trend>) {
    if subject.live_bytes == 0 {
        let reason = if subject.allocations == 0 {
            "nothing was allocated".to_owned()
        } else {
            format!("all {} allocations were freed", subject.allocations)
        };
        return (Verdict::new(Kind::Balanced, reason), None);
    }
    let points = growth.retained(now);
    let rises = rises(&points);
    // Growth can have begun at the start of the series or after any long enough pause; what
    // happened before a loss of events cannot be told apart from the loss.
    let mut begins = vec![points.first().map_or(now, |p| p.at)];
    for pair in rises.windows(2) {
        if pair[1].0.since(pair[0].1) >= thresholds.flat_after_ns {
            begins.push(pair[1].0);
        }
    }
    if let Some(doubt) = subject.doubt_until {
        begins.retain(|&at| at >= doubt);
        begins.insert(0, doubt);
    }
    for &began in &begins {
        let run = run(&points, began, now);
        if run.length() >= thresholds.leak_after_ns
            && run.parts_grown() == PARTS
            && run.steadiness() >= STEADY
        {
            let trend = run.trend();
            let reason = format!(
                "retained memory grew by {} over {}, in each of {PARTS} equal parts of that time, \
                 at {} a second",
                Bytes(trend.bytes),
                show_duration(run.length()),
                Bytes(rate(trend.bytes_per_second)),
            );
            return (Verdict::new(Kind::Leak, reason), Some(trend));
        }
    }
    let Some(&(_, last_rise)) = rises.last() else {
        return (
            Verdict::new(Kind::GrewAndFlat, "it has not grown since events were lost"),
            None,
        );
    };
    let quiet = now.since(last_rise);
    if quiet >= thresholds.flat_after_ns {
        return (flat(&subject, last_rise, quiet, thresholds), None);
    }
    let latest = begins.last().copied().unwrap_or(now);
    let run = run(&points, latest, now);
    (too_early(&run, thresholds), Some(run.trend()))
}

/// Bytes a second as a whole number, never negative.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped by the cast"
)]
pub fn rate(bytes_per_second: f64) -> u64 {
    bytes_per_second.round() as u64
}

/// Where retained memory rose: begin and end of each such slot.
fn rises(points: &[Retained]) -> Vec<(BootTime, BootTime)> {
    points
        .windows(2)
        .filter(|pair| pair[1].bytes > pair[0].bytes)
        .map(|pair| (pair[0].at, pair[1].at))
        .collect()
}

fn run(points: &[Retained], began: BootTime, now: BootTime) -> Run<'_> {
    let first = points.partition_point(|p| p.at < began);
    Run {
        points: &points[first.min(points.len())..],
        began,
        now,
    }
}

fn flat(subject: &Subject, last_rise: BootTime, quiet: u64, thresholds: Thresholds) -> Verdict {
    let flat = show_duration(quiet);
    let bytes = Bytes(subject.live_bytes);
    match subject.process_began {
        Some(began) if last_rise.since(began) <= thresholds.startup_ns => Verdict::new(
            Kind::ReservedAtStart,
            format!(
                "{bytes} were reserved in the first {} of the process, flat for {flat} since",
                show_duration(last_rise.since(began).max(1_000_000))
            ),
        ),
        _ => Verdict::new(
            Kind::GrewAndFlat,
            format!("it grew to {bytes} and has been flat for {flat}"),
        ),
    }
}

fn too_early(run: &Run<'_>, thresholds: Thresholds) -> Verdict {
    let length = show_duration(run.length());
    let reason = if run.length() < thresholds.leak_after_ns {
        format!(
            "it has grown for {length}; {} of steady growth are called a leak",
            show_duration(thresholds.leak_after_ns)
        )
    } else if run.parts_grown() < PARTS {
        format!(
            "it has grown in {} of {PARTS} equal parts of {length}",
            run.parts_grown()
        )
    } else {
        format!(
            "it has grown for {length}, but slows down: the last third brought {:.0} % of the one \
             before",
            run.steadiness() * 100.0
        )
    };
    Verdict::new(Kind::GrowingTooEarly, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// Plays steps of (time in ms, outstanding MiB) and judges at `until` seconds.
    fn verdict(steps: impl IntoIterator<Item = (u64, u64)>, until: u64) -> (Kind, Option<Trend>) {
        let mut growth = Growth::new(BootTime(0));
        let mut live = 0;
        let mut n = 0;
        for (ms, mib) in steps {
            growth.set(BootTime(ms * 1_000_000), mib * MIB);
            live = mib * MIB;
            n += 1;
        }
        let subject = Subject {
            live_bytes: live,
            allocations: n,
            process_began: Some(BootTime(0)),
            doubt_until: None,
        };
        let (verdict, trend) = judge(
            &growth,
            subject,
            BootTime(until * SECOND),
            Thresholds::default(),
        );
        (verdict.kind, trend)
    }

    #[test]
    fn a_steady_leak_is_found_with_its_rate() {
        let (kind, trend) = verdict((1..=300).map(|i| (i * 300, i * 6)), 90);
        assert_eq!(kind, Kind::Leak);
        let rate = trend.unwrap().bytes_per_second / MIB as f64;
        assert!((19.0..21.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_leak_shows_through_start_up_buffers_and_a_pause() {
        let start = [(10, 2048)];
        let leak = (0..300).map(|i| (200_000 + i * 300, 2048 + i));
        let (kind, trend) = verdict(start.into_iter().chain(leak), 290);
        assert_eq!(kind, Kind::Leak);
        assert!(trend.unwrap().since.0 >= 190 * SECOND);
    }

    #[test]
    fn a_slow_leak_is_found_though_each_pause_is_longer_than_flat_after() {
        let (kind, _) = verdict((1..=40).map(|i| (i * 600_000, i * 100)), 24_010);
        assert_eq!(kind, Kind::Leak);
    }

    #[test]
    fn a_balanced_loop_is_no_leak() {
        let steps = (0..1000).flat_map(|i| [(i * 100, 4), (i * 100 + 50, 0)]);
        assert_eq!(verdict(steps, 101).0, Kind::Balanced);
        let steps = (0..1000).flat_map(|i| [(i * 100, 14), (i * 100 + 50, 10)]);
        assert_eq!(
            verdict(steps, 101).0,
            Kind::GrewAndFlat.min(Kind::ReservedAtStart)
        );
    }

    #[test]
    fn preallocation_is_reserved_at_start() {
        assert_eq!(verdict([(100, 60_000)], 120).0, Kind::ReservedAtStart);
        assert_eq!(verdict([(50_000, 60_000)], 120).0, Kind::GrewAndFlat);
        assert_eq!(verdict([(100, 60_000)], 20).0, Kind::GrowingTooEarly);
    }

    #[test]
    fn a_cache_that_fills_up_is_never_called_a_leak() {
        // Gaps grow by a tenth each time, from 1 s on, until five minutes have passed.
        let mut at = 0.0_f64;
        let mut gap = 1000.0;
        let mut steps = Vec::new();
        while at < 300_000.0 {
            steps.push((at as u64, (steps.len() as u64 + 1) * 30));
            at += gap;
            gap *= 1.1;
        }
        for seconds in (10..600).step_by(7) {
            let seen = steps.iter().copied().take_while(|s| s.0 < seconds * 1000);
            let (kind, _) = verdict(seen, seconds);
            assert_ne!(kind, Kind::Leak, "after {seconds} s");
        }
        assert_eq!(verdict(steps, 400).0, Kind::GrewAndFlat);
    }

    #[test]
    fn a_new_epoch_starts_from_scratch() {
        // Grows for 50 s and is freed, over and over.
        let steps = (0..10_u64).flat_map(|epoch| {
            (0..50)
                .map(move |i| (epoch * 50_000 + i * 1000, i * 10))
                .chain([(epoch * 50_000 + 49_999, 0)])
        });
        let steps: Vec<_> = steps.chain([(500_000, 10)]).collect();
        assert_ne!(verdict(steps, 501).0, Kind::Leak);
    }

    #[test]
    fn growth_before_a_loss_does_not_count() {
        let mut growth = Growth::new(BootTime(0));
        for i in 0..300 {
            growth.set(BootTime(i * 300 * 1_000_000), i * MIB);
        }
        let subject = |doubt| Subject {
            live_bytes: 299 * MIB,
            allocations: 300,
            process_began: None,
            doubt_until: doubt,
        };
        let judge = |doubt: u64| {
            judge(
                &growth,
                subject(Some(BootTime(doubt * SECOND))),
                BootTime(90 * SECOND),
                Thresholds::default(),
            )
            .0
            .kind
        };
        assert_eq!(judge(5), Kind::Leak);
        assert_ne!(judge(60), Kind::Leak);
        assert_ne!(judge(90), Kind::Leak);
    }
}
