//! Commands that load programs and give work to the device.

use super::command::one;
use super::{Expect, Site, Via};
use crate::units;
use serde::{Deserialize, Serialize};

/// By which function a module is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleHow {
    /// `cuModuleLoadData`.
    #[default]
    Data,
    /// `cuModuleLoadDataEx`.
    DataEx,
    /// `cuModuleLoadFatBinary`.
    Fatbin,
    /// `cuModuleLoad`.
    File,
    /// `cuLibraryLoadData`.
    Library,
    /// `cuLibraryLoadFromFile`.
    LibraryFile,
}

/// [`Command::ModuleLoad`](super::Command::ModuleLoad).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleLoad {
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// By which function.
    #[serde(default)]
    pub how: ModuleHow,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile that gets the modules.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// By which function a graph is made executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphHow {
    /// `cuGraphInstantiateWithFlags`.
    #[default]
    Flags,
    /// `cuGraphInstantiate_v2`.
    V2,
    /// `cuGraphInstantiateWithParams`.
    Params,
}

/// [`Command::GraphInstantiate`](super::Command::GraphInstantiate).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphInstantiate {
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// By which function.
    #[serde(default)]
    pub how: GraphHow,
    /// Bytes of a node that allocates and one that frees; 0: an empty graph.
    #[serde(default, with = "units::bytes")]
    pub memory: u64,
    /// The `_ptsz` form, where there is one.
    #[serde(default)]
    pub ptsz: bool,
    /// The function that calls the driver.
    #[serde(default)]
    pub site: Site,
    /// The pile that gets the executable graphs.
    #[serde(default)]
    pub label: String,
    /// How the function is reached.
    #[serde(default)]
    pub via: Via,
    /// Results that are allowed.
    #[serde(default)]
    pub expect: Expect,
}

/// By which function a kernel is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchHow {
    /// `cuLaunchKernel`.
    #[default]
    Kernel,
    /// `cuLaunchKernelEx`.
    Ex,
    /// `cuLaunchCooperativeKernel`.
    Cooperative,
}

/// [`Command::Launch`](super::Command::Launch).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// By which function.
    #[serde(default)]
    pub how: LaunchHow,
    /// The `_ptsz` form.
    #[serde(default)]
    pub ptsz: bool,
    /// The pile whose newest module has the kernel.
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

/// By which function memory is copied, filled or moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyHow {
    /// `cuMemcpyHtoD_v2`.
    #[default]
    ToDevice,
    /// `cuMemcpyHtoDAsync_v2`.
    ToDeviceAsync,
    /// `cuMemcpyDtoH_v2`.
    ToHost,
    /// `cuMemcpyDtoD_v2`.
    OnDevice,
    /// `cuMemsetD8_v2`.
    Set,
    /// `cuMemsetD8Async`.
    SetAsync,
    /// `cuMemPrefetchAsync`.
    Prefetch,
}

/// [`Command::Copy`](super::Command::Copy).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    /// Bytes of each.
    #[serde(default = "page", with = "units::bytes")]
    pub bytes: u64,
    /// How many calls.
    #[serde(default = "one")]
    pub count: u64,
    /// By which function.
    #[serde(default)]
    pub how: CopyHow,
    /// The `_ptsz` form, where there is one.
    #[serde(default)]
    pub ptsz: bool,
    /// The pile whose newest memory is the device's side.
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

/// By which function a thread waits for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SynchronizeHow {
    /// `cuCtxSynchronize`.
    #[default]
    Context,
    /// `cuStreamSynchronize`.
    Stream,
    /// `cuEventSynchronize`.
    Event,
}

fn page() -> u64 {
    4096
}
