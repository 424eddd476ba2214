//! The command line. One definition gives parser, help, man page and completions.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    analysis::{Filter, Thresholds},
    identity,
    sensors::bpf::AttachMethod,
    units::{Bytes, parse_duration},
};

/// Traces GPU memory in the kernel: who allocates it, who never gives it back.
#[derive(Debug, Parser)]
#[command(
    name = "gputrace",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = EXAMPLES,
)]
pub struct Cli {
    /// What to do, if not to trace.
    #[command(subcommand)]
    pub command: Option<Subcommands>,
    /// How to trace.
    #[command(flatten)]
    pub trace: Trace,
}

const EXAMPLES: &str = "\
Examples:
  sudo gputrace --leaks                      trace until Ctrl-C, then report leaks
  sudo gputrace --leaks -p 4242 --duration 5m
                                             one process, for five minutes or until it ends
  sudo gputrace --leaks --user alice --min-size 16M --top 3
  sudo gputrace --json | jq -c 'select(.type == \"snapshot\") | .devices'
  sudo gputrace --json --events > trace.ndjson
  sudo gputrace run -- python train.py       a command, from its first instruction to its end
  sudo gputrace record -o job.gputrace -p 4242
  gputrace report job.gputrace               the same report later, without root, on any machine
  gputrace doctor                            can this machine be traced, and what is missing

Exit status: 0 done (also when ended by Ctrl-C), 1 leaks were found and --exit-code was given,
2 it could not be done. 'gputrace run --help' has those of run.";

/// Other things to do.
#[derive(Debug, Subcommand)]
pub enum Subcommands {
    /// Starts a command with the probes in place before its first instruction, and reports at its end
    #[command(after_help = RUN)]
    Run(Box<Run>),
    /// Traces and keeps what happened in a file, for `gputrace report`
    #[command(after_help = RECORD_EXAMPLES)]
    Record(Box<Record>),
    /// Prints the report of a recording: no root and no GPU needed, on any machine
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportFlags),
    /// Says whether this machine can be traced, what is missing and what to do
    #[command(after_help = "Exit status: 0 it can be traced, 2 it cannot.")]
    Doctor(Doctor),
    /// Prints a shell's completions
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the man page
    Man {
        /// That of a subcommand, such as `run`.
        #[arg(value_name = "SUBCOMMAND")]
        of: Option<String>,
    },
    /// Prints the JSON Schema of the output of --json
    Schema,
    /// Loads a libcuda and asks it for addresses.
    #[command(name = "libcuda-child", hide = true)]
    LibcudaChild {
        /// The library.
        #[arg(long)]
        library: PathBuf,
    },
    /// Asks NVML, in a process that may hang.
    #[command(name = "nvml-child", hide = true)]
    NvmlChild {
        /// The library.
        #[arg(long)]
        library: Option<PathBuf>,
    },
}

const RUN: &str = "\
The command and its descendants are traced; its input, output and environment are gputrace's own. \
SIGTERM, SIGHUP and SIGINT are passed on to it, gputrace itself ends after it. The report comes at \
its end, on standard output unless -o is given. With --json give -o as well: what the command \
itself prints would stand between the lines.

With sudo the command runs as root. To run it as yourself, let it change the user:
  sudo gputrace run -- sudo -E -u \"$USER\" python train.py

Copies of libcuda in LD_LIBRARY_PATH and where the loader looks are probed before the command \
starts, others as soon as they are mapped.

Exit status: that of the command, 128 + N if signal N ended it; 1 if --exit-code was given, leaks \
were found and the command's own is 0; 126 if it cannot be executed, 127 if it is not there; 125 if \
gputrace could not do its part, where probing is impossible before the command is started.";

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// How to trace.
    #[command(flatten)]
    pub trace: Trace,
    /// Write the report (with --json, the stream) to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The command and its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        conflicts_with = "pids"
    )]
    pub command: Vec<OsString>,
}

const RECORD_EXAMPLES: &str = "\
Examples:
  sudo gputrace record -o night.gputrace --duration 8h
  sudo gputrace record -o job.gputrace -p 4242 --leaks
                                             the report at the end as well
  sudo gputrace record -o job.gputrace -- python train.py
                                             a command; the exit status is that of 'gputrace run'

