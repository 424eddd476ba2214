//! A process of a scenario: it does to CUDA, and to itself, what the scenario runner tells it.
//!
//! `actor --rig DIR --name P` connects to the runner and obeys; the language is that of
//! [`gputrace_test_rig::protocol`]. It is linked with no CUDA library: those of the rig are loaded
//! when they are first needed, as most programs do. When a connection to the runner ends, the whole
//! process does.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the call sites are written for x86-64 Linux");

mod clock;
mod contexts;
mod cuda;
mod execute;
mod functions;
mod growth;
mod hammer;
mod memory;
mod problem;
mod process;
mod session;
mod share;
mod sites;
mod things;
mod title;
mod vmm;
mod work;
mod world;

use gputrace_test_rig::config::{RIG, Rig};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let (rig, name) = match arguments.as_slice() {
        [_, rig_flag, rig, name_flag, name] if rig_flag == "--rig" && name_flag == "--name" => {
            (rig, name)
        }
        _ => {
            eprintln!("usage: actor --rig DIR --name NAME");
            return ExitCode::from(2);
        }
    };
    // SAFETY: no other thread exists yet.
    unsafe {
        std::env::set_var(RIG, rig);
        title::move_environment();
    }
    let world = world::World::new(name.clone(), Rig::new(rig));
    match session::Session::connect(world, 0) {
        Ok(session) => session.obey(),
        Err(error) => {
            eprintln!("actor {name}: {error}");
            ExitCode::from(2)
        }
    }
}
