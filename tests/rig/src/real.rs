//! What tests use that is not this project's own: NVIDIA's driver libraries and other people's CUDA
//! clients. `cargo xtask setup` fetches them into a folder below cargo's target folder; none of it is
//! part of the repository. Where one could not be had, the reason lies there in its place, and the
//! tests that need it are skipped with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Environment variable with the path of the folder, for tests of programs built elsewhere.
pub const REAL: &str = "GPUTRACE_TEST_REAL";

/// The branches of NVIDIA's driver whose libcuda is tested.
pub const BRANCHES: [&str; 3] = ["470", "535", "550"];

/// The folder with all of it.
#[derive(Debug, Clone)]
pub struct Real(PathBuf);

impl Real {
    /// The folder that the environment names, or else that of this target folder.
    pub fn of(target: &Path) -> Self {
        match std::env::var_os(REAL) {
            Some(folder) if !folder.is_empty() => Self(folder.into()),
            _ => Self(target.join("real")),
        }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Where libcuda of a branch belongs; its own name is that of the driver's version.
    pub fn libcuda(&self, branch: &str) -> PathBuf {
        self.0
            .join(format!("libcuda-{branch}"))
            .join("libcuda.so.1")
    }

    /// The interpreter of the virtual environment with NVIDIA's `cuda-bindings`.
    pub fn python(&self) -> PathBuf {
        self.0.join("python/bin/python3")
    }

    /// The program of `tests/clients/cudarc`, which its test builds.
    pub fn cudarc(&self) -> PathBuf {
        self.0.join("cudarc/release/cudarc-client")
    }

    /// The file, or why it is not there.
    ///
    /// # Errors
    /// The reason that set-up left, or that it was not run.
    pub fn have(&self, file: PathBuf) -> Result<PathBuf, String> {
        if file.is_file() {
            return Ok(file);
        }
        Err(self.why_not(&file))
    }

    /// Why a file is not there.
    pub fn why_not(&self, file: &Path) -> String {
        let reason = fs::read_to_string(self.reason(file)).unwrap_or_default();
        // A test's result is one line.
        let reason = reason.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        match reason.as_str() {
            "" => "not fetched: cargo xtask setup".to_owned(),
            reason => format!("cargo xtask setup could not fetch it: {reason}"),
        }
    }

    /// Leaves the reason why a file is not there, or removes an older one.
    ///
    /// # Errors
    /// The system's.
    pub fn note(&self, file: &Path, reason: Option<&str>) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let note = self.reason(file);
        match reason {
            Some(reason) => fs::write(note, reason),
            None => match fs::remove_file(note) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Beside the part's folder, which may not exist.
    fn reason(&self, file: &Path) -> PathBuf {
        let part = file.strip_prefix(&self.0).unwrap_or(file);
        let mut name = part.iter().next().unwrap_or_default().to_owned();
        name.push(".reason");
        self.0.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_part_has_the_reason_that_was_left() {
        let folder = tempfile::tempdir().unwrap();
        let real = Real(folder.path().join("real"));
        let file = real.libcuda("470");
        assert!(real.have(file.clone()).unwrap_err().contains("setup"));
        real.note(&file, Some("apt-get:\n    no network\n"))
            .unwrap();
        let reason = real.have(file.clone()).unwrap_err();
        assert!(reason.ends_with("it: apt-get:; no network"), "{reason}");
        real.note(&file, None).unwrap();
        real.note(&file, None).unwrap();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(real.have(file.clone()), Ok(file));
    }
}
