//! How the eBPF object is built, stripped and described. Shared by `gputrace/build.rs` and `xtask`
//! (which includes this file by path); it lies in this crate so that a packaged crate has it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub mod manifest;
pub mod toolchain;

use toolchain::{Toolchain, cargo_home};

/// Flags of the eBPF build that decide the object's bytes; part of the sources' digest.
/// BTF is generated from the debug information, which is stripped afterwards.
const FLAGS: [&str; 2] = ["-Cdebuginfo=2", "-Clink-arg=--btf"];

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
