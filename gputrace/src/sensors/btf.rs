//! Where the kernel keeps what: offsets of structure members, from the running kernel's own type
//! information (`/sys/kernel/btf/vmlinux`).
//!
//! The eBPF programs are built once for all kernels and are told the offsets when they are loaded.
//! The format is described in Documentation/bpf/btf.rst of the kernel's source. The reader believes
//! nothing: any file ends in an answer or an error.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::identity::escape_path;

/// Where kernels since 4.18 with `CONFIG_DEBUG_INFO_BTF` show theirs.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Largest file read; a distribution's kernel has 4 to 10 MB.
const MAX_FILE: u64 = 256 << 20;

/// Longest chain of typedefs and qualifiers followed, deepest nesting of anonymous members looked
/// into, longest dotted path. The kernel has single digits; only a cycle has more.
const MAX_DEPTH: u32 = 32;

/// Most members looked at for one step of a path. The kernel's largest structures have some
/// hundred; only anonymous members that contain each other have more.
const MAX_MEMBERS: u32 = 100_000;

const HEADER_LENGTH: usize = 24;
const MAGIC: u16 = 0xeb9f;

/// Kinds of types (`BTF_KIND_*` in include/uapi/linux/btf.h).
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// The kernel's type information gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read; without it the kernel was built without `CONFIG_DEBUG_INFO_BTF`.
    #[error("{}: {source}", escape_path(.path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// It is not BTF in this machine's byte order.
    #[error("not BTF of this machine's byte order")]
    NotBtf,
    /// It is damaged.
    #[error("damaged BTF: {what}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
    /// It uses a kind of type that is newer than this version of gputrace; what follows it cannot
    /// be read.
    #[error("BTF kind {kind} is not known")]
    UnknownKind {
        /// The number of the kind.
        kind: u32,
    },
    /// The kernel has no structure or union of that name.
    #[error("this kernel has no structure '{name}'")]
    NoType {
        /// The name.
        name: String,
    },
    /// The structure has no such member.
    #[error("this kernel's '{structure}' has no member '{path}'")]
    NoMember {
        /// The structure that was asked for.
        structure: String,
        /// The path that was asked for.
        path: String,
    },
    /// The member is a bit field, which has no offset in bytes.
    #[error("'{path}' of '{structure}' is a bit field")]
    BitField {
        /// The structure that was asked for.
        structure: String,
        /// The path that was asked for.
        path: String,
    },
}

const fn malformed(what: &'static str) -> BtfError {
    BtfError::Malformed { what }
}

/// The type information of one kernel.
#[derive(Debug)]
pub struct Btf {
    data: Vec<u8>,
    /// Where each type begins in `data`, by its number; number 0 is `void` and has no place.
    types: Vec<u32>,
    /// Where the names are in `data`.
    strings: std::ops::Range<usize>,
    /// Offset of the name and number of each structure and union that has a name.
    named: Vec<(u32, u32)>,
}

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the beginning of the structure that the look-up began in.
    pub offset: u32,
    /// Number of its type.
    type_id: u32,
}

impl Btf {
    /// Reads the type information of the running kernel.
    ///
    /// # Errors
    ///
    /// [`BtfError`] if there is none or it cannot be understood.
    pub fn kernel() -> Result<Self, BtfError> {
        Self::read(Path::new(KERNEL_BTF))
    }

    /// Reads type information from a file.
    ///
    /// # Errors
    ///
    /// [`BtfError`] if the file cannot be read or understood.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let mut data = Vec::new();
        File::open(path)
            .and_then(|file| {
                // The size is a hint: files in sysfs have one, others may lie.
                let size = file.metadata().map_or(0, |metadata| metadata.len());
                data.reserve_exact(usize::try_from(size.min(MAX_FILE)).unwrap_or(0) + 1);
                file.take(MAX_FILE).read_to_end(&mut data)
            })
            .map_err(|source| BtfError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
        Self::parse(data)
    }

