//! Names for stacks and users, looked up late and on a thread of its own: a symbol table or a
//! directory server may take its time.

use std::{
    collections::HashMap,
    os::fd::AsRawFd as _,
    path::PathBuf,
    sync::mpsc::{Sender, channel},
    thread,
};

use blazesym::symbolize::{
    Input, Symbolizer,
    source::{Elf, Source},
};

use crate::{
    analysis::module_of,
    engine::{Command, Control},
    event::{Event, Module, Pid, StackId},
    identity::{Users, escape_at_most},
    sensors::cuda::elf::open_regular,
};

/// Longest name shown: those of C++ templates can have kilobytes.
const MAX_NAME_CHARS: usize = 512;

/// Names remembered; then it begins anew.
const MAX_NAMES: usize = 65_536;

/// What to look up.
#[derive(Debug)]
pub enum Request {
    /// Names of a stack's frames.
    Stack {
        /// The stack.
        stack: StackId,
        /// In which process.
        pid: Pid,
        /// Its frames.
        frames: Vec<u64>,
        /// What the process has mapped.
        modules: Vec<Module>,
    },
    /// The name of a user.
    User(u32),
}

/// Starts the thread that answers requests with events. It ends when the sender is dropped.
#[must_use]
pub fn start(control: Control) -> Sender<Request> {
    let (requests, inbox) = channel();
    let work = move || {
        let mut names = Names::default();
        for request in inbox {
            if let Some(event) = names.answer(request) {
                control.send(Command::Event(Box::new(event)));
            }
        }
    };
    if let Err(error) = thread::Builder::new()
        .name("symbols".to_owned())
        .spawn(work)
    {
        // Without the thread the requests go nowhere: call sites stay module and offset.
        tracing::warn!("no symbols: {error}");
    }
    requests
}

#[derive(Default)]
struct Names {
    users: Users,
    symbolizer: Symbolizer,
    found: HashMap<(String, u64), Option<String>>,
}

impl Names {
    fn answer(&mut self, request: Request) -> Option<Event> {
        match request {
            Request::User(uid) => {
                let name = self.users.name(uid).into_value()?;
                Some(Event::User { uid, name })
            }
            Request::Stack {
                stack,
                pid,
                frames,
                modules,
            } => {
                let names = frames
                    .iter()
                    // A return address may lie just behind a function that does not return.
                    .map(|&address| self.name(pid, &modules, address.saturating_sub(1)))
                    .collect();
                Some(Event::Symbols { stack, names })
            }
        }
    }

    fn name(&mut self, pid: Pid, modules: &[Module], address: u64) -> Option<String> {
        let module = module_of(modules, address)?;
        let offset = module.in_file(address)?;
        let key = (module.path.clone(), offset);
        if let Some(name) = self.found.get(&key) {
            return name.clone();
        }
        let name = self.look_up(pid, &module.path, offset);
        if self.found.len() >= MAX_NAMES {
            self.found.clear();
        }
        self.found.insert(key, name.clone());
        name
    }

    /// The file as the process sees it, or, once the process is gone, as the host does.
    fn look_up(&self, pid: Pid, path: &str, offset: u64) -> Option<String> {
        let seen_by_process = PathBuf::from(format!("/proc/{}/root{path}", pid.tgid));
        let file = open_regular(&seen_by_process)
            .or_else(|_| open_regular(path.as_ref()))
            .ok()?;
        // Through the open descriptor: the path may be something else by now.
        let source = Source::Elf(Elf {
            debug_syms: false,
            ..Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        });
        let symbolized = self
            .symbolizer
            .symbolize_single(&source, Input::FileOffset(offset))
            .ok()?;
        let symbol = symbolized.as_sym()?;
        Some(escape_at_most(symbol.name.as_bytes(), MAX_NAME_CHARS))
    }
}
