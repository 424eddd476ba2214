//! Copies of libcuda: those that appear while gputrace runs, those of containers, and those whose
//! file is not there any more. Each file is probed once, and every figure is exact.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gputrace_test_rig::config::Config;
use gputrace_test_rig::scenario::{Layout, Need};
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::Value;

use crate::remains::Code;
use crate::tracer::{Program, Tracer};
use crate::{client, named, programs, require};

pub fn trials() -> Vec<Trial> {
    named(
        "discovery",
        &[
            ("a_copy_that_is_mapped_late_is_probed", late),
            ("its_probes_go_with_gputrace", detach),
            ("five_containers_give_five_right_answers", containers),
            ("a_bind_mount_is_the_same_copy", bind_mount),
            ("a_copy_that_was_deleted_or_replaced_is_probed", gone),
            ("a_process_without_libcuda_is_named", without),
        ],
    )
}

const MIB: u64 = 1 << 20;

/// A rig, whose library nobody looks for.
pub struct Bench {
    pub layout: Layout,
    pub folder: tempfile::TempDir,
}

/// Sets up a rig, or says why this machine cannot trace.
pub fn bench() -> Result<Result<Bench, Completion>, Failed> {
    for need in [Need::Uprobes, Need::Root] {
        if let Some(reason) = need.missing() {
            return Ok(Err(Completion::ignored_with(reason)));
        }
    }
    let folder = tempfile::tempdir()?;
    let config = Config::with_gpus(1, 24 << 30);
    let layout = Layout::new(folder.path(), &config, programs::paths()?)?;
    Ok(Ok(Bench { layout, folder }))
}

/// A rig, or the end of the test with the reason.
macro_rules! bench_or_ignored {
    () => {
        match $crate::discovery::bench()? {
            Ok(bench) => bench,
            Err(ignored) => return Ok(ignored),
        }
    };
}

pub(crate) use bench_or_ignored;

impl Bench {
    /// A new copy of the library in a folder of its own.
    pub fn copy(&self, folder: &str) -> Result<PathBuf, Failed> {
        let folder = self.folder.path().join(folder);
        fs::create_dir_all(&folder)?;
        let copy = folder.join("libcuda.so.1");
        fs::copy(&programs::paths()?.libcuda, &copy)?;
        Ok(copy)
    }

    fn client(&self) -> Result<Client, Failed> {
        Client::start(&mut client::command(self.layout.rig().folder())?)
    }

    /// A client in a mount and a PID namespace of its own, after `setup` has been run there by a
    /// shell. `None` where that cannot be, with the reason.
    fn container(&self, setup: &str) -> Result<Result<Client, String>, Failed> {
        let itself = std::env::current_exe()?;
        let namespaces = ["--mount", "--pid", "--fork", "--kill-child"];
        let tried = Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-c", setup])
            .output();
        match tried {
            Err(error) => return Ok(Err(format!("unshare cannot be run: {error}"))),
            Ok(output) if !output.status.success() => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                return Ok(Err(format!("no container can be made here: {why}")));
            }
            Ok(_) => {}
        }
        let mut command = Command::new("unshare");
        command
            .args(namespaces)
            .args(["sh", "-c", &format!("{setup} && exec \"$0\"")])
            .arg(itself);
        client::environment(&mut command, self.layout.rig().folder());
        Client::start(&mut command).map(Ok)
    }
}

/// A client, with its PID on the host.
struct Client {
    program: Program,
    pid: u64,
}

impl Client {
    fn start(command: &mut Command) -> Result<Self, Failed> {
        let mut program = Program::start(command)?;
        program.tell("pid")?;
        let pid = program.line()?.parse()?;
        Ok(Self { program, pid })
    }

    /// Loads a copy; returns when it was there.
    fn load(&mut self, library: &Path) -> Result<u64, Failed> {
        self.program.tell(&format!("load {}", library.display()))?;
        Ok(self.program.line()?.parse()?)
    }

    fn allocate(&mut self, mib: u64, count: u64) -> Result<(), Failed> {
        let bytes = mib * MIB;
        self.program.tell(&format!("alloc {bytes} {count}"))?;
        self.program.line().map(drop)
    }
}

fn start(args: &[&str]) -> Result<Tracer, Failed> {
    Tracer::start(&[&["--no-nvml"], args].concat(), &[])
}

/// A file's inode number, as a report has it.
fn inode(path: &Path) -> Result<String, Failed> {
    Ok(fs::metadata(path)?.ino().to_string())
}

/// The probed copies with this inode number.
fn libraries<'a>(report: &'a Value, inode: &str) -> Vec<&'a Value> {
    let libraries = report["coverage"]["libraries"].as_array();
    let libraries = libraries.into_iter().flatten();
    libraries.filter(|it| it["inode"] == inode).collect()
}

/// Waits until a copy is probed; `None` in the answer of `wrong` means that it is.
fn probed(tracer: &mut Tracer, inode: &str) -> Result<Value, Failed> {
    tracer.snapshot(|report| {
        let found = libraries(report, inode);
        (found.len() != 1).then(|| format!("{} copies have the inode {inode}", found.len()))
    })
}

