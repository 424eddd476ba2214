//! Tables for people: fits 80 columns where it can, and reads well without colour.

use std::fmt;

use comfy_table::{
    Attribute, Cell, CellAlignment, Color, ContentArrangement, Table as Grid, presets,
};

use super::recording;
use crate::{
    analysis::{Kind, Verdict},
    cuda::result_name,
    event::{Library, Losses},
    evidence::Evidence,
    report::{
        ActivityReport, DeviceReport, EndedBy, ProcessReport, ProcessState, Report, SiteReport,
    },
    resource::Resource,
    units::{Bytes, counted, show_duration},
};

/// How tables look.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Use colours.
    pub color: bool,
    /// Columns of the terminal.
    pub width: u16,
}

/// A report, to be shown as tables.
pub struct Table<'a> {
    /// The report.
    pub report: &'a Report,
    /// How it looks.
    pub style: Style,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        self.headline(f)?;
        for line in report.recording.iter().flat_map(recording::lines) {
            writeln!(f, "INCOMPLETE: {line}.")?;
        }
        self.coverage(f)?;
        self.losses(f)?;
        self.devices(f)?;
        if report.processes.is_empty() {
            writeln!(
                f,
                "\nNo process called a probed CUDA function{}.",
                self.why_none()
            )?;
        }
        for process in &report.processes {
            self.process(f, process)?;
        }
        self.kept_by_imports(f)?;
        self.left_out(f)
    }
}

/// Processes without calls shown for a GPU.
const WITHOUT_CALLS_SHOWN: usize = 16;
/// Kinds of failed calls shown for a process.
const FAILURES_SHOWN: usize = 8;

