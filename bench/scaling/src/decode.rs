//! What an instruction does to memory, decoded once for each address of code.

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    UsedMemory,
};
use libc::user_regs_struct as Registers;
use smallvec::SmallVec;

/// No x86 instruction is longer.
pub const LONGEST: usize = 15;

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
    /// The instruction itself.
    pub instruction: Instruction,
    memory: SmallVec<[(UsedMemory, bool); 2]>,
    /// It has a lock prefix, or is an `xchg` with memory.
    pub locked: bool,
    /// It enters the kernel.
    pub system_call: bool,
    /// It is the hint of a spinning loop.
    pub pause: bool,
}

impl Step {
    /// Decodes the instruction at `address`.
    pub fn decode(bytes: &[u8], address: u64, factory: &mut InstructionInfoFactory) -> Step {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let mut memory = SmallVec::new();
        for used in factory.info(&instruction).used_memory() {
            if let Some(write) = writes(used.access()) {
                memory.push((*used, write));
            }
        }
        Step {
            instruction,
            locked: is_locked(&instruction, !memory.is_empty()),
            memory,
            system_call: instruction.mnemonic() == Mnemonic::Syscall,
            pause: instruction.mnemonic() == Mnemonic::Pause,
        }
    }

    /// What it is about to access.
    pub fn accesses(&self, registers: &Registers) -> impl Iterator<Item = Access> {
        self.memory.iter().filter_map(|(used, write)| {
            // Vector indices are the only registers without a value here; no allocator
            // gathers.
            let address = used.virtual_address(0, |register, _, _| value(registers, register))?;
            Some(Access { address, size: used.memory_size().size() as u64, write: *write })
        })
    }
}

/// Whether the access writes; `None` for no access. A failing compare-and-exchange takes
/// the line like a write.
fn writes(access: OpAccess) -> Option<bool> {
    match access {
        OpAccess::None | OpAccess::NoMemAccess => None,
        OpAccess::Read | OpAccess::CondRead => Some(false),
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
            Some(true)
        }
    }
}

fn is_locked(instruction: &Instruction, memory: bool) -> bool {
    instruction.has_lock_prefix() || (memory && instruction.mnemonic() == Mnemonic::Xchg)
}

/// The value of the whole register that `register` is part of, or of a segment's base.
pub fn value(registers: &Registers, register: Register) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::RIP => registers.rip,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    })
}

/// Where the general register that `register` is part of is kept.
pub fn place(registers: &mut Registers, register: Register) -> Option<&mut u64> {
    Some(match register.full_register() {
        Register::RAX => &mut registers.rax,
        Register::RBX => &mut registers.rbx,
        Register::RCX => &mut registers.rcx,
        Register::RDX => &mut registers.rdx,
        Register::RSI => &mut registers.rsi,
        Register::RDI => &mut registers.rdi,
        Register::RBP => &mut registers.rbp,
        Register::RSP => &mut registers.rsp,
        Register::R8 => &mut registers.r8,
        Register::R9 => &mut registers.r9,
        Register::R10 => &mut registers.r10,
        Register::R11 => &mut registers.r11,
        Register::R12 => &mut registers.r12,
        Register::R13 => &mut registers.r13,
        Register::R14 => &mut registers.r14,
        Register::R15 => &mut registers.r15,
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

    fn registers() -> Registers {
        // SAFETY: the structure is integers alone, for which zeroes are a valid value.
        let mut registers = unsafe { std::mem::zeroed::<Registers>() };
        (registers.rdi, registers.rcx, registers.rsp) = (0x5000, 3, 0x9000);
        registers.fs_base = 0x7000;
        registers
    }

    fn accesses(bytes: &[u8]) -> Vec<(u64, u64, bool)> {
        let step = step(bytes);
        step.accesses(&registers()).map(|a| (a.address, a.size, a.write)).collect()
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
    fn locked_instructions_are_known() {
        let exchange = [0xf0, 0x48, 0x0f, 0xb1, 0x0f];
        assert!(step(&exchange).locked, "lock cmpxchg [rdi], rcx");
        assert_eq!(accesses(&exchange), [(0x5000, 8, true)]);
        assert!(step(&[0x48, 0x87, 0x0f]).locked, "xchg [rdi], rcx");
        assert!(!step(&[0x48, 0x87, 0xc8]).locked, "xchg rax, rcx");
        assert!(!step(&[0x48, 0x01, 0x0f]).locked, "add [rdi], rcx");
        assert!(step(&[0x0f, 0x05]).system_call && step(&[0xf3, 0x90]).pause);
    }
}
