//! Owns: the eight bytes of thread-local memory that lead to a thread's heap.
//! Idea: the initial-exec model, spelled out, costs two loads in a shared library where the
//!   compiler's own thread-locals cost a call.
//! Never: more than 8 bytes: that much always fits the loader's static surplus (dlopen works).
//! Threads: each its own.
//! Checked: the export tests look at the library's TLS segment.
//! Story: docs/design/tls.md

use crate::heap::{EMPTY, Heap};
use crate::os;
use core::arch::{asm, global_asm};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "s390x")))]
compile_error!("cairn runs on x86-64, aarch64 and s390x: another 64-bit machine needs a slot here");
const _: () = assert!(usize::BITS == 64, "cairn needs 64-bit addresses: it reserves up to 1 TiB");

// Every thread starts at the empty stand-in: the fast paths need no "is it set?" branch.
global_asm!(
    ".pushsection .tdata.cairn_heap,\"awT\",%progbits",
    ".p2align 3",
    ".hidden cairn_heap",
    ".globl cairn_heap",
    ".type cairn_heap, %object",
    ".size cairn_heap, 8",
    "cairn_heap:",
    ".8byte {empty} + 64",
    ".popsection",
    empty = sym EMPTY,
);

// Beside the slot, without which no copy is linked. As a static it would be a name that every archive exports.
global_asm!(
    ".pushsection .init_array,\"aw\",%init_array",
    ".p2align 3",
    ".8byte {stay}",
    ".popsection",
    stay = sym os::stay,
);

/// The calling thread's heap, or a stand-in.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn get() -> *mut Heap {
    let heap;
    // SAFETY: reads the calling thread's own slot.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + cairn_heap@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) heap,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    heap
}

/// The calling thread's heap, or a stand-in.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn get() -> *mut Heap {
    // SAFETY: the calling thread's own slot.
    unsafe { *place() }
}

/// Makes `heap` the calling thread's.
pub(super) fn set(heap: *mut Heap) {
    // SAFETY: the calling thread's own slot.
    unsafe { *place() = heap }
}

/// Where the calling thread's slot is: an offset of the loader's from its thread pointer.
#[inline(always)]
fn place() -> *mut *mut Heap {
    let (pointer, offset): (*mut u8, usize);
    // SAFETY: reads what stays the same as long as the thread lives.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {0}, qword ptr fs:[0]",
            "mov {1}, qword ptr [rip + cairn_heap@GOTTPOFF]",
            out(reg) pointer, out(reg) offset, options(nostack, preserves_flags, nomem, pure),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "mrs {0}, tpidr_el0",
            "adrp {1}, :gottprel:cairn_heap",
            "ldr {1}, [{1}, :gottprel_lo12:cairn_heap]",
            out(reg) pointer, out(reg) offset, options(nostack, preserves_flags, nomem, pure),
        );
        #[cfg(target_arch = "s390x")]
        asm!(
            "ear {0}, %a0",
            "sllg {0}, {0}, 32",
            "ear {0}, %a1",
            "larl {1}, cairn_heap@INDNTPOFF",
            "lg {1}, 0({1})",
            out(reg) pointer, out(reg_addr) offset, options(nostack, preserves_flags, nomem, pure),
        );
    }
    pointer.wrapping_byte_add(offset).cast()
}
