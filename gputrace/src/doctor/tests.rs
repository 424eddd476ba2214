//! Machines as folders.
