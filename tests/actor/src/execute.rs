//! Carries a command out.

use crate::cuda::{Driver, Handle, Memory};
use crate::problem::{Problem, allowed};
use crate::process;
use crate::session::Session;
use crate::world::Held;
use crate::{clock, growth, hammer, sites};
use gputrace_test_rig::protocol::{
    Alloc, Any, Command, Expect, Failure, Loop, MemoryInfo, Results, Site, Via,
};
use std::ffi::c_int;
use std::ptr;

/// What comes of a command.
pub type Done = Result<Results, Box<Failure>>;

/// Carries out a command other than those that end, replace or double the process.
pub fn execute(session: &Session, command: &Command) -> Done {
    let mut run = Run {
        session,
        results: Results {
            started: clock::now(),
            ..Results::default()
        },
    };
    let outcome = run.command(command);
    let mut results = run.results;
    results.ended = clock::now();
    results.live = session.world.state().live;
    match outcome {
        Ok(()) => Ok(results),
        Err(problem) => Err(Box::new(Failure {
            message: problem.to_string(),
            results,
        })),
    }
}

/// A command that is being carried out.
pub struct Run<'a> {
    /// The thread that does it.
    pub session: &'a Session,
    /// What has been done so far.
    pub results: Results,
}

impl Run<'_> {
    fn command(&mut self, command: &Command) -> Result<(), Problem> {
        let world = self.session.world;
        match command {
            Command::Init { expect } => {
                world.begin_initialisation();
                self.init(expect)
            }
            Command::CtxCreate {
                device,
                label,
                expect,
            } => {
                let driver = self.initialised_driver()?;
                let mut context: Handle = ptr::null_mut();
                // SAFETY: a pointer to a local.
                let code = unsafe { (driver.ctx_create)(&raw mut context, 0, *device) };
                self.name_context(label, context, code);
                self.call("cuCtxCreate_v2", code, expect)
            }
            Command::RetainPrimary {
                device,
                label,
                expect,
            } => {
                let driver = self.initialised_driver()?;
                let mut context: Handle = ptr::null_mut();
                // SAFETY: a pointer to a local.
                let code = unsafe { (driver.primary_retain)(&raw mut context, *device) };
                self.name_context(label, context, code);
                self.call("cuDevicePrimaryCtxRetain", code, expect)
            }
            Command::ReleasePrimary { device, expect } => {
                let driver = world.cuda.driver()?;
                // SAFETY: takes any value.
                let code = unsafe { (driver.primary_release)(*device) };
                self.call("cuDevicePrimaryCtxRelease_v2", code, expect)
            }
            Command::CtxDestroy { label, expect } => self.destroy(label, expect),
            Command::SetCurrent { label, expect } => {
                let context = match label {
                    Some(label) => self.context(label)?,
                    None => 0,
                };
                let code = world.cuda.set_current(context)?;
                self.call("cuCtxSetCurrent", code, expect)
            }
            Command::Synchronize { expect } => {
                let driver = world.cuda.driver()?;
                // SAFETY: takes nothing.
                let code = unsafe { (driver.ctx_synchronize)() };
                self.call("cuCtxSynchronize", code, expect)
            }
            Command::MemoryInfo { via, expect } => self.memory_info(*via, expect),
            Command::Alloc(alloc) => self.alloc(alloc),
            Command::Free {
                label,
                count,
                via,
                expect,
            } => self.free(label, *count, *via, expect),
            Command::FreeBad { count, via, expect } => self.free_bad(*count, *via, expect),
            Command::Loop(repeat) => self.repeat(repeat),
            Command::Sleep { duration } => {
                clock::wait_until(clock::now() + duration, self.session.runner());
                Ok(())
            }
            Command::Hammer(hammer) => hammer::hammer(self, hammer),
            Command::RandomAllocs(random) => growth::grow(self, random),
            Command::BlockInAlloc {
                bytes,
                duration,
                site,
                label,
            } => {
                self.rig_set("alloc_delay_us", (duration / 1000).max(1))?;
                let outcome = self.alloc(&Alloc {
                    bytes: *bytes,
                    count: 1,
                    site: *site,
                    label: label.clone(),
                    via: Via::Driver,
                    expect: Expect::default(),
                });
                self.rig_set("alloc_delay_us", 0)?;
                outcome
            }
            Command::RigSet { key, value } => self.rig_set(key, *value),
            Command::Spawn { count } => process::spawn(world, *count),
            Command::Wait { child } => {
                self.results.status = Some(process::wait(world, child)?);
                Ok(())
            }
            Command::SetTitle { title } => process::set_title(title),
            Command::Fork { .. }
            | Command::Exec { .. }
            | Command::ExitThread
            | Command::ExitProcess { .. } => Err(Problem::Nested(Box::new(command.clone()))),
        }
    }

    fn init(&mut self, expect: &Expect) -> Result<(), Problem> {
        // SAFETY: takes any value.
        let code = unsafe { (self.session.world.cuda.driver()?.init)(0) };
        self.call("cuInit", code, expect)
    }

    /// The driver, for what begins to use it; whether it works shows in the call that follows.
    fn initialised_driver(&mut self) -> Result<&'static Driver, Problem> {
        let world = self.session.world;
        if !world.begin_initialisation() {
            self.init(&Expect::Any(Any::Any))?;
        }
        Ok(world.cuda.driver()?)
    }

    /// Counts a call that neither allocates nor frees.
    fn call(&mut self, function: &str, code: c_int, expect: &Expect) -> Result<(), Problem> {
        self.results.calls.add(code, 0);
        allowed(|| function.to_owned(), code, expect)
    }

    fn name_context(&self, label: &str, context: Handle, code: c_int) {
        if code == 0 {
            let mut state = self.session.world.state();
            let handle = context.expose_provenance();
            state.contexts.insert(label.to_owned(), handle);
        }
    }

    fn context(&self, label: &str) -> Result<usize, Problem> {
        let state = self.session.world.state();
        let context = state.contexts.get(label).copied();
        context.ok_or_else(|| Problem::NoContext(label.to_owned()))
    }

    fn destroy(&mut self, label: &str, expect: &Expect) -> Result<(), Problem> {
        let world = self.session.world;
        let context = self.context(label)?;
        let driver = world.cuda.driver()?;
        // SAFETY: takes any value.
        let code = unsafe { (driver.ctx_destroy)(ptr::with_exposed_provenance_mut(context)) };
        if code == 0 {
            let mut state = world.state();
            state.contexts.remove(label);
            state.forget_context(context);
        }
        self.call("cuCtxDestroy_v2", code, expect)
    }

    fn memory_info(&mut self, via: Via, expect: &Expect) -> Result<(), Problem> {
        let memory = self.memory(via)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to locals.
        let code = unsafe { (memory.info)(&raw mut free, &raw mut total) };
        if code == 0 {
            self.results.memory = Some(MemoryInfo {
                free: free as u64,
                total: total as u64,
            });
        }
        self.call("cuMemGetInfo_v2", code, expect)
    }

    /// The memory functions, reached in this way.
    pub fn memory(&self, via: Via) -> Result<Memory, Problem> {
        Ok(self.session.world.cuda.memory(via)?)
    }

    /// The handle of the current context.
    pub fn current(&self) -> Result<usize, Problem> {
        Ok(self.session.world.cuda.current()?)
    }

    /// One allocation, which goes on the pile if it succeeds.
    pub fn alloc_one(&mut self, memory: &Memory, bytes: u64, alloc: &Put) -> Result<(), Problem> {
        let (code, pointer) = sites::allocate(alloc.site, memory.alloc, bytes);
        self.results.allocations.add(code, bytes);
        self.results
            .sites
            .entry(alloc.site)
            .or_default()
            .add(code, bytes);
        if code == 0 {
            // Asked after the call: the runtime makes a context current if there is none.
            let context = self.current()?;
            let held = Held {
                pointer,
                bytes,
                context,
            };
            self.session.world.state().push(alloc.label, held);
        }
        let what = || format!("{}: allocating {bytes} bytes", alloc.site);
        allowed(what, code, alloc.expect)
    }

    fn alloc(&mut self, alloc: &Alloc) -> Result<(), Problem> {
        let memory = self.memory(alloc.via)?;
        let put = Put {
            site: alloc.site,
            label: &alloc.label,
            expect: &alloc.expect,
        };
        (0..alloc.count).try_for_each(|_| self.alloc_one(&memory, alloc.bytes, &put))
    }

    fn free(
        &mut self,
        label: &str,
        count: Option<u64>,
        via: Via,
        expect: &Expect,
    ) -> Result<(), Problem> {
        let memory = self.memory(via)?;
        let world = self.session.world;
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        let mut left = count;
        while left != Some(0) && outcome.is_ok() {
            let Some(held) = world.state().pop(label) else {
                if left.is_some() {
                    outcome = Err(Problem::EmptyPile(label.to_owned()));
                }
                break;
            };
            left = left.map(|left| left - 1);
            let code = sites::free(memory.free, held.pointer);
            self.results.frees.add(code, held.bytes);
            if code != 0 {
                refused.push(held);
            }
            outcome = allowed(|| format!("freeing {:#x}", held.pointer), code, expect);
        }
        let mut state = world.state();
        for held in refused.into_iter().rev() {
            state.push(label, held);
        }
        outcome
    }

    fn free_bad(&mut self, count: u64, via: Via, expect: &Expect) -> Result<(), Problem> {
        /// Below every address that the driver hands out.
        const NOWHERE: u64 = 0x1000;
        let memory = self.memory(via)?;
        (1..=count).try_for_each(|number| {
            let code = sites::free(memory.free, NOWHERE + number);
            self.results.frees.add(code, 0);
            allowed(|| "freeing a bad address".to_owned(), code, expect)
        })
    }

    fn rig_set(&mut self, key: &str, value: u64) -> Result<(), Problem> {
        let world = self.session.world;
        match world.cuda.rig_set(key, value)? {
            0 => Ok(()),
            _ => Err(Problem::NoSetting(key.to_owned())),
        }
    }

    fn repeat(&mut self, repeat: &Loop) -> Result<(), Problem> {
        if repeat.body.iter().any(|step| step.each == 0) {
            return Err(Problem::Value("`each` must be 1 or more"));
        }
        let started = clock::now();
        for iteration in 1..=repeat.iterations {
            if repeat.every > 0 || iteration % 1024 == 0 {
                let due = started + repeat.every * (iteration - 1);
                clock::wait_until(due, self.session.runner());
            }
            for step in &repeat.body {
                if iteration.is_multiple_of(step.each) {
                    self.command(&step.command)?;
                }
            }
        }
        Ok(())
    }
}

/// Where an allocation comes from and goes to, and what may come of it.
pub struct Put<'a> {
    /// The call site.
    pub site: Site,
    /// The pile.
    pub label: &'a str,
    /// The allowed results.
    pub expect: &'a Expect,
}
