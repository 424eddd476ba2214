//! Building the report.

use std::collections::BTreeMap;

use super::{
    closing,
    leaks::{Thresholds, Trend, Verdict, rate},
    verdicts::verdicts,
};
use crate::{
    event::{ActivityCount, BootTime, ExitSource, Losses, Module, Pid, StackId},
    evidence::Evidence,
    ledger::{Amount, Ended, Failure, Ledger, Process, Site},
    report::{
        ActivityCountReport, ActivityReport, EndedBy, FailureReport, FilteredOut, Frame,
        GivenUpReport, GrowthReport, Holder, KeptByImports, LossSummary, MemoryReport, Nanoseconds,
        OnDevice, ProcessLosses, ProcessReport, ProcessState, Report, SiteReport,
    },
    resource::Resource,
    text::rfc3339,
};

/// What to show.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only these processes; none: all.
    pub pids: Vec<u32>,
    /// Only processes with this name.
    pub comm: Option<String>,
    /// Only processes of this user.
    pub uid: Option<u32>,
    /// Only call sites that hold at least so many bytes.
    pub min_bytes: u64,
    /// Only call sites with an allocation that is at least so old, in nanoseconds.
    pub older_than_ns: u64,
    /// At most so many call sites a process.
    pub top: Option<usize>,
}

impl Filter {
    fn wants(&self, process: &Process) -> bool {
        let seen = process.identity.seen.as_ref();
        (self.pids.is_empty() || self.pids.contains(&process.pid.tgid))
            && self
                .comm
                .as_ref()
                .is_none_or(|comm| seen.is_some_and(|seen| seen.comm == *comm))
            && self
                .uid
                .is_none_or(|uid| seen.is_some_and(|seen| seen.uid == uid))
    }
}

/// The report on a ledger as it stands, in which everything is that happened before `as_of`.
#[must_use]
pub fn report(
    ledger: &Ledger,
    filter: &Filter,
    thresholds: Thresholds,
    as_of: BootTime,
    ended_by: Option<EndedBy>,
) -> Report {
    let time = Times { ledger };
    let mut filtered_out = FilteredOut::default();
    let mut processes = Vec::new();
    for process in ledger
        .processes()
        .filter(|process| !process.is_without_calls())
    {
        if filter.wants(process) {
            processes.push(process_report(
                ledger,
                process,
                filter,
                thresholds,
                &mut filtered_out,
            ));
        } else {
            filtered_out.processes += 1;
        }
    }
    processes.sort_by_key(|p| {
        let live = std::cmp::Reverse(p.memory.gpu.live.bytes);
        (
            std::cmp::Reverse(p.verdict.kind),
            live,
            p.tgid,
            p.start_ticks,
        )
    });
    let given_up = ledger.given_up();
    Report {
        time: time.at(ledger.now()),
        boot_ns: as_of.0,
        started: time.at(ledger.started()),
        duration_ns: ledger.now().since(ledger.started()),
        ended_by,
        coverage: ledger.coverage().clone(),
        losses: loss_summary(ledger),
        devices: closing::devices(ledger, &filter.pids),
        processes,
        kept_by_imports: kept_by_imports(ledger, &time),
        filtered_out,
        given_up: GivenUpReport {
            allocations: given_up.allocations,
            ended_processes: given_up.ended_processes,
            calls: given_up.calls,
            stacks: given_up.stacks,
        },
        thresholds,
        recording: None,
    }
}

/// Moments as text.
struct Times<'a> {
    ledger: &'a Ledger,
}

impl Times<'_> {
    fn at(&self, at: BootTime) -> String {
        rfc3339(self.ledger.wall_ns(at))
    }
}

fn loss_summary(ledger: &Ledger) -> LossSummary {
    let time = Times { ledger };
    let unattributed = ledger.unattributed_losses();
    let mut sum = LossSummary {
        unattributed: unattributed.events(),
        ..LossSummary::default()
    };
    let (mut first, mut last): (Option<BootTime>, Option<BootTime>) = (None, None);
    for losses in ledger.processes().map(|p| &p.losses).chain([unattributed]) {
        for (cause, n) in &losses.causes {
            let of_cause: &mut u64 = sum.causes.entry(cause.clone()).or_default();
            *of_cause = of_cause.saturating_add(*n);
        }
        sum.stacks = sum.stacks.saturating_add(losses.stacks());
        if losses.events() > 0 {
            sum.events = sum.events.saturating_add(losses.events());
            first = [first, losses.first].into_iter().flatten().min();
            last = last.max(losses.last);
        }
    }
    sum.processes = ledger.processes().filter(|p| p.losses.events() > 0).count() as u64;
    sum.first = first.map(|at| time.at(at));
    sum.last = last.map(|at| time.at(at));
    sum
}

