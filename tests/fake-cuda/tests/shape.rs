//! Every exported function has the machine code that the real library's functions have.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic, Register};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeSet;

struct Library {
    bytes: Vec<u8>,
}

impl Library {
    fn read() -> Self {
        Self {
            bytes: std::fs::read(common::library()).unwrap(),
        }
    }

    fn file(&self) -> object::File<'_> {
        object::File::parse(self.bytes.as_slice()).unwrap()
    }
}

#[test]
fn every_function_is_a_trampoline_of_the_real_shape() {
    let library = Library::read();
    let file = library.file();
    let text = file.section_by_name(".text").unwrap();
    let (mut states, mut slots) = (BTreeSet::new(), BTreeSet::new());
    let functions: Vec<_> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.name().unwrap().starts_with("cu"))
        .collect();
    assert!(functions.len() >= 20);
    for symbol in &functions {
        let name = symbol.name().unwrap();
        assert_eq!((symbol.address() % 32, symbol.size()), (0, 32), "{name}");
        let code = text.data_range(symbol.address(), 32).unwrap().unwrap();
        let mut decoder = Decoder::with_ip(64, code, symbol.address(), DecoderOptions::NONE);
        let (compare, jump, tail) = (decoder.decode(), decoder.decode(), decoder.decode());

        assert_eq!(compare.code(), Code::Cmp_rm32_imm32, "{name}");
        assert_eq!((compare.len(), compare.immediate32()), (10, 0x321c_ba00));
        assert_eq!(compare.memory_base(), Register::RIP);
        states.insert(compare.memory_displacement64());

        assert_eq!(jump.code(), Code::Je_rel8_64, "{name}");
        assert_eq!(jump.ip(), symbol.address() + 10);

        assert_eq!(tail.code(), Code::Jmp_rm64, "{name}");
        assert_eq!((tail.ip(), tail.len()), (symbol.address() + 12, 6));
        assert_eq!(tail.memory_base(), Register::RIP);
        slots.insert(tail.memory_displacement64());

        let (result, end) = (decoder.decode(), decoder.decode());
        assert_eq!(jump.near_branch_target(), result.ip());
        assert_eq!(
            (result.mnemonic(), result.immediate32()),
            (Mnemonic::Mov, 4)
        );
        assert_eq!(end.mnemonic(), Mnemonic::Ret);
    }
    assert_eq!(states.len(), 1, "one state for all");
    assert_eq!(slots.len(), functions.len(), "a slot for each");
}

#[test]
fn nothing_but_the_api_is_exported() {
    let library = Library::read();
    let names: Vec<String> = library
        .file()
        .dynamic_symbols()
        .filter(ObjectSymbol::is_definition)
        .map(|symbol| symbol.name().unwrap().to_owned())
        .filter(|name| !name.starts_with("cu"))
        .collect();
    assert_eq!(names, ["gputrace_rig_set"]);
}