pub fn process(report: &Value, pid: u64) -> Option<&Value> {
    let processes = report["processes"].as_array()?;
    processes.iter().find(|it| it["tgid"] == pid)
}

/// What is wrong with the memory of a process that should have so many allocations of so many MiB.
fn wrong(report: &Value, pid: u64, count: u64, mib: u64) -> Option<String> {
    let Some(process) = process(report, pid) else {
        return Some(format!("process {pid} is not in the report"));
    };
    let live = &process["memory"]["live"];
    let found = (live["count"].as_u64(), live["bytes"].as_u64());
    (found != (Some(count), Some(count * mib * MIB)))
        .then(|| format!("process {pid} has {live}, not {count} of {mib} MiB"))
}

fn is_late(report: &Value, pid: u64) -> bool {
    let late = report["coverage"]["late_processes"].as_array();
    late.into_iter().flatten().any(|it| it["tgid"] == pid)
}

fn late() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let copy = bench.copy("late")?;
    let inode = inode(&copy)?;
    let mut tracer = start(&[])?;
    require(libraries(&tracer.start, &inode).is_empty(), || {
        "the copy is probed before anybody has it".to_owned()
    })?;

    let mut first = bench.client()?;
    let loaded = first.load(&copy)?;
    let report = probed(&mut tracer, &inode)?;
    let probed_at = libraries(&report, &inode)[0]["probed_at"].as_str();
    let probed_at: u64 = probed_at.ok_or("no moment of its probes")?.parse()?;
    let after = Duration::from_nanos(probed_at.saturating_sub(loaded));
    eprintln!(
        "     probed {:.1} ms after it was loaded",
        after.as_secs_f64() * 1e3
    );
    first.allocate(3, 5)?;
    let report = tracer.snapshot(|report| wrong(report, first.pid, 5, 3))?;
    require(is_late(&report, first.pid), || {
        "the process that had mapped it before is not told".to_owned()
    })?;
    let before = &process(&report, first.pid).ok_or("no process")?["closing"]["before_tracing"];
    require(before["not_available"].is_string(), || {
        format!("it is said to be seen from its start: {before}")
    })?;

    // Whoever comes later is seen from the start.
    let mut second = bench.client()?;
    second.load(&copy)?;
    second.allocate(7, 2)?;
    let report = tracer.snapshot(|report| wrong(report, second.pid, 2, 7))?;
    let before = &process(&report, second.pid).ok_or("no process")?["closing"]["before_tracing"];
    require(
        !is_late(&report, second.pid) && before["value"] == 0,
        || format!("{before}: {}", report["coverage"]["late_processes"]),
    )?;
    require(libraries(&report, &inode).len() == 1, || {
        "the copy is probed twice".to_owned()
    })?;
    drop((first, second));
    tracer.finish()?;
    Ok(Completion::Completed)
}

fn detach() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let copy = bench.copy("detach")?;
    let inode = inode(&copy)?;
    let mut tracer = start(&[])?;
    // This process is the one that maps it.
    let code = Code::of(&copy, c"cuMemFree_v2")?;
    let original = fs::read(&copy)?;
    probed(&mut tracer, &inode)?;
    let bytes = code.bytes();
    require(!contains(&original, &bytes), || {
        "no probe is set in a process that has mapped it".to_owned()
    })?;
    let began = Instant::now();
    tracer.finish()?;
    while !contains(&original, &code.bytes()) {
        require(began.elapsed() < Duration::from_secs(60), || {
            "the probes stay".to_owned()
        })?;
        std::thread::sleep(Duration::from_millis(5));
    }
    eprintln!(
        "     its probes were gone {:.2} s after Ctrl-C",
        began.elapsed().as_secs_f64()
    );
    Ok(Completion::Completed)
}

fn contains(file: &[u8], part: &[u8]) -> bool {
    file.windows(part.len()).any(|window| window == part)
}