fn process_losses(time: &Times<'_>, losses: &Losses) -> Option<ProcessLosses> {
    (losses.events() > 0).then(|| ProcessLosses {
        events: losses.events(),
        first: losses.first.map(|at| time.at(at)),
        last: losses.last.map(|at| time.at(at)),
        causes: losses.causes.clone(),
        allocations: losses.allocations,
        allocation_bytes: losses.allocation_bytes,
        frees: losses.frees,
    })
}

fn process_report(
    ledger: &Ledger,
    process: &Process,
    filter: &Filter,
    thresholds: Thresholds,
    filtered_out: &mut FilteredOut,
) -> ProcessReport {
    let time = Times { ledger };
    let seen = process.identity.seen.as_ref();
    let verdicts = verdicts(ledger, process, thresholds);
    let (device_memory, closing) = closing::process(ledger, process);
    let free = closing::free_on_device_of(ledger.devices(), process.pid.tgid);
    let oldest = oldest_allocations(process);
    let mut sites = Vec::new();
    for ((site, oldest), (verdict, trend)) in process.sites().iter().zip(oldest).zip(verdicts.sites)
    {
        let age = oldest.map(|at| ledger.now().since(at));
        if site.live.bytes < filter.min_bytes || age.unwrap_or(0) < filter.older_than_ns {
            filtered_out.sites += 1;
            continue;
        }
        let view = SiteView {
            site,
            age,
            verdict,
            trend,
            free: &free,
        };
        sites.push(site_report(ledger, process, view));
    }
    sites.sort_by_key(|site| {
        let bytes = site
            .live_at_exit
            .unwrap_or(site.live)
            .bytes
            .max(site.live.bytes);
        (
            std::cmp::Reverse((site.verdict.kind, bytes)),
            site.since.clone(),
            site.site.clone(),
        )
    });
    if let Some(top) = filter.top {
        filtered_out.sites += sites.len().saturating_sub(top) as u64;
        sites.truncate(top);
    }
    ProcessReport {
        tgid: process.pid.tgid,
        start_ticks: process.pid.start_ticks,
        namespace_pid: seen.and_then(|seen| seen.namespace_pid).map_or_else(
            || Evidence::not_available("it is in the initial PID namespace"),
            Evidence::Value,
        ),
        parent: seen.map(|seen| seen.parent.tgid),
        uid: seen.map(|seen| seen.uid),
        user: seen
            .and_then(|seen| ledger.user(seen.uid))
            .map(str::to_owned),
        comm: seen.map_or_else(|| "unknown".to_owned(), |seen| seen.comm.clone()),
        command: process.identity.command.clone().map_or_else(
            || Evidence::not_available("the process ended before its command line was read"),
            Evidence::Value,
        ),
        cgroup: seen.map(|seen| seen.cgroup.clone()),
        cgroup_id: process.cgroup_id,
        state: process
            .ended()
            .map_or(ProcessState::Running {}, |ended| exited(&time, ended)),
        images: process.executed + 1,
        first_call: process.calls.map(|(first, _)| time.at(first)),
        latest_call: process.calls.map(|(_, latest)| time.at(latest)),
        memory: memory(process),
        contexts: process.contexts,
        failures: failures(&time, process),
        activity: activity(ledger, process),
        device_memory,
        closing,
        verdict: verdicts.process,
        losses: process_losses(&time, &process.losses),
        sites,
    }
}

