//! Probing copies of libcuda: those that are there when tracing begins, and those that processes
//! map later.
//!
//! The attacher has the programs and the probes; the engine reads what they say on another thread
//! and is never kept waiting by a search. A new mapping is looked at within 10 ms; then the file is
//! read for its symbols, and probed, in a few milliseconds more.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    bpf::{BpfError, Probes, Programs, Reader},
    cuda::{
        discovery::{Identity, Library as Found, Search, discover, discover_in},
        loader::LIBCUDA,
    },
    libraries,
    mappings::{Mapped, Mappings, News},
};
use crate::{
    clock::{self, Moment},
    event::{BootTime, Event, Library, NotProbed, Pid},
    identity::{escape, procfs::Procfs},
};

/// Most copies that are probed: each takes two links or some 200 perf events.
const MAX_LIBRARIES: usize = 256;
/// Most files that are remembered as not to be probed; then they are looked at again.
const MAX_REFUSED: usize = 1024;
/// Time between two looks at what was mapped, so that a host which loads thousands of programs a
/// second does not keep a CPU busy here.
const PAUSE: Duration = Duration::from_millis(10);
/// How often CPUs are counted.
const CPUS_EVERY: Duration = Duration::from_secs(5);
/// How often every process is looked at, where the kernel does not tell of mappings.
const RESCAN_EVERY: Duration = Duration::from_secs(2);

/// Which copies to probe.
#[derive(Debug, Default)]
pub struct Scope {
    /// These alone, where the user named any.
    pub explicit: Vec<PathBuf>,
    /// Directories to look into first.
    pub directories: Vec<PathBuf>,
    /// Only what these processes map matters later; none: every process.
    pub processes: Vec<u32>,
}

/// What kept copies of libcuda from being probed at the start.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A copy that was asked for, or every copy that there is.
    #[error("cannot be probed")]
    Refused(Vec<NotProbed>),
    /// The eBPF side.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// What was probed at the start.
#[derive(Debug, Default)]
pub struct First {
    /// Copies that are probed.
    pub libraries: Vec<Library>,
    /// Copies that are not, and what could not be looked at.
    pub not_probed: Vec<NotProbed>,
}

/// The attaching side of tracing. Dropping it takes the probes out.
#[derive(Debug)]
pub struct Attacher {
    programs: Programs,
    probes: Probes,
    scope: Scope,
    search: Search,
    source: Source,
    known: Vec<Known>,
    /// Records that were read while something else was done.
    news: News,
    perf_events: Arc<AtomicUsize>,
}

/// How later mappings are noticed.
#[derive(Debug)]
enum Source {
    Records(Mappings),
    Rescans(io::Error),
    Nothing,
}

/// A file that was looked at.
#[derive(Debug)]
struct Known {
    identity: Identity,
    state: State,
}

#[derive(Debug)]
enum State {
    Probed(Box<Library>),
    Refused(String),
}

impl Attacher {
    /// Gets ready: from here on, new mappings are noticed.
    ///
    /// # Errors
    /// Where the kernel refuses the programs.
    pub fn new(mut programs: Programs, scope: Scope) -> Result<Self, BpfError> {
        let probes = programs.prepare()?;
        let source = if scope.explicit.is_empty() {
            Mappings::watch(LIBCUDA).map_or_else(Source::Rescans, Source::Records)
        } else {
            Source::Nothing
        };
        Ok(Self {
            programs,
            probes,
            scope,
            search: Search {
                standard_places: false,
                ..Search::default()
            },
            source,
            known: Vec::new(),
            news: News::default(),
            perf_events: Arc::default(),
        })
    }

