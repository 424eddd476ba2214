//! Each family of functions: what it takes from the device and gives back, and what it refuses.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod arrays;
mod contexts;
mod faults;
mod graphs;
mod host;
mod modules;
mod pointers;
mod pools;
mod vmm;