fn memory(process: &Process) -> MemoryReport {
    let mut by_device: BTreeMap<Option<u32>, Amount> = BTreeMap::new();
    let mut aliases_of_unknown_size = 0;
    for allocation in process.allocations() {
        let kind = process.kind_of(allocation);
        if kind == Resource::Alias && allocation.bytes == 0 {
            aliases_of_unknown_size += 1;
        }
        if kind.is_gpu_memory() {
            let device = process.device_of(allocation);
            by_device.entry(device).or_default().add(allocation.bytes);
        }
    }
    let on_device = |(device, live): (Option<u32>, Amount)| OnDevice {
        device: device.map_or_else(
            || Evidence::not_available("the context was made current before tracing"),
            Evidence::Value,
        ),
        live,
    };
    MemoryReport {
        gpu: process.accounts.sum(Resource::is_gpu_memory),
        never_returned: process.never_returned,
        kinds: process
            .accounts
            .used()
            .map(|(kind, account)| (kind, *account))
            .collect(),
        aliases_of_unknown_size,
        vmm: process.vmm_states(),
        by_device: by_device.into_iter().map(on_device).collect(),
    }
}

fn failures(time: &Times<'_>, process: &Process) -> Vec<FailureReport> {
    let mut failures: Vec<&Failure> = process.failures().collect();
    failures.sort_by_key(|it| (std::cmp::Reverse(it.amount.count), it.function, it.result));
    failures
        .into_iter()
        .map(|it| FailureReport {
            function: it.function,
            result: it.result,
            count: it.amount.count,
            bytes: it.amount.bytes,
            first: time.at(it.first),
            latest: time.at(it.latest),
        })
        .collect()
}

fn activity(ledger: &Ledger, process: &Process) -> Evidence<ActivityReport> {
    let time = Times { ledger };
    if let Some(reason) = &ledger.coverage().activity_not_counted {
        return Evidence::not_available(reason.clone());
    }
    let count = |it: ActivityCount| ActivityCountReport {
        count: it.count,
        failed: it.failed,
        latest: it.latest.map(|at| time.at(at)),
    };
    Evidence::Value(
        process
            .activity
            .map_or_else(ActivityReport::default, |it| ActivityReport {
                launches: count(it.launches),
                copies: count(it.copies),
                synchronizations: count(it.synchronizations),
            }),
    )
}

/// One entry for each owner, the most bytes first.
fn kept_by_imports(ledger: &Ledger, time: &Times<'_>) -> Vec<KeptByImports> {
    #[derive(Default)]
    struct Kept {
        allocations: Amount,
        latest: BootTime,
        by_end: bool,
        holders: BTreeMap<Pid, Amount>,
    }
    let mut owners: BTreeMap<Pid, Kept> = BTreeMap::new();
    for export in ledger.kept_by_imports() {
        let Some(given_up) = export.given_up else {
            continue;
        };
        let kept = owners.entry(export.owner).or_default();
        let bytes = export.bytes.unwrap_or(0);
        kept.allocations.add(bytes);
        kept.latest = kept.latest.max(given_up.at);
        kept.by_end |= given_up.by_end;
        for &holder in export.holders.keys() {
            kept.holders.entry(holder).or_default().add(bytes);
        }
    }
    let mut all: Vec<_> = owners
        .into_iter()
        .map(|(owner, kept)| {
            let ended = ledger.get(owner).is_none_or(|it| it.ended().is_some());
            KeptByImports {
                owner: owner.tgid,
                owner_ended: ended || kept.by_end,
                allocations: kept.allocations,
                freed_at: time.at(kept.latest),
                holders: kept
                    .holders
                    .into_iter()
                    .map(|(pid, amount)| Holder {
                        tgid: pid.tgid,
                        handles: amount.count,
                        bytes: amount.bytes,
                    })
                    .collect(),
            }
        })
        .collect();
    all.sort_by_key(|it| (std::cmp::Reverse(it.allocations.bytes), it.owner));
    all
}

fn exited(time: &Times<'_>, ended: Ended) -> ProcessState {
    let signal = ended
        .status
        .map(|status| status & 0x7f)
        .filter(|&signal| signal != 0);
    ProcessState::Exited {
        at: time.at(ended.at),
        code: ended
            .status
            .filter(|_| signal.is_none())
            .map(|status| status >> 8 & 0xff),
        signal,
        noticed_late: ended.source == ExitSource::Procfs,
    }
}

/// When the oldest live allocation of each site was made.
fn oldest_allocations(process: &Process) -> Vec<Option<BootTime>> {
    let mut oldest: Vec<Option<BootTime>> = vec![None; process.sites().len()];
    for allocation in process.allocations() {
        if let Some(slot) = oldest.get_mut(allocation.site.0 as usize) {
            *slot = Some(slot.map_or(allocation.returned, |at| at.min(allocation.returned)));
        }
    }
    oldest
}

