//! How the eBPF object is built, stripped and described. Shared by `gputrace/build.rs` and `xtask`
//! (which includes this file by path); it lies in this crate so that a packaged crate has it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sha2::{Digest as _, Sha256};

/// Flags of the eBPF build that decide the object's bytes; part of the sources' digest.
/// BTF is generated from the debug information, which is stripped afterwards.
const FLAGS: [&str; 3] = ["-Cdebuginfo=2", "-Clink-arg=--btf", "-Cpanic=abort"];

/// The profile, likewise. Set for the child cargo by environment, so that neither the workspace's
/// release profile nor one in the user's cargo configuration changes the object.
const PROFILE: [(&str, &str); 8] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "2"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_STRIP", "none"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false"),
];

/// Why there is no eBPF object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A tool could not be started.
    #[error("cannot start {tool}: {source}")]
    Start { tool: String, source: io::Error },
    /// A tool ended with an error.
    #[error("{tool}: {status}{}{stderr}", if stderr.is_empty() { "" } else { ": " })]
    Tool {
        tool: String,
        status: std::process::ExitStatus,
        stderr: String,
    },
    /// rustc has no source of `core` for a target without a shipped one.
    #[error("rust-src is not installed for the active toolchain ({})", sysroot.display())]
    NoRustSrc { sysroot: PathBuf },
    /// No bpf-linker anywhere.
    #[error("bpf-linker is not installed")]
    NoLinker,
    /// There is a bpf-linker, and it does not start or says nothing of its LLVM.
    #[error("{} does not work: {reason}", path.display())]
    BrokenLinker { path: PathBuf, reason: String },
    /// The linker could not read what rustc writes.
    #[error("{} has LLVM {linker}, older than rustc's LLVM {rustc}", path.display())]
    OldLinker {
        path: PathBuf,
        linker: String,
        rustc: String,
    },
    /// The linker's output is not what we expect.
    #[error("eBPF object: {0}")]
    Object(#[from] object::build::Error),
    /// The manifest beside the checked-in object lacks a key.
    #[error("{}: no `{key}`", path.display())]
    Manifest { path: PathBuf, key: &'static str },
}

type Result<T> = std::result::Result<T, Error>;

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

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
        let id = hex(&Sha256::digest(format!(
            "{}\n{}",
            self.version,
            self.sysroot.display()
        )));
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

/// Where the eBPF programs' crate lies, if this crate is in its workspace (a packaged one is not).
pub fn sources(workspace: &Path) -> Option<PathBuf> {
    let path = workspace.join("gputrace-ebpf");
    (path.join("Cargo.toml").is_file() && workspace.join("Cargo.lock").is_file()).then_some(path)
}

/// Builds the object from source in `target_dir` (one for all profiles) and returns it, stripped.
/// The same rustc and bpf-linker give the same bytes wherever the workspace, the cargo home and the
/// toolchain lie.
pub fn build(
    toolchain: &Toolchain,
    workspace: &Path,
    target_dir: &Path,
    arch: &str,
) -> Result<Vec<u8>> {
    // One build at a time from start to copy: the outer cargo's own lock is per profile.
    let file_error = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    fs::create_dir_all(target_dir).map_err(file_error(target_dir))?;
    let lock_path = target_dir.join(".gputrace-lock");
    let lock = fs::File::create(&lock_path).map_err(file_error(&lock_path))?;
    lock.lock().map_err(file_error(&lock_path))?;

    let status = cargo(toolchain, workspace, target_dir, arch, "build")
        // A build script's stdout is for the outer cargo.
        .stdout(Stdio::null())
        .status()
        .map_err(|source| Error::Start {
            tool: "cargo".to_owned(),
            source,
        })?;
    if !status.success() {
        return Err(Error::Tool {
            tool: "cargo build of the eBPF programs".to_owned(),
            status,
            stderr: String::new(),
        });
    }
    strip(&read(
        &target_dir.join("bpfel-unknown-none/release/gputrace-ebpf"),
    )?)
}

/// A cargo that does `subcommand` on the eBPF programs, for their own target.
pub fn cargo(
    toolchain: &Toolchain,
    workspace: &Path,
    target_dir: &Path,
    arch: &str,
    subcommand: &str,
) -> Command {
    let mut flags: Vec<String> = FLAGS.iter().map(|&f| f.to_owned()).collect();
    flags.push(format!("--cfg=bpf_target_arch=\"{arch}\""));
    let rust = toolchain.rustc.sysroot.join("lib/rustlib/src/rust");
    let mut remap = vec![(workspace.to_owned(), "/gputrace"), (rust, "/rust")];
    // A mirror's crates lie in a folder named after the mirror. This crate's own build has put some
    // there, so the folder is known before the first build of the eBPF programs.
    if let Some(home) = cargo_home()
        && let Ok(registries) = fs::read_dir(home.join("registry/src"))
    {
        remap.extend(registries.flatten().map(|r| (r.path(), "/crates")));
    }
    flags.extend(
        remap
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())),
    );

    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace);
    // What the outer cargo, clippy, a coverage tool or the user set for the host's build is not
    // meant for this one. What says how to fetch crates stays.
    const OTHERS: [&str; 4] = ["CARGO_", "RUST", "CLIPPY_", "AYA_"];
    const KEPT: [&str; 9] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_MAKEFLAGS",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
        "RUSTUP_",
        "RUSTC=",
    ];
    for (name, _) in env::vars_os() {
        let text = format!("{}=", name.to_string_lossy());
        let starts_with = |list: &[&str]| list.iter().any(|prefix| text.starts_with(prefix));
        if starts_with(&OTHERS) && !starts_with(&KEPT) {
            cargo.env_remove(name);
        }
    }
    cargo
        .arg(subcommand)
        .args([
            "--package=gputrace-ebpf",
            "--bin=gputrace-ebpf",
            "--features=programs",
        ])
        .args([
            "--release",
            "--locked",
            "-Zbuild-std=core",
            "--target=bpfel-unknown-none",
        ])
        .arg("--target-dir")
        .arg(target_dir)
        // For -Zbuild-std on a stable toolchain: in this child only.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        .env("CARGO_INCREMENTAL", "0")
        // Empty: no wrapper, not even one from a configuration file.
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "")
        .envs(PROFILE)
        .stdin(Stdio::null());
    cargo
}

