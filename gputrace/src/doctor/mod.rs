//! Can this machine be traced? What is missing, and what to do about it.
//!
//! Every check is a function from what a file or the kernel says to a [`Check`]; what may block runs
//! beside the others and is waited for with an end. Nothing is attached, opened for good or changed;
//! a library is loaded only where the user asked for it, and never into this process.

mod diagnosis;
mod gpu;
mod kernel;
mod machine;
mod process;
mod programs;
mod show;

use std::{io, process::ExitCode, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};

pub use diagnosis::{Check, Diagnosis, FoundLibrary, State};
pub use machine::Machine;

use crate::{
    cli,
    render::terminal,
    report::{Body, Line},
    sensors::{
        bpf::{AttachMethod, Release},
        nvml::{NvmlClient, NvmlOptions},
    },
};

/// It can be traced.
const CAN: u8 = 0;
/// It cannot.
const CANNOT: u8 = 2;

/// Examines this machine and writes what was found.
///
/// # Errors
/// The writer's, and where not even a runtime can be had.
pub fn run(flags: &cli::Doctor, to: &mut impl io::Write) -> io::Result<ExitCode> {
    let nvml = (!flags.sources.no_nvml).then(|| NvmlOptions {
        library: flags.sources.nvml.clone(),
        ..NvmlOptions::default()
    });
    let machine = Machine {
        libcuda: flags.sources.libcuda.clone(),
        deep: flags.deep,
        nvml,
        ..Machine::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let diagnosis = runtime.block_on(examine(machine));
    // A check that hangs is left to itself.
    runtime.shutdown_background();
    let can_trace = diagnosis.can_trace;
    if flags.json {
        serde_json::to_writer(&mut *to, &Line::new(Body::Doctor(diagnosis)))?;
        writeln!(to)?;
    } else {
        let style = terminal::style(flags.color, 80);
        write!(
            to,
            "{}",
            show::Shown {
                diagnosis: &diagnosis,
                style
            }
        )?;
    }
    to.flush()?;
    Ok(ExitCode::from(if can_trace { CAN } else { CANNOT }))
}

/// Examines a machine. Needs a Tokio runtime with I/O and time.
pub async fn examine(machine: Machine) -> Diagnosis {
    let patience = machine.patience;
    let basics = beside(&machine, basics).await;
    let enough = basics.as_ref().is_ok_and(|basics| basics.privileges.enough);
    let try_programs = machine.try_programs;
    let (btf, libcuda, trial, nvml) = tokio::join!(
        beside(&machine, kernel::btf),
        beside(&machine, gpu::libcuda),
        async {
            match enough {
                true => Some(beside(&machine, move |_| try_programs()).await),
                false => None,
            }
        },
        async {
            let options = machine.nvml.clone()?;
            Some(NvmlClient::new(options).sample(patience).await)
        },
    );
    let basics = match basics {
        Ok(basics) => basics,
        Err(reason) => {
            return Diagnosis::new(vec![unanswered("kernel", &reason)], vec![], vec![]);
        }
    };
    let release = basics.release;
    let (trial, stuck) = match trial {
        Some(Ok(trial)) => (Some(trial), None),
        Some(Err(reason)) => (None, Some(reason)),
        None => (None, None),
    };
    let accepted = matches!(&trial, Some(Ok(_)));
    let [mut programs, probes] =
        programs::judge(trial.as_ref(), release, basics.privileges.sys_admin);
    if let Some(reason) = stuck {
        programs = unanswered("programs", &reason);
    }
    let method = release.map(AttachMethod::best);
    let mut libcuda = libcuda.unwrap_or_else(|reason| gpu::Libraries {
        check: unanswered("libcuda", &reason),
        found: Vec::new(),
        may_load: Vec::new(),
        not_probed: Vec::new(),
    });
    let deep = match machine.deep {
        true => Some(gpu::proc_addresses(&machine, &mut libcuda).await),
        false => None,
    };
    let mut checks = vec![
        basics.kernel,
        btf.unwrap_or_else(|reason| unanswered("btf", &reason)),
        basics.privileges.check,
        basics.pid_namespace,
        kernel::lockdown(&machine, accepted),
        basics.sysctls,
        programs,
        probes,
        kernel::uprobe_events(&machine, method),
    ];
    checks.extend(basics.others);
    checks.extend([basics.driver, libcuda.check]);
    checks.extend(deep);
    checks.push(gpu::nvml(nvml));
    Diagnosis::new(checks, libcuda.found, libcuda.not_probed)
}

/// What a few small files say.
struct Basics {
    release: Option<Release>,
    kernel: Check,
    privileges: process::Privileges,
    pid_namespace: Check,
    sysctls: Check,
    others: [Check; 3],
    driver: Check,
}

fn basics(machine: &Machine) -> Basics {
    let (release, kernel) = kernel::release(machine);
    let privileges = process::privileges(machine);
    Basics {
        release,
        kernel,
        pid_namespace: process::pid_namespace(machine),
        sysctls: kernel::sysctls(machine, privileges.enough),
        privileges,
        others: [
            kernel::kprobes(machine),
            kernel::user_stacks(release),
            kernel::preemption(machine, release),
        ],
        driver: gpu::driver(machine),
    }
}

/// Does `work` on another thread and waits for it with an end; else says why there is no result.
async fn beside<T: Send + 'static>(
    machine: &Machine,
    work: impl FnOnce(&Machine) -> T + Send + 'static,
) -> Result<T, String> {
    let patience = machine.patience;
    let machine = machine.clone();
    match timeout(patience, spawn_blocking(move || work(&machine))).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err("the check itself failed: please report this".to_owned()),
        Err(_) => Err(no_answer(patience)),
    }
}

fn no_answer(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs_f64())
}

/// A check that gave no answer. Only those that tracing depends on are waited for so.
fn unanswered(name: &str, reason: &str) -> Check {
    Check::ok(name, reason, "Tracing depends on it")
        .needed()
        .state(State::Unknown)
        .advice("look with 'ps -eo pid,stat,wchan:20,comm' for tasks in state D: something in the kernel is stuck")
}

#[cfg(test)]
mod tests;
