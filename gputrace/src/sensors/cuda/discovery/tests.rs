//! Tests of [`super`].

use std::{fs, os::unix::fs::symlink};

use super::*;

/// A machine in a directory: `/proc` with processes, and file systems for them.
struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::create_dir_all(machine.at("proc")).unwrap();
        machine
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A file with its own content; returns its inode number.
    fn file(&self, path: &str) -> u64 {
        let at = self.at(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, path).unwrap();
        fs::metadata(at).unwrap().ino()
    }

    /// A process with a root directory and mappings of (inode, path as in maps).
    fn process(&self, pid: u32, root: &str, mappings: &[(u64, &[u8])]) {
        let mut maps = b"1000-2000 rw-p 00000000 00:00 0     [heap]\n".to_vec();
        for (index, (inode, path)) in mappings.iter().enumerate() {
            let start = 0x10000 * (index + 1);
            let end = start + 0x1000;
            let line = format!("{start:x}-{end:x} r-xp 00000000 00:2a {inode}      ");
            // Twice, as the segments of a library are.
            for _ in 0..2 {
                maps.extend(line.as_bytes());
                maps.extend(*path);
                maps.push(b'\n');
            }
        }
        let process = self.at(&format!("proc/{pid}"));
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("maps"), maps).unwrap();
        fs::write(process.join("stat"), "").unwrap();
        symlink(self.at(root), process.join("root")).unwrap();
    }

    fn search(&self) -> Search {
        Search {
            procfs: Procfs::at(self.at("proc")),
            root: self.at("host"),
            ..Search::default()
        }
    }
}

#[test]
fn one_file_is_one_library_whoever_shows_it() {
    let machine = Machine::new();
    let host = machine.file("host/usr/lib64/libcuda.so.550");
    symlink("libcuda.so.550", machine.at("host/usr/lib64/libcuda.so.1")).unwrap();
    // A container that has the host's file, and one with its own at an odd path.
    fs::create_dir_all(machine.at("c1/lib")).unwrap();
    fs::hard_link(
        machine.at("host/usr/lib64/libcuda.so.550"),
        machine.at("c1/lib/libcuda.so.1"),
    )
    .unwrap();
    let own = machine.file("c2/opt/a b\n/libcuda.so.1");
    machine.process(7, "host", &[(host, b"/usr/lib64/libcuda.so.550")]);
    machine.process(8, "c1", &[(host, b"/lib/libcuda.so.1")]);
    machine.process(9, "c2", &[(own, br"/opt/a b\012/libcuda.so.1")]);
    machine.process(10, "host", &[(1, b"/usr/lib64/libcudart.so.12")]);
    let mut search = machine.search();
    search.explicit = vec![machine.at("host/usr/lib64/libcuda.so.1")];

    let found = discover(&search);
    assert_eq!(found.unreadable, []);
    assert_eq!(found.processes, 4);
    let [first, second] = &found.libraries[..] else {
        panic!("{:?}", found.libraries);
    };
    assert_eq!(first.source, Source::Explicit);
    assert_eq!(first.path, search.explicit[0]);
    assert_eq!((first.inode, &first.mapped_by[..]), (host, &[7, 8][..]));
    assert_eq!(second.source, Source::Process);
    assert_eq!(second.display, r"/opt/a b\n/libcuda.so.1");
    assert_eq!((second.inode, &second.mapped_by[..]), (own, &[9][..]));
    assert!(!first.is_same_file(second) && first.is_same_file(first));
    let through = fs::read(second.attach_path()).unwrap();
    assert_eq!(through, b"c2/opt/a b\n/libcuda.so.1");
}

#[test]
fn standard_places_are_looked_at_unless_told_otherwise() {
    let machine = Machine::new();
    machine.file("host/usr/lib64/libcuda.so.1");
    symlink("nowhere", machine.at("host/usr/lib64/libcuda.so")).unwrap();
    let mut search = machine.search();
    let found = discover(&search);
    assert_eq!(found.libraries.len(), 1);
    assert_eq!(found.libraries[0].source, Source::Standard);
    assert_eq!(found.unreadable, []);
    search.standard_places = false;
    assert!(discover(&search).libraries.is_empty());
}

#[test]
fn named_directories_come_first() {
    let machine = Machine::new();
    machine.file("host/usr/lib64/libcuda.so.1");
    machine.file("mine/libcuda.so.1");
    machine.file("mine/libcudart.so.12");
    let mut search = machine.search();
    search.directories = vec![machine.at("nowhere"), machine.at("mine")];
    let found = discover(&search);
    assert_eq!(found.unreadable, []);
    let paths: Vec<_> = found.libraries.iter().map(|it| &it.path).collect();
    let expected = ["mine/libcuda.so.1", "host/usr/lib64/libcuda.so.1"].map(|it| machine.at(it));
    assert_eq!(paths, [&expected[0], &expected[1]]);
}

