//! The tools that build the eBPF object, and where they are.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Error, Result, manifest::sha256};

/// The tools that build the object from source, and what they call themselves.
#[derive(Debug)]
pub struct Toolchain {
    pub rustc: Rustc,
    pub linker: PathBuf,
    /// `bpf-linker 0.13.0, LLVM 22.1.2-rust-1.95.0-stable`
    pub linker_version: String,
}

/// The active rustc.
#[derive(Debug)]
pub struct Rustc {
    /// `rustc 1.95.0 (59807616e 2026-04-14)`
    pub version: String,
    /// `1.95.0`
    pub release: String,
    /// `22.1.2`
    pub llvm: String,
    pub sysroot: PathBuf,
}

impl Rustc {
    /// Asks `$RUSTC`, else `rustc`.
    pub fn active() -> Result<Self> {
        let program = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let verbose = stdout(Command::new(&program).arg("-vV"))?;
        let sysroot = stdout(Command::new(&program).args(["--print", "sysroot"]))?;
        let field = |name: &str| {
            verbose
                .lines()
                .find_map(|l| l.strip_prefix(name))
                .unwrap_or_default()
                .to_owned()
        };
        Ok(Self {
            version: verbose.lines().next().unwrap_or_default().to_owned(),
            release: field("release: "),
            llvm: field("LLVM version: "),
            sysroot: sysroot.into(),
        })
    }

    /// Where `-Z build-std` looks for the source of the standard library.
    pub fn library_source(&self) -> PathBuf {
        self.sysroot.join("lib/rustlib/src/rust/library")
    }

    pub fn has_source(&self) -> bool {
        let library = self.library_source();
        library.join("core/src/lib.rs").is_file() && library.join("Cargo.lock").is_file()
    }

    /// Where `xtask setup` keeps tools that fit this rustc only: beside, not over, whatever the user
    /// has installed, and shared by every checkout. `None` without a home directory.
    pub fn tools(&self) -> Option<PathBuf> {
        let cache = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
            .or_else(|| env::home_dir().map(|h| h.join(".cache")))?;
        // Debian's rustc and rustup's have the same release and different libraries.
        let id = sha256(format!("{}\n{}", self.version, self.sysroot.display()).as_bytes());
        Some(
            cache
                .join("gputrace")
                .join(format!("rust-{}-{}", self.release, &id[..8])),
        )
    }
}

impl Toolchain {
    /// What is there; the error says what is missing.
    pub fn find() -> Result<Self> {
        let rustc = Rustc::active()?;
        if !rustc.has_source() {
            return Err(Error::NoRustSrc {
                sysroot: rustc.sysroot,
            });
        }
        let mut first_problem = None;
        for path in linker_candidates(&rustc) {
            match check_linker(&path, &rustc) {
                Ok(linker_version) => {
                    return Ok(Self {
                        rustc,
                        linker: path,
                        linker_version,
                    });
                }
                Err(error) => first_problem = first_problem.or(Some(error)),
            }
        }
        Err(first_problem.unwrap_or(Error::NoLinker))
    }
}

/// `$BPF_LINKER` alone if it is set; else the one that `xtask setup` installed, `$PATH`, cargo's.
fn linker_candidates(rustc: &Rustc) -> Vec<PathBuf> {
    if let Some(path) = env::var_os("BPF_LINKER") {
        return vec![path.into()];
    }
    let mut folders: Vec<PathBuf> = rustc.tools().map(|t| t.join("bin")).into_iter().collect();
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    folders.extend(cargo_home().map(|h| h.join("bin")));
    let mut found: Vec<PathBuf> = folders
        .into_iter()
        .map(|d| d.join("bpf-linker"))
        .filter(|p| p.is_file())
        .collect();
    found.dedup();
    found
}

/// Its name, version and LLVM, if it starts (a toolchain update takes away the LLVM that a linker was
/// linked against) and can read what this rustc writes.
fn check_linker(path: &Path, rustc: &Rustc) -> Result<String> {
    let broken = |reason: String| Error::BrokenLinker {
        path: path.to_owned(),
        reason,
    };
    let name = stdout(Command::new(path).arg("--version")).map_err(|e| broken(e.to_string()))?;
    // LLVM answers `--version` itself, before any input is opened.
    let nothing = Path::new("/nonexistent/gputrace");
    let about = stdout(
        Command::new(path)
            .arg("--llvm-args=--version")
            .arg("-o")
            .arg(nothing)
            .arg(nothing),
    )
    .map_err(|e| broken(e.to_string()))?;
    let llvm = about
        .split_once("LLVM version ")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .ok_or_else(|| broken("it does not tell its LLVM version".to_owned()))?;
    let major = |v: &str| v.split('.').next().and_then(|n| n.parse::<u32>().ok());
    if major(llvm) < major(&rustc.llvm) {
        return Err(Error::OldLinker {
            path: path.to_owned(),
            linker: llvm.to_owned(),
            rustc: rustc.llvm.clone(),
        });
    }
    Ok(format!("{name}, LLVM {llvm}"))
}

pub fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|h| h.join(".cargo")))
}

/// Runs a tool and returns what it printed.
fn stdout(command: &mut Command) -> Result<String> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            tool: tool.clone(),
            source,
        })?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        return Err(Error::Tool {
            tool,
            status: out.status,
            stderr,
        });
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