What could not be written in time is counted and left out; tracing goes on.";

/// Flags of `record`.
#[derive(Debug, Args)]
pub struct Record {
    /// The file; readable for its owner only, since it holds command lines
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Overwrite the file if it is there
    #[arg(long)]
    pub force: bool,
    /// How to trace.
    #[command(flatten)]
    pub trace: Trace,
    /// Trace this command and its descendants only, as `gputrace run` does
    #[arg(value_name = "CMD", trailing_var_arg = true, conflicts_with = "pids")]
    pub command: Vec<OsString>,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  gputrace report night.gputrace
  gputrace report night.gputrace --json -p 4242 --leak-after 10m
  gputrace report night.gputrace --json --events | jq -c 'select(.event == \"call\")'
  ssh gpu7 cat night.gputrace | gputrace report -

With the flags of the trace it prints what the trace printed at its end, byte for byte.

Exit status: 0 done, also where parts could not be read, which it says; 1 leaks were found and
--exit-code was given; 2 it could not be done.";

/// Flags of `report`.
#[derive(Debug, Args)]
pub struct ReportFlags {
    /// The recording; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write the report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// With --json, write each event before the report, one a line
    #[arg(long, requires = "json")]
    pub events: bool,
    /// Which processes and call sites to show.
    #[command(flatten)]
    pub filter: Filters,
    /// What decides a verdict.
    #[command(flatten)]
    pub thresholds: ThresholdFlags,
    /// Follow at most this many live allocations one by one [default: as recorded, but no more than
    /// the default of a trace]
    #[arg(long, value_name = "N")]
    pub max_live: Option<usize>,
    /// Exit with status 1 if leaks were found
    #[arg(long)]
    pub exit_code: bool,
    /// Colour the table
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    pub color: Color,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Also load each libcuda, in a child process, and check the addresses that its
    /// cuGetProcAddress gives
    ///
    /// Programs with the CUDA runtime take their functions from cuGetProcAddress, and what it gives is
    /// probed only if it is an exported function. Loading a library runs its constructors, with the
    /// rights that gputrace has. So only those are loaded that the host's loader would load, or that
    /// --libcuda names; what only a container has is not. cuInit is not called.
    #[arg(long)]
    pub deep: bool,
    /// Colour the answer
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    pub color: Color,
    /// Sources that are looked at.
    #[command(flatten)]
    pub sources: Sources,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Flags for tracing.
#[derive(Debug, Args)]
pub struct Trace {
    /// Trace until Ctrl-C, --duration or the end of the targets, then report leaks
    #[arg(long)]
    pub leaks: bool,
    /// Write NDJSON: one object a line, the last one the report
    #[arg(long)]
    pub json: bool,
    /// With --json, write each event as well
    #[arg(long, requires = "json")]
    pub events: bool,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Report this often while tracing [default with --json: 5s]; SIGUSR1 asks for one at once
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub interval: Option<Duration>,
    /// Which processes and call sites to show.
    #[command(flatten)]
    pub filter: Filters,
    /// What decides a verdict.
    #[command(flatten)]
    pub thresholds: ThresholdFlags,
    /// Where to look.
    #[command(flatten)]
    pub sources: Sources,
    /// How to probe.
    #[command(flatten)]
    pub probing: Probing,
    /// Exit with status 1 if leaks were found
    #[arg(long)]
    pub exit_code: bool,
    /// Colour the table
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    pub color: Color,
}

/// Which processes and call sites to show.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub struct Filters {
    /// Only this process (repeatable); tracing ends when all of them have
    #[arg(short, long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    /// Show only processes with this name; the kernel keeps the first 15 characters
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub comm: Option<String>,
    /// Show only processes of this user (name or number)
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Show only call sites that hold at least this much
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub min_size: Bytes,
    /// Show only call sites with an allocation at least this old
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
    /// Show at most this many call sites a process [default: 10 in a table, all in JSON]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
}

impl Filters {
    /// What to show, for a user that has been looked up.
    #[must_use]
    pub fn resolve(&self, uid: Option<u32>, json: bool) -> Filter {
        Filter {
            pids: self.pids.clone(),
            comm: self.comm.as_ref().map(|name| kernel_name(name)),
            uid,
            min_bytes: self.min_size.0,
            older_than_ns: self.older_than.map_or(0, nanoseconds),
            top: self.top.or((!json).then_some(10)),
        }
    }
}

/// A process's name as the kernel keeps it: cut to 15 bytes.
fn kernel_name(name: &str) -> String {
    const LENGTH: usize = 15;
    let end = (0..=LENGTH.min(name.len()))
        .rev()
        .find(|&end| name.is_char_boundary(end));
    identity::escape(&name.as_bytes()[..end.unwrap_or(0)])
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What decides a verdict.
#[derive(Debug, Args)]
#[command(next_help_heading = "Verdicts")]
pub struct ThresholdFlags {
    /// Memory reserved within this time of a process's first CUDA call belongs to its start
    /// [default: 10s; of a recording: as recorded]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub startup: Option<Duration>,
    /// Memory that has not grown for this long is flat [default: 30s; of a recording: as recorded]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub flat_after: Option<Duration>,
    /// Growth must go on for this long, and steadily, to be called a leak [default: 60s; of a
    /// recording: as recorded]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub leak_after: Option<Duration>,
}

impl ThresholdFlags {
    /// What was asked for, and what holds otherwise.
    #[must_use]
    pub fn over(&self, otherwise: Thresholds) -> Thresholds {
        let or = |flag: Option<Duration>, otherwise| flag.map_or(otherwise, nanoseconds);
        Thresholds {
            startup_ns: or(self.startup, otherwise.startup_ns),
            flat_after_ns: or(self.flat_after, otherwise.flat_after_ns),
            leak_after_ns: or(self.leak_after, otherwise.leak_after_ns),
        }
    }
}

/// Where to look.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sources")]
pub struct Sources {
    /// Probe this copy of libcuda (repeatable) [default: every copy that is found]
    #[arg(
        long,
        value_name = "PATH",
        env = "GPUTRACE_LIBCUDA",
        value_delimiter = ':'
    )]
    pub libcuda: Vec<PathBuf>,
    /// Load NVML from here [default: libnvidia-ml.so.1]
    #[arg(long, value_name = "PATH", env = "GPUTRACE_NVML")]
    pub nvml: Option<PathBuf>,
    /// Do without the device layer
    #[arg(long, conflicts_with = "nvml")]
    pub no_nvml: bool,
}

