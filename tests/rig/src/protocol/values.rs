//! Values that stand in commands.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// How a function of the driver is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The exported symbol of `libcuda.so.1`, by dlsym(3).
    #[default]
    Driver,
    /// The pointer that `cuGetProcAddress_v2` gives.
    Procaddr,
    /// `libcudart.so`, which calls the driver in its turn. It uses the primary context.
    Runtime,
}

/// By which function a context is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextHow {
    /// `cuCtxCreate_v2`.
    #[default]
    V2,
    /// `cuCtxCreate_v3`.
    V3,
    /// `cuCtxCreate_v4`.
    V4,
    /// `cuGreenCtxCreate` and `cuCtxFromGreenCtx`.
    Green,
}

/// What is counted apart: the kinds of gputrace's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Memory of a device, also from a pool.
    Device,
    /// Managed memory.
    Managed,
    /// Arrays and mipmapped arrays.
    Array,
    /// Physical memory without an address.
    Vmm,
    /// Pinned host memory.
    PinnedHost,
    /// Addresses without memory.
    Addresses,
    /// Access to memory that is another process's.
    Alias,
    /// Modules and libraries.
    Module,
    /// Executable graphs.
    Graph,
    /// Pools.
    Pool,
}

impl Kind {
    /// Whether it is memory on a GPU; only that is in the sums over all kinds.
    pub fn is_gpu_memory(self) -> bool {
        matches!(self, Self::Device | Self::Managed | Self::Array | Self::Vmm)
    }
}

/// The results that a command allows; anything else makes it fail.
///
/// Written as a number, a list of numbers, or `"any"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Expect {
    /// This code alone.
    Code(i32),
    /// One of these.
    OneOf(Vec<i32>),
    /// Whatever it is.
    Any(Any),
}

/// The text `any`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Any {
    /// Every result is allowed.
    #[serde(rename = "any")]
    Any,
}

impl Default for Expect {
    fn default() -> Self {
        Self::Code(0)
    }
}

impl Expect {
    pub(super) fn invalid_value() -> Self {
        Self::Code(1)
    }

    /// Whether this result is allowed.
    pub fn allows(&self, code: i32) -> bool {
        match self {
            Self::Code(only) => *only == code,
            Self::OneOf(codes) => codes.contains(&code),
            Self::Any(Any::Any) => true,
        }
    }
}

/// A call site: one of the actor's exported functions `site_A` to `site_Z`, each of which calls the
/// driver directly. By default `site_A`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site(u8);

impl Site {
    /// How many there are.
    pub const COUNT: usize = 26;

    /// The site with this letter, `A` to `Z`; any other letter stands for `A`.
    pub fn named(letter: char) -> Self {
        u8::try_from(letter)
            .ok()
            .filter(u8::is_ascii_uppercase)
            .map_or(Self(0), |letter| Self(letter - b'A'))
    }

    /// 0 for `site_A` and so on; below [`Site::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::named('A')
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "site_{}", char::from(b'A' + self.0))
    }
}

impl Serialize for Site {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Site {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        match name.strip_prefix("site_").map(str::as_bytes) {
            Some(&[letter @ b'A'..=b'Z']) => Ok(Self(letter - b'A')),
            _ => Err(de::Error::custom(format!(
                "`{name}` is not a call site: they are site_A to site_Z"
            ))),
        }
    }
}
