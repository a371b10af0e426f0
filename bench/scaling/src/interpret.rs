//! Executes the instructions that allocators are made of, without the processor.
//!
//! A single step by ptrace costs some microseconds, and tens of them inside a virtual
//! machine. Integer instructions are therefore executed here, on the registers and the
//! memory of the stopped thread; whatever is not known here takes the step. The tracer can
//! do both and compare (`--check`).

mod arithmetic;
mod check;

pub use check::Check;

use crate::decode;
use arithmetic::{Flags, Width};
use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};
use libc::user_regs_struct as Registers;

/// The memory of the thread.
pub trait Memory {
    /// Reads a number of 1, 2, 4 or 8 bytes.
    fn load(&self, address: u64, size: usize) -> Option<u64>;
    /// Writes one.
    fn store(&mut self, address: u64, size: usize, value: u64) -> Option<()>;
}

/// Executes one instruction. `None` if it is not known here, or touches memory that is
/// not there: nothing has changed then.
pub fn execute(
    instruction: &Instruction,
    registers: &mut Registers,
    memory: &mut impl Memory,
) -> Option<()> {
    let mut after = *registers;
    after.rip = instruction.next_ip();
    Machine { instruction, before: registers, after: &mut after, memory }.execute()?;
    *registers = after;
    Some(())
}

struct Machine<'a, M> {
    instruction: &'a Instruction,
    before: &'a Registers,
    after: &'a mut Registers,
    memory: &'a mut M,
}

