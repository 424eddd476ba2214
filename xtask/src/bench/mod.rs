//! `cargo xtask bench`: what the report of a large recording takes ([`recording`]), then what tracing
//! adds to an allocation and its free, and to a call into NVIDIA's own library.
//!
//! Every round measures the same process without probes, then with each tracer, so that a change of
//! the machine's speed meets all of them. What is compared is the median over the rounds of what each
//! adds to its own round's time without probes.

mod measured;
mod real;
mod recording;
mod target;
mod tracers;

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, bail};
use gputrace_test_rig::config::{Config, Rig};

use measured::Measured;
pub use real::run_caller;
pub use target::run as run_target;
use tracers::{Running, Tracer};

use crate::{
    commands,
    workspace::{Workspace, in_path, is_root},
};

/// An odd number, so that the median is one of the values.
const ROUNDS: usize = 7;

/// Nanoseconds that one measurement takes, about: long against a scheduler's time slice.
const MEASUREMENT: f64 = 300e6;

/// Pairs that tell how many make one measurement.
const WARM_UP: u64 = 2_000;

/// gputrace without stacks adds at most this part of what bpftrace adds.
const TARGET: f64 = 0.1;

/// What one tracer cost.
struct Cost {
    tracer: Tracer,
    /// Nanoseconds of a pair, by round.
    total: Vec<f64>,
    /// The same without the time that a pair took without probes in that round.
    added: Vec<f64>,
    lost: u64,
}

/// Builds, and measures.
pub fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    commands::build(workspace)?;
    let quick_enough = recording::run(workspace)?;
    let programs = workspace.programs();
    commands::as_root(["run-bench".into(), programs.clone()], &[])?;
    let code = run_built(&programs)?;
    Ok(if quick_enough {
        code
    } else {
        ExitCode::FAILURE
    })
}

/// Measures what was built before.
pub fn run_built(programs: &Path) -> anyhow::Result<ExitCode> {
    if !is_root() {
        bail!("setting probes needs root");
    }
    let folder = tempfile::tempdir()?;
    let rig = Rig::new(folder.path());
    std::fs::create_dir_all(rig.libraries())?;
    std::fs::create_dir_all(rig.clients())?;
    rig.store(&Config::with_gpus(1, 16 << 30))?;
    let library = rig.libraries().join("libcuda.so.1");
    std::fs::copy(programs.join("libcuda.so"), &library)?;

    let mut tracers = vec![
        Tracer::Gputrace { stacks: false },
        Tracer::Gputrace { stacks: true },
    ];
    if in_path("bpftrace") {
        tracers.push(Tracer::Bpftrace);
    } else {
        eprintln!("bpftrace is not installed: `cargo xtask setup` as root installs it");
    }
    let costs = measure(&programs.join("gputrace"), &library, &rig, &tracers)?;
    let code = report(&costs);
    real::measure(programs)?;
    Ok(code)
}

fn measure(
    gputrace: &Path,
    library: &Path,
    rig: &Rig,
    tracers: &[Tracer],
) -> anyhow::Result<Vec<Cost>> {
    let mut target = target::start(library, rig.folder())?;
    let mut costs: Vec<Cost> = std::iter::once(&Tracer::None)
        .chain(tracers)
        .map(|&tracer| Cost {
            tracer,
            total: Vec::new(),
            added: Vec::new(),
            lost: 0,
        })
        .collect();
    for round in 1..=ROUNDS {
        eprintln!("round {round} of {ROUNDS}");
        let mut baseline = None;
        for cost in &mut costs {
            let nanoseconds = measure_one(gputrace, library, &mut target, cost)
                .with_context(|| cost.tracer.to_string())?;
            let baseline = *baseline.get_or_insert(nanoseconds);
            cost.total.push(nanoseconds);
            cost.added.push(nanoseconds - baseline);
        }
    }
    Ok(costs)
}

fn measure_one(
    gputrace: &Path,
    library: &Path,
    target: &mut Measured,
    cost: &mut Cost,
) -> anyhow::Result<f64> {
    let running = Running::start(cost.tracer, gputrace, library, target.pid())?;
    let guess = target.measure(WARM_UP)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small, positive"
    )]
    let pairs = (MEASUREMENT / guess) as u64;
    let nanoseconds = target.measure(pairs)?;
    if let Some(running) = running {
        // A tracer that missed calls would be cheap for the wrong reason.
        let seen = running.stop(target.pid())?;
        let made = WARM_UP + pairs;
        if seen.allocations + seen.frees + seen.lost < 2 * made {
            bail!(
                "{made} pairs were made, and it saw {} and {}",
                seen.allocations,
                seen.frees
            );
        }
        cost.lost += seen.lost;
    }
    Ok(nanoseconds)
}

fn report(costs: &[Cost]) -> ExitCode {
    println!(
        "\ncuMemAlloc_v2 of {} KiB and its cuMemFree_v2, one thread, median of {ROUNDS} rounds:\n",
        target::SIZE >> 10
    );
    println!(
        "{:<26} {:>12} {:>12} {:>24}",
        "", "ns a pair", "added", "lowest to highest added"
    );
    for cost in costs {
        print!("{:<26} {:>12.0}", cost.tracer, median(&cost.total));
        if cost.tracer != Tracer::None {
            let (low, high) = cost
                .added
                .iter()
                .fold((f64::MAX, f64::MIN), |(low, high), &v| {
                    (low.min(v), high.max(v))
                });
            print!(
                " {:>12.0} {:>24}",
                median(&cost.added),
                format!("{low:.0} to {high:.0}")
            );
        }
        if cost.lost > 0 {
            print!("   lost {} events", cost.lost);
        }
        println!();
    }
    let added = |tracer| {
        costs
            .iter()
            .find(|c| c.tracer == tracer)
            .map(|c| median(&c.added))
    };
    let (Some(gputrace), Some(bpftrace)) = (
        added(Tracer::Gputrace { stacks: false }),
        added(Tracer::Bpftrace),
    ) else {
        println!("\nno comparison: bpftrace is not installed");
        return ExitCode::SUCCESS;
    };
    let ratio = gputrace / bpftrace;
    let verdict = if ratio <= TARGET { "met" } else { "NOT met" };
    println!(
        "\ngputrace without stacks adds 1/{:.1} of what bpftrace adds; at most 1/{:.0} is wanted: {verdict}",
        1.0 / ratio,
        1.0 / TARGET
    );
    if ratio <= TARGET {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
