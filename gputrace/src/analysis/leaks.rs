//! Leak, cache, preallocation or none of these: a verdict from how outstanding memory developed.
//!
//! The rule, `retained-growth/1`, is written down in `docs/leak-rule.md`. It looks at what is
//! *retained*: the amount from which outstanding memory has never come down again. In short:
//! - a **leak** is retained memory that has kept growing for at least `leak_after`, in each of five
//!   equal parts of that time, and in the second half of it not clearly slower than in the first:
//!   neither in bytes nor in the number of allocations;
//! - what stopped growing at least `flat_after` ago was **reserved at start** if it had done so
//!   within `startup` of the process's first call, else it **grew and is flat**;
//! - all other growth is **too early** to tell.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::{
    event::BootTime,
    ledger::{History, Retained},
    resource::Resource,
    units::{Bytes, counted, show_duration},
};

/// Allocations from which on a growth that has lost its beginning is judged.
const MANY: f64 = 20.0;
/// Name of the rule in reports. The number changes when its verdicts can.
pub const RULE: &str = "retained-growth/1";
/// Parts of a time of growth, in each of which a leak must have grown.
const PARTS: u64 = 5;
/// A second half that brought less than this share of what the first brought is clearly slower.
const STEADY: f64 = 2.0 / 3.0;

/// Durations that decide a verdict, in nanoseconds. Each is a flag.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    BorshSerialize,
    BorshDeserialize,
)]
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

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Of what kind it is; for a whole process device memory. Of objects the history has their
    /// number in the place of bytes.
    pub kind: Resource,
    /// How it has developed.
    pub history: &'a History,
    /// Bytes outstanding now; of objects their number.
    pub live: u64,
    /// Successful allocations so far.
    pub allocations: u64,
    /// The latest of them: growth is not later, however coarse the history is.
    pub latest: BootTime,
    /// The process's first call, if its start was traced; `None` for one that was there before.
    pub process_began: Option<BootTime>,
    /// Growth up to here may be no growth: events were lost.
    pub doubt_until: Option<BootTime>,
    /// The process has ended: there is nothing to wait for.
    pub has_ended: bool,
}

impl Subject<'_> {
    /// An amount, for people.
    fn show(&self, amount: u64) -> String {
        if self.kind.is_object() {
            counted(amount, self.kind.one())
        } else {
            Bytes(amount).to_string()
        }
    }

    /// What is retained, for people.
    const fn retained(&self) -> &'static str {
        if self.kind.is_object() {
            "what is retained"
        } else {
            "retained memory"
        }
    }
}

/// A retained amount, from a moment on.
#[derive(Clone, Copy)]
struct Curve<'a> {
    points: &'a [Retained],
}

/// A time of growth.
struct Run<'a> {
    bytes: Curve<'a>,
    count: Curve<'a>,
    rises: &'a [Rise],
    began: BootTime,
    end: BootTime,
}

impl Curve<'_> {
    /// The retained amount at a moment, between the points.
    fn at(&self, at: BootTime) -> f64 {
        let after = self.points.partition_point(|p| p.at <= at);
        let Some(before) = after.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return self.points.first().map_or(0.0, |p| float(p.amount));
        };
        let Some(next) = self.points.get(after) else {
            return float(before.amount);
        };
        let share = float(at.since(before.at)) / float(next.at.since(before.at).max(1));
        float(before.amount) + share * float(next.amount - before.amount)
    }

    fn gained(&self, from: BootTime, to: BootTime) -> f64 {
        self.at(to) - self.at(from)
    }
}

impl Run<'_> {
    fn length(&self) -> u64 {
        self.end.since(self.began)
    }

    fn moment(&self, part: u64, of: u64) -> BootTime {
        BootTime(self.began.0 + self.length() / of * part)
    }

    /// In how many of the equal parts it grew. Each rise counts for one part.
    fn parts_grown(&self) -> u64 {
        let part = |rise: &Rise| {
            let into = u128::from(rise.to.since(self.began));
            let part = into * u128::from(PARTS) / u128::from(self.length().max(1));
            part.min(u128::from(PARTS) - 1)
        };
        let mut parts: Vec<u128> = self.rises.iter().map(part).collect();
        parts.dedup();
        parts.len() as u64
    }

    /// What the second half brought as a share of the first: in bytes or in allocations, whichever
    /// is less.
    fn steadiness(&self) -> f64 {
        let middle = self.moment(1, 2);
        [self.bytes, self.count]
            .map(|it| it.gained(middle, self.end) / it.gained(self.began, middle).max(1.0))
            .into_iter()
            .fold(f64::INFINITY, f64::min)
    }

    fn trend(&self) -> Trend {
        // Nothing has risen since the end, which may lie within a slot.
        let retained = self.bytes.points.last().map_or(0.0, |p| float(p.amount));
        let bytes = retained - self.bytes.at(self.began);
        Trend {
            since: self.began,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a difference of ordered u64"
            )]
            bytes: bytes.max(0.0) as u64,
            bytes_per_second: slope(self.bytes.points),
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
    let mean_y = points.iter().map(|p| float(p.amount)).sum::<f64>() / n;
    let (mut xy, mut xx) = (0.0, 0.0);
    for p in points {
        let dx = x(p) - mean_x;
        xy += dx * (float(p.amount) - mean_y);
        xx += dx * dx;
    }
    if xx > 0.0 { xy / xx } else { 0.0 }
}

