//! A call that catches whatever the called function throws: for the nothrow forms of operator new. The frame says to
//! the unwinder what a C++ function with `catch (...)` says, by way of the runtime's personality, if that is there.
//! Nothing is thrown where it is not.

use core::arch::global_asm;
use core::ffi::c_void;

// References that may stay unresolved, as in `cxx_runtime`.
global_asm!(
    ".pushsection .data.rel.ro.cairn_catch,\"aw\"",
    ".p2align 3",
    ".hidden cairn_catch_personality",
    ".globl cairn_catch_personality",
    ".type cairn_catch_personality, %object",
    ".size cairn_catch_personality, 24",
    ".weak __gxx_personality_v0",
    ".weak __cxa_begin_catch",
    ".weak __cxa_end_catch",
    "cairn_catch_personality:",
    ".8byte __gxx_personality_v0",
    ".hidden cairn_catch_calls",
    ".globl cairn_catch_calls",
    "cairn_catch_calls:",
    ".8byte __cxa_begin_catch",
    ".8byte __cxa_end_catch",
    ".popsection",
    // One call, and where to go on if it throws anything.
    ".pushsection .gcc_except_table.cairn_catch,\"a\",%progbits",
    ".p2align 2",
    ".hidden cairn_catch_table",
    ".globl cairn_catch_table",
    "cairn_catch_table:",
    ".byte 0xff", // landing pads count from the function
    ".byte 0x03", // types are words of 4 bytes
    ".uleb128 5f - 4f",
    "4:",
    ".byte 0x01", // calls are in uleb128
    ".uleb128 7f - 6f",
    "6:",
    ".uleb128 cairn_catch_from - cairn_catching",
    ".uleb128 cairn_catch_to - cairn_catch_from",
    ".uleb128 cairn_catch_here - cairn_catching",
    ".uleb128 1",
    "7:",
    ".byte 1, 0", // the first type, and no other
    ".p2align 2",
    ".4byte 0", // any
    "5:",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.cairn_catching,\"ax\",@progbits",
    ".hidden cairn_catching",
    ".globl cairn_catching",
    ".type cairn_catching, @function",
    "cairn_catching:", // rdi: the function, rsi, rdx: its arguments, rcx: bits of the answer
    ".cfi_startproc",
    ".cfi_personality 0x9b, cairn_catch_personality",
    ".cfi_lsda 0x1b, cairn_catch_table",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "cairn_catch_from:",
    "call rax",
    "cairn_catch_to:",
    "or rax, [rsp]",
    "2:",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_adjust_cfa_offset 8",
    "cairn_catch_here:", // rax: what was thrown
    "mov rdi, rax",
    "call qword ptr [rip + cairn_catch_calls]",
    "call qword ptr [rip + cairn_catch_calls + 8]",
    "xor eax, eax",
    "jmp 2b",
    ".cfi_endproc",
    ".size cairn_catching, . - cairn_catching",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.cairn_catching,\"ax\",%progbits",
    ".hidden cairn_catching",
    ".globl cairn_catching",
    ".type cairn_catching, %function",
    "cairn_catching:", // x0: the function, x1, x2: its arguments, x3: bits of the answer
    ".cfi_startproc",
    ".cfi_personality 0x9b, cairn_catch_personality",
    ".cfi_lsda 0x1b, cairn_catch_table",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    "str x3, [sp, #16]",
    "mov x8, x0",
    "mov x0, x1",
    "mov x1, x2",
    "cairn_catch_from:",
    "blr x8",
    "cairn_catch_to:",
    "ldr x8, [sp, #16]",
    "orr x0, x0, x8",
    "2:",
    ".cfi_remember_state",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_restore_state",
    "cairn_catch_here:", // x0: what was thrown
    "adrp x8, cairn_catch_calls",
    "ldr x8, [x8, :lo12:cairn_catch_calls]",
    "blr x8",
    "adrp x8, cairn_catch_calls + 8",
    "ldr x8, [x8, :lo12:cairn_catch_calls + 8]",
    "blr x8",
    "mov x0, xzr",
    "b 2b",
    ".cfi_endproc",
    ".size cairn_catching, . - cairn_catching",
    ".popsection",
);

unsafe extern "C" {
    fn cairn_catching(function: *const c_void, first: usize, second: usize, bits: usize) -> usize;
    static cairn_catch_personality: [*const c_void; 3];
}

/// Whether what is needed to catch is there: linked in, or loaded with the program.
pub(crate) fn is_linked() -> bool {
    let words = &raw const cairn_catch_personality;
    // SAFETY: the table is constant once the library is loaded. Volatile: the loader fills it in.
    unsafe { words.read_volatile() }.iter().all(|word| !word.is_null())
}

/// Calls a function that answers nothing; false if it throws.
///
/// # Safety
/// It is one, without arguments.
pub(crate) unsafe fn call(function: *const c_void) -> bool {
    // SAFETY: the caller's contract.
    unsafe { cairn_catching(function, 0, 0, 1) != 0 }
}

/// Calls a form of `operator new`; null if it throws.
///
/// # Safety
/// It is one, with so many of these arguments.
pub(crate) unsafe fn call_new(form: *const c_void, size: usize, align: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    core::ptr::with_exposed_provenance_mut(unsafe { cairn_catching(form, size, align, 0) })
}
