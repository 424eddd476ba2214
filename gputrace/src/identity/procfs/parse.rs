//! Parsers of the files of `/proc/PID`: bytes in, values out; they never panic.

use std::str::FromStr;

use crate::identity::escape::escape;

/// A file of `/proc/PID` does not have the form that proc(5) gives it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field is not there.
    #[error("the field '{field}' is missing")]
    Missing {
        /// Its name in proc(5).
        field: &'static str,
    },
    /// A field is not a number, or too large.
    #[error("the field '{field}' is not a number: '{text}'")]
    NotANumber {
        /// Its name in proc(5).
        field: &'static str,
        /// What it says, escaped.
        text: String,
    },
}

/// `/proc/PID/stat`, as far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The tgid (of a process's own file).
    pub pid: u32,
    /// The name between the parentheses, as it is.
    pub comm: Vec<u8>,
    /// One letter: R, S, D (uninterruptible), Z (zombie), T, t, X, I and others.
    pub state: char,
    /// The tgid of the parent; 0 if there is none in this PID namespace.
    pub parent: u32,
    /// Number of threads; 0 or 1 for a zombie.
    pub threads: u32,
    /// Start time in clock ticks (`sysconf(_SC_CLK_TCK)` per second) since boot; with the tgid the
    /// identity of a process.
    pub start_ticks: u64,
}

/// `/proc/PID/status`, as far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The tgid.
    pub tgid: u32,
    /// The tgid of the parent; 0 if there is none in this PID namespace.
    pub parent: u32,
    /// The real uid.
    pub uid: u32,
    /// The effective uid.
    pub effective_uid: u32,
    /// The tgid in each PID namespace from the reader's to the process's own; a process in the
    /// reader's namespace has one entry. Empty where the kernel does not say (no PID namespaces).
    pub namespace_pids: Vec<u32>,
}

/// `/proc/PID/cgroup`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// Its lines in their order.
    pub lines: Vec<CgroupLine>,
}

/// The place of a process in one cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLine {
    /// 0 for cgroup v2.
    pub hierarchy: u32,
    /// The controllers, as `memory` or `name=systemd`; none for v2.
    pub controllers: Vec<String>,
    /// The path below the root of the hierarchy (of the reader's cgroup namespace), escaped.
    pub path: String,
}

impl Cgroup {
    /// The path that tells most about where the process belongs. On a pure v2 system there is one;
    /// otherwise the first of v1's `memory`, `pids`, `devices` and `name=systemd` hierarchies
    /// that is not the root, since container runtimes place processes in those.
    pub fn path(&self) -> Option<&str> {
        let v1 = ["memory", "pids", "devices", "name=systemd"]
            .iter()
            .filter_map(|wanted| {
                self.lines
                    .iter()
                    .find(|line| line.controllers.iter().any(|name| name == wanted))
            });
        let v2 = self.lines.iter().filter(|line| line.hierarchy == 0);
        let mut candidates = v1.chain(v2).chain(&self.lines).map(|line| &*line.path);
        let first = candidates.clone().next();
        candidates.find(|path| *path != "/").or(first)
    }
}

/// Parses `/proc/PID/stat`. The name may itself contain spaces, parentheses and line ends, so the
/// last `)` counts.
///
/// # Errors
///
/// [`Malformed`] with the field.
pub fn stat(bytes: &[u8]) -> Result<Stat, Malformed> {
    let missing = |field| Malformed::Missing { field };
    let open = bytes
        .iter()
        .position(|&b| b == b'(')
        .ok_or(missing("comm"))?;
    let close = bytes
        .iter()
        .rposition(|&b| b == b')')
        .ok_or(missing("comm"))?;
    let comm = bytes.get(open + 1..close).ok_or(missing("comm"))?.to_vec();
    let rest: Vec<&[u8]> = words(&bytes[close + 1..]).collect();
    // proc(5) numbers the fields from 1; `rest` begins with field 3.
    let field = |number: usize, name| rest.get(number - 3).copied().ok_or(missing(name));
    let state = field(3, "state")?;
    Ok(Stat {
        pid: number("pid", words(&bytes[..open]).next().ok_or(missing("pid"))?)?,
        comm,
        state: match state {
            [letter] if letter.is_ascii_alphabetic() => char::from(*letter),
            _ => return Err(missing("state")),
        },
        parent: number("ppid", field(4, "ppid")?)?,
        threads: number("num_threads", field(20, "num_threads")?)?,
        start_ticks: number("starttime", field(22, "starttime")?)?,
    })
}

