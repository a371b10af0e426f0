//! Owns: the probes by which tools outside, eBPF profilers among them, are told of samples of the heap profile.
//! Idea: a probe is an instruction that does nothing, in a function of its own; a note in the file says where it is, in
//!   which registers its arguments are, and which word counts who listens.
//! Never: prepares arguments while nobody listens; stands in two places: one event is one block.
//! Threads: any; holds nothing.
//! Checked: tests/sample/probes.rs here; the C layer's probes.rs reads the notes of the built library, and listens.
//! Story: docs/guide/profile.md

use core::sync::atomic::AtomicU16;

// What users rely on: the provider `otel_memory`, and
//
//     alloc(void *block, u64 size, u64 weighted_bytes)    a sample has been allocated
//     free(void *block)                                   it is about to be freed
//
// as OpenTelemetry's eBPF profiler reads them: arguments are where a function's are. The notes are version 3 of
// SystemTap's: the addresses of the probe, of `_.stapsdt.base` and of the count; the provider's name, the probe's, and
// its arguments, each as its bytes and its place. Linkers keep notes, but not all keep what notes alone refer to: so
// what must stay lies in sections that are retained, or a word there leads to it.

/// How many listen to `alloc`. The system counts in the section of that name.
#[unsafe(link_section = ".probes")]
static ALLOC_LISTENERS: AtomicU16 = AtomicU16::new(0);
/// How many listen to `free`.
#[unsafe(link_section = ".probes")]
static FREE_LISTENERS: AtomicU16 = AtomicU16::new(0);

/// A block of which the program has asked for `asked` bytes, and which has been drawn as one of `weighed` at that rate, is
/// a sample.
#[cold]
#[inline(never)]
pub(crate) fn allocated(block: *mut u8, asked: usize, weighed: usize, rate: usize) {
    if has(&ALLOC_LISTENERS) {
        alloc(block, asked as u64, stands_for(asked, weighed, rate));
    }
}

/// A sample is being freed.
#[cold]
#[inline(never)]
pub(crate) fn freed(block: *mut u8) {
    if has(&FREE_LISTENERS) {
        free(block);
    }
}

/// Whether anybody listens.
#[inline(always)]
fn has(listeners: &AtomicU16) -> bool {
    // Miri knows no assembly. Volatile: nothing that the compiler sees ever changes it.
    // SAFETY: an aligned word of our own; the system changes it as a whole.
    !cfg!(miri) && unsafe { listeners.as_ptr().read_volatile() } > 0
}

/// Bytes that a sample stands for: `asked` by the chance that it is one, which is 1 - exp(-weighed / rate). Off by less
/// than one in 10 million, and by the rest of a byte.
#[inline(never)]
pub(crate) fn stands_for(asked: usize, weighed: usize, rate: usize) -> u64 {
    const DOUBLINGS: u32 = 10;
    /// exp(-64) is nothing beside 1.
    const MOST: f64 = 64.0;
    let part = (weighed as f64 / rate as f64).min(MOST) / f64::from(1 << DOUBLINGS);
    // Of a small part of the block: x - x^2/2 + x^3/6 - x^4/24, with x up to 1/16.
    let mut chance = part * (1.0 - part / 2.0 * (1.0 - part / 3.0 * (1.0 - part / 4.0)));
    // Of twice as much: one half is drawn, or the other.
    for _ in 0..DOUBLINGS {
        chance *= 2.0 - chance;
    }
    (asked as f64 / chance + 0.5) as u64
}

/// The probe.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
extern "C" fn alloc(block: *mut u8, size: u64, weighted: u64) {
    core::arch::naked_asm!(
        "990: nop",
        "ret",
        ".ifndef _.stapsdt.base",
        ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat",
        ".weak _.stapsdt.base",
        ".hidden _.stapsdt.base",
        "_.stapsdt.base: .space 1",
        ".size _.stapsdt.base, 1",
        ".popsection",
        ".endif",
        ".pushsection .rodata.probes, \"aR\", \"progbits\"",
        ".balign 4",
        ".4byte 990b - .",
        ".popsection",
        ".pushsection .note.stapsdt, \"\", \"note\"",
        ".balign 4",
        ".4byte 992f - 991f, 994f - 993f, 3",
        "991: .asciz \"stapsdt\"",
        "992: .balign 4",
        "993: .8byte 990b, _.stapsdt.base, {listeners}",
        ".asciz \"otel_memory\"",
        ".asciz \"alloc\"",
        ".if {is_x86_64}",
        ".asciz \"8@%rdi 8@%rsi 8@%rdx\"",
        ".else",
        ".asciz \"8@x0 8@x1 8@x2\"",
        ".endif",
        "994: .balign 4",
        ".popsection",
        listeners = sym ALLOC_LISTENERS,
        is_x86_64 = const cfg!(target_arch = "x86_64") as u8,
    )
}

/// The probe.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
extern "C" fn free(block: *mut u8) {
    core::arch::naked_asm!(
        "990: nop",
        "ret",
        ".pushsection .rodata.probes, \"aR\", \"progbits\"",
        ".balign 4",
        ".4byte 990b - .",
        ".popsection",
        ".pushsection .note.stapsdt, \"\", \"note\"",
        ".balign 4",
        ".4byte 992f - 991f, 994f - 993f, 3",
        "991: .asciz \"stapsdt\"",
        "992: .balign 4",
        "993: .8byte 990b, _.stapsdt.base, {listeners}",
        ".asciz \"otel_memory\"",
        ".asciz \"free\"",
        ".if {is_x86_64}",
        ".asciz \"8@%rdi\"",
        ".else",
        ".asciz \"8@x0\"",
        ".endif",
        "994: .balign 4",
        ".popsection",
        listeners = sym FREE_LISTENERS,
        is_x86_64 = const cfg!(target_arch = "x86_64") as u8,
    )
}

/// There is none.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn alloc(_: *mut u8, _: u64, _: u64) {}

/// There is none.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn free(_: *mut u8) {}
