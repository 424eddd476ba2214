//! The CUDA driver functions that are probed: one row each.
//!
//! Prototypes are those of NVIDIA's `cuda.h`; a `_v2` name is what current programs call under the
//! plain name. libcudart is not probed: it calls these functions, so it would count twice.

use gputrace_ebpf::{CLASS_ALLOCATE, CLASS_FREE, CLASS_OTHER, FunctionSpec, NO_ARG};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::event::Op;

/// A row of [`FUNCTIONS`]; also the probe's attach cookie. Shown as the symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(u16);

/// What a probe saw of one call.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// The first five integer arguments.
    pub args: [u64; 5],
    /// What the out-pointers pointed at on return; `None` where the call failed or it could not
    /// be read.
    pub out: [Option<u64>; 2],
}

/// A probed function.
#[derive(Debug)]
pub struct Function {
    /// Name in libcuda's dynamic symbol table.
    pub symbol: &'static str,
    /// What the eBPF programs need to know.
    pub spec: FunctionSpec,
    decode: fn(&Observed) -> Op,
}

const fn spec(class: u8, out: u8, bytes_arg: u8, stack: bool) -> FunctionSpec {
    FunctionSpec {
        out: [out, NO_ARG],
        class,
        bytes_arg,
        stack: stack as u8,
        padding: [0; 3],
    }
}

/// Every probed function: what gives and takes memory, and what makes a context current (an
/// allocation belongs to the context that is current to its thread). The order is free.
pub static FUNCTIONS: &[Function] = &[
    // CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
    Function {
        symbol: "cuMemAlloc_v2",
        spec: spec(CLASS_ALLOCATE, 0, 1, true),
        decode: |call| Op::Allocate {
            bytes: call.args[1],
            address: call.out[0],
        },
    },
    // CUresult cuMemFree(CUdeviceptr dptr)
    Function {
        symbol: "cuMemFree_v2",
        spec: spec(CLASS_FREE, NO_ARG, NO_ARG, false),
        decode: |call| Op::Free {
            address: call.args[0],
        },
    },
    // CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
    Function {
        symbol: "cuCtxCreate_v2",
        spec: spec(CLASS_OTHER, 0, NO_ARG, true),
        decode: |call| Op::CreateContext {
            device: low32(call.args[2]),
            context: call.out[0],
        },
    },
    // CUresult cuCtxDestroy(CUcontext ctx)
    Function {
        symbol: "cuCtxDestroy_v2",
        spec: spec(CLASS_OTHER, NO_ARG, NO_ARG, false),
        decode: |call| Op::DestroyContext {
            context: call.args[0],
        },
    },
    // CUresult cuCtxSetCurrent(CUcontext ctx)
    Function {
        symbol: "cuCtxSetCurrent",
        spec: spec(CLASS_OTHER, NO_ARG, NO_ARG, false),
        decode: |call| Op::SetContext {
            context: call.args[0],
        },
    },
    // CUresult cuCtxPushCurrent(CUcontext ctx)
    Function {
        symbol: "cuCtxPushCurrent_v2",
        spec: spec(CLASS_OTHER, NO_ARG, NO_ARG, false),
        decode: |call| Op::PushContext {
            context: call.args[0],
        },
    },
    // CUresult cuCtxPopCurrent(CUcontext *pctx)
    Function {
        symbol: "cuCtxPopCurrent_v2",
        spec: spec(CLASS_OTHER, NO_ARG, NO_ARG, false),
        decode: |_| Op::PopContext,
    },
];

/// An `int` argument: the upper half of its register may hold anything.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low32(register: u64) -> u32 {
    register as u32
}

impl FunctionId {
    /// Every function.
    pub fn all() -> impl Iterator<Item = Self> {
        #[expect(clippy::cast_possible_truncation, reason = "the table is short")]
        (0..FUNCTIONS.len() as u16).map(Self)
    }

    /// The row with this number, if there is one.
    #[must_use]
    pub fn new(row: u16) -> Option<Self> {
        (usize::from(row) < FUNCTIONS.len()).then_some(Self(row))
    }

    /// The row with this symbol, if there is one.
    #[must_use]
    pub fn by_symbol(symbol: &str) -> Option<Self> {
        Self::all().find(|id| id.symbol() == symbol)
    }

    /// Number of the row.
    #[must_use]
    pub const fn row(self) -> u16 {
        self.0
    }

    /// The row.
    #[must_use]
    pub fn function(self) -> &'static Function {
        &FUNCTIONS[usize::from(self.0)]
    }

    /// Name in libcuda.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        self.function().symbol
    }

    /// Gives a call its meaning.
    #[must_use]
    pub fn decode(self, observed: &Observed) -> Op {
        (self.function().decode)(observed)
    }

    /// Whether memory calls made inside a call of this function are part of it, and so not
    /// credited on their own.
    #[must_use]
    pub fn absorbs_nested(self) -> bool {
        self.function().spec.class != CLASS_OTHER
    }
}

impl Serialize for FunctionId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.symbol())
    }
}

impl<'de> Deserialize<'de> for FunctionId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let symbol = String::deserialize(d)?;
        Self::by_symbol(&symbol)
            .ok_or_else(|| D::Error::custom(format_args!("no function is called {symbol}")))
    }
}

impl schemars::JsonSchema for FunctionId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Function".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "description": "Symbol of a CUDA driver function" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_consistent() {
        for id in FunctionId::all() {
            let spec = id.function().spec;
            assert_eq!(FunctionId::by_symbol(id.symbol()), Some(id));
            assert!(FUNCTIONS.len() <= gputrace_ebpf::MAX_FUNCTIONS as usize);
            // The programs mask argument numbers into the first four.
            for arg in [spec.out[0], spec.out[1], spec.bytes_arg] {
                assert!(arg < 4 || arg == NO_ARG, "{}", id.symbol());
            }
            if spec.class == CLASS_ALLOCATE {
                assert_ne!(spec.bytes_arg, NO_ARG, "{}", id.symbol());
            }
        }
    }

    #[test]
    fn an_int_argument_ignores_the_upper_half_of_its_register() {
        let create = FunctionId::by_symbol("cuCtxCreate_v2").unwrap();
        let observed = Observed {
            args: [0, 0, 0xdead_0000_0001, 0, 0],
            out: [Some(7), None],
        };
        assert_eq!(
            create.decode(&observed),
            Op::CreateContext {
                device: 1,
                context: Some(7)
            }
        );
    }
}