struct SiteView<'a> {
    site: &'a Site,
    age: Option<u64>,
    verdict: Verdict,
    trend: Option<Trend>,
    free: &'a Evidence<u64>,
}

fn site_report(ledger: &Ledger, process: &Process, view: SiteView<'_>) -> SiteReport {
    let time = Times { ledger };
    let SiteView {
        site,
        age,
        verdict,
        trend,
        free,
    } = view;
    let frames = site
        .stack
        .map_or_else(Vec::new, |stack| frames(ledger, process.pid, stack));
    let ended = process.ended().is_some();
    SiteReport {
        site: place(&frames),
        kind: site.kind,
        frames,
        live: if ended { Default::default() } else { site.live },
        live_at_exit: ended.then_some(site.live),
        allocated: site.allocated,
        freed: site.freed,
        failed: site.failed,
        since: time.at(site.first),
        latest: time.at(site.latest),
        oldest_age_ns: age.map(Nanoseconds),
        growth: trend
            .filter(|_| !site.kind.is_object())
            .map(|trend| growth(&time, site, trend, free, ended)),
        verdict,
    }
}

fn growth(
    time: &Times<'_>,
    site: &Site,
    trend: Trend,
    free: &Evidence<u64>,
    ended: bool,
) -> GrowthReport {
    // A trend that goes back to the first allocation of a site that never freed needs no estimate.
    let exact = site.exact_rate().filter(|_| trend.since <= site.first);
    let bytes_per_second = exact.unwrap_or_else(|| rate(trend.bytes_per_second));
    GrowthReport {
        since: time.at(trend.since.max(site.first)),
        bytes: trend.bytes,
        bytes_per_second,
        time_to_full_ns: time_to_full(free, bytes_per_second, ended),
    }
}

fn time_to_full(free: &Evidence<u64>, bytes_per_second: u64, ended: bool) -> Evidence<Nanoseconds> {
    if ended {
        return Evidence::not_available("the process has ended");
    }
    if bytes_per_second == 0 {
        return Evidence::not_available("it does not grow");
    }
    free.clone().map(|free| {
        let ns = u128::from(free) * 1_000_000_000 / u128::from(bytes_per_second);
        Nanoseconds(u64::try_from(ns).unwrap_or(u64::MAX))
    })
}

fn frames(ledger: &Ledger, pid: Pid, stack: StackId) -> Vec<Frame> {
    let modules = ledger.modules(pid);
    let symbols = ledger.symbols(stack).unwrap_or(&[]);
    ledger
        .frames(stack)
        .iter()
        .enumerate()
        .map(|(i, &address)| {
            let module = module_of(modules, address);
            Frame {
                address: format!("{address:#x}"),
                module: module.map(|m| m.path.clone()),
                offset: module
                    .and_then(|m| m.in_file(address))
                    .map(|offset| format!("{offset:#x}")),
                symbol: symbols.get(i).cloned().flatten(),
            }
        })
        .collect()
}

/// The module that an address lies in; `modules` are ordered by address.
pub fn module_of(modules: &[Module], address: u64) -> Option<&Module> {
    let after = modules.partition_point(|module| module.start <= address);
    modules
        .get(after.checked_sub(1)?)
        .filter(|module| address < module.end)
}

/// Libraries that allocate on behalf of others: a call site inside them says little.
const ALLOCATORS: [&str; 6] = [
    "libcuda.so",
    "libcudart",
    "libcublas",
    "libcudnn",
    "libc10_cuda",
    "libtorch_cuda",
];

/// A call site in one line: the innermost frame outside CUDA's own libraries.
fn place(frames: &[Frame]) -> String {
    let file = |frame: &Frame| {
        frame
            .module
            .as_deref()
            .map(|path| path.rsplit('/').next().unwrap_or(path).to_owned())
    };
    let own = |frame: &&Frame| {
        file(frame).is_some_and(|file| !ALLOCATORS.iter().any(|name| file.starts_with(name)))
    };
    let Some(frame) = frames.iter().find(own).or_else(|| frames.first()) else {
        return "unknown call site".to_owned();
    };
    let place = match (file(frame), &frame.offset) {
        (Some(file), Some(offset)) => format!("{file}+{offset}"),
        _ => frame.address.clone(),
    };
    match &frame.symbol {
        Some(symbol) => format!("{symbol} ({place})"),
        None => place,
    }
}
