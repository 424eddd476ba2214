//! The rig's folder: settings, libraries, socket, and what the programs write.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError, Rig};

/// The programs and libraries that a run needs, as built.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The command under test.
    pub gputrace: PathBuf,
    /// The program that plays the processes.
    pub actor: PathBuf,
    /// The fake driver library.
    pub libcuda: PathBuf,
    /// The fake runtime library.
    pub libcudart: PathBuf,
    /// The fake management library.
    pub libnvml: PathBuf,
}

impl Paths {
    /// Where cargo puts them in a folder such as `target/debug`.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            gputrace: folder.join("gputrace"),
            actor: folder.join("actor"),
            libcuda: folder.join("libcuda.so"),
            libcudart: folder.join("libcudart.so"),
            libnvml: folder.join("libnvidia_ml.so"),
        }
    }

    /// The first file that is not there.
    #[must_use]
    pub fn missing(&self) -> Option<&Path> {
        [
            &self.gputrace,
            &self.actor,
            &self.libcuda,
            &self.libcudart,
            &self.libnvml,
        ]
        .into_iter()
        .find(|path| !path.is_file())
        .map(PathBuf::as_path)
    }
}

/// Why the rig's folder cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A file or folder cannot be made.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The settings cannot be written.
    #[error(transparent)]
    Settings(#[from] ConfigError),
}

/// The folder of one run.
#[derive(Debug)]
pub struct Layout {
    folder: tempfile::TempDir,
    rig: Rig,
}

impl Layout {
    /// Makes the folder and everything in it that must be there before a process starts.
    ///
    /// The libraries are copies: a probe is set on a file, so runs at the same time, and whoever
    /// else uses the built libraries, do not disturb each other.
    ///
    /// # Errors
    /// A file cannot be made, or the settings are not valid.
    pub fn new(parent: &Path, config: &Config, paths: &Paths) -> Result<Self, LayoutError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| LayoutError::File { path, source }
        };
        let folder = tempfile::Builder::new()
            .prefix("gputrace-rig-")
            .tempdir_in(parent)
            .map_err(at(parent))?;
        let rig = Rig::new(folder.path());
        // Processes of other users join the rig as well.
        let everyone = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(), everyone.clone()).map_err(at(folder.path()))?;
        for path in [rig.libraries(), rig.clients()] {
            fs::create_dir(&path).map_err(at(&path))?;
            fs::set_permissions(&path, everyone.clone()).map_err(at(&path))?;
        }
        rig.store(config)?;
        let layout = Self { folder, rig };
        let copies = [
            (&paths.libcuda, layout.libcuda()),
            (
                &paths.libcudart,
                layout.rig.libraries().join("libcudart.so"),
            ),
            (&paths.libnvml, layout.libnvml()),
        ];
        for (from, to) in copies {
            fs::copy(from, &to).map_err(at(from))?;
        }
        Ok(layout)
    }

    /// The rig.
    #[must_use]
    pub fn rig(&self) -> &Rig {
        &self.rig
    }

    /// The fake driver library of this run.
    #[must_use]
    pub fn libcuda(&self) -> PathBuf {
        self.rig.libraries().join("libcuda.so.1")
    }

    /// The fake management library of this run.
    #[must_use]
    pub fn libnvml(&self) -> PathBuf {
        self.rig.libraries().join("libnvidia-ml.so.1")
    }

    /// A file of the run's own.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Leaves the folder where it is, and says where.
    pub fn keep(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }
}
