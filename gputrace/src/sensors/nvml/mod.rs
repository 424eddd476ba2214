//! The device layer: what NVML, the driver's management library, says about each GPU.
//!
//! NVML is loaded into a child process only. A call into the driver can hang for ever, in the
//! kernel, where not even SIGKILL ends it; a thread of gputrace that hung so would keep gputrace
//! itself from ending. The child is asked over a pipe, one line of JSON each way; if it does not
//! answer in time it is killed and left to itself, and the answer is "not available" with the
//! reason.
//!
//! An open NVML holds the device files, and so keeps the driver from being unloaded or a GPU from
//! being reset. The child therefore opens it for each sample anew and closes it afterwards
//! (`nvmlInit`, `nvmlShutdown`). On a machine where nothing else keeps the GPUs initialised (no
//! persistence daemon, no running job) that can take seconds per sample;
//! [`NvmlOptions::keep_open`] avoids it at the price named.

mod child;
mod client;
mod library;
#[doc(hidden)] // For fuzz/.
pub mod protocol;
mod sample;

pub use child::child_main;
pub use client::{NvmlClient, NvmlOptions};
pub use sample::{Device, Process, ProcessKind, Sample};
