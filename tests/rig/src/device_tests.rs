use super::*;
use crate::config::Config;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const TOTAL: u64 = 16 << 30;
const CONTEXT: u64 = 300 << 20;

/// One test at a time: a child that one test forks would keep the clients of another alive.
static ALONE: Mutex<()> = Mutex::new(());

struct Alone {
    _folder: tempfile::TempDir,
    _turn: std::sync::MutexGuard<'static, ()>,
}

fn rig() -> (Alone, Arc<Devices>) {
    let turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::new(folder.path());
    rig.store(&Config::with_gpus(2, TOTAL)).unwrap();
    let devices = Devices::open(rig).unwrap();
    let alone = Alone {
        _folder: folder,
        _turn: turn,
    };
    (alone, devices)
}

/// A forked process that runs `body` and then waits to be killed.
struct Child {
    pid: libc::pid_t,
    said: UnixStream,
}

impl Child {
    fn start(body: impl FnOnce(&mut UnixStream)) -> Self {
        let (said, mut say) = UnixStream::pair().unwrap();
        // SAFETY: the child runs `body` alone, which allocates (glibc keeps its heap usable across a
        // fork) but takes no lock that another thread of the test could hold.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(said);
            body(&mut say);
            say.write_all(b".").unwrap();
            loop {
                // SAFETY: waits for the signal that ends the process.
                unsafe { libc::pause() };
            }
        }
        drop(say);
        let mut child = Self { pid, said };
        child.wait_for_word();
        child
    }

    fn wait_for_word(&mut self) {
        self.said.read_exact(&mut [0]).unwrap();
    }

    fn kill(self) {
        // SAFETY: a child of this process that has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn charges_and_releases_add_up() {
    let (_alone, devices) = rig();
    let client = Client::open(&devices).unwrap();
    client.open_context(1).unwrap();
    client.allocate(1, 5 << 20).unwrap();
    assert_eq!(devices.used(0), 0);
    assert_eq!(devices.used(1), CONTEXT + (5 << 20));
    let holder = Holder {
        tgid: std::process::id(),
        contexts: 1,
        context_bytes: CONTEXT,
        allocation_bytes: 5 << 20,
    };
    assert_eq!(devices.holders(1), [holder]);
    assert_eq!(devices.holders(0), []);
    client.free(1, 5 << 20);
    client.close_context(1);
    assert_eq!(devices.used(1), 0);
    assert_eq!(devices.holders(1), []);
}

#[test]
fn every_user_may_take_part() {
    let (_alone, devices) = rig();
    let _client = Client::open(&devices).unwrap();
    for path in [devices.rig.devices(), devices.client_path(0)] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666, "{}", path.display());
    }
    let names: Vec<_> = std::fs::read_dir(devices.rig.clients())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["0"], "nothing else is left there");
}

#[test]
fn what_does_not_fit_is_refused_and_not_charged() {
    let (_alone, devices) = rig();
    let first = Client::open(&devices).unwrap();
    let second = Client::open(&devices).unwrap();
    first.allocate(0, TOTAL - 10).unwrap();
    let refusal = OutOfMemory { gpu: 0, bytes: 11 };
    assert_eq!(second.allocate(0, 11), Err(refusal));
    assert!(second.allocate(0, u64::MAX).is_err());
    assert!(second.open_context(0).is_err());
    second.allocate(0, 10).unwrap();
    assert_eq!(devices.used(0), TOTAL);
}

#[test]
fn a_closed_client_gives_back_what_it_held() {
    let (_alone, devices) = rig();
    let client = Client::open(&devices).unwrap();
    client.allocate(0, TOTAL).unwrap();
    drop(client);
    assert_eq!(devices.used(0), 0);
    // Also where nobody asked in between: a request that would be refused looks first.
    let client = Client::open(&devices).unwrap();
    let other = Client::open(&devices).unwrap();
    client.allocate(0, TOTAL).unwrap();
    drop(client);
    other.allocate(0, TOTAL).unwrap();
}

#[test]
fn a_forked_child_keeps_the_client_and_a_kill_releases_it() {
    let (_alone, devices) = rig();
    let (mut reader, mut writer) = UnixStream::pair().unwrap();
    let owner = Child::start(|_| {
        let client = Client::open(&devices).unwrap();
        client.allocate(0, 1 << 30).unwrap();
        let worker = Child::start(|_| ());
        writer.write_all(&worker.pid.to_ne_bytes()).unwrap();
        std::mem::forget((client, worker));
    });
    let mut worker = [0; 4];
    reader.read_exact(&mut worker).unwrap();
    let tgid = u32::try_from(owner.pid).unwrap();
    assert_eq!(devices.used(0), 1 << 30);
    owner.kill();
    assert_eq!(devices.used(0), 1 << 30, "the worker has the file open");
    assert_eq!(devices.holders(0)[0].tgid, tgid);
    // SAFETY: the worker of above, which nobody but its parent (gone) could have waited for.
    unsafe { libc::kill(libc::pid_t::from_ne_bytes(worker), libc::SIGKILL) };
    // It is not a child of ours: its end can only be seen.
    while devices.used(0) != 0 {
        std::thread::yield_now();
    }
}

