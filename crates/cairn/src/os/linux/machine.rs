//! Owns: what has to be written for a machine: the instruction that enters the kernel, the thread's own address.
//! Idea: nothing goes through the C library, whose functions others may stand before, and allocate in there.
//! Never: touches errno; knows what a system call does.
//! Threads: any; holds nothing.
//! Checked: tests/interposers.rs of the C layer; its tests/faults.rs puts a function of its own in the place of `enter`.
//! Story: docs/design/systems.md

use core::ffi::{CStr, c_long};

/// Makes a system call; its answer, or the error, negative.
///
/// # Safety
/// As the call's: what it does to memory is the caller's to allow, and pointers among `arguments` are exposed.
#[inline(always)]
pub unsafe fn system_call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's.
    unsafe { enter(a, b, c, d, e, f, number) }
}

/// Makes the call that maps memory. On s390x the kernel reads its arguments from memory.
///
/// # Safety
/// As the call's.
#[inline(always)]
pub(super) unsafe fn map(arguments: [usize; 6]) -> isize {
    let passed = match cfg!(target_arch = "s390x") {
        true => [(&raw const arguments).expose_provenance(), 0, 0, 0, 0, 0],
        false => arguments,
    };
    // SAFETY: the caller's; the arguments outlive the call.
    unsafe { system_call(libc::SYS_mmap, passed) }
}

/// The address of a name that the C layer defines, if it is there: the loader's table has it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) fn early_asked() -> usize {
    let asked;
    // SAFETY: reads the table.
    unsafe {
        core::arch::asm!(
            ".weak cairn_early_address_space",
            ".hidden cairn_early_address_space",
            "mov {0}, qword ptr [rip + cairn_early_address_space@GOTPCREL]",
            out(reg) asked,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    asked
}

/// As above.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
pub(super) fn early_asked() -> usize {
    let asked;
    // SAFETY: reads the table.
    unsafe {
        core::arch::asm!(
            ".weak cairn_early_address_space",
            ".hidden cairn_early_address_space",
            "adrp {0}, :got:cairn_early_address_space",
            "ldr {0}, [{0}, :got_lo12:cairn_early_address_space]",
            out(reg) asked,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    asked
}

/// There is no C layer.
#[cfg(any(miri, target_arch = "s390x"))]
pub(super) fn early_asked() -> usize {
    0
}

// The only place where the kernel is entered: one function, and not inlined, for others to find it. It is no name that
// programs are linked with.
#[cfg(not(miri))]
#[unsafe(naked)]
unsafe extern "C" fn enter(
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: c_long,
) -> isize {
    // The other arguments are in their registers. The kernel changes rcx and r11, which are nobody's.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".hidden {}",
        "mov r10, rcx",
        "mov rax, qword ptr [rsp + 8]",
        "syscall",
        "ret",
        "nop",
        sym enter,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(".hidden {}", "mov x8, x6", "svc 0", "ret", "nop", sym enter);
    // The sixth argument and the number are on the stack; r7 is the caller's, who has a place for it there.
    #[cfg(target_arch = "s390x")]
    core::arch::naked_asm!(
        ".hidden {}",
        "stg %r7, 56(%r15)",
        "lg %r7, 160(%r15)",
        "lg %r1, 168(%r15)",
        "svc 0",
        "lg %r7, 56(%r15)",
        "br %r14",
        sym enter,
    );
}

/// An interpreter knows no instructions.
#[cfg(miri)]
unsafe fn enter(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    number: c_long,
) -> isize {
    super::keeping_errno(|| {
        // SAFETY: the caller's; errno's location is the thread's. A futex asks it for pointers, which are numbers here: nobody
        // sleeps, each wakes at once.
        let answer = match number {
            libc::SYS_futex => unsafe { libc::sched_yield().into() },
            _ => unsafe { libc::syscall(number, a, b, c, d, e, f) },
        };
        match answer {
            // SAFETY: as above.
            -1 => unsafe { -(*libc::__errno_location() as isize) },
            answer => answer as isize,
        }
    })
}

/// The thread pointer: it tells the calling thread from all others, and is the same in a forked child.
#[inline(always)]
pub(super) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads what stays the same as long as the thread lives.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            out(reg) pointer, options(nostack, preserves_flags, readonly, pure),
        );
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        core::arch::asm!(
            "mrs {0}, tpidr_el0",
            out(reg) pointer, options(nostack, preserves_flags, nomem, pure),
        );
        #[cfg(all(target_arch = "s390x", not(miri)))]
        core::arch::asm!(
            "ear {0}, %a0", "sllg {0}, {0}, 32", "ear {0}, %a1",
            out(reg) pointer, options(nostack, preserves_flags, nomem, pure),
        );
        #[cfg(miri)]
        {
            pointer = libc::__errno_location().addr();
        }
    }
    pointer
}

/// What the kernel's function that reads a clock is called.
pub(super) const CLOCK: &CStr =
    if cfg!(target_arch = "x86_64") { c"__vdso_clock_gettime" } else { c"__kernel_clock_gettime" };
/// Bytes in the largest page that the machine may have.
pub(super) const PAGE_MAX: usize = if cfg!(target_arch = "aarch64") { 64 << 10 } else { 4096 };
/// Whether words of an ELF file's first kind of hash table have four bytes.
pub(super) const SHORT_HASHES: bool = !cfg!(target_arch = "s390x");
