//! The CUDA driver functions that are probed: one row each.
//!
//! A `_v2` name is what current programs call under the plain name. libcudart is not probed: it
//! calls these functions, so it would count twice.

mod results;
mod table;

use gputrace_ebpf::{CLASS_COPY, CLASS_LAUNCH, CLASS_SYNCHRONIZE, FunctionSpec};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub use results::result_name;
pub use table::FUNCTIONS;

use crate::event::Op;

/// A row of [`FUNCTIONS`]; also the probe's attach cookie. Shown as the symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(u16);

/// What a probe saw of one call.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// The first six integer arguments; what the function's input is (see
    /// [`FunctionSpec::input`]) stands in their place.
    pub args: [u64; 6],
    /// What the out-pointers pointed at on return; `None` where the call failed or it could not
    /// be read.
    pub out: [Option<u64>; 2],
    /// Whether the input could be read; also where the function has none.
    pub input_is_read: bool,
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

    /// Whether its calls are counted in the kernel and only failed ones are events.
    #[must_use]
    pub fn is_counted_only(self) -> bool {
        matches!(
            self.function().spec.class,
            CLASS_LAUNCH | CLASS_COPY | CLASS_SYNCHRONIZE
        )
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
    use gputrace_ebpf::{INPUT_NONE, NO_ARG, OUT_DIGEST};

    use super::*;

    #[test]
    fn rows_are_consistent() {
        assert!(FUNCTIONS.len() <= gputrace_ebpf::MAX_FUNCTIONS as usize);
        for id in FunctionId::all() {
            let spec = id.function().spec;
            assert_eq!(FunctionId::by_symbol(id.symbol()), Some(id));
            // The programs mask argument numbers into the first four.
            for arg in [spec.out[0], spec.out[1], spec.bytes_arg, spec.input_arg] {
                assert!(
                    arg < 4 || arg == NO_ARG || arg == OUT_DIGEST,
                    "{}",
                    id.symbol()
                );
            }
            assert_eq!(spec.input == INPUT_NONE, spec.input_arg == NO_ARG);
            // Below 5.15 each function with an entry needs its own copy of the programs.
            assert!(
                id.is_counted_only() || u32::from(id.row()) < gputrace_ebpf::PROGRAM_COPIES,
                "{}",
                id.symbol()
            );
        }
    }

    #[test]
    fn an_int_argument_ignores_the_upper_half_of_its_register() {
        let create = FunctionId::by_symbol("cuCtxCreate_v2").unwrap();
        let observed = Observed {
            args: [0, 0, 0xdead_0000_0001, 0, 0, 0],
            out: [Some(7), None],
            input_is_read: true,
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
