//! Makes a recording of so many events, for measurements: `make-recording FILE EVENTS`.
//!
//! Eight processes allocate and free at 512 call sites, with a hundred thousand allocations live; one
//! of a thousand is never freed. Time is that of a job that makes ten thousand calls a second.

use std::{collections::VecDeque, env, fs::File, io, process::ExitCode};

use gputrace::{
    analysis::Thresholds,
    clock::Moment,
    cuda::FunctionId,
    event::{
        BootTime, Call, Coverage, EndedBy, Event, Module, Op, Outcome, Pid, ProcessSeen, Sighting,
        StackId,
    },
    ledger::Limits,
    recording::{Header, Writer},
};

const PROCESSES: u32 = 8;
const SITES: u32 = 64;
/// Live allocations of each process.
const LIVE: usize = 12_500;
const SECOND: u64 = 1_000_000_000;
const START: u64 = 5000 * SECOND;
/// Between two calls.
const STEP: u64 = SECOND / 10_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [file, events] => match events.parse() {
            Ok(events) => make(file, events),
            Err(error) => Err(io::Error::other(format!("{events}: {error}"))),
        },
        _ => Err(io::Error::other("usage: make-recording FILE EVENTS")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("make-recording: {error}");
            ExitCode::FAILURE
        }
    }
}

fn pid(process: u32) -> Pid {
    Pid::from_start_ns(4000 + process, START + SECOND)
}

struct Maker {
    writer: Writer<File>,
    left: u64,
}

impl Maker {
    fn add(&mut self, event: &Event) -> io::Result<()> {
        self.left = self.left.saturating_sub(1);
        self.writer.add(event)
    }
}

fn make(file: &str, events: u64) -> io::Result<()> {
    let began = Moment {
        boot: BootTime(START),
        wall_ns: 1_796_000_000 * SECOND,
    };
    let header = Header::new(began, Thresholds::default(), Limits::default());
    let mut maker = Maker {
        writer: Writer::new(File::create(file)?, &header)?,
        // One is kept for the end.
        left: events.saturating_sub(1),
    };
    maker.add(&Event::Started {
        at: began.boot,
        wall_ns: began.wall_ns,
        coverage: Coverage::default(),
    })?;
    for process in 0..PROCESSES {
        introduce(&mut maker, process)?;
    }
    let now = calls(&mut maker)?;
    maker.writer.add(&Event::Stopped {
        at: BootTime(now),
        by: EndedBy::Signal,
    })?;
    maker.writer.finish().map(drop)
}

fn introduce(maker: &mut Maker, process: u32) -> io::Result<()> {
    let pid = pid(process);
    maker.add(&Event::Process(ProcessSeen {
        pid,
        at: BootTime(START + 2 * SECOND),
        started: BootTime(START + SECOND),
        sighting: Sighting::FirstCall,
        parent: pid,
        namespace_pid: None,
        uid: 1000,
        comm: "synthetic".to_owned(),
        cgroup: "session-1.scope".to_owned(),
        cgroup_id: 4711,
    }))?;
    maker.add(&Event::CommandLine {
        pid,
        command: format!("synthetic --rank {process}"),
    })?;
    let module = |n: u64| Module {
        start: 0x5000_0000_0000 + n * 0x100_0000,
        end: 0x5000_0000_0000 + n * 0x100_0000 + 0x80_0000,
        offset: 0x1000,
        path: format!("/opt/synthetic/lib/libpart{n}.so"),
    };
    maker.add(&Event::Modules {
        pid,
        modules: (0..50).map(module).collect(),
    })?;
    for site in 0..SITES {
        let stack = StackId(process * SITES + site);
        let frame = |n: u64| 0x5000_0000_1000 + (u64::from(site) + n) % 50 * 0x100_0000 + n * 64;
        maker.add(&Event::Stack {
            stack,
            pid,
            frames: (0..24).map(frame).collect(),
        })?;
        maker.add(&Event::Symbols {
            stack,
            names: (0..24)
                .map(|n| Some(format!("synthetic::layer_{n}::step_{site}")))
                .collect(),
        })?;
    }
    Ok(())
}

/// Makes the calls. Returns when the last one was.
fn calls(maker: &mut Maker) -> io::Result<u64> {
    let symbols = ["cuMemAlloc_v2", "cuMemFree_v2"].map(FunctionId::by_symbol);
    let [Some(allocate), Some(free)] = symbols else {
        return Err(io::Error::other("the table has no such functions"));
    };
    let mut live: Vec<VecDeque<u64>> = vec![VecDeque::new(); PROCESSES as usize];
    let mut now = START + 3 * SECOND;
    let mut next_tick = now;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for n in 0.. {
        if maker.left == 0 {
            break;
        }
        // xorshift64: https://en.wikipedia.org/wiki/Xorshift
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        now += STEP;
        if now >= next_tick {
            next_tick = now + SECOND / 4;
            maker.add(&Event::Tick { at: BootTime(now) })?;
            continue;
        }
        #[expect(clippy::cast_possible_truncation, reason = "below 8, and below 64")]
        let (process, site) = (
            (n % u64::from(PROCESSES)) as u32,
            (random >> 40) as u32 % SITES,
        );
        let held = &mut live[process as usize];
        let (function, op, stack) = if held.len() > LIVE {
            let address = held.pop_front().unwrap_or(0);
            (free, Op::free(address), None)
        } else {
            let address = 0x7f00_0000_0000 + (n << 9);
            if !random.is_multiple_of(1000) {
                held.push_back(address);
            }
            let op = Op::device_memory((random % 4096 + 1) << 9, Some(address));
            (allocate, op, Some(StackId(process * SITES + site)))
        };
        maker.add(&Event::Call(Call {
            pid: pid(process),
            tid: 4000 + process,
            function,
            enclosing: None,
            entered: BootTime(now - 3000 - random % 1000),
            returned: BootTime(now),
            outcome: Outcome::Returned(0),
            op,
            stack,
            cgroup_id: 4711,
        }))?;
    }
    Ok(now)
}
