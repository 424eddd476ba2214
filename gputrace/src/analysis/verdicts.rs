//! Verdicts on a process and its call sites, with the doubt that losses bring.

use super::leaks::{Kind, Subject, Thresholds, Trend, Verdict, judge};
use crate::{
    event::{BootTime, Losses},
    ledger::{History, Ledger, Process, Site},
    resource::Resource,
    units::{Bytes, counted, show_duration},
};

/// Why the figures of a process may be wrong.
struct Doubt {
    /// Until when; growth after it is beyond doubt.
    until: BootTime,
    reason: String,
    /// Whether what is known is worth a verdict beside the doubt.
    complete_enough: bool,
}

fn doubt(ledger: &Ledger, process: &Process, now: BootTime) -> Option<Doubt> {
    let of = |losses: &Losses, whose: &str| {
        let events = losses.events();
        (events > 0).then(|| {
            let until = losses.last.unwrap_or(now);
            let ago = show_duration(now.since(until));
            let until_first = losses.first.unwrap_or(until);
            let span = show_duration(until.since(until_first));
            let events = counted(events, "event");
            Doubt {
                until,
                reason: format!("{events} {whose} lost within {span}, the last {ago} ago"),
                complete_enough: true,
            }
        })
    };
    let not_followed = process.accounts.sum(|_| true).not_followed.count;
    if not_followed > 0 {
        let count = counted(not_followed, "allocation");
        return Some(Doubt {
            until: now,
            reason: format!(
                "{count} could not be followed one by one (--max-live, or their size or address \
                 could not be read): what is live is at least what is shown"
            ),
            complete_enough: false,
        });
    }
    let unsure = process.unsure_memory().map(|(amount, at)| Doubt {
        until: at,
        reason: format!(
            "{} ({}) may have been in a context that was there before tracing and has ended: they \
             may be gone",
            counted(amount.count, "allocation"),
            Bytes(amount.bytes)
        ),
        complete_enough: true,
    });
    of(&process.losses, "of this process")
        .or(unsure)
        .or_else(|| of(ledger.unattributed_losses(), "of unknown processes"))
}

/// Verdicts on a process and each of its sites, in their order.
pub struct Verdicts {
    /// On the process.
    pub process: Verdict,
    /// On each site, with its growth.
    pub sites: Vec<(Verdict, Option<Trend>)>,
}

/// Judges a process: at its end, if it has ended.
pub fn verdicts(ledger: &Ledger, process: &Process, thresholds: Thresholds) -> Verdicts {
    let now = process.ended().map_or(ledger.now(), |ended| ended.at);
    let doubt = doubt(ledger, process, now);
    let began = process
        .calls
        .map(|(first, _)| first)
        .filter(|_| ledger.saw_from_the_start(process));
    let judge = |kind, history: &History, live, allocations, latest| {
        let subject = Subject {
            kind,
            history,
            live,
            allocations,
            latest,
            process_began: began,
            doubt_until: doubt.as_ref().map(|doubt| doubt.until),
            has_ended: process.ended().is_some(),
        };
        let (verdict, trend) = judge(subject, now, thresholds);
        (doubted(verdict, doubt.as_ref()), trend)
    };
    let sites: Vec<_> = process
        .sites()
        .iter()
        .map(|site: &Site| {
            let live = if site.kind.is_object() {
                site.live.count
            } else {
                site.live.bytes
            };
            judge(
                site.kind,
                &site.history,
                live,
                site.allocated.count,
                site.latest,
            )
        })
        .collect();
    let gpu = process.accounts.sum(Resource::is_gpu_memory);
    let live = match process.ended() {
        Some(_) => gpu.released_by_exit.bytes,
        None => gpu.live.bytes,
    };
    let latest = process
        .sites()
        .iter()
        .map(|site| site.latest)
        .max()
        .unwrap_or(now);
    let (whole, _) = judge(
        Resource::Device,
        &process.history,
        live,
        gpu.allocated.count,
        latest,
    );
    Verdicts {
        process: overall(whole, live, &sites),
        sites,
    }
}

/// After a loss only growth that began later is still called a leak.
fn doubted(verdict: Verdict, doubt: Option<&Doubt>) -> Verdict {
    match doubt {
        None => verdict,
        Some(doubt) if verdict.kind == Kind::Leak => Verdict {
            reason: format!("{}, all of it after {}", verdict.reason, doubt.reason),
            ..verdict
        },
        Some(doubt) if !doubt.complete_enough => Verdict {
            kind: Kind::Uncertain,
            reason: doubt.reason.clone(),
            ..verdict
        },
        Some(doubt) => Verdict {
            kind: Kind::Uncertain,
            reason: format!(
                "{}; without that it would be: {} ({})",
                doubt.reason,
                verdict.kind.label(),
                verdict.reason
            ),
            ..verdict
        },
    }
}

/// A process is what the most worrying of its sites is, or what its sum is if that is worse.
fn overall(whole: Verdict, live_on_gpu: u64, sites: &[(Verdict, Option<Trend>)]) -> Verdict {
    let leaking = sites
        .iter()
        .filter(|(verdict, _)| verdict.kind == Kind::Leak)
        .count();
    if leaking > 0 {
        let reason = match leaking {
            1 => "one call site leaks".to_owned(),
            n => format!("{n} call sites leak"),
        };
        return Verdict {
            kind: Kind::Leak,
            reason,
            ..whole
        };
    }
    if whole.kind == Kind::Leak {
        let reason = format!(
            "{}; spread over call sites of which none leaks alone",
            whole.reason
        );
        return Verdict { reason, ..whole };
    }
    let worst = sites
        .iter()
        .map(|(verdict, _)| verdict)
        .max_by_key(|verdict| verdict.kind);
    match worst {
        // A sum can look balanced or flat while a site grows at another's expense.
        Some(worst) if worst.kind == Kind::GrowingTooEarly && whole.kind < worst.kind => {
            worst.clone()
        }
        // It holds something, though no GPU memory.
        Some(worst) if live_on_gpu == 0 && whole.kind < worst.kind => worst.clone(),
        _ => whole,
    }
}
