//! Threads that allocate and free as fast as they can.
//!
//! Between two calls of the driver a thread does arithmetic only: no heap, no lock, no socket, so
//! that what is measured and stressed is the driver and whoever watches it.

use crate::clock;
use crate::execute::Run;
use crate::functions as f;
use crate::growth::Generator;
use crate::problem::{Problem, allowed};
use crate::sites::{self, Function};
use crate::things::{Held, What};
use crate::world::{State, World};
use gputrace_test_rig::protocol::{AllocKind, Expect, Hammer, Kind, Site, Tally};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Sizes and addresses are multiples of this.
const GRAIN: u64 = 256;
/// Sizes in grains take so many bits of a [`Piece`], addresses in grains the others.
const SIZE_BITS: u32 = 25;

/// An allocation in one word, so that threads can pass it on: address and size. Never 0.
#[derive(Clone, Copy)]
struct Piece(u64);

impl Piece {
    fn new(pointer: u64, bytes: u64) -> Self {
        Self(((pointer / GRAIN) << SIZE_BITS) | (bytes / GRAIN))
    }

    fn pointer(self) -> u64 {
        (self.0 >> SIZE_BITS) * GRAIN
    }

    fn bytes(self) -> u64 {
        (self.0 & ((1 << SIZE_BITS) - 1)) * GRAIN
    }
}

/// A queue from one thread to the next.
struct Ring {
    slots: [AtomicU64; Self::LENGTH],
    taken: Apart<AtomicUsize>,
    put: Apart<AtomicUsize>,
}

/// On a cache line of its own.
#[repr(align(64))]
struct Apart<T>(T);

impl Ring {
    const LENGTH: usize = 256;

    fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; Self::LENGTH],
            taken: Apart(AtomicUsize::new(0)),
            put: Apart(AtomicUsize::new(0)),
        }
    }

    /// By the one thread that puts; false if there is no room.
    fn put(&self, piece: Piece) -> bool {
        let put = self.put.0.load(Relaxed);
        if put - self.taken.0.load(Acquire) == Self::LENGTH {
            return false;
        }
        self.slots[put % Self::LENGTH].store(piece.0, Relaxed);
        self.put.0.store(put + 1, Release);
        true
    }

    /// By the one thread that takes.
    fn take(&self) -> Option<Piece> {
        let taken = self.taken.0.load(Relaxed);
        if taken == self.put.0.load(Acquire) {
            return None;
        }
        let piece = Piece(self.slots[taken % Self::LENGTH].load(Relaxed));
        self.taken.0.store(taken + 1, Release);
        Some(piece)
    }
}

/// What the threads share.
struct Shared<'a> {
    world: &'static World,
    alloc: Function,
    free: Function,
    site: Site,
    expect: &'a Expect,
    context: usize,
    min: u64,
    /// The number of different sizes, `GRAIN` apart.
    sizes: u64,
    hold: usize,
    leave: bool,
    /// When to stop, by [`clock::now`].
    deadline: u64,
    /// A queue into each thread; none if each frees its own.
    rings: Vec<Ring>,
    threads: usize,
    /// Threads that will not allocate any more.
    finished: AtomicUsize,
    /// Something went wrong.
    stop: AtomicBool,
}

/// What one thread did.
#[derive(Default)]
struct Outcome {
    allocations: Tally,
    frees: Tally,
    /// What it still holds.
    left: Vec<Piece>,
    problem: Option<Problem>,
}

/// Carries [`Hammer`] out.
pub fn hammer(run: &mut Run<'_>, hammer: &Hammer) -> Result<(), Problem> {
    let max = hammer.max.max(hammer.min);
    if hammer.min < GRAIN || max / GRAIN >= 1 << SIZE_BITS {
        return Err(Problem::Value(
            "sizes must be from 256 bytes to below 8 GiB",
        ));
    }
    if (hammer.pairs == 0) == (hammer.duration == 0) {
        return Err(Problem::Value("one of `for` and `pairs` must be given"));
    }
    let threads = usize::try_from(hammer.threads).unwrap_or(0);
    let hold = usize::try_from(hammer.hold).unwrap_or(0);
    if threads == 0 || hold == 0 {
        return Err(Problem::Value("`threads` and `hold` must be 1 or more"));
    }
    let min = hammer.min / GRAIN * GRAIN;
    let rings = if hammer.cross_thread && threads > 1 {
        threads
    } else {
        0
    };
    let shared = Shared {
        world: run.session.world,
        alloc: run.allocating(hammer.via)?,
        free: run.find(&f::MEM_FREE, hammer.via, false)?,
        site: hammer.site,
        expect: &hammer.expect,
        context: run.current()?,
        min,
        sizes: (max - min) / GRAIN + 1,
        hold,
        leave: hammer.leave,
        deadline: match hammer.duration {
            0 => u64::MAX,
            duration => clock::now() + duration,
        },
        rings: std::iter::repeat_with(Ring::new).take(rings).collect(),
        threads,
        finished: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let quota = |number: u64| match hammer.pairs {
        0 => u64::MAX,
        pairs => pairs / hammer.threads + u64::from(number < pairs % hammer.threads),
    };
    let outcomes = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0..threads {
            let (shared, quota) = (&shared, quota(number as u64));
            let thread = std::thread::Builder::new()
                .spawn_scoped(scope, move || Worker::new(shared, number).run(quota));
            match thread {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    // The others must not wait for one that does not exist.
                    shared.stop.store(true, Relaxed);
                    return Err(Problem::System {
                        what: format!("thread {number}"),
                        source: error,
                    });
                }
            }
        }
        let outcomes: Vec<Outcome> = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| panicked()))
            .collect();
        Ok(outcomes)
    })?;
    collect(run, &hammer.label, &shared, outcomes)
}

