//! What an instruction is and does to memory, decoded once for each address of code.

use crate::Registers;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    UsedMemory,
};

/// No x86 instruction is longer.
pub(crate) const LONGEST: usize = 15;

/// One access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where it begins.
    pub address: u64,
    /// How many bytes.
    pub size: u64,
    /// A write, or a read and a write in one.
    pub write: bool,
}

/// A decoded instruction.
pub struct Step {
    memory: Vec<UsedMemory>,
    /// Where it goes on.
    pub flow: FlowControl,
    /// It has a lock prefix, or is an `xchg` with memory.
    pub locked: bool,
    /// A repeated string instruction: each turn is one step, all of them one instruction.
    pub repeated: bool,
    /// What it does.
    pub mnemonic: Mnemonic,
}

impl Step {
    /// Decodes the instruction at `address`.
    pub(crate) fn decode(bytes: &[u8], address: u64, factory: &mut InstructionInfoFactory) -> Step {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let mut memory = factory.info(&instruction).used_memory().to_vec();
        memory.retain(|used| !matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess));
        let mnemonic = instruction.mnemonic();
        Step {
            flow: instruction.flow_control(),
            locked: instruction.has_lock_prefix()
                || (mnemonic == Mnemonic::Xchg && !memory.is_empty()),
            repeated: instruction.is_string_instruction()
                && (instruction.has_rep_prefix() || instruction.has_repne_prefix()),
            memory,
            mnemonic,
        }
    }

    /// Whether it reads memory.
    pub fn reads(&self) -> bool {
        use OpAccess::{CondRead, Read, ReadCondWrite, ReadWrite};
        let reads = |used: &UsedMemory| {
            matches!(used.access(), Read | CondRead | ReadWrite | ReadCondWrite)
        };
        self.memory.iter().any(reads)
    }

    /// Whether it writes memory.
    pub fn writes(&self) -> bool {
        self.memory.iter().any(writes)
    }

    /// What it is about to access. A failing compare-and-exchange takes the line like a write.
    pub fn accesses(&self, registers: &Registers) -> impl Iterator<Item = Access> {
        self.memory.iter().filter_map(|used| {
            // Vector indices are the only registers without a value here; no allocator gathers.
            let address = used.virtual_address(0, |register, _, _| value(registers, register))?;
            Some(Access { address, size: used.memory_size().size() as u64, write: writes(used) })
        })
    }
}

fn writes(used: &UsedMemory) -> bool {
    use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
    matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite)
}

/// The value of the whole register that `register` is part of, or of a segment's base.
fn value(registers: &Registers, register: Register) -> Option<u64> {
    let r = registers;
    // As instructions number them.
    let general = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15,
    ];
    Some(match register.full_register() {
        Register::RIP => r.rip,
        Register::FS => r.fs_base,
        Register::GS => r.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        whole if whole.is_gpr64() => general[whole.number()],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u64 = 0x1000;

    fn step(bytes: &[u8]) -> Step {
        Step::decode(bytes, HERE, &mut InstructionInfoFactory::new())
    }

    fn accesses(bytes: &[u8]) -> Vec<(u64, u64, bool)> {
        // SAFETY: the structure is integers alone, for which zeroes are a valid value.
        let mut registers = unsafe { std::mem::zeroed::<Registers>() };
        (registers.rdi, registers.rcx, registers.rsp) = (0x5000, 3, 0x9000);
        registers.fs_base = 0x7000;
        step(bytes).accesses(&registers).map(|a| (a.address, a.size, a.write)).collect()
    }

    #[test]
    fn operands_have_addresses() {
        assert_eq!(accesses(&[0x48, 0x8b, 0x07]), [(0x5000, 8, false)], "mov rax, [rdi]");
        assert_eq!(accesses(&[0x88, 0x47, 0x01]), [(0x5001, 1, true)], "mov [rdi+1], al");
        assert_eq!(accesses(&[0x48, 0x8b, 0x04, 0xcf]), [(0x5018, 8, false)], "[rdi+rcx*8]");
        assert_eq!(accesses(&[0x64, 0x48, 0x8b, 0x07]), [(0xc000, 8, false)], "fs:[rdi]");
        let relative = [0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
        assert_eq!(accesses(&relative), [(HERE + 7 + 0x10, 8, false)], "mov rax, [rip+16]");
        assert_eq!(accesses(&[0x53]), [(0x8ff8, 8, true)], "push rbx");
        assert_eq!(accesses(&[0xc3]), [(0x9000, 8, false)], "ret");
        assert_eq!(accesses(&[0x48, 0x8d, 0x07]), [], "lea rax, [rdi]");
        assert_eq!(accesses(&[0x0f, 0x1f, 0x00]), [], "nop [rax]");
    }

    #[test]
    fn instructions_are_classified() {
        let table: [(&str, &[u8], bool, bool); 4] = [
            ("inc [rdi]", &[0x48, 0xff, 0x07], true, true),
            ("pop rbx", &[0x5b], true, false),
            ("call", &[0xe8, 0, 0, 0, 0], false, true),
            ("je", &[0x74, 0x00], false, false),
        ];
        for (name, bytes, reads, writes) in table {
            assert_eq!((step(bytes).reads(), step(bytes).writes()), (reads, writes), "{name}");
        }
        let exchange = [0xf0, 0x48, 0x0f, 0xb1, 0x0f];
        assert!(step(&exchange).locked, "lock cmpxchg [rdi], rcx");
        assert_eq!(accesses(&exchange), [(0x5000, 8, true)]);
        assert!(step(&[0x48, 0x87, 0x0f]).locked, "xchg [rdi], rcx");
        assert!(!step(&[0x48, 0x87, 0xc8]).locked, "xchg rax, rcx");
        assert!(step(&[0xf3, 0x48, 0xab]).repeated, "rep stosq");
        assert_eq!(step(&[0x0f, 0x05]).mnemonic, Mnemonic::Syscall);
        assert_eq!(step(&[0xf3, 0x90]).mnemonic, Mnemonic::Pause);
    }
}
