//! Tests of [`super`].

use proptest::prelude::*;

use super::*;

/// Builds the file of a small kernel, type by type.
#[derive(Default)]
struct Builder {
    types: Vec<u32>,
    strings: Vec<u8>,
    count: u32,
}

impl Builder {
    fn new() -> Self {
        Self {
            strings: vec![0],
            ..Self::default()
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let offset = self.strings.len().try_into().unwrap();
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        offset
    }

    /// A type with what follows it; returns its number.
    fn add(&mut self, name: &str, kind: u32, info: u32, size: u32, tail: &[u32]) -> u32 {
        let name = self.string(name);
        self.types.extend([name, kind << 24 | info, size]);
        self.types.extend(tail);
        self.count += 1;
        self.count
    }

    /// A structure with members of (name, type, offset in bits).
    fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let tail: Vec<u32> = members
            .iter()
            .flat_map(|&(name, id, bits)| [self.string(name), id, bits])
            .collect();
        let vlen = members.len().try_into().unwrap();
        self.add(name, kind::STRUCT, vlen, size, &tail)
    }

    fn build(&self) -> Vec<u8> {
        let types: Vec<u8> = self.types.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_ne_bytes();
        let mut file = Vec::new();
        file.extend(MAGIC.to_ne_bytes());
        file.extend([1, 0]);
        file.extend(24u32.to_ne_bytes());
        file.extend(0u32.to_ne_bytes());
        file.extend(length(&types));
        file.extend(length(&types));
        file.extend(length(&self.strings));
        file.extend(types);
        file.extend(&self.strings);
        file
    }
}

/// `struct upid { int nr; struct ns *ns; }` and
/// `struct pid { int count; union { unsigned level; struct { int a, b; }; };
/// const struct upid_t numbers[2]; }` with a typedef on the way.
fn sample() -> Builder {
    let mut btf = Builder::new();
    let int = btf.add("int", kind::INT, 0, 4, &[32]);
    let ns = btf.add("ns", kind::FWD, 0, 0, &[]);
    let pointer = btf.add("", kind::PTR, 0, ns, &[]);
    let upid = btf.structure("upid", 16, &[("nr", int, 0), ("ns", pointer, 64)]);
    let typedef = btf.add("upid_t", kind::TYPEDEF, 0, upid, &[]);
    let constant = btf.add("", kind::CONST, 0, typedef, &[]);
    let array = btf.add("", kind::ARRAY, 0, 0, &[constant, int, 2]);
    let inner = btf.structure("", 8, &[("a", int, 0), ("b", int, 32)]);
    let level = btf.string("level");
    let union = btf.add("", kind::UNION, 2, 8, &[level, int, 0, 0, inner, 0]);
    btf.structure(
        "pid",
        48,
        &[("count", int, 0), ("", union, 64), ("numbers", array, 128)],
    );
    btf
}

#[test]
fn finds_members_of_a_small_kernel() {
    let btf = Btf::parse(sample().build()).unwrap();
    assert_eq!(btf.offset("pid", "count").unwrap(), 0);
    assert_eq!(btf.offset("pid", "level").unwrap(), 8);
    assert_eq!(btf.offset("pid", "b").unwrap(), 12);
    assert_eq!(btf.offset("pid", "numbers").unwrap(), 16);
    assert_eq!(btf.offset("pid", "numbers.ns").unwrap(), 24);
    assert_eq!(btf.size_of("upid").unwrap(), 16);
    assert_eq!(btf.size_of_member("pid", "numbers").unwrap(), 32);
    assert_eq!(btf.size_of_member("pid", "numbers.ns").unwrap(), 8);
    assert_eq!(btf.size_of_member("pid", "count").unwrap(), 4);
    assert!(btf.has("pid", "level") && !btf.has("pid", "leve"));
}

#[test]
fn says_what_is_missing() {
    let btf = Btf::parse(sample().build()).unwrap();
    assert!(matches!(
        btf.offset("pi", "x"),
        Err(BtfError::NoType { .. })
    ));
    assert!(matches!(
        btf.offset("pid", "numbers.pid"),
        Err(BtfError::NoMember { .. })
    ));
    // Through a pointer, through an integer, nothing at all.
    for path in ["numbers.ns.x", "count.x", "", "count.", "."] {
        let error = btf.offset("pid", path).unwrap_err();
        assert!(
            matches!(error, BtfError::NoMember { .. }),
            "{path}: {error}"
        );
    }
}