impl<M: Memory> Machine<'_, M> {
    /// Each instruction stores at most once, as the last thing that can fail.
    fn execute(&mut self) -> Option<()> {
        use Mnemonic as M;
        if self.instruction.has_rep_prefix() && self.instruction.is_string_instruction() {
            return None;
        }
        match self.instruction.mnemonic() {
            M::Nop | M::Endbr64 | M::Pause => Some(()),
            M::Mov | M::Movzx => {
                let value = self.load(1)?;
                self.store(0, value)
            }
            M::Movsx | M::Movsxd => {
                let value = self.width(1)?.sign_extend(self.load(1)?);
                self.store(0, value)
            }
            M::Cdqe => self.set(Register::RAX, Width::D.sign_extend(self.before.rax)),
            M::Cdq => {
                let sign = Width::D.sign_extend(self.before.rax) >> 32;
                self.set(Register::EDX, sign)
            }
            M::Cqo => self.set(Register::RDX, (self.before.rax as i64 >> 63) as u64),
            M::Lea => {
                let address = self.address(1)?;
                self.store(0, address)
            }
            M::Push | M::Pop | M::Call | M::Ret | M::Leave => self.stack(),
            M::Jmp => {
                self.after.rip = self.target()?;
                Some(())
            }
            M::Xchg | M::Xadd | M::Cmpxchg => self.exchange(),
            M::Not | M::Neg | M::Inc | M::Dec | M::Bswap => self.unary(),
            M::Shl | M::Sal | M::Shr | M::Sar | M::Rol | M::Ror => self.shift(),
            M::Shlx | M::Shrx | M::Sarx => self.shift_apart(),
            M::Imul if self.instruction.op_count() > 1 => self.multiply(),
            M::Mul => self.multiply_wide(),
            M::Bsf | M::Bsr | M::Tzcnt | M::Lzcnt | M::Popcnt | M::Blsr | M::Andn => self.scan(),
            M::Bt | M::Bts | M::Btr | M::Btc => self.bit(),
            M::Add | M::Adc | M::Sub | M::Sbb | M::Cmp | M::And | M::Or | M::Xor | M::Test => {
                self.binary()
            }
            _ if self.instruction.condition_code() != ConditionCode::None => self.conditional(),
            _ => None,
        }
    }

    fn stack(&mut self) -> Option<()> {
        let top = self.before.rsp;
        if self.instruction.stack_pointer_increment() % 8 != 0 {
            return None;
        }
        match self.instruction.mnemonic() {
            Mnemonic::Push => {
                let value = self.load(0)?;
                self.after.rsp = top.wrapping_sub(8);
                self.memory.store(top.wrapping_sub(8), 8, value)
            }
            Mnemonic::Call => {
                self.after.rip = self.target()?;
                self.after.rsp = top.wrapping_sub(8);
                self.memory.store(top.wrapping_sub(8), 8, self.instruction.next_ip())
            }
            Mnemonic::Pop => {
                let value = self.memory.load(top, 8)?;
                self.after.rsp = top.wrapping_add(8);
                if self.instruction.op0_kind() != OpKind::Register {
                    return None;
                }
                self.store(0, value)
            }
            Mnemonic::Ret if self.instruction.op_count() == 0 => {
                self.after.rip = self.memory.load(top, 8)?;
                self.after.rsp = top.wrapping_add(8);
                Some(())
            }
            Mnemonic::Leave => {
                self.after.rbp = self.memory.load(self.before.rbp, 8)?;
                self.after.rsp = self.before.rbp.wrapping_add(8);
                Some(())
            }
            _ => None,
        }
    }

    /// Jumps, sets and moves by a condition.
    fn conditional(&mut self) -> Option<()> {
        let holds = Flags(self.before.eflags).hold(self.instruction.condition_code())?;
        if self.instruction.is_jcc_short_or_near() {
            if holds {
                self.after.rip = self.instruction.near_branch_target();
            }
            return Some(());
        }
        match self.instruction.op_count() {
            1 => self.store(0, u64::from(holds)),
            2 => {
                let (old, new) = (self.load(0)?, self.load(1)?);
                self.store(0, if holds { new } else { old })
            }
            _ => None,
        }
    }

    fn binary(&mut self) -> Option<()> {
        use Mnemonic as M;
        let mnemonic = self.instruction.mnemonic();
        let width = self.width(0)?;
        let (a, b) = (self.load(0)?, width.cut(self.load(1)?));
        let carry = u64::from(Flags(self.before.eflags).carry());
        let (result, flags) = match mnemonic {
            M::Add => width.add(a, b, 0),
            M::Adc => width.add(a, b, carry),
            M::Sub | M::Cmp => width.subtract(a, b, 0),
            M::Sbb => width.subtract(a, b, carry),
            M::And | M::Test => width.logic(a & b),
            M::Or => width.logic(a | b),
            M::Xor => width.logic(a ^ b),
            _ => return None,
        };
        self.flags(flags);
        if matches!(mnemonic, M::Cmp | M::Test) { Some(()) } else { self.store(0, result) }
    }

    fn unary(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let a = self.load(0)?;
        let flags = Flags(self.before.eflags);
        let result = match self.instruction.mnemonic() {
            Mnemonic::Not => width.cut(!a),
            Mnemonic::Neg => self.noting(width.subtract(0, a, 0)),
            Mnemonic::Inc => self.noting(flags.keeping_carry(width.add(a, 1, 0))),
            Mnemonic::Dec => self.noting(flags.keeping_carry(width.subtract(a, 1, 0))),
            Mnemonic::Bswap if width == Width::Q => a.swap_bytes(),
            Mnemonic::Bswap if width == Width::D => u64::from((a as u32).swap_bytes()),
            _ => return None,
        };
        self.store(0, result)
    }

    fn shift(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let (a, count) = (self.load(0)?, self.load(1)? & width.shift_mask());
        if count >= width.bits() {
            return None;
        }
        let flags = Flags(self.before.eflags);
        let (result, flags) = match self.instruction.mnemonic() {
            _ if count == 0 => (a, flags),
            Mnemonic::Shl | Mnemonic::Sal => width.shift_left(a, count),
            Mnemonic::Shr => width.shift_right(a, count),
            Mnemonic::Sar => width.shift_signed(a, count),
            Mnemonic::Rol => width.rotate_left(a, count, flags),
            _ => width.rotate_right(a, count, flags),
        };
        self.flags(flags);
        self.store(0, result)
    }

    /// The shifts that leave the flags alone.
    fn shift_apart(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let (a, count) = (self.load(1)?, self.load(2)? & width.shift_mask());
        let (result, _) = match self.instruction.mnemonic() {
            _ if count == 0 => (a, Flags(0)),
            Mnemonic::Shlx => width.shift_left(a, count),
            Mnemonic::Shrx => width.shift_right(a, count),
            _ => width.shift_signed(a, count),
        };
        self.store(0, result)
    }

    fn multiply(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let last = self.instruction.op_count() - 1;
        let (a, b) = (self.load(last - 1)?, self.load(last)?);
        let (result, flags) = width.multiply(a, b);
        self.flags(flags);
        self.store(0, result)
    }

    fn multiply_wide(&mut self) -> Option<()> {
        if self.width(0)? != Width::Q {
            return None;
        }
        let product = u128::from(self.before.rax) * u128::from(self.load(0)?);
        (self.after.rax, self.after.rdx) = (product as u64, (product >> 64) as u64);
        self.flags(Flags::overflow(self.after.rdx != 0));
        Some(())
    }

    fn scan(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let a = self.load(1)?;
        let result = match self.instruction.mnemonic() {
            Mnemonic::Bsf | Mnemonic::Bsr if a == 0 => return None,
            Mnemonic::Bsf => u64::from(a.trailing_zeros()),
            Mnemonic::Bsr => u64::from(a.ilog2()),
            Mnemonic::Tzcnt => u64::from(a.trailing_zeros()).min(width.bits()),
            Mnemonic::Popcnt => u64::from(a.count_ones()),
            Mnemonic::Blsr => width.cut(a & a.wrapping_sub(1)),
            Mnemonic::Andn => width.cut(!a & self.load(2)?),
            _ => u64::from(a.leading_zeros()) - (64 - width.bits()),
        };
        self.flags(match self.instruction.mnemonic() {
            Mnemonic::Bsf | Mnemonic::Bsr | Mnemonic::Popcnt => Flags::zero(a == 0),
            Mnemonic::Blsr => width.logic(result).1.with_carry(a == 0),
            Mnemonic::Andn => width.logic(result).1,
            _ => Flags::zero(result == 0).with_carry(a == 0),
        });
        self.store(0, result)
    }

    fn bit(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let by_register = self.instruction.op1_kind() == OpKind::Register;
        if self.instruction.op0_kind() == OpKind::Memory && by_register {
            return None;
        }
        let (a, bit) = (self.load(0)?, 1 << (self.load(1)? % width.bits()));
        self.flags(Flags(self.before.eflags).with_carry(a & bit != 0));
        match self.instruction.mnemonic() {
            Mnemonic::Bt => Some(()),
            Mnemonic::Bts => self.store(0, a | bit),
            Mnemonic::Btr => self.store(0, a & !bit),
            _ => self.store(0, a ^ bit),
        }
    }

    fn exchange(&mut self) -> Option<()> {
        let width = self.width(0)?;
        let (a, b) = (self.load(0)?, self.load(1)?);
        match self.instruction.mnemonic() {
            Mnemonic::Xchg => {
                self.store(1, a)?;
                self.store(0, b)
            }
            Mnemonic::Xadd => {
                let (sum, flags) = width.add(a, b, 0);
                self.flags(flags);
                self.store(1, a)?;
                self.store(0, sum)
            }
            _ => {
                let accumulator = width.accumulator();
                let (difference, flags) = width.subtract(width.cut(self.before.rax), a, 0);
                self.flags(flags);
                if difference == 0 { self.store(0, b) } else { self.set(accumulator, a) }
            }
        }
    }

    fn target(&self) -> Option<u64> {
        match self.instruction.op0_kind() {
            OpKind::NearBranch64 => Some(self.instruction.near_branch64()),
            OpKind::Register | OpKind::Memory if self.width(0)? == Width::Q => self.load(0),
            _ => None,
        }
    }

    fn width(&self, operand: u32) -> Option<Width> {
        Width::of_bytes(match self.instruction.op_kind(operand) {
            OpKind::Register => self.instruction.op_register(operand).size(),
            OpKind::Memory => self.instruction.memory_size().size(),
            _ => return None,
        })
    }

    fn address(&self, operand: u32) -> Option<u64> {
        self.instruction
            .virtual_address(operand, 0, |register, _, _| decode::value(self.before, register))
    }

    /// An operand's value; immediate ones with their sign.
    fn load(&self, operand: u32) -> Option<u64> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.get(self.instruction.op_register(operand)),
            OpKind::Memory => {
                self.memory.load(self.address(operand)?, self.width(operand)? as usize)
            }
            _ => self.instruction.try_immediate(operand).ok(),
        }
    }

    fn store(&mut self, operand: u32, value: u64) -> Option<()> {
        match self.instruction.op_kind(operand) {
            OpKind::Register => self.set(self.instruction.op_register(operand), value),
            OpKind::Memory => {
                let (address, width) = (self.address(operand)?, self.width(operand)?);
                self.memory.store(address, width as usize, width.cut(value))
            }
            _ => None,
        }
    }

    fn get(&self, register: Register) -> Option<u64> {
        let whole = decode::value(self.before, register)?;
        let shift = if is_high_byte(register) { 8 } else { 0 };
        Some(Width::of_bytes(register.size())?.cut(whole >> shift))
    }

    fn set(&mut self, register: Register, value: u64) -> Option<()> {
        let width = Width::of_bytes(register.size())?;
        let whole = decode::place(self.after, register)?;
        let shift = if is_high_byte(register) { 8 } else { 0 };
        *whole = match width {
            Width::Q | Width::D => width.cut(value),
            Width::W | Width::B => {
                (*whole & !(width.cut(u64::MAX) << shift)) | (width.cut(value) << shift)
            }
        };
        Some(())
    }

    fn flags(&mut self, flags: Flags) {
        self.after.eflags = flags.over(self.before.eflags);
    }

    fn noting(&mut self, (result, flags): (u64, Flags)) -> u64 {
        self.flags(flags);
        result
    }
}

fn is_high_byte(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

#[cfg(test)]
mod tests;