    /// Probes the copies that there are by now. None at all is fine, unless one was named.
    ///
    /// # Errors
    /// Where a copy that was named cannot be probed, where there are copies and none can be, or
    /// where the kernel does not allow it.
    pub fn attach_first(&mut self) -> Result<First, AttachError> {
        let explicit = &self.scope.explicit;
        let named = !explicit.is_empty();
        let found = libraries::find(explicit, self.scope.directories.clone());
        let mut refused = found.refused;
        if named && !(refused.is_empty() && found.unreadable.is_empty()) {
            refused.extend(found.unreadable);
            return Err(AttachError::Refused(refused));
        }
        let mut probed = Vec::new();
        for mut target in found.targets {
            match self.attach(&mut target) {
                Ok(()) => {
                    self.remember(
                        target.found.identity(),
                        State::Probed(Box::new(target.library.clone())),
                    );
                    probed.push(target.library);
                }
                Err(error) if !named && !matches!(error, BpfError::NotPermitted { .. }) => {
                    refused.push(NotProbed {
                        path: target.library.path,
                        reason: error.to_string(),
                        processes: target.found.mapped_by.clone(),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
        if probed.is_empty() && !refused.is_empty() {
            refused.extend(found.unreadable);
            return Err(AttachError::Refused(refused));
        }
        refused.extend(found.unreadable);
        Ok(First {
            libraries: probed,
            not_probed: refused,
        })
    }

    /// Starts the programs.
    ///
    /// # Errors
    /// Where a map cannot be used.
    pub fn start(&mut self) -> Result<(Reader, Moment), BpfError> {
        self.programs.start()
    }

    /// How probes are attached.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.programs.method().label()
    }

    /// Whether launches, copies and synchronisations are counted.
    ///
    /// # Errors
    /// Why not.
    pub fn counts_activity(&self) -> Result<(), &'static str> {
        self.programs.counts_activity()
    }

    /// How later mappings are noticed, in words.
    #[must_use]
    pub fn discovery(&self) -> String {
        match &self.source {
            Source::Records(_) => "as they are mapped (PERF_RECORD_MMAP2)".to_owned(),
            Source::Rescans(why) => format!(
                "by a look at every process each {} s: the kernel does not tell of mappings: {why}",
                RESCAN_EVERY.as_secs()
            ),
            Source::Nothing => "not at all: only the copies given with --libcuda count".to_owned(),
        }
    }

    /// The number of perf events that the kernel will have to take out, each in about 0.1 s.
    #[must_use]
    pub fn perf_events(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.perf_events)
    }

    /// Probes what is mapped from now on, until `stop` can be read. What was found goes to `tell`.
    pub fn follow(&mut self, stop: BorrowedFd<'_>, mut tell: impl FnMut(Event)) {
        let mut next = Instant::now();
        loop {
            let now = Instant::now();
            let every = match self.source {
                Source::Records(_) => CPUS_EVERY,
                Source::Rescans(_) => RESCAN_EVERY,
                Source::Nothing => return,
            };
            if now >= next {
                next = now + every;
                self.news.lost |= self.check_source();
            }
            if std::mem::take(&mut self.news.lost) {
                self.rescan(&mut tell);
            }
            for mapped in std::mem::take(&mut self.news.mapped) {
                self.look_at(&mapped, &mut tell);
            }
            if self.news != News::default() {
                continue;
            }
            let left = next.saturating_duration_since(Instant::now());
            match self.wait(stop, left) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("new mappings cannot be waited for any more: {error}");
                    self.source = Source::Rescans(error);
                }
            }
        }
    }

    /// Whether something may have been mapped without being noticed.
    fn check_source(&mut self) -> bool {
        match &mut self.source {
            // A CPU that cannot be watched is looked after by rescans.
            Source::Records(mappings) => mappings.follow_cpus().unwrap_or(true),
            Source::Rescans(_) => true,
            Source::Nothing => false,
        }
    }

    /// Waits for news. Returns whether `stop` can be read.
    fn wait(&mut self, stop: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
        let Source::Records(mappings) = &mut self.source else {
            let mut fds = [nix::poll::PollFd::new(stop, nix::poll::PollFlags::POLLIN)];
            let time =
                nix::poll::PollTimeout::try_from(time).unwrap_or(nix::poll::PollTimeout::MAX);
            return Ok(nix::poll::poll(&mut fds, time).is_ok_and(|ready| ready > 0));
        };
        if mappings.wait(stop.as_fd(), time)? {
            return Ok(true);
        }
        let news = mappings.news();
        let something = news != News::default();
        self.news.add(news);
        if !something {
            thread::sleep(PAUSE);
        }
        Ok(false)
    }

    /// Probes a copy, and corrects what is said of it: not every method probes every function.
    fn attach(&mut self, target: &mut libraries::Target) -> Result<(), BpfError> {
        if let Err(reason) = self.programs.counts_activity() {
            target.leave_out_activity(reason);
        }
        let path = target.found.attach_path();
        let result = self
            .programs
            .attach(&mut self.probes, &path, &target.probes);
        self.perf_events
            .store(self.probes.perf_events(), Ordering::Relaxed);
        result
    }

    fn remember(&mut self, identity: Identity, state: State) {
        if matches!(state, State::Refused(_)) {
            let refused = |known: &Known| matches!(known.state, State::Refused(_));
            if self.known.iter().filter(|&it| refused(it)).count() >= MAX_REFUSED {
                self.known.retain(|it| !refused(it));
            }
        }
        self.known.push(Known { identity, state });
    }

    /// The file, if it was looked at before. A probed one stays what it is, since its probes hold
    /// on to it; another one may since be a new file with the same number.
    fn known(&self, identity: Identity) -> Option<&State> {
        let is = |known: &&Known| match known.state {
            State::Probed(_) => known.identity.same(&identity),
            State::Refused(_) => known.identity == identity,
        };
        self.known.iter().find(is).map(|known| &known.state)
    }

    /// Looks at every process: some mappings were not noticed.
    fn rescan(&mut self, tell: &mut impl FnMut(Event)) {
        let found = if self.scope.processes.is_empty() {
            discover(&self.search)
        } else {
            discover_in(&self.search, self.scope.processes.clone())
        };
        for library in found.libraries {
            self.meet(library, None, tell);
        }
        for it in found.unreadable {
            tell(not_probed(libraries::not_looked_at(it)));
        }
    }