impl Table<'_> {
    fn headline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        let why = match report.ended_by {
            Some(EndedBy::Duration) => ", ended by --duration",
            Some(EndedBy::Signal) => ", ended by a signal",
            Some(EndedBy::TargetsEnded) if report.coverage.command => ", the command has ended",
            Some(EndedBy::TargetsEnded) => ", the traced processes have ended",
            Some(EndedBy::RecordingBreaksOff) => ", where the recording breaks off",
            None => "",
        };
        writeln!(
            f,
            "gputrace: {} from {}{why}",
            show_duration(report.duration_ns),
            short_time(&report.started),
        )
    }

    /// What is probed, and what is not.
    fn coverage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let coverage = &self.report.coverage;
        writeln!(f, "probes: {}", probed(&coverage.libraries))?;
        let late = &coverage.late_processes;
        if !late.is_empty() {
            let pids: Vec<String> = late.iter().map(|it| it.tgid.to_string()).take(8).collect();
            let more = if late.len() > pids.len() { ", ..." } else { "" };
            writeln!(
                f,
                "seen in part: {} had mapped a copy before it was probed (PID {}{more})",
                counted(late.len() as u64, "process"),
                pids.join(", "),
            )?;
        }
        for it in &coverage.not_probed {
            let processes = match it.processes.len() {
                0 => String::new(),
                n => format!(" ({})", counted(n as u64, "process")),
            };
            writeln!(f, "not looked at: {}: {}{processes}", it.path, it.reason)?;
        }
        Ok(())
    }

    fn losses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let losses = &self.report.losses;
        if losses.events == 0 {
            writeln!(f, "Nothing was lost.")?;
        } else {
            let causes: Vec<String> = losses
                .causes
                .iter()
                .filter(|(cause, _)| !Losses::HARMLESS.contains(&cause.as_str()))
                .map(|(cause, n)| format!("{n} {cause}"))
                .collect();
            let span = match (&losses.first, &losses.last) {
                (Some(first), Some(last)) => {
                    format!(" from {} to {}", short_time(first), short_time(last))
                }
                _ => String::new(),
            };
            writeln!(
                f,
                "LOST: {} of {}{span} ({}). Their figures are uncertain.",
                counted(losses.events, "event"),
                counted(losses.processes, "process"),
                causes.join(", ")
            )?;
        }
        if losses.stacks > 0 {
            writeln!(
                f,
                "{} had no place: those allocations are known by their return address alone.",
                counted(losses.stacks, "stack")
            )?;
        }
        let given_up = &self.report.given_up;
        if given_up.allocations > 0 {
            writeln!(
                f,
                "GIVEN UP: {} allocations were counted but not followed (--max-live).",
                given_up.allocations
            )?;
        }
        if given_up.calls > 0 {
            writeln!(
                f,
                "GIVEN UP: {} calls of processes beyond the limit.",
                given_up.calls
            )?;
        }
        if given_up.stacks > 0 {
            writeln!(
                f,
                "GIVEN UP: {}: what was called from there has no place.",
                counted(given_up.stacks, "stack")
            )?;
        }
        Ok(())
    }

    fn grid(&self, headers: &[&str], numbers_from: usize) -> Grid {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING);
        grid.set_content_arrangement(ContentArrangement::Dynamic);
        grid.set_width(self.style.width);
        if self.style.color {
            grid.enforce_styling();
        } else {
            grid.force_no_tty();
        }
        grid.set_header(headers.iter().enumerate().map(|(i, &header)| {
            let cell = Cell::new(header).add_attribute(Attribute::Bold);
            if i >= numbers_from {
                cell.set_alignment(CellAlignment::Right)
            } else {
                cell
            }
        }));
        grid
    }

    fn devices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = match &self.report.devices {
            Evidence::NotAvailable(reason) => {
                return writeln!(f, "GPUs: not available: {reason}");
            }
            Evidence::Value(devices) => devices,
        };
        let mut grid = self.grid(
            &[
                "GPU",
                "used",
                "= processes",
                "+ unexplained",
                "reserved",
                "free",
                "total",
            ],
            1,
        );
        for device in devices {
            grid.add_row(self.device_row(device));
        }
        writeln!(f, "\n{}", trimmed(&grid))?;
        for device in devices {
            for it in device.without_calls.iter().take(WITHOUT_CALLS_SHOWN) {
                writeln!(
                    f,
                    " GPU {}: PID {} holds {} and has called no probed function since tracing \
                     began: from before, or by another way",
                    device.index,
                    it.tgid,
                    amount(&it.used)
                )?;
            }
            let more = device
                .without_calls
                .len()
                .saturating_sub(WITHOUT_CALLS_SHOWN);
            if more > 0 {
                writeln!(f, " GPU {}: {more} more such", device.index)?;
            }
        }
        Ok(())
    }

    fn device_row(&self, device: &DeviceReport) -> Vec<Cell> {
        let name = device.name.value().map_or("unknown model", String::as_str);
        let mut row = vec![Cell::new(format!("{} {name}", device.index))];
        row.extend(
            [
                &device.used,
                &device.processes,
                &device.unexplained,
                &device.reserved,
                &device.free,
                &device.total,
            ]
            .map(|bytes| right(amount(bytes))),
        );
        row
    }

    fn process(&self, f: &mut fmt::Formatter<'_>, process: &ProcessReport) -> fmt::Result {
        let state = match &process.state {
            ProcessState::Running {} => String::new(),
            ProcessState::Exited {
                at, code, signal, ..
            } => {
                let how = match (code, signal) {
                    (_, Some(signal)) => format!(", signal {signal}"),
                    (Some(code), None) if *code != 0 => format!(", status {code}"),
                    _ => String::new(),
                };
                format!("  [ended {}{how}]", short_time(at))
            }
        };
        let user = match (&process.user, process.uid) {
            (Some(user), _) => user.clone(),
            (None, Some(uid)) => format!("uid {uid}"),
            (None, None) => "unknown user".to_owned(),
        };
        let name = process.command.value().unwrap_or(&process.comm);
        writeln!(
            f,
            "\n{} PID {} ({user})  {}{state}",
            self.verdict(&process.verdict),
            process.tgid,
            clipped(name, 200)
        )?;
        let memory = &process.memory.gpu;
        writeln!(
            f,
            "  {}: {}",
            process.verdict.kind.label(),
            process.verdict.reason
        )?;
        writeln!(
            f,
            "  live {} in {}; allocated {} in {}; freed {} in {}",
            Bytes(memory.live.bytes),
            memory.live.count,
            Bytes(memory.allocated.bytes),
            memory.allocated.count,
            Bytes(memory.freed.bytes),
            memory.freed.count,
        )?;
        self.oddities(f, process)?;
        self.other_kinds(f, process)?;
        match &process.device_memory {
            Evidence::Value(bytes) => writeln!(
                f,
                "  on the GPU {} = live {} + other {} (contexts, modules{})",
                Bytes(*bytes),
                Bytes(process.closing.api_live),
                amount(&process.closing.other),
                if process.closing.before_tracing.is_available() {
                    ""
                } else {
                    ", and what it held before tracing"
                },
            )?,
            Evidence::NotAvailable(reason) => writeln!(f, "  on the GPU: not available: {reason}")?,
        }
        if process.sites.is_empty() {
            return Ok(());
        }
        let live = match process.state {
            ProcessState::Running {} => "live",
            ProcessState::Exited { .. } => "at its end",
        };
        let mut grid = self.grid(
            &["  call site", "verdict", live, "count", "oldest", "growth"],
            2,
        );
        for site in &process.sites {
            grid.add_row(self.site_row(site));
        }
        writeln!(f, "{}", trimmed(&grid))?;
        for site in process
            .sites
            .iter()
            .filter(|site| site.verdict.kind == Kind::Leak)
        {
            self.leak(f, site)?;
        }
        Ok(())
    }

    /// What is not as it should be, where there is any.
    fn oddities(&self, f: &mut fmt::Formatter<'_>, process: &ProcessReport) -> fmt::Result {
        let memory = &process.memory.gpu;
        let mut parts = Vec::new();
        let mut add = |n: u64, text: String| {
            if n > 0 {
                parts.push(text);
            }
        };
        let failed = memory.failed_allocations;
        add(
            failed.count,
            format!(
                "{} refused ({})",
                counted(failed.count, "allocation"),
                Bytes(failed.bytes)
            ),
        );
        add(
            memory.failed_frees,
            format!("{} refused", counted(memory.failed_frees, "free")),
        );
        add(
            memory.unknown_frees,
            format!(
                "{} of memory that is not followed",
                counted(memory.unknown_frees, "free")
            ),
        );
        for (amount, why) in [
            (memory.released_by_exit, "released by its end"),
            (memory.released_by_exec, "released by exec"),
            (memory.released_by_context, "released with their context"),
            (memory.awaiting_free, "awaiting their free"),
        ] {
            add(
                amount.count,
                format!("{} in {} {why}", Bytes(amount.bytes), amount.count),
            );
        }
        add(
            process.memory.never_returned,
            format!(
                "{} never returned",
                counted(process.memory.never_returned, "call")
            ),
        );
        add(
            process.contexts.live,
            counted(process.contexts.live, "context"),
        );
        if !parts.is_empty() {
            writeln!(f, "  {}", parts.join("; "))?;
        }
        if let Some(losses) = &process.losses {
            writeln!(
                f,
                "  LOST {}, among them {} ({}) and {}",
                counted(losses.events, "event"),
                counted(losses.allocations, "allocation"),
                Bytes(losses.allocation_bytes),
                counted(losses.frees, "free")
            )?;
        }
        Ok(())
    }

    /// What is held beside plain device memory, what failed, and what the GPU was used for.
    fn other_kinds(&self, f: &mut fmt::Formatter<'_>, process: &ProcessReport) -> fmt::Result {
        let memory = &process.memory;
        for (kind, account) in &memory.kinds {
            let is_all = *kind == Resource::Device && memory.gpu == *account;
            if is_all || account.allocated.count == 0 {
                continue;
            }
            let has_ended = !matches!(process.state, ProcessState::Running {});
            let (held, live) = if has_ended {
                (account.released_by_exit, "at its end")
            } else {
                (account.live, "live")
            };
            let what = if kind.is_object() {
                format!("{live} {} of {}", held.count, account.allocated.count)
            } else {
                let [bytes, allocated] = [held, account.allocated].map(|it| Bytes(it.bytes));
                format!(
                    "{live} {bytes} in {}; allocated {allocated} in {}",
                    held.count, account.allocated.count
                )
            };
            writeln!(f, "  {}: {what}", kind.label())?;
        }
        if memory.aliases_of_unknown_size > 0 {
            let count = counted(memory.aliases_of_unknown_size, "import");
            writeln!(f, "  {count} of unknown size")?;
        }
        let vmm = &memory.vmm;
        if vmm.mapped.count + vmm.unmapped.count + vmm.exported.count > 0 {
            write!(
                f,
                "  VMM handles: {} mapped ({}), {} not mapped ({})",
                vmm.mapped.count,
                Bytes(vmm.mapped.bytes),
                vmm.unmapped.count,
                Bytes(vmm.unmapped.bytes),
            )?;
            if vmm.exported.count > 0 {
                write!(
                    f,
                    "; {} released but exported ({}): kept while anybody has them open",
                    vmm.exported.count,
                    Bytes(vmm.exported.bytes)
                )?;
            }
            writeln!(f)?;
        }
        if memory.by_device.len() > 1 {
            let parts: Vec<String> = memory
                .by_device
                .iter()
                .map(|it| match it.device.value() {
                    Some(device) => format!("device {device}: {}", Bytes(it.live.bytes)),
                    None => format!("device not known: {}", Bytes(it.live.bytes)),
                })
                .collect();
            writeln!(f, "  {}", parts.join("; "))?;
        }
        if let Evidence::Value(activity) = &process.activity {
            self.activity(f, activity)?;
        }
        for failure in process.failures.iter().take(FAILURES_SHOWN) {
            let name = result_name(failure.result).unwrap_or("?");
            let asked = if failure.bytes > 0 {
                format!(", {} asked for", Bytes(failure.bytes))
            } else {
                String::new()
            };
            writeln!(
                f,
                "  failed: {} of {} with {} ({name}){asked}, the latest at {}",
                counted(failure.count, "call"),
                failure.function.symbol(),
                failure.result,
                short_time(&failure.latest),
            )?;
        }
        Ok(())
    }

    fn activity(&self, f: &mut fmt::Formatter<'_>, activity: &ActivityReport) -> fmt::Result {
        let parts: Vec<String> = [
            (&activity.launches, "launch"),
            (&activity.copies, "copy"),
            (&activity.synchronizations, "wait"),
        ]
        .into_iter()
        .filter_map(|(it, what)| {
            let latest = short_time(it.latest.as_ref()?);
            let failed = match it.failed {
                0 => String::new(),
                n => format!(" and {n} failed"),
            };
            let count = counted(it.count, what);
            Some(format!("{count}{failed} (latest {latest})"))
        })
        .collect();
        if parts.is_empty() {
            return Ok(());
        }
        writeln!(f, "  {}", parts.join("; "))
    }

    fn site_row(&self, site: &SiteReport) -> Vec<Cell> {
        let live = site.live_at_exit.unwrap_or(site.live);
        let growth = site
            .growth
            .as_ref()
            .map_or_else(String::new, |g| format!("{}/s", Bytes(g.bytes_per_second)));
        let oldest = site
            .oldest_age_ns
            .map_or_else(String::new, |age| show_duration(age.0));
        let verdict = Cell::new(site.verdict.kind.label());
        vec![
            Cell::new(match site.kind {
                Resource::Device => format!("  {}", clipped(&site.site, 120)),
                kind => format!("  {} [{}]", clipped(&site.site, 120), kind.label()),
            }),
            self.coloured(verdict, site.verdict.kind),
            right(if site.kind.is_object() {
                String::new()
            } else {
                Bytes(live.bytes).to_string()
            }),
            right(live.count.to_string()),
            right(oldest),
            right(growth),
        ]
    }

    fn leak(&self, f: &mut fmt::Formatter<'_>, site: &SiteReport) -> fmt::Result {
        writeln!(f, "  {}: {}", clipped(&site.site, 120), site.verdict.reason)?;
        if let Some(growth) = &site.growth {
            write!(f, "    growing since {}", short_time(&growth.since))?;
            if let Evidence::Value(left) = &growth.time_to_full_ns {
                write!(f, "; the GPU is full in {}", show_duration(left.0))?;
            }
            writeln!(f)?;
        }
        for frame in site.frames.iter().take(16) {
            let place = match (&frame.module, &frame.offset) {
                (Some(module), Some(offset)) => format!("{module}+{offset}"),
                _ => frame.address.clone(),
            };
            writeln!(
                f,
                "    at {} {place}",
                frame.symbol.as_deref().unwrap_or("?")
            )?;
        }
        Ok(())
    }

    fn kept_by_imports(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kept in &self.report.kept_by_imports {
            let holders: Vec<String> = kept
                .holders
                .iter()
                .map(|it| format!("PID {} ({} in {})", it.tgid, Bytes(it.bytes), it.handles))
                .collect();
            let bytes = Bytes(kept.allocations.bytes);
            let count = counted(kept.allocations.count, "allocation");
            let at = short_time(&kept.freed_at);
            let holders = holders.join(", ");
            if kept.owner_ended {
                write!(
                    f,
                    "\n!! {bytes} ({count}) of PID {}, which has ended ({at}),",
                    kept.owner
                )?;
            } else {
                write!(
                    f,
                    "\n!! {bytes} ({count}) that PID {} has freed ({at})",
                    kept.owner
                )?;
            }
            writeln!(f, " stay: IPC handles to them are open in {holders}")?;
        }
        Ok(())
    }

    fn left_out(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = self.report.filtered_out;
        if out.processes > 0 || out.sites > 0 {
            writeln!(
                f,
                "\nNot shown: {} and {} (filters, --top).",
                counted(out.processes, "process"),
                counted(out.sites, "call site"),
            )?;
        }
        Ok(())
    }

    fn why_none(&self) -> String {
        let out = self.report.filtered_out.processes;
        if out > 0 {
            format!(" that the filters let through ({out} others did)")
        } else {
            String::new()
        }
    }

    /// The verdict as a mark at the beginning of a line.
    fn verdict(&self, verdict: &Verdict) -> &'static str {
        match verdict.kind {
            Kind::Leak => "!!",
            Kind::Uncertain | Kind::GrowingTooEarly => " ?",
            Kind::GrewAndFlat | Kind::ReservedAtStart | Kind::Balanced => "  ",
        }
    }

    fn coloured(&self, cell: Cell, kind: Kind) -> Cell {
        if !self.style.color {
            return cell;
        }
        cell.fg(match kind {
            Kind::Leak => Color::Red,
            Kind::Uncertain | Kind::GrowingTooEarly => Color::Yellow,
            Kind::GrewAndFlat | Kind::ReservedAtStart | Kind::Balanced => Color::Green,
        })
    }
}