/// Takes DWARF out and leaves BTF in, which is what the kernel and the loader read. BTF's own
/// relocations are for linkers.
fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut elf = object::build::elf::Builder::read(object)?;
    for section in &mut elf.sections {
        let name = section.name.as_slice();
        let for_others = [&b".debug_"[..], b".rel.debug_", b".rel.BTF"];
        section.delete = for_others.iter().any(|prefix| name.starts_with(prefix));
    }
    // LLVM keeps section names and symbol names in one table, the writer in two.
    let names = elf.sections.add();
    names.name = b".shstrtab".as_slice().into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = object::build::elf::SectionData::SectionString;
    elf.delete_orphan_symbols();
    elf.delete_orphan_relocations();
    elf.set_section_sizes();
    let mut out = Vec::new();
    elf.write(&mut out)?;
    Ok(out)
}

/// A digest of everything in the repository that decides the object's bytes: the crate's files, the
/// locked versions of aya's eBPF crates, the flags.
pub fn source_digest(sources: &Path, workspace: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(sources, &mut files)?;
    files.sort();
    let mut digest = Sha256::new();
    let mut add = |name: &str, content: &[u8]| {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
        digest.update((content.len() as u64).to_le_bytes());
        digest.update(content);
    };
    for path in &files {
        let name = path.strip_prefix(sources).unwrap_or(path).to_string_lossy();
        add(&name, &read(path)?);
    }
    let lock = read(&workspace.join("Cargo.lock"))?;
    let lock = String::from_utf8_lossy(&lock);
    for package in lock
        .split("[[package]]")
        .filter(|p| p.contains("\nname = \"aya-ebpf"))
    {
        for key in ["name", "version", "checksum"] {
            add(key, value(package, key).unwrap_or_default().as_bytes());
        }
    }
    for flag in FLAGS {
        add("flag", flag.as_bytes());
    }
    for (key, setting) in PROFILE {
        add(key, setting.as_bytes());
    }
    Ok(hex(&digest.finalize()))
}

/// Every file below a folder but hidden ones (an editor's).
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let file_error = |source| Error::File {
        path: folder.to_owned(),
        source,
    };
    for entry in fs::read_dir(folder).map_err(file_error)? {
        let entry = entry.map_err(file_error)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type().map_err(file_error)?.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// What lies beside the checked-in object: what it was made of and with.
#[derive(Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The traced machine's architecture, as rustc calls it.
    pub arch: String,
    pub object: String,
    pub sources: String,
    pub rustc: String,
    pub linker: String,
}

impl Manifest {
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read(path)?;
        let text = String::from_utf8_lossy(&bytes);
        let get = |key| {
            value(&text, key).ok_or_else(|| Error::Manifest {
                path: path.to_owned(),
                key,
            })
        };
        Ok(Self {
            arch: get("arch")?,
            object: get("object-sha256")?,
            sources: get("sources-sha256")?,
            rustc: get("rustc")?,
            linker: get("bpf-linker")?,
        })
    }
}

/// The string at `key = "..."` in a TOML file that a program wrote, one key a line and nothing to
/// unescape.
fn value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
    })
}

/// SHA-256 as hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn cargo_home() -> Option<PathBuf> {
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
