//! What the parts of the test rig share: the rig's folder and settings, the state of the simulated
//! devices, and the language in which a scenario runner tells an actor what to do.

pub mod config;
pub mod device;
pub mod dynamic;
pub mod faults;
pub mod protocol;
pub mod real;
pub mod scenario;
pub mod units;
