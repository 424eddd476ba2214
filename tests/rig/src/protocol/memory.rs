//! Commands that give or take memory.

use super::command::{is_zero, one};
use super::{Expect, Site, Via};
use crate::units;
use serde::{Deserialize, Serialize};

/// What kind of memory is allocated, and with it by which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocKind {
    /// `cuMemAlloc_v2`.
    #[default]
    Device,
    /// `cuMemAllocPitch_v2`.
    Pitch,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemAllocAsync`, from the device's current pool.
    Async,
    /// `cuMemAllocFromPoolAsync`.
    Pool,
    /// `cuMemHostAlloc`.
    Host,
    /// `cuMemAllocHost_v2`.
    HostV2,
    /// `cuMemHostRegister_v2`, of memory that the process maps for it.
    Register,
    /// `cuArrayCreate_v2`.
    Array,
    /// `cuArray3DCreate_v2`.
    Array3d,
    /// `cuMipmappedArrayCreate`.
    Mipmap,
}

/// [`Command::Alloc`](super::Command::Alloc): allocation calls of one size from one call site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alloc {
    /// Bytes of each.
    #[serde(with = "units::bytes")]
    pub bytes: u64,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// What kind of memory.
    #[serde(default)]
    pub kind: AllocKind,
    /// The `_ptsz` form, where there is one.
    #[serde(default)]
    pub ptsz: bool,
    /// The pool for the kind [`AllocKind::Pool`].
    #[serde(default)]
    pub pool: String,
    /// Bytes of a row for the kind [`AllocKind::Pitch`]; 0: a power of two, so that rows need no
    /// padding.
    #[serde(default, with = "units::bytes", skip_serializing_if = "is_zero")]
    pub width: u64,
    /// Levels for the kind [`AllocKind::Mipmap`]; `bytes` are those of the first.
    #[serde(default = "one_level")]
    pub levels: u32,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile on which the allocations are put; without a label, the unnamed one.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::VmmCreate`](super::Command::VmmCreate).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmmCreate {
    /// Bytes of each handle's memory.
    #[serde(with = "units::bytes")]
    pub bytes: u64,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// Index of the device.
    #[serde(default)]
    pub device: i32,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile that gets the handles.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::VmmRetain`](super::Command::VmmRetain).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmmRetain {
    /// The pile of the addresses whose newest mapping is asked for.
    #[serde(default)]
    pub range: String,
    /// The pile that gets the handle.
    #[serde(default)]
    pub label: String,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::Reserve`](super::Command::Reserve).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Bytes of addresses of each.
    #[serde(with = "units::bytes")]
    pub bytes: u64,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile that gets the addresses.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::Map`](super::Command::Map): maps handles, the newest first, behind each other into the
/// newest addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// The pile of the handles.
    #[serde(default)]
    pub label: String,
    /// The pile of the addresses.
    #[serde(default)]
    pub range: String,
    /// How many handles.
    #[serde(default = "one")]
    pub count: u64,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// How the functions are reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed, of the mapping.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::Unmap`](super::Command::Unmap).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unmap {
    /// The pile of the addresses.
    #[serde(default)]
    pub range: String,
    /// How many mappings, the newest first; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// All mappings in the newest addresses, by one call.
    #[serde(default)]
    pub whole: bool,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// Lets other processes have what a pile holds: [`Command::VmmExport`](super::Command::VmmExport),
/// [`Command::IpcExport`](super::Command::IpcExport).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The pile, and the name under which others find it.
    #[serde(default)]
    pub label: String,
    /// How many of the pile, the oldest first; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::VmmImport`](super::Command::VmmImport).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmmImport {
    /// The process that has exported.
    pub process: String,
    /// Its label.
    #[serde(default)]
    pub of: String,
    /// How many, the oldest first; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The pile that gets the handles.
    #[serde(default)]
    pub label: String,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::IpcOpen`](super::Command::IpcOpen): as [`VmmImport`].
pub type IpcOpen = VmmImport;

/// [`Command::PoolExport`](super::Command::PoolExport): a pool and memory from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolExport {
    /// Name of the pool, and the name under which others find it.
    #[serde(default)]
    pub label: String,
    /// The pile of the memory from it.
    #[serde(default)]
    pub memory: String,
    /// How the functions are reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// [`Command::PoolImport`](super::Command::PoolImport): as [`VmmImport`]. The label is that of the
/// pool and of the memory.
pub type PoolImport = VmmImport;

/// [`Command::ExternalImport`](super::Command::ExternalImport): as [`VmmImport`]. The label is that
/// of the external memory and of the memory that is mapped of it.
pub type ExternalImport = VmmImport;

/// [`Command::PoolCreate`](super::Command::PoolCreate).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Index of the device.
    #[serde(default)]
    pub device: i32,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// Name of the pool.
    #[serde(default)]
    pub label: String,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

fn one_level() -> u32 {
    1
}