/// How to probe.
#[derive(Debug, Args)]
#[command(next_help_heading = "Probing")]
pub struct Probing {
    /// Take no user stacks: cheaper; call sites are known by their return address alone
    #[arg(long)]
    pub no_stacks: bool,
    /// Do not count launches, copies and synchronisations: cheaper for programs that make very many
    #[arg(long)]
    pub no_activity: bool,
    /// Take user stacks even on a kernel where that was reported to crash
    #[arg(long, conflicts_with = "no_stacks")]
    pub force_stacks: bool,
    /// Size of the ring buffer between kernel and gputrace
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = ring_size)]
    pub ring_size: u32,
    /// Follow at most this many live allocations one by one (96 bytes each at most)
    #[arg(long, value_name = "N", default_value_t = 8 << 20)]
    pub max_live: usize,
    /// How to attach probes [default: the best that the kernel has]
    #[arg(long, value_name = "METHOD", value_enum)]
    pub attach: Option<AttachMethod>,
}

fn ring_size(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<Bytes>().map_err(|error| error.to_string())?;
    u32::try_from(bytes.0)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (64 << 10..=1 << 30).contains(bytes))
        .ok_or_else(|| "must be a power of two from 64K to 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_ring_buffer_has_a_size_that_the_kernel_takes() {
        assert_eq!(ring_size("16M"), Ok(16 << 20));
        for text in ["0", "100", "3M", "4G", "x"] {
            assert!(ring_size(text).is_err(), "{text}");
        }
    }
}