fn panicked() -> Outcome {
    Outcome {
        problem: Some(Problem::Panicked),
        ..Outcome::default()
    }
}

fn collect(
    run: &mut Run<'_>,
    label: &str,
    shared: &Shared<'_>,
    outcomes: Vec<Outcome>,
) -> Result<(), Problem> {
    let mut state = run.session.world.state();
    let mut problem = None;
    let hold = |state: &mut State, piece: Piece| {
        let held = Held {
            what: What::Memory {
                kind: AllocKind::Device,
                ptsz: false,
            },
            address: piece.pointer(),
            bytes: piece.bytes(),
            context: shared.context,
        };
        state.push(label, held);
    };
    // Nothing is on its way unless the threads were stopped.
    for ring in &shared.rings {
        while let Some(piece) = ring.take() {
            hold(&mut state, piece);
        }
    }
    for outcome in outcomes {
        run.results.allocations.merge(&outcome.allocations);
        run.results.frees.merge(&outcome.frees);
        let site = run.results.sites.entry(shared.site).or_default();
        site.merge(&outcome.allocations);
        let kind = run.results.kinds.entry(Kind::Device).or_default();
        kind.allocations.merge(&outcome.allocations);
        kind.frees.merge(&outcome.frees);
        let site = kind.sites.entry(shared.site).or_default();
        site.merge(&outcome.allocations);
        for piece in outcome.left {
            hold(&mut state, piece);
        }
        problem = problem.or(outcome.problem);
    }
    problem.map_or(Ok(()), Err)
}

/// One of the threads.
struct Worker<'a> {
    shared: &'a Shared<'a>,
    number: usize,
    outcome: Outcome,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, number: usize) -> Self {
        Self {
            shared,
            number,
            outcome: Outcome::default(),
        }
    }

    fn run(mut self, quota: u64) -> Outcome {
        let shared = self.shared;
        let ready = shared.context == 0
            || match shared.world.cuda.set_current(shared.context) {
                Ok(code) => self.check("cuCtxSetCurrent", code, &Expect::Code(0)),
                Err(error) => {
                    self.fail(error.into());
                    false
                }
            };
        let mut held: Vec<Option<Piece>> = vec![None; shared.hold];
        if ready {
            self.allocate_and_free(quota, &mut held);
        }
        let left = held.into_iter().flatten();
        if shared.leave {
            self.outcome.left.extend(left);
        } else {
            for piece in left {
                self.dispose(piece);
            }
        }
        shared.finished.fetch_add(1, Release);
        self.serve_until_all_have_finished();
        self.outcome
    }

    fn allocate_and_free(&mut self, quota: u64, held: &mut [Option<Piece>]) {
        let shared = self.shared;
        let mut generator = Generator::new(self.number as u64);
        let mut place = 0;
        for turn in 0..quota {
            if shared.stop.load(Relaxed) {
                return;
            }
            // The clock is cheap, but not next to a call of 100 ns.
            if turn % 16 == 0 && shared.deadline != u64::MAX && clock::now() >= shared.deadline {
                return;
            }
            if let Some(piece) = held[place].take() {
                self.dispose(piece);
            }
            let bytes = shared.min + generator.next() % shared.sizes * GRAIN;
            let (code, pointer) = sites::allocate(shared.site, shared.alloc, bytes);
            self.outcome.allocations.add(code, bytes);
            if code == 0 {
                held[place] = Some(Piece::new(pointer, bytes));
            } else if !self.check("allocating", code, shared.expect) {
                return;
            }
            place = (place + 1) % held.len();
            if let Some(inbox) = shared.rings.get(self.number)
                && let Some(piece) = inbox.take()
            {
                self.free(piece);
            }
        }
    }

    /// Frees it, or lets the next thread do so.
    fn dispose(&mut self, piece: Piece) {
        let shared = self.shared;
        let Some(inbox) = shared.rings.get(self.number) else {
            self.free(piece);
            return;
        };
        let next = &shared.rings[(self.number + 1) % shared.threads];
        while !next.put(piece) {
            // Every thread that waits goes on taking, so one of them can always put.
            match inbox.take() {
                Some(other) => self.free(other),
                None if shared.stop.load(Relaxed) => {
                    self.free(piece);
                    return;
                }
                None => std::thread::yield_now(),
            }
        }
    }

    fn serve_until_all_have_finished(&mut self) {
        let shared = self.shared;
        let Some(inbox) = shared.rings.get(self.number) else {
            return;
        };
        loop {
            let last = shared.finished.load(Acquire) == shared.threads || shared.stop.load(Relaxed);
            let mut any = false;
            while let Some(piece) = inbox.take() {
                self.free(piece);
                any = true;
            }
            if last {
                return;
            }
            if !any {
                std::thread::yield_now();
            }
        }
    }

    fn free(&mut self, piece: Piece) {
        let code = sites::free(self.shared.free, piece.pointer());
        self.outcome.frees.add(code, piece.bytes());
        if code != 0 {
            self.outcome.left.push(piece);
            self.check("freeing", code, self.shared.expect);
        }
    }

    fn check(&mut self, what: &str, code: i32, expect: &Expect) -> bool {
        match allowed(|| what.to_owned(), code, expect) {
            Ok(()) => true,
            Err(problem) => {
                self.fail(problem);
                false
            }
        }
    }

    fn fail(&mut self, problem: Problem) {
        self.shared.stop.store(true, Relaxed);
        self.outcome.problem.get_or_insert(problem);
    }
}
