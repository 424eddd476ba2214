//! gputrace: who holds GPU memory, and who never gives it back.
//!
//! Data flows one way, and each stage knows only the one before it:
//! [`sensors`] → [`event`] → [`ledger`] → [`analysis`] → [`report`] → [`render`].
//! Only sensors do I/O; the rest are functions over values.

pub mod analysis;
pub mod cli;
pub mod clock;
pub mod cuda;
pub mod doctor;
pub mod engine;
pub mod event;
pub mod evidence;
pub mod heap;
pub mod identity;
pub mod keep;
pub mod launch;
pub mod ledger;
pub mod output;
pub mod priority;
pub mod recorded;
pub mod recording;
pub mod render;
pub mod report;
pub mod resource;
pub mod schema;
pub mod sensors;
pub mod symbols;
pub mod text;
pub mod trace;
pub mod units;