/// Parses `/proc/PID/status`.
///
/// # Errors
///
/// [`Malformed`] with the field.
pub fn status(bytes: &[u8]) -> Result<Status, Malformed> {
    let (mut tgid, mut parent, mut uids, mut namespace_pids) = (None, None, None, Vec::new());
    for line in bytes.split(|&b| b == b'\n') {
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            continue;
        };
        let mut values = words(&line[colon + 1..]);
        // The value of `Name` is the process's own; it cannot imitate another field, because the
        // kernel escapes line ends in it.
        match &line[..colon] {
            b"Tgid" => tgid = values.next().map(|v| number("Tgid", v)).transpose()?,
            b"PPid" => parent = values.next().map(|v| number("PPid", v)).transpose()?,
            b"Uid" => {
                if let (Some(real), Some(effective)) = (values.next(), values.next()) {
                    uids = Some((number("Uid", real)?, number("Uid", effective)?));
                }
            }
            b"NStgid" => {
                namespace_pids = values
                    .map(|v| number("NStgid", v))
                    .collect::<Result<_, _>>()?;
            }
            _ => {}
        }
    }
    let (uid, effective_uid) = uids.ok_or(Malformed::Missing { field: "Uid" })?;
    Ok(Status {
        tgid: tgid.ok_or(Malformed::Missing { field: "Tgid" })?,
        parent: parent.ok_or(Malformed::Missing { field: "PPid" })?,
        uid,
        effective_uid,
        namespace_pids,
    })
}

/// Parses `/proc/PID/cgroup`: lines of `HIERARCHY:CONTROLLERS:PATH`. The kernel escapes line ends
/// in the path; a colon may occur in it.
///
/// # Errors
///
/// [`Malformed`] with the field.
pub fn cgroup(bytes: &[u8]) -> Result<Cgroup, Malformed> {
    let mut lines = Vec::new();
    for line in bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(3, |&b| b == b':');
        let hierarchy = parts.next().unwrap_or_default();
        let controllers = parts.next().ok_or(Malformed::Missing {
            field: "controller-list",
        })?;
        let path = parts.next().ok_or(Malformed::Missing {
            field: "cgroup-path",
        })?;
        lines.push(CgroupLine {
            hierarchy: number("hierarchy-ID", hierarchy)?,
            controllers: controllers
                .split(|&b| b == b',')
                .filter(|name| !name.is_empty())
                .map(escape)
                .collect(),
            path: escape(path),
        });
    }
    Ok(Cgroup { lines })
}