    /// Looks at a process that has mapped what is called like libcuda.
    fn look_at(&mut self, mapped: &Mapped, tell: &mut impl FnMut(Event)) {
        let tgid = mapped.tgid;
        let wanted = &self.scope.processes;
        if !wanted.is_empty() && !wanted.contains(&tgid) {
            return;
        }
        let found = discover_in(&self.search, vec![tgid]);
        let nothing = found.libraries.is_empty() && found.unreadable.is_empty();
        for library in found.libraries {
            self.meet(library, Some(mapped.at), tell);
        }
        for it in found.unreadable {
            tell(not_probed(libraries::not_looked_at(it)));
        }
        // It was too quick. If the file is probed already, nothing is missing.
        let probed = |it: &Known| it.identity.is_inode(mapped.inode) && it.state.is_probed();
        let runs = |state: char| !matches!(state, 'Z' | 'X');
        let ended = !(self.search.procfs.stat(tgid)).is_ok_and(|stat| runs(stat.state));
        if nothing && ended && !self.known.iter().any(probed) {
            tell(not_probed(NotProbed {
                path: escape(&mapped.path),
                reason: "the process ended before this copy could be looked at".to_owned(),
                processes: vec![tgid],
            }));
        }
    }

    /// A process has a file mapped, since `at` where that is known.
    fn meet(&mut self, found: Found, at: Option<BootTime>, tell: &mut impl FnMut(Event)) {
        let path = found.display.clone();
        let processes = found.mapped_by.clone();
        match self.known(found.identity()) {
            Some(State::Probed(library)) => {
                let probed_at = library.probed_at.unwrap_or(BootTime(0));
                if at.is_some_and(|at| at < probed_at) {
                    let late = started_before(&self.search.procfs, &processes, probed_at);
                    tell(Event::Library {
                        at: clock::now(),
                        library: (**library).clone(),
                        processes: late,
                    });
                }
            }
            Some(State::Refused(reason)) => tell(not_probed(NotProbed {
                path,
                reason: reason.clone(),
                processes,
            })),
            None => {
                let identity = found.identity();
                match self.try_attach(found) {
                    Ok(library) => {
                        let late = self.late(identity, &processes, &library);
                        tell(Event::Library {
                            at: clock::now(),
                            library,
                            processes: late,
                        });
                    }
                    Err(reason) => tell(not_probed(NotProbed {
                        path,
                        reason,
                        processes,
                    })),
                }
            }
        }
    }

    /// Probes a file that is not known. It is closed again: the probes hold on to it.
    fn try_attach(&mut self, found: Found) -> Result<Library, String> {
        let probed = self.known.iter().filter(|it| it.state.is_probed()).count();
        if probed >= MAX_LIBRARIES {
            return Err(format!("{MAX_LIBRARIES} copies are probed already"));
        }
        let identity = found.identity();
        let attached = libraries::target(found).and_then(|mut target| {
            self.attach(&mut target)
                .map_err(|error| error.to_string())?;
            let mut library = target.library;
            library.probed_at = Some(clock::now());
            Ok(library)
        });
        let state = match &attached {
            Ok(library) => State::Probed(Box::new(library.clone())),
            Err(reason) => State::Refused(reason.clone()),
        };
        self.remember(identity, state);
        attached
    }

    /// Processes that had mapped a file before it was probed just now: those that are seen with it
    /// and were there before, but for those whose mapping is known to be younger. (A child has its
    /// parent's mappings, and no record tells of that.)
    fn late(&mut self, identity: Identity, seen: &[u32], library: &Library) -> Vec<Pid> {
        let probed_at = library.probed_at.unwrap_or(BootTime(0));
        let mut processes = seen.to_vec();
        if self.scope.processes.is_empty() {
            let found = discover(&self.search).libraries.into_iter();
            let mut same = found.filter(|it| it.identity().same(&identity));
            processes.extend(same.next().map(|it| it.mapped_by).unwrap_or_default());
        }
        processes.sort_unstable();
        processes.dedup();
        if let Source::Records(mappings) = &mut self.source {
            let news = mappings.news();
            self.news.add(news);
        }
        processes.retain(|tgid| {
            let records = self.news.mapped.iter().filter(|it| it.tgid == *tgid);
            seen.contains(tgid)
                || records
                    .map(|it| it.at)
                    .min()
                    .is_none_or(|at| at < probed_at)
        });
        started_before(&self.search.procfs, &processes, probed_at)
    }
}

impl State {
    const fn is_probed(&self) -> bool {
        matches!(self, Self::Probed(_))
    }
}

fn not_probed(copy: NotProbed) -> Event {
    Event::NotProbed {
        at: clock::now(),
        copy,
    }
}

/// Those of the processes that are there and had been started by then.
fn started_before(procfs: &Procfs, processes: &[u32], moment: BootTime) -> Vec<Pid> {
    let latest = Pid::from_start_ns(0, moment.0).start_ticks;
    let pid = |&tgid: &u32| {
        let start_ticks = procfs.stat(tgid).ok()?.start_ticks;
        (start_ticks <= latest).then_some(Pid { tgid, start_ticks })
    };
    processes.iter().filter_map(pid).collect()
}
