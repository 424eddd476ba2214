//! The rig's folder and its settings, `rig.toml`.
//!
//! Every process of a rig finds the folder in the environment variable [`RIG`]. The scenario runner
//! writes `rig.toml` before it starts anything; the fakes only read it.

pub use crate::faults::Faults;
use crate::units;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Environment variable with the path of the rig's folder.
pub const RIG: &str = "GPUTRACE_RIG";

/// The largest number of GPUs in a rig.
pub const MAX_GPUS: usize = 8;

/// Why a rig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The environment does not name a rig.
    #[error("the environment variable {RIG} is not set")]
    NoRig,
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The settings are not valid.
    #[error("{path}: {message}")]
    Settings {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// The folder that all parts of one rig share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rig(PathBuf);

impl Rig {
    /// The rig in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The rig that the environment names.
    pub fn from_environment() -> Result<Self, ConfigError> {
        match std::env::var_os(RIG) {
            Some(folder) if !folder.is_empty() => Ok(Self::new(folder)),
            _ => Err(ConfigError::NoRig),
        }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// `rig.toml`.
    pub fn settings(&self) -> PathBuf {
        self.0.join("rig.toml")
    }

    /// The file behind the shared device state.
    pub fn devices(&self) -> PathBuf {
        self.0.join("devices")
    }

    /// The folder of the client files, the rig's stand-in for open device files.
    pub fn clients(&self) -> PathBuf {
        self.0.join("clients")
    }

    /// The folder with `libcuda.so.1`, `libcudart.so` and `libnvidia-ml.so.1`.
    pub fn libraries(&self) -> PathBuf {
        self.0.join("lib")
    }

    /// The socket on which the runner listens for actors.
    pub fn control(&self) -> PathBuf {
        self.0.join("control")
    }

    /// Reads and checks `rig.toml`.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let path = self.settings();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::File { path, source }),
        };
        let config: Config = match toml::from_str(&text) {
            Ok(config) => config,
            Err(error) => {
                return Err(ConfigError::Settings {
                    path,
                    message: error.to_string(),
                });
            }
        };
        match config.check() {
            Ok(()) => Ok(config),
            Err(message) => Err(ConfigError::Settings { path, message }),
        }
    }

    /// Writes `rig.toml`, after the same checks that [`Rig::load`] makes.
    pub fn store(&self, config: &Config) -> Result<(), ConfigError> {
        let path = self.settings();
        let settings = |message| ConfigError::Settings {
            path: path.clone(),
            message,
        };
        config.check().map_err(settings)?;
        let text = toml::to_string(config).map_err(|error| settings(error.to_string()))?;
        std::fs::write(&path, text).map_err(|source| ConfigError::File { path, source })
    }
}

/// The settings of a rig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The GPUs, in the order of their index; 1 to [`MAX_GPUS`] of them.
    pub gpu: Vec<Gpu>,
    /// What is charged without an allocation call.
    #[serde(default)]
    pub costs: Costs,
    /// What goes wrong from the start in every process; see [`Faults`].
    #[serde(default)]
    pub faults: Faults,
}

/// One simulated GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Marketing name.
    #[serde(default = "Gpu::default_name")]
    pub name: String,
    /// `GPU-` and 8-4-4-4-12 hexadecimal digits; derived from the index where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Bytes of memory on the device.
    #[serde(with = "units::bytes")]
    pub total: u64,
    /// Bytes that the driver keeps for itself; no process can have them.
    #[serde(default, with = "units::bytes")]
    pub reserved: u64,
}

impl Gpu {
    fn default_name() -> String {
        "Fake H100".to_owned()
    }

    /// The UUID of this GPU at this index.
    pub fn uuid(&self, index: usize) -> String {
        self.uuid
            .clone()
            .unwrap_or_else(|| format!("GPU-67707574-7261-6365-0000-{index:012x}"))
    }

    /// The 16 bytes of the UUID, as `cuDeviceGetUuid` gives them; None where it is malformed.
    pub fn uuid_bytes(&self, index: usize) -> Option<[u8; 16]> {
        let uuid = self.uuid(index);
        let digits: Vec<u8> = uuid
            .strip_prefix("GPU-")?
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
            .collect::<Option<_>>()?;
        let mut bytes = [0; 16];
        if digits.len() != 32 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Some(bytes)
    }
}

/// Device memory that is charged without an allocation call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Bytes for each context.
    #[serde(with = "units::bytes")]
    pub context: u64,
    /// Bytes for each module and each library of device code that is loaded.
    #[serde(with = "units::bytes")]
    pub module: u64,
    /// Bytes for each executable graph.
    #[serde(with = "units::bytes")]
    pub graph: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            context: 300 << 20,
            module: 2 << 20,
            graph: 0,
        }
    }
}

impl Config {
    /// A rig with this many GPUs of this size, everything else by default.
    pub fn with_gpus(count: usize, total: u64) -> Self {
        let gpu = Gpu {
            name: Gpu::default_name(),
            uuid: None,
            total,
            reserved: 0,
        };
        Self {
            gpu: vec![gpu; count],
            costs: Costs::default(),
            faults: Faults::default(),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.gpu.is_empty() || self.gpu.len() > MAX_GPUS {
            return Err(format!(
                "a rig has 1 to {MAX_GPUS} [[gpu]], not {}",
                self.gpu.len()
            ));
        }
        for (index, gpu) in self.gpu.iter().enumerate() {
            if gpu.reserved > gpu.total {
                return Err(format!("gpu {index}: reserved is more than total"));
            }
            if gpu.uuid_bytes(index).is_none() {
                return Err(format!(
                    "gpu {index}: `{}` is not a GPU UUID",
                    gpu.uuid(index)
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let rig = Rig::new(folder.path());
        let config = Config::with_gpus(2, 16 << 30);
        rig.store(&config).unwrap();
        assert_eq!(rig.load().unwrap(), config);
    }

    #[test]
    fn settings_may_use_units_and_defaults() {
        let config: Config = toml::from_str("[[gpu]]\ntotal = \"16 GiB\"\n").unwrap();
        assert_eq!(config.gpu[0].total, 16 << 30);
        assert_eq!(config.costs.context, 300 << 20);
        assert_eq!(config.gpu[0].uuid_bytes(3).unwrap()[15], 3);
    }

    #[test]
    fn a_wrong_setting_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let rig = Rig::new(folder.path());
        std::fs::write(rig.settings(), "[[gpu]]\ntotal = 1\nuuid = \"GPU-1\"\n").unwrap();
        assert!(matches!(rig.load(), Err(ConfigError::Settings { .. })));
        std::fs::write(rig.settings(), "[[gpu]]\ntotal = 1\nspeed = 1\n").unwrap();
        assert!(matches!(rig.load(), Err(ConfigError::Settings { .. })));
    }
}
