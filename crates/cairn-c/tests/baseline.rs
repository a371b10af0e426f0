//! The library has no instruction that a processor of the architecture may lack, and enters the kernel in one place.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{library, skip_for_stand_in};
use iced_x86::CpuidFeature::{self, *};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::{Object, ObjectSection, SectionKind};

/// What the first x86-64 processor has; and CET's marks, which are no operations on it.
const PLAIN: [CpuidFeature; 18] = [
    INTEL8086,
    INTEL186,
    INTEL286,
    INTEL386,
    INTEL486,
    X64,
    FPU,
    MMX,
    SSE,
    SSE2,
    CMOV,
    CX8,
    FXSR,
    SYSCALL,
    MULTIBYTENOP,
    PAUSE,
    CPUID,
    CET_IBT,
];
/// Where the operand is not 0 compilers write `rep bsf`: `tzcnt` for those processors that have it.
const OPTIONS: u32 = DecoderOptions::NO_MPFX_0FBC;

#[test]
fn its_instructions_are_those_of_plain_x86_64() {
    if skip_for_stand_in() {
        return;
    }
    let bytes = std::fs::read(&library().shared).expect("the library is readable");
    let file = object::File::parse(bytes.as_slice()).expect("an ELF library");
    let (mut count, mut beyond, mut entries) = (0, Vec::new(), 0);
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data().expect("code");
        for instruction in Decoder::with_ip(64, code, section.address(), OPTIONS) {
            count += 1;
            entries += usize::from(instruction.mnemonic() == Mnemonic::Syscall);
            let features = instruction.cpuid_features();
            // Data among code would be no instruction, or look like one.
            if instruction.is_invalid() || !features.iter().all(|it| PLAIN.contains(it)) {
                beyond.push(format!("{:#x}: {:?}", instruction.ip(), instruction.code()));
            }
        }
    }
    assert!(count > 20_000, "{count} instructions");
    assert_eq!(entries, 1, "places where it enters the kernel");
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}