    /// Takes the content of such a file.
    ///
    /// # Errors
    ///
    /// [`BtfError`] if it cannot be understood.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        if data.len() < HEADER_LENGTH || data[..2] != MAGIC.to_ne_bytes() {
            return Err(BtfError::NotBtf);
        }
        let header = |at| {
            let value = u32_at(&data, at).ok_or(malformed("the header is cut"))?;
            usize::try_from(value).map_err(|_| malformed("an offset is too large"))
        };
        let header_length = header(4)?;
        let section = |offset: usize, length: usize| {
            let start = header_length.checked_add(offset);
            let end = start.and_then(|start| start.checked_add(length));
            match (start, end) {
                (Some(start), Some(end)) if end <= data.len() => Ok(start..end),
                _ => Err(malformed("a section lies outside of the file")),
            }
        };
        let types = section(header(8)?, header(12)?)?;
        let strings = section(header(16)?, header(20)?)?;
        let mut btf = Self {
            // A type of the kernel has 28 bytes on average.
            types: Vec::with_capacity(types.len() / 24 + 1),
            named: Vec::new(),
            strings,
            data,
        };
        btf.index(types)?;
        Ok(btf)
    }

    /// Walks over all types and notes where each begins.
    fn index(&mut self, section: std::ops::Range<usize>) -> Result<(), BtfError> {
        // `void` is nowhere; nothing looks at this place.
        self.types.push(0);
        let mut at = section.start;
        while at < section.end {
            let number =
                u32::try_from(self.types.len()).map_err(|_| malformed("too many types"))?;
            let place = u32::try_from(at).map_err(|_| malformed("the file is too large"))?;
            self.types.push(place);
            let entry = Type::at(&self.data, at)?;
            at += entry.length()?;
            if at > section.end {
                return Err(malformed("the last type is cut"));
            }
            if entry.is_structure() && entry.name != 0 {
                self.named.push((entry.name, number));
            }
        }
        Ok(())
    }

    /// Bytes from the beginning of `structure` to the member at `path`, as `"tgid"`,
    /// `"signal.pids"` or `"ns.inum"`: dots lead into structures within structures (never through
    /// pointers), members of anonymous structures and unions are found as in C, and an array leads
    /// to its first element, whose members may follow.
    ///
    /// # Errors
    ///
    /// [`BtfError`] if this kernel does not have them.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u32, BtfError> {
        Ok(self.member(structure, path)?.offset)
    }

    /// Size in bytes of a structure or union.
    ///
    /// # Errors
    ///
    /// [`BtfError`] if this kernel does not have it.
    pub fn size_of(&self, structure: &str) -> Result<u32, BtfError> {
        Ok(self.get(self.find(structure)?)?.size_or_type)
    }

    /// Size in bytes of the member at `path` (of an array: of all of it).
    ///
    /// # Errors
    ///
    /// [`BtfError`] if this kernel does not have it.
    pub fn size_of_member(&self, structure: &str, path: &str) -> Result<u32, BtfError> {
        let mut id = self.member(structure, path)?.type_id;
        let mut count = 1u32;
        for _ in 0..MAX_DEPTH {
            id = self.bare(id)?;
            let entry = self.get(id)?;
            let size = match entry.kind {
                kind::ARRAY => {
                    let (element, elements) = entry.array(&self.data)?;
                    count = count
                        .checked_mul(elements)
                        .ok_or(malformed("an array is too large"))?;
                    id = element;
                    continue;
                }
                kind::PTR => 8,
                kind::INT
                | kind::STRUCT
                | kind::UNION
                | kind::ENUM
                | kind::ENUM64
                | kind::FLOAT => entry.size_or_type,
                _ => return Err(malformed("a member has no size")),
            };
            return size
                .checked_mul(count)
                .ok_or(malformed("an array is too large"));
        }
        Err(malformed("arrays are nested too deeply"))
    }

    /// Whether the member at `path` is there; for what differs between kernels.
    pub fn has(&self, structure: &str, path: &str) -> bool {
        self.member(structure, path).is_ok()
    }

    fn member(&self, structure: &str, path: &str) -> Result<Member, BtfError> {
        let missing = || BtfError::NoMember {
            structure: structure.to_owned(),
            path: path.to_owned(),
        };
        let mut id = self.find(structure)?;
        let mut bits = 0u64;
        for (depth, part) in path.split('.').enumerate() {
            if depth >= MAX_DEPTH as usize {
                return Err(missing());
            }
            let within = self.element(id)?;
            let mut budget = MAX_MEMBERS;
            let (inside, type_id) = self
                .member_of(within, part, MAX_DEPTH, &mut budget)?
                .ok_or_else(missing)?;
            bits += inside;
            id = type_id;
        }
        if !bits.is_multiple_of(8) {
            return Err(BtfError::BitField {
                structure: structure.to_owned(),
                path: path.to_owned(),
            });
        }
        Ok(Member {
            offset: u32::try_from(bits / 8).map_err(|_| malformed("an offset is too large"))?,
            type_id: id,
        })
    }

    /// The offset in bits and the type of a member, looked for also in anonymous members.
    fn member_of(
        &self,
        structure: u32,
        name: &str,
        depth: u32,
        budget: &mut u32,
    ) -> Result<Option<(u64, u32)>, BtfError> {
        let entry = self.get(structure)?;
        if !entry.is_structure() {
            return Ok(None);
        }
        let depth = depth
            .checked_sub(1)
            .ok_or(malformed("members are nested too deeply"))?;
        *budget = budget
            .checked_sub(entry.members)
            .ok_or(malformed("a structure has too many members"))?;
        for index in 0..entry.members {
            let member = entry.at + 12 + 12 * index as usize;
            let field = |at| u32_at(&self.data, member + at).ok_or(malformed("a type is cut"));
            let (name_offset, type_id, position) = (field(0)?, field(4)?, field(8)?);
            // With the flag, the upper 8 bits are the width of a bit field.
            let bits = u64::from(if entry.flag {
                position & 0x00ff_ffff
            } else {
                position
            });
            if name_offset == 0 {
                let anonymous = self.bare(type_id)?;
                if let Some((inside, type_id)) = self.member_of(anonymous, name, depth, budget)? {
                    return Ok(Some((bits + inside, type_id)));
                }
            } else if self.name_is(name_offset, name) {
                return Ok(Some((bits, type_id)));
            }
        }
        Ok(None)
    }

    /// The number of the first structure or union called `name`.
    fn find(&self, name: &str) -> Result<u32, BtfError> {
        self.named
            .iter()
            .find(|(offset, _)| self.name_is(*offset, name))
            .map(|&(_, id)| id)
            .ok_or_else(|| BtfError::NoType {
                name: name.to_owned(),
            })
    }

    /// Whether the string at `offset` is `name`.
    fn name_is(&self, offset: u32, name: &str) -> bool {
        let strings = &self.data[self.strings.clone()];
        usize::try_from(offset)
            .ok()
            .and_then(|offset| strings.get(offset..))
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    fn get(&self, id: u32) -> Result<Type, BtfError> {
        if id == 0 {
            return Ok(Type::VOID);
        }
        let at = usize::try_from(id)
            .ok()
            .and_then(|id| self.types.get(id))
            .ok_or(malformed("a type's number is out of range"))?;
        Type::at(&self.data, *at as usize)
    }

    /// The type behind typedefs, qualifiers and tags.
    fn bare(&self, mut id: u32) -> Result<u32, BtfError> {
        for _ in 0..MAX_DEPTH {
            let entry = self.get(id)?;
            match entry.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = entry.size_or_type;
                }
                _ => return Ok(id),
            }
        }
        Err(malformed("a chain of types does not end"))
    }

    /// As [`Btf::bare`], and of arrays the type of the elements.
    fn element(&self, mut id: u32) -> Result<u32, BtfError> {
        for _ in 0..MAX_DEPTH {
            id = self.bare(id)?;
            let entry = self.get(id)?;
            if entry.kind != kind::ARRAY {
                return Ok(id);
            }
            id = entry.array(&self.data)?.0;
        }
        Err(malformed("arrays are nested too deeply"))
    }
}