#[test]
fn a_replaced_or_deleted_library_is_opened_by_its_mapping() {
    let machine = Machine::new();
    machine.file("host/usr/lib64/libcuda.so.1");
    let old = machine.file("proc/7/map_files/10000-11000");
    machine.process(7, "host", &[(old, b"/usr/lib64/libcuda.so.1 (deleted)")]);
    machine.file("proc/8/map_files/10000-11000");
    machine.process(8, "host", &[(old + 1000, b"/usr/lib64/libcuda.so.1")]);
    let mut search = machine.search();
    search.standard_places = false;
    let found = discover(&search);
    assert_eq!(found.unreadable, []);
    let paths: Vec<_> = found
        .libraries
        .iter()
        .map(|library| &library.path)
        .collect();
    assert_eq!(
        paths,
        [
            &machine.at("proc/7/map_files/10000-11000"),
            &machine.at("proc/8/map_files/10000-11000")
        ]
    );
    assert!(
        found.libraries[0]
            .display
            .ends_with("libcuda.so.1 (deleted)")
    );
}

#[test]
fn a_link_in_a_container_does_not_lead_out_of_it() {
    let machine = Machine::new();
    machine.file("host/secret");
    fs::create_dir_all(machine.at("c1/lib")).unwrap();
    symlink(machine.at("host/secret"), machine.at("c1/lib/libcuda.so.1")).unwrap();
    machine.process(7, "c1", &[(5, b"/lib/libcuda.so.1")]);
    let mut search = machine.search();
    search.standard_places = false;
    let found = discover(&search);
    assert!(found.libraries.is_empty(), "{:?}", found.libraries);
    assert_eq!(found.unreadable[0].pids, [7]);
}

#[test]
fn what_cannot_be_looked_at_is_said_once() {
    let machine = Machine::new();
    let pipe = machine.at("c1/libcuda.so.1");
    fs::create_dir_all(machine.at("c1")).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for pid in [7, 8] {
        machine.process(pid, "c1", &[(1, b"/libcuda.so.1")]);
    }
    let mut search = machine.search();
    search.explicit = vec![machine.at("nothing"), PathBuf::from("/dev/null")];
    let found = discover(&search);
    assert!(found.libraries.is_empty());
    let [missing, device, mapped] = &found.unreadable[..] else {
        panic!("{:?}", found.unreadable);
    };
    assert!(missing.explicit && device.explicit && !mapped.explicit);
    assert_eq!(device.reason, "not a regular file");
    assert_eq!(
        (&*mapped.what, &mapped.pids[..]),
        ("/libcuda.so.1", &[7, 8][..])
    );
}

#[test]
fn a_process_that_ends_meanwhile_is_no_trouble() {
    let machine = Machine::new();
    machine.process(7, "c1", &[(1, b"/libcuda.so.1")]);
    fs::remove_file(machine.at("proc/7/stat")).unwrap();
    let found = discover_in(&machine.search(), vec![7, 99]);
    assert!(found.libraries.is_empty() && found.unreadable.is_empty());
}

#[test]
fn a_process_that_does_not_answer_is_left_out_and_named() {
    let machine = Machine::new();
    let inode = machine.file("host/lib64/libcuda.so.1");
    // A pipe that nobody writes to blocks like the mappings of a stuck task.
    fs::create_dir_all(machine.at("proc/7")).unwrap();
    nix::unistd::mkfifo(&machine.at("proc/7/maps"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    machine.process(8, "host", &[(inode, b"/lib64/libcuda.so.1")]);
    let mut search = machine.search();
    search.patience = Duration::from_millis(50);
    let found = discover(&search);
    assert_eq!(found.unreadable[0].pids, [7]);
    assert!(found.unreadable[0].reason.contains("no answer"));
    assert_eq!(found.libraries[0].mapped_by, [8]);
}

#[test]
fn overlays_of_one_image_show_one_file() {
    let below = Identity {
        device: 1,
        inode: 77,
        size: 1000,
        modified: (1, 2),
        changed: (3, 4),
        overlay: false,
    };
    let first = Identity {
        device: 40,
        overlay: true,
        ..below
    };
    let second = Identity {
        device: 41,
        ..first
    };
    let copied_up = Identity {
        inode: 78,
        changed: (9, 9),
        ..second
    };
    assert!(first.same(&second) && first.same(&below));
    assert!(!copied_up.same(&first));
    let with_layer = Identity {
        inode: 3 << 61 | 77,
        ..second
    };
    assert!(with_layer.same(&below));
    // Without an overlay, another device is another file.
    assert!(!below.same(&Identity { device: 2, ..below }));
}

#[test]
fn looks_at_the_live_machine() {
    let found = discover(&Search::default());
    assert!(found.processes > 0);
    for library in found.libraries {
        assert!(library.attach_path().exists());
    }
}
