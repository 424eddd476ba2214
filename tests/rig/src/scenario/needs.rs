//! What a scenario needs of the machine that it runs on.

use std::path::Path;

/// One thing that a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Probes on functions of user programs, and the right to set them.
    Uprobes,
    /// The runner has all rights, for example to start processes of other users.
    Root,
}

impl Need {
    /// Reads the name of a need.
    ///
    /// # Errors
    /// There is no such need; the message says which there are.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "uprobes" => Ok(Self::Uprobes),
            "root" => Ok(Self::Root),
            _ => Err(format!("\"{name}\" is no need: they are uprobes, root")),
        }
    }

    /// Why this machine does not offer it; `None` where it does.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Root if nix::unistd::geteuid().is_root() => None,
            Self::Root => Some("it needs root".to_owned()),
            // The kernel's own list of the kinds of probes that it has.
            Self::Uprobes if !Path::new("/sys/bus/event_source/devices/uprobe").exists() => {
                Some("this kernel has no uprobes".to_owned())
            }
            Self::Uprobes if may_probe(capabilities()) => None,
            Self::Uprobes if nix::unistd::geteuid().is_root() => Some(
                "setting uprobes needs CAP_BPF and CAP_PERFMON, which root lacks here".to_owned(),
            ),
            Self::Uprobes => Some("setting uprobes needs root".to_owned()),
        }
    }
}

/// The effective capabilities of this process, a bit each; none where they cannot be read.
fn capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// Whether they are enough to load programs and set probes: root in a container often has not.
fn may_probe(capabilities: u64) -> bool {
    // From linux/capability.h.
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON: u64 = 1 << 38;
    const BPF: u64 = 1 << 39;
    capabilities & SYS_ADMIN != 0 || capabilities & (PERFMON | BPF) == PERFMON | BPF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_container_may_not_probe() {
        // What container engines leave to root by default.
        assert!(!may_probe(0x0000_0000_a804_25fb));
        assert!(may_probe(0x0000_01ff_ffff_ffff));
        assert!(may_probe(1 << 38 | 1 << 39));
    }
}
