//! bpf-linker, linked against the LLVM of the active rustc, so that no other LLVM is needed and both
//! speak the same bitcode.

use std::{
    env,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};

use super::{Step, say};
use crate::{
    ebpf::toolchain::{Rustc, Toolchain},
    workspace::quietly,
};

/// The version that the checked-in object is linked with.
const VERSION: &str = "0.13.0";

/// The LLVM versions that this bpf-linker can be built for.
const LLVM: std::ops::RangeInclusive<u32> = 21..=23;

pub fn install(rustc: &Rustc) -> anyhow::Result<Step> {
    if let Ok(toolchain) = Toolchain::find() {
        let path = toolchain.linker.display();
        return Ok(Step::Present(format!(
            "{}, {path}",
            toolchain.linker_version
        )));
    }
    if let Some(path) = env::var_os("BPF_LINKER") {
        bail!("BPF_LINKER={} does not work", path.display());
    }
    let tools = rustc.tools().context("there is no home directory")?;
    let llvm = rustc
        .llvm
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .filter(|major| LLVM.contains(major))
        .with_context(|| format!("bpf-linker {VERSION} does not know LLVM {}", rustc.llvm))?;
    let library = llvm_library(&rustc.sysroot)
        .context("this rustc ships no libLLVM.so; install bpf-linker another way")?;

    fs::create_dir_all(&tools)?;
    // A second set-up, of another checkout, waits and then finds it done.
    let lock = File::create(tools.join("lock"))?;
    lock.lock()?;
    if let Ok(toolchain) = Toolchain::find() {
        return Ok(Step::Present(toolchain.linker_version));
    }
    say(
        "bpf-linker",
        &format!(
            "building {VERSION} with LLVM {} (1 to 2 minutes)",
            rustc.llvm
        ),
    );
    // bpf-linker asks for -lLLVM, and the toolchain has the library under a longer name only.
    let work = tempfile::tempdir_in(&tools)?;
    let short_name = work.path().join("lib");
    fs::create_dir(&short_name)?;
    symlink(library, short_name.join("libLLVM.so"))?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(work.path())
        .args([
            "install",
            "bpf-linker",
            "--version",
            VERSION,
            "--locked",
            "--force",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{llvm}"),
        ])
        .arg("--root")
        .arg(&tools)
        .env("CARGO_TARGET_DIR", work.path().join("target"))
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        // Where the linker looks for the library at run time.
        .env("LLVM_PREFIX", &rustc.sysroot)
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            format!("-Lnative={}", short_name.display()),
        )
        .env_remove("RUSTFLAGS");
    quietly(&mut cargo, Duration::from_secs(30 * 60))?;
    let toolchain = Toolchain::find().context("what was built does not work")?;
    Ok(Step::Installed(format!(
        "{}, {}",
        toolchain.linker_version,
        toolchain.linker.display()
    )))
}

/// The toolchain's LLVM itself; a file beside it that has the likelier name is a linker script.
fn llvm_library(sysroot: &Path) -> Option<PathBuf> {
    fs::read_dir(sysroot.join("lib"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mut magic = [0; 4];
            name.starts_with("libLLVM")
                && name.contains(".so")
                && File::open(path)
                    .and_then(|mut f| f.read_exact(&mut magic))
                    .is_ok()
                && magic == *b"\x7fELF"
        })
}
