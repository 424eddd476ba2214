//! Child processes of gputrace's own, for what may hang or crash: NVIDIA's libraries.

use std::{path::Path, process::Stdio};

use tokio::process::Command;

/// The running program, even if its file was replaced meanwhile.
pub const SELF: &str = "/proc/self/exe";

/// A command whose process cannot hold up or disturb this one: its stdout is a pipe, it reads and
/// says nothing else, has no other open file of this process, gets no signals from the keyboard, and
/// is killed when it is dropped.
pub fn command(executable: &Path) -> Command {
    let mut command = Command::new(executable);
    if executable == Path::new(SELF) {
        // For people who look at the list of processes.
        command.arg0("gputrace");
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // A Ctrl-C on the terminal is for gputrace, which then asks for a last answer.
        .process_group(0)
        .kill_on_drop(true);
    // SAFETY: between fork and exec only this one system call is made, which is safe there.
    unsafe {
        command.pre_exec(|| {
            // Whatever gputrace has open or was given open (its output, the rings, a caller's pipe)
            // would stay open in a child that is stuck. Kernels before 5.11 refuse the flag; there
            // only what gputrace was given itself stays.
            libc::syscall(
                libc::SYS_close_range,
                3u32,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            Ok(())
        });
    }
    command
}
