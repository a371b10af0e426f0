//! Owns: what of stacks and faults differs from machine to machine.
//! Idea: three registers, what a call looks like in front of its return address, and where a signal's handler finds
//!   the registers of the thread.
//! Never: reads memory but a word of a stack.
//! Threads: any; holds nothing.
//! Checked: tests/guards.rs of the C layer compares stacks with functions.
//! Story: docs/guide/guards.md

use core::ffi::c_void;

/// Where a stack stands.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// What is next to be executed; 0: not known.
    pub(crate) instruction: usize,
    /// Of the function that asks; 0: the machine is not known.
    pub(crate) stack: usize,
    /// What may be the frame pointer of a caller.
    pub(crate) frame: usize,
}

/// Where a thread was when it touched what it must not.
pub(crate) struct Place {
    pub(crate) registers: Registers,
    /// Whether it was going to write.
    pub(crate) writes: Option<bool>,
}

/// The function's that it is inlined into.
#[inline(always)]
pub(crate) fn registers() -> Registers {
    if cfg!(miri) {
        // It knows no assembly.
        return Registers { instruction: 0, stack: 0, frame: 0 };
    }
    let (instruction, stack, frame): (usize, usize, usize);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads three registers.
    unsafe {
        core::arch::asm!(
            "mov {0}, rsp", "mov {1}, rbp", "lea {2}, [rip]",
            out(reg) stack, out(reg) frame, out(reg) instruction,
            options(nomem, nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads two registers.
    unsafe {
        instruction = 0;
        core::arch::asm!(
            "mov {0}, sp", "mov {1}, x29",
            out(reg) stack, out(reg) frame, options(nomem, nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        (instruction, stack, frame) = (0, 0, 0);
    }
    Registers { instruction, stack, frame }
}

/// An address in code without the signature that processors with pointer authentication put into it; any other word is some word.
#[inline(always)]
pub(crate) fn unsigned(word: usize) -> usize {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let plain;
        // SAFETY: changes one register; nothing on processors that do not know it.
        unsafe {
            core::arch::asm!(
                "hint #7", inout("x30") word => plain,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        plain
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    word
}

/// A word of a stack. By assembly: the address sanitizer takes what lies between variables for an error.
///
/// # Safety
/// It is there.
#[inline(always)]
pub(crate) unsafe fn read_word(place: *const usize) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's.
    unsafe {
        let word;
        core::arch::asm!(
            "mov {0}, [{1}]",
            out(reg) word, in(reg) place, options(readonly, nostack, preserves_flags),
        );
        word
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's.
    unsafe {
        place.read_volatile()
    }
}

/// Whether the tables for exceptions are read: registers have other numbers elsewhere, and other ways to save a return
/// address.
pub(crate) const HAS_TABLES: bool = cfg!(target_arch = "x86_64");

/// Where a call leads, or a jump.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "it is not known there"))]
pub(crate) enum Target {
    /// There.
    Code(usize),
    /// To what stands there.
    Word(usize),
    /// That depends on registers.
    Unknown,
}

/// Where the call leads with which the code in front of `end` ends.
#[cfg(target_arch = "x86_64")]
pub(crate) fn call_target(code: [u8; 8], end: usize) -> Target {
    let [_, _, first, second, a, b, c, d] = code;
    let place = end.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize);
    match (first, second) {
        (_, 0xe8) => Target::Code(place),
        (0xff, 0x15) => Target::Word(place),
        _ => Target::Unknown,
    }
}

/// Where the code at `start` jumps, if that is all it does: an entry of the table for calls between libraries.
#[cfg(target_arch = "x86_64")]
pub(crate) fn jump_target(code: [u8; 16], start: usize) -> Target {
    // endbr64 and bnd may stand in front of: jmp [rip + n].
    let lead = if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let lead = lead + usize::from(code[lead] == 0xf2);
    match code[lead..lead + 6] {
        [0xff, 0x25, a, b, c, d] => {
            let end = start + lead + 6;
            Target::Word(end.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]) as isize))
        }
        _ => Target::Unknown,
    }
}

/// Not known.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn call_target(_: [u8; 8], _: usize) -> Target {
    Target::Unknown
}

/// Not known.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn jump_target(_: [u8; 16], _: usize) -> Target {
    Target::Unknown
}

/// Whether the code that ends with these bytes ends with a call.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_call(code: [u8; 8]) -> bool {
    // call rel32; or call through a register or memory, 0xff /2, of 2 to 7 bytes.
    let through = |length: usize| code[8 - length] == 0xff && code[9 - length] >> 3 & 7 == 2;
    code[3] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(through)
}

/// Whether the code that ends with these bytes ends with a call.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_call(code: [u8; 8]) -> bool {
    let last = u32::from_le_bytes([code[4], code[5], code[6], code[7]]);
    // bl, blr.
    cfg!(target_arch = "aarch64") && (last >> 26 == 0x25 || last & 0xffff_fc1f == 0xd63f_0000)
}

/// How many words above the stack pointer the caller's is, if this code gives them back and returns.
pub(crate) fn words_to_caller(code: [u8; 5]) -> Option<usize> {
    match code {
        // add rsp, n; ret.
        [0x48, 0x83, 0xc4, bytes @ 0..0x80, 0xc3] if cfg!(target_arch = "x86_64") => {
            bytes.is_multiple_of(8).then_some(usize::from(bytes) / 8 + 1)
        }
        _ => None,
    }
}

/// What a signal's handler is told of the thread: a `ucontext_t`, read as words.
pub(crate) fn place(context: *const c_void) -> Place {
    // SAFETY: the system's, with all registers in it.
    let word = |at: usize| unsafe { context.cast::<usize>().add(at).read() };
    if cfg!(target_arch = "x86_64") {
        // From word 5 on: r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, flags, segments, error.
        let (instruction, stack, frame) = (word(5 + 16), word(5 + 15), word(5 + 10));
        let registers = Registers { instruction, stack, frame };
        let writes = Some(word(5 + 19) & 2 != 0);
        return Place { registers, writes };
    }
    if cfg!(target_arch = "aarch64") {
        // From word 22 on: the fault's address, x0 to x30, sp, pc.
        let (instruction, stack, frame) = (word(22 + 33), word(22 + 32), word(22 + 30));
        let registers = Registers { instruction, stack, frame };
        return Place { registers, writes: None };
    }
    let registers = Registers { instruction: 0, stack: 0, frame: 0 };
    Place { registers, writes: None }
}
