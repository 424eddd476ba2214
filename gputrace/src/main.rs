//! The command: parses the command line and turns results into exit codes.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use gputrace::{
    cli::{Cli, Subcommands, Trace},
    doctor, launch, recorded,
    report::Report,
    sensors,
    trace::{self, Ended, Job, TraceError},
};

/// Findings, where `--exit-code` was given.
const FINDINGS: u8 = 1;
/// It could not be done.
const FAILED: u8 = 2;
/// The same where a command was to be run: other statuses are the command's.
const RUN_FAILED: u8 = 125;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && std::env::args_os().nth(1) == Some("run".into()) => {
            // Nobody to tell if stderr is closed.
            let _ = error.print();
            return ExitCode::from(RUN_FAILED);
        }
        Err(error) => error.exit(),
    };
    let has_command = match &cli.command {
        Some(Subcommands::Run(_)) => true,
        Some(Subcommands::Record(flags)) => !flags.command.is_empty(),
        _ => false,
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("GPUTRACE_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(io::stderr)
        .without_time()
        .init();
    match run(&cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) && !has_command => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody to tell if stderr is closed.
            let _ = writeln!(io::stderr(), "gputrace: {}", told(&error));
            ExitCode::from(match error.downcast_ref() {
                Some(TraceError::Command { source, .. }) => launch::exit_code_of_failure(source),
                _ if has_command => RUN_FAILED,
                _ => FAILED,
            })
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Some(Subcommands::NvmlChild { library }) => Ok(sensors::nvml::child_main(library.clone())),
        Some(Subcommands::LibcudaChild { library }) => Ok(sensors::procaddr::child_main(library)),
        Some(Subcommands::Doctor(flags)) => {
            doctor::run(flags, &mut io::stdout().lock()).context("the output could not be written")
        }
        Some(Subcommands::Run(flags)) => trace(
            &flags.trace,
            Job {
                command: flags.command.clone(),
                output: flags.output.clone(),
                report: true,
                ..Job::default()
            },
        ),
        Some(Subcommands::Record(flags)) => trace(
            &flags.trace,
            Job {
                keep: Some(trace::Keep {
                    file: flags.output.clone(),
                    force: flags.force,
                }),
                command: flags.command.clone(),
                report: flags.trace.leaks,
                ..Job::default()
            },
        ),
        Some(Subcommands::Report(flags)) => {
            let report = recorded::run(flags)?;
            Ok(code(&report, flags.exit_code))
        }
        Some(Subcommands::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "gputrace", &mut script);
            print(&script)
        }
        Some(Subcommands::Man { of }) => {
            let mut page = Vec::new();
            man(of.as_deref())?.render(&mut page)?;
            print(&page)
        }
        Some(Subcommands::Schema) => print(gputrace::schema::text()?.as_bytes()),
        None => {
            if !cli.trace.leaks && !cli.trace.json {
                anyhow::bail!(
                    "say what to show: --leaks for a leak report, --json for a stream; \
                     'gputrace --help' has examples"
                );
            }
            let job = Job {
                report: true,
                ..Job::default()
            };
            trace(&cli.trace, job)
        }
    }
}

/// The man page of gputrace, or of one of its subcommands.
fn man(of: Option<&str>) -> anyhow::Result<clap_mangen::Man> {
    let mut command = Cli::command();
    command.build();
    let Some(of) = of else {
        return Ok(clap_mangen::Man::new(command));
    };
    let subcommand = command
        .find_subcommand(of)
        .filter(|it| !it.is_hide_set())
        .with_context(|| format!("there is no subcommand {of}"))?;
    Ok(clap_mangen::Man::new(subcommand.clone()))
}

fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .context("the output could not be written")?;
    Ok(ExitCode::SUCCESS)
}

/// What the exit status tells of a report.
fn code(report: &Report, exit_code: bool) -> ExitCode {
    if exit_code && report.has_findings() {
        ExitCode::from(FINDINGS)
    } else {
        ExitCode::SUCCESS
    }
}

fn trace(flags: &Trace, job: Job) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime for asynchronous work")?;
    let result = runtime.block_on(trace::run(flags, job));
    // A call that hangs in the driver must not keep the prompt away.
    runtime.shutdown_background();
    let (ended, status) = result?;
    let command = status.map_or(0, launch::exit_code);
    Ok(match ended {
        Ended::Report(report) if command == 0 => code(&report, flags.exit_code),
        Ended::Report(_) | Ended::PipeClosed => ExitCode::from(command),
    })
}

/// An error with its causes; one that its message tells already is not repeated.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}
