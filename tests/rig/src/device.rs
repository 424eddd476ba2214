//! The state of the simulated devices.
