//! Numbers of a width, and the flags that become of them.

use iced_x86::{ConditionCode, Register};

/// Bytes of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    B = 1,
    W = 2,
    D = 4,
    Q = 8,
}

/// The arithmetic flags, in the places that the processor has them in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(pub(super) u64);

const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
/// All of them.
pub(super) const ARITHMETIC: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

fn when(condition: bool, flag: u64) -> u64 {
    if condition { flag } else { 0 }
}

impl Flags {
    /// These in place of the arithmetic ones among `all`.
    pub(super) fn over(self, all: u64) -> u64 {
        (all & !ARITHMETIC) | (self.0 & ARITHMETIC)
    }

    pub(super) fn carry(self) -> bool {
        self.0 & CARRY != 0
    }

    pub(super) fn zero(zero: bool) -> Flags {
        Flags(when(zero, ZERO))
    }

    /// What a multiplication says.
    pub(super) fn overflow(overflow: bool) -> Flags {
        Flags(when(overflow, CARRY | OVERFLOW))
    }

    pub(super) fn with_carry(self, carry: bool) -> Flags {
        Flags((self.0 & !CARRY) | when(carry, CARRY))
    }

    pub(super) fn keeping_carry(self, (result, flags): (u64, Flags)) -> (u64, Flags) {
        (result, flags.with_carry(self.carry()))
    }

    /// Whether a condition holds.
    pub(super) fn hold(self, condition: ConditionCode) -> Option<bool> {
        let is = |flag| self.0 & flag != 0;
        let less = is(SIGN) != is(OVERFLOW);
        Some(match condition {
            ConditionCode::o => is(OVERFLOW),
            ConditionCode::no => !is(OVERFLOW),
            ConditionCode::b => is(CARRY),
            ConditionCode::ae => !is(CARRY),
            ConditionCode::e => is(ZERO),
            ConditionCode::ne => !is(ZERO),
            ConditionCode::be => is(CARRY) || is(ZERO),
            ConditionCode::a => !is(CARRY) && !is(ZERO),
            ConditionCode::s => is(SIGN),
            ConditionCode::ns => !is(SIGN),
            ConditionCode::p => is(PARITY),
            ConditionCode::np => !is(PARITY),
            ConditionCode::l => less,
            ConditionCode::ge => !less,
            ConditionCode::le => less || is(ZERO),
            ConditionCode::g => !less && !is(ZERO),
            ConditionCode::None => return None,
        })
    }
}

impl Width {
    pub(super) fn of_bytes(bytes: usize) -> Option<Width> {
        Some(match bytes {
            1 => Width::B,
            2 => Width::W,
            4 => Width::D,
            8 => Width::Q,
            _ => return None,
        })
    }

    pub(super) fn bits(self) -> u64 {
        self as u64 * 8
    }

    /// What the processor keeps of a shift's count.
    pub(super) fn shift_mask(self) -> u64 {
        if self == Width::Q { 63 } else { 31 }
    }

    /// rax and its parts.
    pub(super) fn accumulator(self) -> Register {
        match self {
            Width::B => Register::AL,
            Width::W => Register::AX,
            Width::D => Register::EAX,
            Width::Q => Register::RAX,
        }
    }

    pub(super) fn cut(self, value: u64) -> u64 {
        value & (u64::MAX >> (64 - self.bits()))
    }

    pub(super) fn sign_extend(self, value: u64) -> u64 {
        let unused = 64 - self.bits();
        ((value << unused) as i64 >> unused) as u64
    }

    fn negative(self, value: u64) -> bool {
        value >> (self.bits() - 1) & 1 != 0
    }

    /// Zero, sign and parity of a result.
    fn shape(self, result: u64) -> u64 {
        when(result == 0, ZERO)
            | when(self.negative(result), SIGN)
            | when((result as u8).count_ones().is_multiple_of(2), PARITY)
    }

    pub(super) fn add(self, a: u64, b: u64, carry: u64) -> (u64, Flags) {
        let sum = u128::from(a) + u128::from(b) + u128::from(carry);
        let result = self.cut(sum as u64);
        let flags = self.shape(result)
            | when(sum >> self.bits() != 0, CARRY)
            | when(self.negative((a ^ result) & (b ^ result)), OVERFLOW)
            | ((a ^ b ^ result) & ADJUST);
        (result, Flags(flags))
    }

