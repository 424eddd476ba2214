//! The machine as the doctor sees it, and bounded reading of its small files.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::PathBuf,
    time::Duration,
};

use crate::sensors::{
    bpf::{BpfError, Trial},
    nvml::NvmlOptions,
};

/// Most bytes read of a file in /proc or /sys; the largest, a kernel's command line, has 4 KiB.
const MAX_FILE: u64 = 64 << 10;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Root of the file system; `/` but in tests.
    pub root: PathBuf,
    /// Copies of libcuda that the user named; none: all that are found.
    pub libcuda: Vec<PathBuf>,
    /// Whether copies of libcuda are loaded, in a child process, to ask them for addresses.
    pub deep: bool,
    /// How to ask NVML; `None`: not at all.
    pub nvml: Option<NvmlOptions>,
    /// Has the kernel check the eBPF programs.
    pub try_programs: fn() -> Result<Trial, BpfError>,
    /// Longest wait for any one answer.
    pub patience: Duration,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            libcuda: Vec::new(),
            deep: false,
            nvml: Some(NvmlOptions::default()),
            try_programs: Trial::run,
            // NVML alone can take seconds for each GPU where nothing keeps them initialised.
            patience: Duration::from_secs(15),
        }
    }
}

impl Machine {
    /// A path below the root; `path` has no leading slash.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The beginning of a small file, without blanks around it; what is no UTF-8 is replaced.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let path = self.path(path);
        // A pipe, say, would not answer.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Whether there is something at a path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
}