#[test]
fn a_bit_field_has_no_offset_in_bytes() {
    let mut btf = Builder::new();
    let int = btf.add("int", kind::INT, 0, 4, &[32]);
    let flags = btf.string("flag");
    let whole = btf.string("whole");
    btf.add(
        "s",
        kind::STRUCT,
        1 << 31 | 2,
        8,
        &[flags, int, 1 << 24 | 3, whole, int, 32],
    );
    let btf = Btf::parse(btf.build()).unwrap();
    assert!(matches!(
        btf.offset("s", "flag"),
        Err(BtfError::BitField { .. })
    ));
    assert_eq!(btf.offset("s", "whole").unwrap(), 4);
}

#[test]
fn cycles_end() {
    let mut btf = Builder::new();
    // Number 1 is a typedef of itself; 2 an array of itself; 3 a structure full of itself.
    btf.add("loop", kind::TYPEDEF, 0, 1, &[]);
    btf.add("", kind::ARRAY, 0, 0, &[2, 2, 2]);
    let anonymous = [("", 3, 0); 1000];
    btf.structure("self", 8, &anonymous);
    btf.structure("s", 8, &[("typedef", 1, 0), ("array", 2, 0)]);
    let btf = Btf::parse(btf.build()).unwrap();
    for (structure, path) in [("self", "x"), ("s", "typedef.x"), ("s", "array.x")] {
        let error = btf.offset(structure, path).unwrap_err();
        assert!(matches!(error, BtfError::Malformed { .. }), "{error}");
    }
    for path in ["typedef", "array"] {
        assert!(btf.size_of_member("s", path).is_err());
    }
}

#[test]
fn files_that_are_no_btf() {
    assert!(matches!(Btf::parse(vec![]), Err(BtfError::NotBtf)));
    assert!(matches!(Btf::parse(vec![0; 100]), Err(BtfError::NotBtf)));
    let mut other_order = sample().build();
    other_order.swap(0, 1);
    assert!(matches!(Btf::parse(other_order), Err(BtfError::NotBtf)));
    let mut unknown = Builder::new();
    unknown.add("new", 25, 0, 0, &[]);
    assert!(matches!(
        Btf::parse(unknown.build()),
        Err(BtfError::UnknownKind { kind: 25 })
    ));
    let error = Btf::read(Path::new("/nonexistent/btf")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/btf"));
}

/// What the probes ask for, checked on the kernel that runs the tests.
#[test]
fn reads_the_running_kernel() {
    if !Path::new(KERNEL_BTF).exists() {
        eprintln!("skipped: {KERNEL_BTF} is missing on this kernel");
        return;
    }
    let btf = Btf::kernel().unwrap();
    let pid = btf.offset("task_struct", "pid").unwrap();
    assert_eq!(btf.offset("task_struct", "tgid").unwrap(), pid + 4);
    assert_eq!(btf.size_of_member("task_struct", "tgid").unwrap(), 4);
    assert_eq!(btf.size_of_member("task_struct", "comm").unwrap(), 16);
    for path in [
        "thread_pid",
        "real_parent",
        "group_leader",
        "signal",
        "nsproxy",
    ] {
        let offset = btf.offset("task_struct", path).unwrap();
        assert!(offset > 0 && offset < btf.size_of("task_struct").unwrap());
    }
    let upid = btf.size_of("upid").unwrap();
    let numbers = btf.offset("pid", "numbers").unwrap();
    assert!(upid >= 16);
    assert_eq!(
        btf.offset("pid", "numbers.ns").unwrap(),
        numbers + btf.offset("upid", "ns").unwrap()
    );
    assert!(btf.offset("pid_namespace", "ns.inum").is_ok());
    assert!(!btf.has("task_struct", "no_such_member"));
}

/// Asks everything that could go wrong.
fn probe(data: Vec<u8>) {
    let Ok(btf) = Btf::parse(data) else {
        return;
    };
    for structure in ["pid", "upid", ""] {
        let _ = btf.size_of(structure);
        for path in ["count", "b", "numbers.ns", "numbers.nr.x", ""] {
            let _ = btf.offset(structure, path);
            let _ = btf.size_of_member(structure, path);
        }
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        probe(bytes.clone());
        bytes.splice(0..0, MAGIC.to_ne_bytes());
        probe(bytes);
    }

    #[test]
    fn damaged_files_never_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample().build();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        probe(bytes.clone());
        bytes.truncate(cut.index(bytes.len()));
        probe(bytes);
    }
}