#[test]
fn an_exec_closes_the_client() {
    let (_alone, devices) = rig();
    let client = Client::open(&devices).unwrap();
    client.allocate(0, 1 << 20).unwrap();
    // SAFETY: between fork and exec the child only calls execv, with constant strings.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let arguments = [
            c"/bin/cat".as_ptr(),
            c"/dev/zero".as_ptr(),
            std::ptr::null(),
        ];
        // SAFETY: a terminated list of terminated strings; _exit if it fails.
        unsafe {
            let null = c"/dev/null".as_ptr();
            libc::dup2(libc::open(null, libc::O_WRONLY), 1);
            libc::execv(arguments[0], arguments.as_ptr());
            libc::_exit(127);
        }
    }
    drop(client);
    while devices.used(0) != 0 {
        std::thread::yield_now();
    }
    // SAFETY: the child of above, still running (it copies for ever).
    unsafe {
        assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG), 0);
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

#[test]
fn killed_at_any_point_a_process_leaves_nothing_behind() {
    let (_alone, devices) = rig();
    let mut generator = 12345_u64;
    for _ in 0..100 {
        let child = Child::start(|say| {
            say.write_all(b".").unwrap();
            loop {
                let client = Client::open(&devices).unwrap();
                client.open_context(0).unwrap();
                client.allocate(0, 4 << 20).unwrap();
                // Refused, so that the way over the last resort is among the points.
                assert!(client.allocate(0, TOTAL).is_err());
                client.free(0, 4 << 20);
            }
        });
        generator = generator
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        std::thread::sleep(std::time::Duration::from_micros(generator >> 52));
        child.kill();
    }
    assert_eq!(devices.used(0), 0);
    assert_eq!(devices.holders(0), []);
    let client = Client::open(&devices).unwrap();
    client.allocate(0, TOTAL).unwrap();
}

#[test]
fn of_threads_that_race_for_the_last_bytes_all_that_fit_get_them() {
    let (_alone, devices) = rig();
    let clients: Vec<_> = (0..8).map(|_| Client::open(&devices).unwrap()).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for _ in 0..2000 {
                    // Eight clients, room for exactly eight: nobody may be refused.
                    client.allocate(0, TOTAL / 8).unwrap();
                    client.free(0, TOTAL / 8);
                }
            });
        }
    });
    assert_eq!(devices.used(0), 0);
}

#[test]
fn a_share_counts_once_and_for_whoever_is_left() {
    let (_alone, devices) = rig();
    let owner = Client::open(&devices).unwrap();
    let other = Client::open(&devices).unwrap();
    owner.allocate(1, 8 << 20).unwrap();
    let share = owner.share(1, 8 << 20).unwrap();
    assert!(other.join(share));
    assert_eq!(devices.used(1), 8 << 20);
    let shared = Shared {
        gpu: 1,
        bytes: 8 << 20,
        owner: std::process::id(),
    };
    assert_eq!(devices.shared(share), Some(shared));
    owner.leave(share);
    assert_eq!(devices.holders(1).len(), 1);
    assert_eq!(devices.used(1), 8 << 20);
    let ticket = other.ticket(Some(share), 7).unwrap();
    assert_eq!(read_ticket(&ticket).unwrap(), (Some(share), 7));
    drop(other);
    assert_eq!(devices.used(1), 8 << 20, "the ticket holds it");
    assert_eq!(devices.holders(1), []);
    drop(ticket);
    assert_eq!(devices.used(1), 0);
    assert_eq!(devices.shared(share), None);
    assert!(!owner.join(share));
    owner.allocate(1, 1 << 20).unwrap();
    let next = owner.share(1, 1 << 20).unwrap();
    assert_eq!(next.index, share.index, "its place is used again");
    assert!(!owner.join(share), "it is not the old one");
    owner.leave(share);
    assert_eq!(devices.used(1), 1 << 20);
}

#[test]
fn killed_while_sharing_a_process_leaves_nothing_behind() {
    let (_alone, devices) = rig();
    let keeper = Client::open(&devices).unwrap();
    keeper.allocate(0, 1 << 20).unwrap();
    let kept = keeper.share(0, 1 << 20).unwrap();
    let mut generator = 54321_u64;
    for _ in 0..100 {
        let child = Child::start(|say| {
            say.write_all(b".").unwrap();
            let client = Client::open(&devices).unwrap();
            loop {
                client.allocate(0, 4 << 20).unwrap();
                let share = client.share(0, 4 << 20).unwrap();
                assert!(client.join(kept));
                let ticket = client.ticket(Some(share), 0).unwrap();
                client.leave(kept);
                client.leave(share);
                drop(ticket);
            }
        });
        generator = generator
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        std::thread::sleep(std::time::Duration::from_micros(generator >> 52));
        child.kill();
    }
    assert_eq!(devices.used(0), 1 << 20);
    keeper.leave(kept);
    assert_eq!(devices.used(0), 0);
}
