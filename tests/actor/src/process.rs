//! What a process does to itself: threads, forks, execs.

use crate::problem::Problem;
use crate::session::Session;
use crate::world::World;
use crate::{clock, title};
use gputrace_test_rig::protocol::Results;
use std::io;
use std::os::unix::process::CommandExt;

fn system(what: String, source: io::Error) -> Problem {
    Problem::System { what, source }
}

/// Starts threads that connect by themselves.
pub fn spawn(world: &'static World, count: u64) -> Result<(), Problem> {
    for _ in 0..count {
        let number = world.next_thread();
        let run = move || match Session::connect(world, number) {
            Ok(session) => {
                session.obey();
            }
            Err(error) => eprintln!("actor {} thread {number}: {error}", world.name),
        };
        std::thread::Builder::new()
            .spawn(run)
            .map_err(|error| system(format!("thread {number}"), error))?;
    }
    Ok(())
}

/// Forks; the child connects under its own name and never returns from here.
pub fn fork(world: &'static World, child: String) -> Result<Results, Problem> {
    let started = clock::now();
    // Held across the fork: no other thread is in the middle of a change that the child would see.
    let mut state = world.state();
    // SAFETY: the child goes on with this thread alone. It uses the heap, which glibc keeps usable,
    // and the state, whose lock this thread has.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(system("fork".to_owned(), io::Error::last_os_error()));
    }
    if pid == 0 {
        for connection in std::mem::take(&mut state.connections) {
            // SAFETY: the parent's; whoever owns it in this process's memory never runs again.
            unsafe { libc::close(connection) };
        }
        state.children.clear();
        let inherited = state.clone();
        drop(state);
        let world = World::with_state(child, world.rig.clone(), inherited);
        match Session::connect(world, 0) {
            Ok(session) => session.obey(),
            Err(error) => {
                eprintln!("actor {}: {error}", world.name);
                std::process::exit(2);
            }
        };
        // A session comes back only from a thread that is not the first one.
        std::process::exit(0);
    }
    state.children.insert(child, pid);
    Ok(Results {
        started,
        ended: clock::now(),
        live: state.gpu_memory(),
        live_kinds: state.live.clone(),
        child: Some(pid.unsigned_abs()),
        ..Results::default()
    })
}

/// Waits for a forked child: its wait status.
pub fn wait(world: &World, child: &str) -> Result<i32, Problem> {
    let pid = world
        .state()
        .children
        .remove(child)
        .ok_or_else(|| Problem::NoChild(child.to_owned()))?;
    let mut status = 0;
    // SAFETY: a pointer to a local.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(system(format!("waiting for {child}"), error));
        }
    }
    Ok(status)
}

/// Replaces the process by a new image of the same program and name; comes back only if it fails.
pub fn exec(world: &World, title: Option<String>) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut command = std::process::Command::new(&program);
    command
        .arg0(title.map_or_else(|| program.into_os_string(), Into::into))
        .arg("--rig")
        .arg(world.rig.folder())
        .arg("--name")
        .arg(&world.name);
    command.exec()
}

/// Sets the command name and the command line of the process.
pub fn set_title(text: &str) -> Result<(), Problem> {
    title::set(text).map_err(|error| system("title".to_owned(), error))
}