    pub(super) fn subtract(self, a: u64, b: u64, borrow: u64) -> (u64, Flags) {
        let result = self.cut(a.wrapping_sub(b).wrapping_sub(borrow));
        let flags = self.shape(result)
            | when(u128::from(a) < u128::from(b) + u128::from(borrow), CARRY)
            | when(self.negative((a ^ b) & (a ^ result)), OVERFLOW)
            | ((a ^ b ^ result) & ADJUST);
        (result, Flags(flags))
    }

    pub(super) fn logic(self, result: u64) -> (u64, Flags) {
        (self.cut(result), Flags(self.shape(self.cut(result))))
    }

    /// Signed; only overflow is defined.
    pub(super) fn multiply(self, a: u64, b: u64) -> (u64, Flags) {
        let signed = |value| i128::from(self.sign_extend(value) as i64);
        let product = signed(a) * signed(b);
        let result = self.cut(product as u64);
        (result, Flags::overflow(signed(result) != product))
    }

    /// The shifts and rotations take a count above 0 and below the width.
    pub(super) fn shift_left(self, a: u64, count: u64) -> (u64, Flags) {
        let result = self.cut(a << count);
        let carry = a >> (self.bits() - count) & 1 != 0;
        let flags = when(carry, CARRY) | when(self.negative(result) != carry, OVERFLOW);
        (result, Flags(self.shape(result) | flags))
    }

    pub(super) fn shift_right(self, a: u64, count: u64) -> (u64, Flags) {
        let result = a >> count;
        let carry = when(a >> (count - 1) & 1 != 0, CARRY);
        (result, Flags(self.shape(result) | carry | when(self.negative(a), OVERFLOW)))
    }

    pub(super) fn shift_signed(self, a: u64, count: u64) -> (u64, Flags) {
        let extended = self.sign_extend(a) as i64;
        let result = self.cut((extended >> count) as u64);
        (result, Flags(self.shape(result) | when(extended >> (count - 1) & 1 != 0, CARRY)))
    }

    pub(super) fn rotate_left(self, a: u64, count: u64, before: Flags) -> (u64, Flags) {
        let result = self.cut(a << count | a >> (self.bits() - count));
        let carry = result & 1 != 0;
        let changed = when(carry, CARRY) | when(self.negative(result) != carry, OVERFLOW);
        (result, Flags((before.0 & !(CARRY | OVERFLOW)) | changed))
    }

    pub(super) fn rotate_right(self, a: u64, count: u64, before: Flags) -> (u64, Flags) {
        let result = self.cut(a >> count | a << (self.bits() - count));
        let carry = self.negative(result);
        let changed = when(carry, CARRY) | when(carry != self.negative(result << 1), OVERFLOW);
        (result, Flags((before.0 & !(CARRY | OVERFLOW)) | changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_manual() {
        let (sum, flags) = Width::B.add(0x7f, 1, 0);
        assert_eq!((sum, flags), (0x80, Flags(OVERFLOW | SIGN | ADJUST)));
        let (sum, flags) = Width::D.add(0xffff_ffff, 0, 1);
        assert_eq!((sum, flags), (0, Flags(CARRY | ZERO | PARITY | ADJUST)));
        let (difference, flags) = Width::Q.subtract(0, 1, 0);
        assert_eq!((difference, flags), (u64::MAX, Flags(CARRY | SIGN | PARITY | ADJUST)));
        assert_eq!(Width::Q.shift_signed(1 << 63, 63), (u64::MAX, Flags(SIGN | PARITY)));
        assert_eq!(Width::W.shift_left(0x8001, 1), (2, Flags(CARRY | OVERFLOW)));
        assert_eq!(Width::D.multiply(0xffff_ffff, 2), (0xffff_fffe, Flags(0)));
        assert_eq!(Width::D.multiply(0x8000_0000, 2), (0, Flags(CARRY | OVERFLOW)));
    }

    #[test]
    fn conditions_read_them() {
        let (_, flags) = Width::D.subtract(1, 2, 0);
        let hold = |condition| flags.hold(condition).unwrap();
        assert!(hold(ConditionCode::b) && hold(ConditionCode::l) && hold(ConditionCode::ne));
        assert!(!hold(ConditionCode::a) && !hold(ConditionCode::ge) && !hold(ConditionCode::e));
        assert_eq!(Width::B.sign_extend(0x80), 0xffff_ffff_ffff_ff80);
    }
}
