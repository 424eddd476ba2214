//! What the checked-in eBPF object was made of and with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{Error, FLAGS, PROFILE, Result, read};

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
