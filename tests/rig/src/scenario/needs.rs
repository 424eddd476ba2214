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
        let root = nix::unistd::geteuid().is_root();
        match self {
            Self::Root if root => None,
            Self::Root => Some("it needs root".to_owned()),
            Self::Uprobes if !root => Some("setting uprobes needs root".to_owned()),
            // The kernel's own list of the kinds of probes that it has.
            Self::Uprobes if !Path::new("/sys/bus/event_source/devices/uprobe").exists() => {
                Some("this kernel has no uprobes".to_owned())
            }
            Self::Uprobes => None,
        }
    }
}
