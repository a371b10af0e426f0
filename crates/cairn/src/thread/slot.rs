//! Owns: the eight bytes of thread-local memory that lead to a thread's heap.
//! Idea: the initial-exec model, spelled out, costs two loads in a shared library where the
//!   compiler's own thread-locals cost a call.
//! Never: more than 8 bytes: that much always fits the loader's static surplus (dlopen works).
//! Threads: each its own.
//! Checked: the export tests look at the library's TLS segment.
//! Story: docs/tls.md

use super::EMPTY;
use crate::heap::Heap;
use crate::sync::AtomicU32;
#[cfg(not(target_arch = "x86_64"))]
use crate::sync::Ordering;
use core::arch::{asm, global_asm};

// Every thread starts at the empty stand-in: the fast paths need no "is it set?" branch.
global_asm!(
    ".pushsection .tdata.cairn_slot,\"awT\",%progbits",
    ".p2align 3",
    ".hidden cairn_slot",
    ".globl cairn_slot",
    ".type cairn_slot, %object",
    ".size cairn_slot, 8",
    "cairn_slot:",
    ".8byte {empty} + 64",
    ".popsection",
    empty = sym EMPTY,
);

/// The calling thread's heap, or a stand-in.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn get() -> *mut Heap {
    let heap;
    // SAFETY: reads the calling thread's own slot.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + cairn_slot@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) heap,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    heap
}

/// Whether `owner` is the tag of `heap`. The compiler does not fold an atomic load into a
/// comparison; this is that one instruction.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn owns(heap: *mut Heap, owner: &AtomicU32) -> bool {
    // SAFETY: reads one aligned word, as a relaxed load would.
    unsafe {
        asm!(
            "cmp dword ptr [{0}], {1:e}",
            "jne {2}",
            in(reg) owner.as_ptr(),
            in(reg) heap,
            label { return false },
            options(nostack, readonly),
        );
    }
    true
}

/// Whether `owner` is the tag of `heap`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn owns(heap: *mut Heap, owner: &AtomicU32) -> bool {
    owner.load(Ordering::Relaxed) == Heap::tag(heap)
}

/// Makes `heap` the calling thread's.
#[cfg(target_arch = "x86_64")]
pub(super) fn set(heap: *mut Heap) {
    // SAFETY: writes the calling thread's own slot.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + cairn_slot@GOTTPOFF]",
            "mov qword ptr fs:[{0}], {1}",
            out(reg) _,
            in(reg) heap,
            options(nostack, preserves_flags),
        );
    }
}

/// The calling thread's heap, or a stand-in.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn get() -> *mut Heap {
    let heap;
    // SAFETY: reads the calling thread's own slot.
    unsafe {
        asm!(
            "mrs {1}, tpidr_el0",
            "adrp {0}, :gottprel:cairn_slot",
            "ldr {0}, [{0}, :gottprel_lo12:cairn_slot]",
            "ldr {0}, [{1}, {0}]",
            out(reg) heap,
            out(reg) _,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    heap
}

/// Makes `heap` the calling thread's.
#[cfg(target_arch = "aarch64")]
pub(super) fn set(heap: *mut Heap) {
    // SAFETY: writes the calling thread's own slot.
    unsafe {
        asm!(
            "mrs {1}, tpidr_el0",
            "adrp {0}, :gottprel:cairn_slot",
            "ldr {0}, [{0}, :gottprel_lo12:cairn_slot]",
            "str {2}, [{1}, {0}]",
            out(reg) _,
            out(reg) _,
            in(reg) heap,
            options(nostack, preserves_flags),
        );
    }
}