fn containers() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let root = bench.folder.path();
    let image = bench.copy("image")?;
    let own = bench.copy("private/an/unusual place")?;
    let mut tracer = start(&[])?;
    let mut clients = Vec::new();
    for container in 1..=4 {
        let at = root.join(format!("c{container}"));
        for folder in ["root", "upper", "work"] {
            fs::create_dir_all(at.join(folder))?;
        }
        let at = at.display();
        let setup = format!(
            "mount -t overlay overlay -o lowerdir={}/image,upperdir={at}/upper,workdir={at}/work {at}/root",
            root.display()
        );
        match bench.container(&setup)? {
            Ok(client) => clients.push((client, PathBuf::from(format!("{at}/root/libcuda.so.1")))),
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        }
    }
    // A path with a blank is one word only for the client's `load`.
    let link = root.join("own.so");
    std::os::unix::fs::symlink(&own, &link)?;
    match bench.container("true")? {
        Ok(client) => clients.push((client, link)),
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    }
    for (client, library) in &mut clients {
        client.load(library)?;
    }
    for inode in [inode(&image)?, inode(&own)?] {
        probed(&mut tracer, &inode)?;
    }
    let answers: Vec<(u64, u64)> = (1..)
        .zip(&clients)
        .map(|(n, (it, _))| (it.pid, n))
        .collect();
    for ((client, _), &(_, mib)) in clients.iter_mut().zip(&answers) {
        client.allocate(mib, 10 * mib)?;
    }
    let report = tracer.snapshot(|report| {
        answers
            .iter()
            .find_map(|&(pid, mib)| wrong(report, pid, 10 * mib, mib))
    })?;
    for &(pid, _) in &answers {
        let inner = &process(&report, pid).ok_or("no process")?["namespace_pid"]["value"];
        require(inner == 1, || format!("process {pid} is {inner} inside"))?;
    }
    for path in [&image, &own] {
        let found = libraries(&report, &inode(path)?).len();
        require(found == 1, || {
            format!("{} is probed {found} times", path.display())
        })?;
    }
    drop(clients);
    let report = tracer.finish()?;
    for (pid, mib) in answers {
        let allocated = &process(&report, pid).ok_or("no process")?["memory"]["allocated"];
        require(allocated["count"] == 10 * mib, || {
            format!("{pid}: {allocated}")
        })?;
    }
    Ok(Completion::Completed)
}

fn bind_mount() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let copy = bench.copy("host")?;
    let elsewhere = bench.folder.path().join("libcuda.so.999");
    fs::write(&elsewhere, "")?;
    let setup = format!("mount --bind {} {}", copy.display(), elsewhere.display());
    let mut tracer = start(&[])?;
    let mut inside = match bench.container(&setup)? {
        Ok(client) => client,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let mut outside = bench.client()?;
    inside.load(&elsewhere)?;
    outside.load(&copy)?;
    let inode = inode(&copy)?;
    probed(&mut tracer, &inode)?;
    inside.allocate(2, 3)?;
    outside.allocate(5, 4)?;
    let report = tracer.snapshot(|report| {
        wrong(report, inside.pid, 3, 2).or_else(|| wrong(report, outside.pid, 4, 5))
    })?;
    require(libraries(&report, &inode).len() == 1, || {
        "the copy is probed twice".to_owned()
    })?;
    drop((inside, outside));
    tracer.finish()?;
    Ok(Completion::Completed)
}

fn gone() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let (deleted, replaced) = (bench.copy("deleted")?, bench.copy("replaced")?);
    let (first, old) = (inode(&deleted)?, inode(&replaced)?);
    let (mut a, mut b) = (bench.client()?, bench.client()?);
    a.load(&deleted)?;
    b.load(&replaced)?;
    fs::remove_file(&deleted)?;
    fs::rename(bench.copy("newer")?, &replaced)?;
    let new = inode(&replaced)?;
    let mut tracer = start(&[])?;
    for inode in [&first, &old] {
        require(libraries(&tracer.start, inode).len() == 1, || {
            format!("the copy {inode} is not probed: {}", tracer.start)
        })?;
    }
    // And the same for a copy that goes away while tracing.
    let late = bench.copy("late")?;
    let late_inode = inode(&late)?;
    let (mut c, mut d) = (bench.client()?, bench.client()?);
    c.load(&replaced)?;
    d.load(&late)?;
    fs::remove_file(&late)?;
    probed(&mut tracer, &new)?;
    probed(&mut tracer, &late_inode)?;
    for (client, mib) in [(&mut a, 1), (&mut b, 2), (&mut c, 3), (&mut d, 4)] {
        client.allocate(mib, 3)?;
    }
    tracer.snapshot(|report| {
        let clients = [(&a, 1), (&b, 2), (&c, 3), (&d, 4)];
        clients
            .iter()
            .find_map(|(client, mib)| wrong(report, client.pid, 3, *mib))
    })?;
    drop((a, b, c, d));
    tracer.finish()?;
    Ok(Completion::Completed)
}

fn without() -> Result<Completion, Failed> {
    let bench = bench_or_ignored!();
    let copy = bench.copy("without")?;
    let mut client = bench.client()?;
    let pid = client.pid.to_string();
    let output = Command::new(&programs::paths()?.gputrace)
        .args(["--leaks", "--no-nvml", "--duration", "100ms", "-p", &pid])
        .env_remove("GPUTRACE_LIBCUDA")
        .stdin(Stdio::null())
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let says = format!("process {pid} has no libcuda");
    require(output.status.success() && stderr.contains(&says), || {
        format!("{}: {stderr}", output.status)
    })?;
    // It is no error, whether there is a copy on this machine or not; and a late one is seen.
    let mut tracer = start(&["-p", &pid])?;
    client.load(&copy)?;
    probed(&mut tracer, &inode(&copy)?)?;
    client.allocate(9, 3)?;
    tracer.snapshot(|report| wrong(report, client.pid, 3, 9))?;
    drop(client);
    Ok(Completion::Completed)
}