/// The verdict on a series, and its latest time of growth if it grows.
#[must_use]
pub fn judge(
    subject: Subject<'_>,
    now: BootTime,
    thresholds: Thresholds,
) -> (Verdict, Option<Trend>) {
    if subject.live == 0 {
        let reason = if subject.allocations == 0 {
            "nothing was allocated".to_owned()
        } else {
            format!(
                "{} made, all freed",
                counted(subject.allocations, subject.kind.one())
            )
        };
        return (Verdict::new(Kind::Balanced, reason), None);
    }
    let history = subject.history;
    let (points, counts) = (history.bytes.retained(now), history.count.retained(now));
    let rises = rises(&points, subject.latest);
    let first = points.first().map_or(now, |p| p.at);
    let first = subject.doubt_until.map_or(first, |doubt| doubt.max(first));
    let begins = begins(&rises, first, thresholds);
    // Or right after a burst at the start: a quarter may be left out, if enough is left to tell
    // the rest from a cache that is half full.
    let after_burst = BootTime(first.0 + now.since(first) / 4);
    let runs = begins
        .iter()
        .map(|&began| (began, 0.0))
        .chain([(after_burst, MANY)]);
    for (began, least) in runs {
        let run = run(&points, &counts, &rises, began, now);
        // What stays below an earlier peak may come down again as that did: it takes twice as long.
        let below_peak = history.bytes.peak_up_to(began) >= subject.live;
        let long_enough = thresholds
            .leak_after_ns
            .saturating_mul(if below_peak { 2 } else { 1 });
        if run.count.gained(began, run.end) >= least
            && run.length() >= long_enough
            && run.parts_grown() == PARTS
            && run.steadiness() >= STEADY
        {
            let trend = run.trend();
            let reason = format!(
                "{} grew by {} over {}, in each of {PARTS} equal parts of that time",
                subject.retained(),
                subject.show(trend.bytes),
                show_duration(run.length()),
            );
            return (Verdict::new(Kind::Leak, reason), Some(trend));
        }
    }
    if let Some(verdict) = comes_and_goes(&subject, &points, &rises, now, thresholds) {
        return (verdict, None);
    }
    let Some(last) = rises.last() else {
        return (Verdict::new(Kind::GrewAndFlat, "it has not grown"), None);
    };
    let quiet = now.since(last.to);
    if quiet >= thresholds.flat_after_ns {
        return (flat(&subject, *last, quiet, thresholds), None);
    }
    let latest = begins.last().copied().unwrap_or(first);
    let run = run(&points, &counts, &rises, latest, now);
    // A few steps have no rate.
    let trend = (run.rises.len() as u64 >= PARTS).then(|| run.trend());
    (too_early(&subject, &run, quiet, thresholds), trend)
}

/// Where growth can have begun: where the history does, and after each long enough pause. What
/// happened before a loss of events cannot be told apart from the loss.
fn begins(rises: &[Rise], first: BootTime, thresholds: Thresholds) -> Vec<BootTime> {
    let mut begins = vec![first];
    let mut before = first;
    for rise in rises {
        if rise.from > first && rise.from.since(before) >= thresholds.flat_after_ns {
            begins.push(rise.from);
        }
        before = rise.to;
    }
    begins
}

