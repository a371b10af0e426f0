//! Single instructions.

use super::*;
use iced_x86::{Decoder, DecoderOptions};
use std::collections::HashMap;

impl Memory for HashMap<u64, u64> {
    fn load(&self, address: u64, _: usize) -> Option<u64> {
        self.get(&address).copied()
    }

    fn store(&mut self, address: u64, _: usize, value: u64) -> Option<()> {
        self.insert(address, value).map(|_| ())
    }
}

/// Executes with rax = 1, rcx = 2, rdi = 0x5000, where 1 is stored.
fn run(bytes: &[u8]) -> Option<(Registers, u64)> {
    // SAFETY: the structure is integers alone, for which zeroes are a valid value.
    let mut registers = unsafe { std::mem::zeroed::<Registers>() };
    (registers.rax, registers.rcx, registers.rdi) = (1, 2, 0x5000);
    let mut memory = HashMap::from([(0x5000, 1)]);
    let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    execute(&instruction, &mut registers, &mut memory)?;
    Some((registers, memory[&0x5000]))
}

#[test]
fn results_go_where_they_belong() {
    let (registers, stored) = run(&[0xf0, 0x48, 0x0f, 0xb1, 0x0f]).unwrap();
    assert_eq!((registers.rip, stored), (0x1005, 2), "lock cmpxchg [rdi], rcx");
    let (registers, stored) = run(&[0xf0, 0x48, 0x0f, 0xc1, 0x0f]).unwrap();
    assert_eq!((registers.rcx, stored), (1, 3), "lock xadd [rdi], rcx");
    let (registers, _) = run(&[0x83, 0xe8, 0x02]).unwrap();
    assert_eq!(registers.rax, 0xffff_ffff, "sub eax, 2: the upper half is cleared");
    assert_eq!(registers.eflags & 0x8d5, 0x95, "carry, parity, adjust and sign");
    let (registers, _) = run(&[0xb4, 0x07]).unwrap();
    assert_eq!(registers.rax, 0x701, "mov ah, 7: the rest stays");
}

#[test]
fn nothing_changes_when_it_is_not_known() {
    assert!(run(&[0x0f, 0x05]).is_none(), "syscall");
    assert!(run(&[0xf3, 0x48, 0xab]).is_none(), "rep stosq");
    assert!(run(&[0x0f, 0x11, 0x07]).is_none(), "movups [rdi], xmm0");
    assert!(run(&[0x48, 0x8b, 0x00]).is_none(), "mov rax, [rax]: nothing is there");
}
