//! The functions of the driver API that this library has. A further one is a row in a table.
//!
//! A row may leave out arguments at the end that its implementation does not look at: by the C calling
//! convention they do not matter then. Since which CUDA version a name means a symbol is what
//! `cuda.h`'s own list of function types says, where that was known, else the symbol's first one.

mod contexts;
mod copies;
mod devices;
mod graphs;
mod memory;
mod modules;
mod sharing;
mod streams;

use crate::trampoline::Export;

/// Names that also mean a symbol which has a name of its own.
static ALIASES: &[Export] = &[Export {
    address: || {
        graphs::cuGraphInstantiateWithFlags::cuGraphInstantiateWithFlags as *const () as usize
    },
    symbol: "cuGraphInstantiateWithFlags",
    base: "cuGraphInstantiate",
    since: 12000,
}];

/// Every exported function of the driver API, by the names of `cuGetProcAddress`.
pub fn all() -> impl Iterator<Item = &'static Export> {
    [
        devices::EXPORTS,
        contexts::EXPORTS,
        memory::EXPORTS,
        sharing::EXPORTS,
        modules::EXPORTS,
        graphs::EXPORTS,
        streams::EXPORTS,
        copies::EXPORTS,
        ALIASES,
    ]
    .into_iter()
    .flatten()
}