/// The verdict on memory that is no more than what has been there before and was given back: the
/// latest allocations of a program that allocates and frees are no growth.
fn comes_and_goes(
    subject: &Subject<'_>,
    points: &[Retained],
    rises: &[Rise],
    now: BootTime,
    thresholds: Thresholds,
) -> Option<Verdict> {
    let settled_at = BootTime(now.0.saturating_sub(thresholds.flat_after_ns));
    let settled = points
        .iter()
        .rev()
        .find(|p| p.at <= settled_at)
        .map_or(0, |p| p.amount);
    let low = subject.history.bytes.last_low(now, settled)?;
    if subject.live > low.peak_before {
        return None;
    }
    let [live, peak, kept] =
        [subject.live, low.peak_before, settled].map(|amount| subject.show(amount));
    if settled == 0 {
        let ago = show_duration(now.since(low.at));
        let reason = format!(
            "{live} at the moment, no more than before (up to {peak}); all was freed {ago} ago"
        );
        return Some(Verdict::new(Kind::Balanced, reason));
    }
    let quiet = |rise: &Rise| low.at.since(rise.to) >= thresholds.flat_after_ns;
    let last = rises.iter().rev().find(|rise| rise.to <= low.at);
    Some(match last {
        Some(last) if quiet(last) => flat(subject, *last, now.since(last.to), thresholds),
        _ => Verdict::new(
            Kind::GrewAndFlat,
            format!("{live} at the moment, no more than before (up to {peak}); {kept} of it stay"),
        ),
    })
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

/// A time in which retained memory rose: one slot of the history.
#[derive(Clone, Copy, Debug)]
struct Rise {
    from: BootTime,
    to: BootTime,
}

/// Where retained memory rose; nothing rises after the latest allocation.
fn rises(points: &[Retained], latest: BootTime) -> Vec<Rise> {
    points
        .windows(2)
        .filter(|pair| pair[1].amount > pair[0].amount)
        .map(|pair| Rise {
            from: pair[0].at,
            to: pair[1].at.min(latest.max(pair[0].at)),
        })
        .collect()
}

/// The run from `began` on. It ends now, or with its last rise while no pause is longer than twice
/// the longest before: the verdict on regular growth does not change between two steps.
fn run<'a>(
    bytes: &'a [Retained],
    counts: &'a [Retained],
    rises: &'a [Rise],
    began: BootTime,
    now: BootTime,
) -> Run<'a> {
    let from = |points: &'a [Retained]| Curve {
        points: &points[points.partition_point(|p| p.at < began)..],
    };
    let rises = &rises[rises.partition_point(|rise| rise.from < began)..];
    let longest = rises
        .windows(2)
        .map(|pair| pair[1].to.since(pair[0].to))
        .max()
        .unwrap_or(0);
    let end = match rises.last() {
        Some(last) if now.since(last.to) <= 2 * longest => last.to,
        _ => now,
    };
    Run {
        bytes: from(bytes),
        count: from(counts),
        rises,
        began,
        end,
    }
}

fn flat(subject: &Subject<'_>, last: Rise, quiet: u64, thresholds: Thresholds) -> Verdict {
    let flat = show_duration(quiet);
    let live = subject.show(subject.live);
    // In a long history a slot can be longer than a start: the rise was somewhere in it.
    let rose = if last.to.since(last.from) > thresholds.startup_ns {
        last.from
    } else {
        last.to
    };
    match subject.process_began {
        Some(began) if rose.since(began) <= thresholds.startup_ns => Verdict::new(
            Kind::ReservedAtStart,
            format!(
                "it reserved {live} within the first {} of the process; flat for {flat} since",
                show_duration(thresholds.startup_ns)
            ),
        ),
        _ => Verdict::new(
            Kind::GrewAndFlat,
            format!("it grew to {live} and has been flat for {flat}"),
        ),
    }
}

fn too_early(subject: &Subject<'_>, run: &Run<'_>, quiet: u64, thresholds: Thresholds) -> Verdict {
    let [length, quiet, flat_after, leak_after] = [
        run.length(),
        quiet,
        thresholds.flat_after_ns,
        thresholds.leak_after_ns,
    ]
    .map(show_duration);
    let gained = subject.show(run.trend().bytes);
    let grown = run.parts_grown();
    let why = if run.length() < thresholds.leak_after_ns {
        format!("a leak grows for {leak_after}")
    } else if grown < PARTS {
        format!("a leak grows in each of {PARTS} equal parts of that time, this in {grown}")
    } else if run.steadiness() < STEADY {
        format!(
            "it slows down: the second half brought {:.0} % of the first",
            run.steadiness() * 100.0
        )
    } else {
        "but not yet more than it has held and freed before".to_owned()
    };
    let reason = if subject.has_ended {
        format!("it grew by {gained} in {length}, and its process ended too soon to tell: {why}")
    } else {
        format!(
            "it grew by {gained} in {length}, the last time {quiet} ago; {why}; without growth for \
             {flat_after} it is flat"
        )
    };
    Verdict::new(Kind::GrowingTooEarly, reason)
}

