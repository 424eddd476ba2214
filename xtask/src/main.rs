//! What a developer of gputrace types: `cargo xtask COMMAND`.

mod bench;
mod commands;
mod fuzz;
mod object_file;
mod setup;
mod test;
mod workspace;

#[path = "../../gputrace/build/ebpf.rs"]
mod ebpf;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use workspace::Workspace;

/// Set-up, builds, tests and measurements of gputrace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install what the eBPF build, the measurements and the tests need; does nothing where all is there
    Setup {
        /// Leave out what only `bench` needs
        #[arg(long)]
        no_bench: bool,
        /// Leave out the libraries and clients of others that only tests use (60 MB)
        #[arg(long)]
        no_real: bool,
    },
    /// Build gputrace and the test rig, optimised
    Build,
    /// Build the eBPF object from source and check it in
    UpdateObject,
    /// Prove that the checked-in eBPF object is what the sources give
    CheckObject,
    /// Build gputrace and run it, through sudo if need be
    Run {
        /// Arguments for gputrace
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Set up, build, and show a leak report of a simulated leaking job beside a healthy one
    Demo,
    /// Everything that has to pass: format, lints, the eBPF object, tests, scenarios
    Test,
    /// Run scenario files (see tests/README.md)
    Scenario {
        #[command(flatten)]
        manner: commands::Manner,
        /// Scenario files, from anywhere
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Measure what gputrace adds to an allocation and its free, beside an equivalent bpftrace script
    Bench,
    /// Look for inputs that break a parser, with libFuzzer (see docs/fuzzing.md)
    Fuzz {
        /// A file name in fuzz/src/bin; all of them, one after the other, if none is given
        target: Option<String>,
        /// How long to run each target
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// The part of demo and scenario that needs root
    #[command(hide = true)]
    RunScenarios {
        #[arg(long)]
        programs: PathBuf,
        #[command(flatten)]
        manner: commands::Manner,
        files: Vec<PathBuf>,
    },
    /// The part of bench that needs root
    #[command(hide = true)]
    RunBench { programs: PathBuf },
    /// The measured program of bench
    #[command(hide = true)]
    BenchTarget { library: PathBuf },
    /// The measured program of bench for NVIDIA's own libraries
    #[command(hide = true)]
    BenchCaller { library: PathBuf, function: String },
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    // Not needed by what runs under sudo, where there may be no cargo to ask.
    let workspace = Workspace::find;
    match command {
        Command::Setup { no_bench, no_real } => setup::run(&workspace()?, !no_bench, !no_real)?,
        Command::Build => commands::build(&workspace()?)?,
        Command::UpdateObject => object_file::update(&workspace()?)?,
        Command::CheckObject => {
            return Ok(object_file::check(&workspace()?)?.report("check-object"));
        }
        Command::Run { args } => commands::run(&workspace()?, &args)?,
        Command::Demo => return commands::demo(&workspace()?),
        Command::Test => return test::run(&workspace()?),
        Command::Scenario { manner, files } => {
            return commands::scenario(&workspace()?, manner, &files);
        }
        Command::Bench => return bench::run(&workspace()?),
        Command::Fuzz { target, seconds } => {
            return fuzz::run(&workspace()?, target.as_deref(), seconds);
        }
        Command::RunScenarios {
            programs,
            manner,
            files,
        } => return Ok(commands::run_scenarios(&programs, manner, &files)),
        Command::RunBench { programs } => return bench::run_built(&programs),
        Command::BenchTarget { library } => bench::run_target(&library)?,
        Command::BenchCaller { library, function } => bench::run_caller(&library, &function)?,
    }
    Ok(ExitCode::SUCCESS)
}
