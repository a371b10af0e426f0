//! Size feedback for C++: `operator new` that tells how large the block is, and the forms that take a hint how hot
//! it will be. The names and types are those that LLVM knows (`TargetLibraryInfo`) and tcmalloc has. Without memory
//! all go the way of `operator new`; where the program has one of its own, they call that.

use crate::cxx;
use crate::cxx_runtime::cairn_new_retry;
use crate::family::MALLOC_ALIGN;
use core::arch::{global_asm, naked_asm};
use core::ffi::c_void;

/// `__sized_ptr_t`.
#[repr(C)]
pub(crate) struct SizedPointer {
    block: *mut c_void,
    bytes: usize,
}

// Makes an attempt. If that gives no block, it names the function that shall: what that throws passes through this
// frame, which is described to the unwinder.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.cairn_new_sized,\"ax\",@progbits",
    ".hidden cairn_new_sized",
    ".globl cairn_new_sized",
    ".type cairn_new_sized, @function",
    "cairn_new_sized:", // rdi: size, rsi: alignment, rdx: the form of operator new
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {attempt}",
    "test rax, rax",
    "jnz 2f",
    "mov rdi, [rsp + 16]",
    "mov rsi, [rsp + 8]",
    "mov rcx, rdx",
    "or rdx, -1",
    "call rcx",
    "mov rdi, rax",
    "mov rsi, [rsp + 16]",
    "call {sized}",
    "2:",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    ".cfi_endproc",
    ".size cairn_new_sized, . - cairn_new_sized",
    ".popsection",
    attempt = sym attempt,
    sized = sym sized,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.cairn_new_sized,\"ax\",%progbits",
    ".hidden cairn_new_sized",
    ".globl cairn_new_sized",
    ".type cairn_new_sized, %function",
    "cairn_new_sized:", // x0: size, x1: alignment, x2: the form of operator new
    ".cfi_startproc",
    "stp x29, x30, [sp, #-32]!",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset x29, -32",
    ".cfi_offset x30, -24",
    "stp x0, x1, [sp, #16]",
    "bl {attempt}",
    "cbnz x0, 2f",
    "mov x3, x1",
    "ldp x0, x1, [sp, #16]",
    "mov x2, #-1",
    "blr x3",
    "ldr x1, [sp, #16]",
    "bl {sized}",
    "2:",
    "ldp x29, x30, [sp], #32",
    ".cfi_def_cfa_offset 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    ".size cairn_new_sized, . - cairn_new_sized",
    ".popsection",
    attempt = sym attempt,
    sized = sym sized,
);

type Form = *const ();

/// A block, or null and the function to call instead, with size, alignment, and `NO_PARTITION`: `form`, if that is the
/// program's, or what `operator new` ends with.
extern "C" fn attempt(size: usize, align: usize, form: Form) -> SizedPointer {
    let mut instead = form;
    if !cxx::is_replaced() {
        let (block, bytes) = cairn::allocate_at_least(size, align);
        if !block.is_null() {
            return SizedPointer { block: block.cast(), bytes };
        }
        instead = cairn_new_retry as Form;
    }
    SizedPointer { block: core::ptr::null_mut(), bytes: instead.expose_provenance() }
}

/// A block that was asked for with that size, and how much of it may be used: if it is the program's own
/// `operator new`'s, no more than that.
extern "C" fn sized(block: *mut u8, size: usize) -> SizedPointer {
    // SAFETY: a block that has just been allocated.
    let bytes = if cxx::is_replaced() { size } else { unsafe { cairn::usable_size(block) } };
    SizedPointer { block: block.cast(), bytes }
}

/// Goes on with a form of `operator new` without an alignment, or with one.
#[cfg(target_arch = "x86_64")]
macro_rules! plain {
    () => {
        naked_asm!(
            "mov esi, {align}", "lea rdx, [rip + {form}]", "jmp cairn_new_sized",
            align = const MALLOC_ALIGN, form = sym cxx::new_by_table,
        )
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! aligned {
    () => {
        naked_asm!(
            "lea rdx, [rip + {form}]", "jmp cairn_new_sized",
            form = sym cxx::new_aligned_by_table,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! plain {
    () => {
        naked_asm!(
            "mov x1, {align}", "adrp x2, {form}", "add x2, x2, :lo12:{form}", "b cairn_new_sized",
            align = const MALLOC_ALIGN, form = sym cxx::new_by_table,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! aligned {
    () => {
        naked_asm!(
            "adrp x2, {form}", "add x2, x2, :lo12:{form}", "b cairn_new_sized",
            form = sym cxx::new_aligned_by_table,
        )
    };
}

/// `operator new(size_t)` that tells the size.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __size_returning_new(_size: usize) -> SizedPointer {
    plain!()
}

/// `operator new(size_t, std::align_val_t)` that tells the size.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __size_returning_new_aligned(_size: usize, _align: usize) -> SizedPointer {
    aligned!()
}

/// The same with a hint, which changes nothing.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __size_returning_new_hot_cold(_size: usize, _hot: u8) -> SizedPointer {
    plain!()
}

/// The same with a hint, which changes nothing.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __size_returning_new_aligned_hot_cold(
    _size: usize,
    _align: usize,
    _hot: u8,
) -> SizedPointer {
    aligned!()
}
