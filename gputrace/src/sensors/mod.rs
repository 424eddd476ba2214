//! Sources of events: one file each, with an injectable root where it reads files.

pub mod attacher;
pub mod bpf;
pub mod btf;
mod child;
pub mod cuda;
pub mod libraries;
pub mod mappings;
pub mod modules;
pub mod nvml;
pub mod procaddr;
