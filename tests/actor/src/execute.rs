//! Carries a command out.

use crate::functions::{self as f, Named};
use crate::problem::{Problem, allowed};
use crate::process;
use crate::session::Session;
use crate::sites::{self, Function};
use crate::things::Family;
use crate::{clock, growth, hammer};
use gputrace_test_rig::protocol::{
    Alloc, AllocKind, Any, Command, Expect, Failure, Loop, Results, Site, Via,
};
use std::ffi::c_int;

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
    let state = session.world.state();
    results.live = state.gpu_memory();
    results.live_kinds.clone_from(&state.live);
    drop(state);
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
                how,
                via,
                expect,
            } => self.create_context(*device, label, *how, *via, expect),
            Command::CtxDestroy { label, via, expect } => self.destroy_context(label, *via, expect),
            Command::RetainPrimary {
                device,
                label,
                expect,
            } => self.retain_primary(*device, label, expect),
            Command::ReleasePrimary { device, expect } => self.release_primary(*device, expect),
            Command::ResetPrimary {
                device,
                via,
                expect,
            } => self.reset_primary(*device, *via, expect),
            Command::SetCurrent { label, expect } => {
                let context = match label {
                    Some(label) => self.context(label)?.handle,
                    None => 0,
                };
                let code = world.cuda.set_current(context)?;
                self.call("cuCtxSetCurrent", code, expect)
            }
            Command::Push { label, via, expect } => {
                let context = self.context(label)?.handle;
                self.other(&f::CTX_PUSH, *via, &[context as u64], expect)
            }
            Command::Pop { via, expect } => {
                let mut context = 0_u64;
                self.other(&f::CTX_POP, *via, &[sites::pointer(&mut context)], expect)
            }
            Command::Synchronize {
                count,
                how,
                ptsz,
                via,
                expect,
            } => self.synchronize(*count, *how, *ptsz, *via, expect),
            Command::MemoryInfo { via, expect } => self.memory_info(*via, expect),
            Command::Alloc(alloc) => self.alloc(alloc),
            Command::Free {
                label,
                count,
                via,
                expect,
            } => self.undo(Family::Memory, label, *count, *via, expect),
            Command::FreeBad {
                kind,
                ptsz,
                count,
                via,
                expect,
            } => self.free_bad(*kind, *ptsz, *count, *via, expect),
            Command::VmmCreate(create) => self.vmm_create(create),
            Command::VmmRelease(undo) => self.give_back(Family::Handles, undo),
            Command::VmmRetain(retain) => self.vmm_retain(retain),
            Command::Reserve(reserve) => self.reserve(reserve),
            Command::Unreserve(undo) => self.give_back(Family::Ranges, undo),
            Command::Map(map) => self.map(map),
            Command::Unmap(unmap) => self.unmap(unmap),
            Command::VmmExport(place) => self.vmm_export(place),
            Command::CloseExports { label } => self.close_exports(label),
            Command::VmmImport(import) => self.vmm_import(import),
            Command::IpcExport(place) => self.ipc_export(place),
            Command::IpcOpen(open) => self.ipc_open(open),
            Command::IpcClose(undo) => self.give_back(Family::Opened, undo),
            Command::PoolCreate(create) => self.pool_create(create),
            Command::PoolDestroy(undo) => self.give_back(Family::Pools, undo),
            Command::PoolTrim {
                label,
                keep,
                via,
                expect,
            } => {
                let pool = self.pool(label)?;
                self.other(&f::POOL_TRIM, *via, &[pool, *keep], expect)
            }
            Command::PoolExport(export) => self.pool_export(export),
            Command::PoolImport(import) => self.pool_import(import),
            Command::ExternalImport(import) => self.external_import(import),
            Command::ExternalDestroy(undo) => self.give_back(Family::External, undo),
            Command::GraphTrim {
                device,
                via,
                expect,
            } => {
                let device = u64::from(device.cast_unsigned());
                self.other(&f::GRAPH_TRIM, *via, &[device], expect)
            }
            Command::ModuleLoad(load) => self.module_load(load),
            Command::ModuleUnload(undo) => self.give_back(Family::Modules, undo),
            Command::GraphInstantiate(graph) => self.graph_instantiate(graph),
            Command::GraphDestroy(undo) => self.give_back(Family::Graphs, undo),
            Command::GraphLaunch {
                label,
                count,
                ptsz,
                via,
                expect,
            } => self.graph_launch(label, *count, *ptsz, *via, expect),
            Command::Launch(launch) => self.launch(launch),
            Command::Copy(copy) => self.copy(copy),
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
            } => self.block_in_alloc(*bytes, *duration, *site, label),
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

    /// `cuInit`, for what begins to use the driver; whether it works shows in the call that follows.
    pub fn initialise(&mut self) -> Result<(), Problem> {
        if !self.session.world.begin_initialisation() {
            self.init(&Expect::Any(Any::Any))?;
        }
        Ok(())
    }

    /// Counts a call that is of no kind of its own.
    pub fn call(&mut self, function: &str, code: c_int, expect: &Expect) -> Result<(), Problem> {
        self.results.calls.add(code, 0);
        allowed(|| function.to_owned(), code, expect)
    }

    /// A function, reached in this way.
    pub fn find(&self, named: &Named, via: Via, ptsz: bool) -> Result<Function, Problem> {
        Ok(self.session.world.cuda.find(named, via, ptsz)?)
    }

    /// Makes a call that is of no kind of its own, from [`Site::default`].
    pub fn other(
        &mut self,
        named: &Named,
        via: Via,
        arguments: &[u64],
        expect: &Expect,
    ) -> Result<(), Problem> {
        let function = self.find(named, via, false)?;
        let code = sites::call(Site::default(), function, arguments, &[]);
        self.call(named.symbol, code, expect)
    }

    /// The handle of the current context; 0 for none.
    pub fn current(&self) -> Result<usize, Problem> {
        Ok(self.session.world.cuda.current()?)
    }

    fn block_in_alloc(
        &mut self,
        bytes: u64,
        duration: u64,
        site: Site,
        label: &str,
    ) -> Result<(), Problem> {
        self.rig_set("alloc_delay_us", (duration / 1000).max(1))?;
        let outcome = self.alloc(&Alloc {
            bytes,
            count: 1,
            kind: AllocKind::Device,
            ptsz: false,
            pool: String::new(),
            width: 0,
            levels: 1,
            site,
            label: label.to_owned(),
            via: Via::Driver,
            expect: Expect::default(),
        });
        self.rig_set("alloc_delay_us", 0)?;
        outcome
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