/// A command line for people, from the NUL-separated arguments of `/proc/PID/cmdline`: escaped,
/// with arguments that contain white space in quotes. `None` if it is empty.
///
/// A process that sets its title overwrites its arguments with one text and fills the rest with
/// NULs; that title is shown as it is.
pub fn command(cmdline: &[u8]) -> Option<String> {
    let end = cmdline.iter().rposition(|&b| b != 0)? + 1;
    let arguments: Vec<&[u8]> = cmdline[..end].split(|&b| b == 0).collect();
    if let [title] = arguments[..] {
        return Some(escape(title));
    }
    let shown: Vec<String> = arguments
        .iter()
        .map(|argument| {
            let text = escape(argument);
            if argument.is_empty() || argument.iter().any(u8::is_ascii_whitespace) {
                // For people: which words are one argument. Not a promise that a shell would take
                // it back.
                let quote = if text.contains('\'') { '"' } else { '\'' };
                format!("{quote}{text}{quote}")
            } else {
                text
            }
        })
        .collect();
    Some(shown.join(" "))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

fn number<T: FromStr>(field: &'static str, word: &[u8]) -> Result<T, Malformed> {
    std::str::from_utf8(word)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Malformed::NotANumber {
            field,
            text: escape(word),
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stat_line(comm: &[u8]) -> Vec<u8> {
        let mut line = b"4711 (".to_vec();
        line.extend_from_slice(comm);
        line.extend_from_slice(
            b") Z 1 4711 4711 0 -1 4227084 30 0 0 0 0 0 0 0 20 0 3 0 987654321012 0 0 18446744073709551615\n",
        );
        line
    }

    #[test]
    fn stat_of_a_zombie() {
        let parsed = stat(&stat_line(b"python3")).unwrap();
        assert_eq!(
            parsed,
            Stat {
                pid: 4711,
                comm: b"python3".to_vec(),
                state: 'Z',
                parent: 1,
                threads: 3,
                start_ticks: 987_654_321_012,
            }
        );
    }

    #[test]
    fn a_name_cannot_forge_the_fields_behind_it() {
        for comm in [
            &b"a) S 9 9"[..],
            b"(",
            b")",
            b"x) R 1 (",
            b"line\nend",
            b"\xff\x1b[2J",
        ] {
            let parsed = stat(&stat_line(comm)).unwrap();
            assert_eq!((parsed.comm.as_slice(), parsed.parent), (comm, 1));
        }
    }

    #[test]
    fn stat_names_what_is_missing() {
        assert_eq!(stat(b""), Err(Malformed::Missing { field: "comm" }));
        assert_eq!(stat(b"1 (a) S"), Err(Malformed::Missing { field: "ppid" }));
        assert_eq!(
            stat(b"1 (a) S 99999999999"),
            Err(Malformed::NotANumber {
                field: "ppid",
                text: "99999999999".into()
            })
        );
    }

    #[test]
    fn status_of_a_process_in_a_container() {
        let text = b"Name:\tserver\\nUid:\t0\t0\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t3000\n\
            Ngid:\t0\nPid:\t3000\nPPid:\t2990\nTracerPid:\t0\nUid:\t1000\t1001\t1000\t1000\n\
            Gid:\t0\t0\t0\t0\nNStgid:\t3000\t7\nNSpid:\t3000\t7\n";
        let parsed = status(text).unwrap();
        assert_eq!(
            parsed,
            Status {
                tgid: 3000,
                parent: 2990,
                uid: 1000,
                effective_uid: 1001,
                namespace_pids: vec![3000, 7],
            }
        );
        assert_eq!(
            status(b"Name:\tx\nTgid:\t1\nPPid:\t0\n"),
            Err(Malformed::Missing { field: "Uid" })
        );
    }

    #[test]
    fn cgroup_v2() {
        let parsed = cgroup(b"0::/system.slice/docker-0123.scope\n").unwrap();
        assert_eq!(parsed.path(), Some("/system.slice/docker-0123.scope"));
        assert_eq!(parsed.lines[0].hierarchy, 0);
    }

    #[test]
    fn cgroup_v1_takes_the_line_of_a_runtime() {
        let parsed = cgroup(
            b"12:cpuset:/\n11:memory:/docker/abc\n10:cpu,cpuacct:/docker/abc\n\
              1:name=systemd:/docker/abc\n0::/system.slice/containerd.service\n",
        )
        .unwrap();
        assert_eq!(parsed.path(), Some("/docker/abc"));
        assert_eq!(parsed.lines[2].controllers, ["cpu", "cpuacct"]);
    }

    #[test]
    fn cgroup_hybrid_falls_back_to_v2_and_then_to_the_root() {
        let hybrid = cgroup(b"1:name=systemd:/\n0::/user.slice/a:b\n").unwrap();
        assert_eq!(hybrid.path(), Some("/user.slice/a:b"));
        assert_eq!(cgroup(b"0::/\n").unwrap().path(), Some("/"));
        assert_eq!(cgroup(b"").unwrap().path(), None);
        assert!(cgroup(b"no colons\n").is_err());
    }

    #[test]
    fn command_lines() {
        assert_eq!(command(b""), None);
        assert_eq!(command(b"\0\0\0"), None);
        assert_eq!(command(b"sleep\0ten\0"), Some("sleep ten".into()));
        assert_eq!(
            command(b"sh\0-c\0echo 'x'\0\0"),
            Some(r#"sh -c "echo 'x'""#.into())
        );
        assert_eq!(command(b"a\0\0b\0"), Some("a '' b".into()));
        // A title set by the process, with the rest of its arguments wiped.
        assert_eq!(
            command(b"VLLM::EngineCore worker 3\0\0\0\0\0"),
            Some("VLLM::EngineCore worker 3".into())
        );
        assert_eq!(command(b"x\x1b[31m\0y\0"), Some(r"x\x1b[31m y".into()));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = stat(&bytes);
            let _ = status(&bytes);
            let _ = cgroup(&bytes).map(|cgroup| cgroup.path().map(str::len));
            let _ = command(&bytes);
        }

        #[test]
        fn broken_files_never_panic(
            cut in 0usize..120,
            at in 0usize..120,
            byte in any::<u8>(),
        ) {
            let mut line = stat_line(b"name");
            let at = at % line.len();
            line[at] = byte;
            line.truncate(cut);
            let _ = stat(&line);
        }

        #[test]
        fn any_name_is_kept(comm in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(stat(&stat_line(&comm)).unwrap().comm, comm);
        }
    }
}
