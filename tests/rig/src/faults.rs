//! What goes wrong in the driver library on purpose.
//!
//! The keys are those of `[faults]` in `rig.toml` and of the library's `gputrace_rig_set`. Most have
//! the form `FAMILY_WHAT`: a [`Family`] of functions, and what happens to its calls.

use crate::units;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

macro_rules! families {
    ($($(#[$doc:meta])* $family:ident = $name:literal, $code:literal;)*) => {
        /// Functions of the driver API into which failures are injected together.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Family {
            $($(#[$doc])* $family,)*
        }

        impl Family {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$family,)*];

            /// The name with which its keys begin.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$family => $name,)*
                }
            }

            /// The result of a call that is made to fail, where no other is set.
            pub const fn default_code(self) -> i32 {
                match self {
                    $(Self::$family => $code,)*
                }
            }
        }
    };
}

families! {
    /// `cuMemAlloc*`: every allocation that gives a device pointer.
    Alloc = "alloc", 2;
    /// Whatever gives something back: `cuMemFree*`, `cuMemRelease`, `cuArrayDestroy`,
    /// `cuModuleUnload` and the like.
    Free = "free", 1;
    /// `cuMemCreate`, `cuMemMap`, `cuMemImportFromShareableHandle`, `cuMulticastCreate`.
    Vmm = "vmm", 2;
    /// `cuMemAddressReserve`.
    Reserve = "reserve", 2;
    /// `cuMemHostAlloc`, `cuMemAllocHost`, `cuMemHostRegister`.
    Host = "host", 2;
    /// `cuArrayCreate`, `cuArray3DCreate`, `cuMipmappedArrayCreate`.
    Array = "array", 2;
    /// `cuModuleLoad*`, `cuLibraryLoad*`.
    Module = "module", 2;
    /// `cuGraphInstantiate*`.
    Graph = "graph", 2;
    /// `cuIpcOpenMemHandle`, `cuImportExternalMemory`, `cuMemPoolImportPointer`.
    Ipc = "ipc", 2;
    /// `cuCtxCreate*`, `cuDevicePrimaryCtxRetain`, `cuGreenCtxCreate`.
    Ctx = "ctx", 2;
    /// `cuMemPoolCreate`, `cuMemPoolImportFromShareableHandle`.
    Pool = "pool", 2;
    /// `cuLaunch*`, `cuGraphLaunch`.
    Launch = "launch", 719;
    /// `cuMemcpy*`, `cuMemset*`, `cuMemPrefetchAsync`.
    Copy = "copy", 700;
    /// `cuStreamSynchronize`, `cuCtxSynchronize`, `cuEventSynchronize`.
    Sync = "sync", 700;
}

/// What a key of the faults is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// Every so many calls of the family in a process, one fails; 0: none.
    FailEvery(Family),
    /// So many calls of the family go through and all later ones fail; 0: none fails.
    FailAfter(Family),
    /// The result of a call that is made to fail; 0: [`Family::default_code`].
    FailCode(Family),
    /// Microseconds that each call of the family sleeps before it does anything.
    DelayUs(Family),
    /// Bytes of addresses that a process can reserve; 0: as many as there are.
    AddressSpace,
    /// Bytes that must be free on the device for a launch, which gives 2 otherwise.
    LaunchNeeds,
}

impl Key {
    /// The key with this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "address_space" => return Some(Self::AddressSpace),
            "launch_needs" => return Some(Self::LaunchNeeds),
            _ => {}
        }
        let (family, what) = name.split_once('_')?;
        let family = *Family::ALL.iter().find(|known| known.name() == family)?;
        match what {
            "fail_every" => Some(Self::FailEvery(family)),
            "fail_after" => Some(Self::FailAfter(family)),
            "fail_code" => Some(Self::FailCode(family)),
            "delay_us" => Some(Self::DelayUs(family)),
            _ => None,
        }
    }
}

/// Injected behaviour of the driver library in each process, from its start: values by the names of
/// [`Key`]s. What is not in it is 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Faults(BTreeMap<String, u64>);

impl Faults {
    /// The keys that are set, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Key, u64)> {
        self.0
            .iter()
            .filter_map(|(name, value)| Some((Key::named(name)?, *value)))
    }
}

impl<'de> Deserialize<'de> for Faults {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(FaultsVisitor)
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Quantity(#[serde(with = "units::bytes")] u64);

struct FaultsVisitor;

impl<'de> Visitor<'de> for FaultsVisitor {
    type Value = Faults;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of faults")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Faults, A::Error> {
        let mut faults = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if Key::named(&name).is_none() {
                return Err(de::Error::custom(format_args!(
                    "unknown field `{name}`: a fault is FAMILY_fail_every, _fail_after, _fail_code or \
                     _delay_us with a family of {}; or address_space, or launch_needs",
                    Family::ALL
                        .iter()
                        .map(|family| family.name())
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
            faults.insert(name, map.next_value::<Quantity>()?.0);
        }
        Ok(Faults(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_by_name() {
        let text = "alloc_fail_every = 4\nlaunch_fail_after = 12\naddress_space = \"800 GiB\"";
        let faults: Faults = toml::from_str(text).unwrap();
        let keys: Vec<_> = faults.iter().collect();
        assert_eq!(
            keys,
            [
                (Key::AddressSpace, 800 << 30),
                (Key::FailEvery(Family::Alloc), 4),
                (Key::FailAfter(Family::Launch), 12),
            ]
        );
        let again: Faults = toml::from_str(&toml::to_string(&faults).unwrap()).unwrap();
        assert_eq!(again, faults);
    }

    #[test]
    fn an_unknown_fault_is_refused() {
        for text in ["alloc_fails = 1", "nothing_fail_every = 1", "alloc = 1"] {
            assert!(toml::from_str::<Faults>(text).is_err(), "{text}");
        }
    }
}