/// Copies of libcuda in a few words.
fn probed(libraries: &[Library]) -> String {
    let whole = libraries.iter().filter(|it| it.missing.is_empty());
    let lacking: Vec<usize> = libraries
        .iter()
        .map(|it| it.missing.len())
        .filter(|&missing| missing > 0)
        .collect();
    let mut parts = Vec::new();
    if let Some(functions) = whole.map(|it| it.functions.len()).max() {
        parts.push(format!("all {}", counted(functions as u64, "function")));
    }
    let most = lacking.iter().max().copied().unwrap_or(0);
    match lacking.len() {
        0 => {}
        1 => parts.push(format!("1 lacks {most}, gputrace doctor lists them")),
        n => parts.push(format!("{n} lack up to {most}, gputrace doctor lists them")),
    }
    match libraries.len() {
        0 => "no copy of libcuda was there".to_owned(),
        n => format!(
            "{} of libcuda ({})",
            counted(n as u64, "copy"),
            parts.join("; ")
        ),
    }
}

fn right(text: impl Into<String>) -> Cell {
    Cell::new(text.into()).set_alignment(CellAlignment::Right)
}

fn amount(bytes: &Evidence<u64>) -> String {
    bytes
        .value()
        .map_or_else(|| "n/a".to_owned(), |&bytes| Bytes(bytes).to_string())
}

/// `2026-11-30 15:04:05`, from RFC 3339 with fractions.
fn short_time(time: &str) -> String {
    let short = time.split(['.', 'Z']).next().unwrap_or(time);
    format!("{short}Z")
}

/// At most so many characters.
fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Without the blanks that fill each line up.
fn trimmed(grid: &Grid) -> String {
    grid.lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}
