//! Compares what is executed here with what the processor does.

use super::arithmetic::ARITHMETIC;
use super::{Memory, execute};
use iced_x86::{Instruction, RflagsBits};
use libc::user_regs_struct as Registers;

/// An instruction executed here, that the processor is about to execute too.
pub struct Check<'a> {
    instruction: &'a Instruction,
    registers: Registers,
    stored: Option<(u64, usize, u64)>,
}

/// Memory that keeps what is stored apart.
struct Draft<'a, M> {
    memory: &'a M,
    stored: Option<(u64, usize, u64)>,
}

impl<M: Memory> Memory for Draft<'_, M> {
    fn load(&self, address: u64, size: usize) -> Option<u64> {
        self.memory.load(address, size)
    }

    fn store(&mut self, address: u64, size: usize, value: u64) -> Option<()> {
        self.stored = Some((address, size, value));
        Some(())
    }
}

impl<'a> Check<'a> {
    /// Executes an instruction without effect; `None` if it is not known here.
    pub fn new(
        instruction: &'a Instruction,
        mut registers: Registers,
        memory: &impl Memory,
    ) -> Option<Check<'a>> {
        let mut draft = Draft { memory, stored: None };
        execute(instruction, &mut registers, &mut draft)?;
        Some(Check { instruction, registers, stored: draft.stored })
    }

    /// Whether the processor did the same.
    pub fn agrees(&self, processor: &Registers, memory: &impl Memory) -> bool {
        let defined = ARITHMETIC & !undefined(self.instruction);
        (self.registers.eflags ^ processor.eflags) & defined == 0
            && general(&self.registers) == general(processor)
            && self.stored.is_none_or(|(at, size, value)| memory.load(at, size) == Some(value))
    }
}

/// The flags that an instruction leaves undefined.
fn undefined(instruction: &Instruction) -> u64 {
    let flags = [
        (RflagsBits::CF, 1),
        (RflagsBits::PF, 1 << 2),
        (RflagsBits::AF, 1 << 4),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::OF, 1 << 11),
    ];
    let is = |bits: u32| instruction.rflags_undefined() & bits != 0;
    flags.iter().filter(|(bits, _)| is(*bits)).map(|(_, flag)| flag).sum()
}

fn general(r: &Registers) -> [u64; 17] {
    [
        r.rip, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
        r.r12, r.r13, r.r14, r.r15,
    ]
}