/// The fixed part of a type (`struct btf_type`).
#[derive(Clone, Copy, Debug)]
struct Type {
    at: usize,
    /// Offset of the name; 0 if it has none.
    name: u32,
    kind: u32,
    /// How many entries follow (`vlen`).
    members: u32,
    flag: bool,
    size_or_type: u32,
}

impl Type {
    const VOID: Self = Self {
        at: 0,
        name: 0,
        kind: 0,
        members: 0,
        flag: false,
        size_or_type: 0,
    };

    fn at(data: &[u8], at: usize) -> Result<Self, BtfError> {
        let field = |offset: usize| u32_at(data, at + offset).ok_or(malformed("a type is cut"));
        let info = field(4)?;
        Ok(Self {
            at,
            name: field(0)?,
            kind: (info >> 24) & 0x1f,
            members: info & 0xffff,
            flag: info >> 31 != 0,
            size_or_type: field(8)?,
        })
    }

    fn is_structure(&self) -> bool {
        matches!(self.kind, kind::STRUCT | kind::UNION)
    }

    /// Bytes up to the next type.
    fn length(&self) -> Result<usize, BtfError> {
        let members = self.members as usize;
        let tail = match self.kind {
            kind::PTR
            | kind::FWD
            | kind::TYPEDEF
            | kind::VOLATILE
            | kind::CONST
            | kind::RESTRICT
            | kind::FUNC
            | kind::FLOAT
            | kind::TYPE_TAG => 0,
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::ENUM | kind::FUNC_PROTO => 8 * members,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * members,
            kind => return Err(BtfError::UnknownKind { kind }),
        };
        Ok(12 + tail)
    }

    /// The type of the elements and their number.
    fn array(&self, data: &[u8]) -> Result<(u32, u32), BtfError> {
        let field = |offset| u32_at(data, self.at + 12 + offset).ok_or(malformed("a type is cut"));
        Ok((field(0)?, field(8)?))
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests;