#[cfg(test)]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small numbers that the test makes itself"
)]
mod tests {
    use super::*;
    use crate::ledger::Amount;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    /// Plays steps of (time in ms, outstanding MiB) and judges at `until` seconds.
    fn verdict(steps: impl IntoIterator<Item = (u64, u64)>, until: u64) -> (Kind, Option<Trend>) {
        let mut history = History::new(BootTime(0));
        let (mut live, mut n, mut outstanding) = (0, 0, 0_u64);
        for (ms, mib) in steps {
            let grew = mib * MIB > live;
            outstanding = if grew {
                outstanding + 1
            } else {
                outstanding.saturating_sub(1)
            };
            let amount = Amount {
                count: outstanding,
                bytes: mib * MIB,
            };
            history.set(BootTime(ms * 1_000_000), amount);
            live = mib * MIB;
            n += 1;
        }
        let subject = Subject {
            kind: Resource::Device,
            history: &history,
            live,
            allocations: n,
            latest: BootTime(until * SECOND),
            process_began: Some(BootTime(0)),
            doubt_until: None,
            has_ended: false,
        };
        let (verdict, trend) = judge(subject, BootTime(until * SECOND), Thresholds::default());
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
    fn what_comes_and_goes_is_no_growth_while_it_is_there() {
        // A loop: a block is live at every odd moment.
        let steps = |seconds: u64| {
            (0..seconds * 10)
                .flat_map(|i| [(i * 100, 4), (i * 100 + 50, 0)])
                .chain([(seconds * 1000, 4)])
        };
        for seconds in [2, 40, 300, 4000] {
            assert_eq!(
                verdict(steps(seconds), seconds + 1).0,
                Kind::Balanced,
                "{seconds} s"
            );
        }
        // A sawtooth of ten seconds, in the middle of a tooth; beside 50 MiB that stay.
        for kept in [0, 50] {
            let steps = (0..95_u64).map(|i| (i * 1000, kept + i % 10 * 8));
            let expected = if kept == 0 {
                Kind::Balanced
            } else {
                Kind::ReservedAtStart
            };
            assert_eq!(verdict(steps, 95).0, expected);
        }
    }

    #[test]
    fn four_steps_are_no_leak_and_five_stay_one_between_them() {
        let steps = |n: u64| (0..n).map(|i| (i * 20_000, (i + 1) * 10));
        for seconds in 61..80 {
            assert_ne!(verdict(steps(4), seconds).0, Kind::Leak, "{seconds} s");
        }
        for seconds in 81..119 {
            assert_eq!(verdict(steps(5), seconds).0, Kind::Leak, "{seconds} s");
        }
    }

    #[test]
    fn a_start_stays_a_start_however_long_the_run() {
        for seconds in [60, 600, 6000, 60_000] {
            let steps = (0..10).map(|i| (i * 100, (i + 1) * 16));
            let mut history = History::new(BootTime(0));
            for (ms, mib) in steps {
                let amount = Amount {
                    count: mib / 16,
                    bytes: mib * MIB,
                };
                history.set(BootTime(ms * 1_000_000), amount);
            }
            let subject = Subject {
                kind: Resource::Device,
                history: &history,
                live: 160 * MIB,
                allocations: 10,
                latest: BootTime(900_000_000),
                process_began: Some(BootTime(0)),
                doubt_until: None,
                has_ended: false,
            };
            let now = BootTime(seconds * SECOND);
            let kind = judge(subject, now, Thresholds::default()).0.kind;
            assert_eq!(kind, Kind::ReservedAtStart, "{seconds} s");
        }
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
        let mut history = History::new(BootTime(0));
        for i in 0..300 {
            history.set(
                BootTime(i * 300 * 1_000_000),
                Amount {
                    count: i,
                    bytes: i * MIB,
                },
            );
        }
        let judge = |doubt: u64| {
            let subject = Subject {
                kind: Resource::Device,
                history: &history,
                live: 299 * MIB,
                allocations: 300,
                latest: BootTime(90 * SECOND),
                process_began: None,
                doubt_until: Some(BootTime(doubt * SECOND)),
                has_ended: false,
            };
            judge(subject, BootTime(90 * SECOND), Thresholds::default())
                .0
                .kind
        };
        assert_eq!(judge(5), Kind::Leak);
        assert_ne!(judge(60), Kind::Leak);
        assert_ne!(judge(90), Kind::Leak);
    }
}
