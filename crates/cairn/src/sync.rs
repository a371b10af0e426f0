//! Owns: the atomics and the one plain cell that the cross-thread protocols use.
//! Idea: one name for each of them, so that the models put their own in the place of this file.
//! Never: anything else; it knows nothing above it.
//! Threads: any; holds nothing.
//! Checked: by what is built on it.
//! Story: docs/design/remote-frees.md

pub(crate) use core::cell::UnsafeCell;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

/// A constant's value, and what stands for it in the loom models, in which executions must be short.
pub(crate) const fn in_loom<T: Copy>(production: T, _model: T) -> T {
    production
}

/// A constant's value, and what stands for it in the shuttle models, in which rare paths are to be
/// common.
pub(crate) const fn in_shuttle<T: Copy>(production: T, _model: T) -> T {
    production
}

/// Whether `word` has that value, as a relaxed load tells. The compiler does not fold an atomic load into
/// a comparison; this is that one instruction.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn holds(word: &AtomicU32, value: u32) -> bool {
    // SAFETY: reads one aligned word, as a relaxed load would.
    unsafe {
        core::arch::asm!(
            "cmp dword ptr [{0}], {1:e}",
            "jne {2}",
            in(reg) word.as_ptr(),
            in(reg) value,
            label { return false },
            options(nostack, readonly),
        );
    }
    true
}

/// Whether `word` has that value, as a relaxed load tells.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn holds(word: &AtomicU32, value: u32) -> bool {
    word.load(Ordering::Relaxed) == value
}

impl<T> Plain<*mut T> {
    /// The upper 16 bits of the address, by a load of their own: a comparison with them is one instruction.
    #[inline(always)]
    pub(crate) fn upper_bits(&self) -> u16 {
        let place = if cfg!(target_endian = "little") { 3 } else { 0 };
        // SAFETY: as for `get`; the address is in the cell.
        unsafe { self.0.get().cast::<u16>().add(place).read() }
    }
}

/// Whether the processor has `prefetchw`: the first ones with 64 bits may not. Relaxed: it decides only how fast
/// a line comes.
#[cfg(target_arch = "x86_64")]
static HAS_PREFETCHW: AtomicBool = AtomicBool::new(false);

/// Asks the processor what it has; once, by the thread that makes the reservation.
#[cfg(target_arch = "x86_64")]
pub(crate) fn look_at_processor() {
    const EXTENDED: u32 = 0x8000_0000;
    #[allow(unused_unsafe, reason = "later compilers take it for safe")]
    // SAFETY: every processor with 64 bits answers these.
    let has = unsafe {
        core::arch::x86_64::__cpuid(EXTENDED).eax > EXTENDED
            && core::arch::x86_64::__cpuid(EXTENDED + 1).ecx >> 8 & 1 == 1
    };
    HAS_PREFETCHW.store(has, Ordering::Relaxed);
}

/// Asks the processor what it has.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn look_at_processor() {}

/// Says that the caller reads what stands there, and then writes it: so the line comes once, to be written, where
/// another processor has it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn will_write<T>(at: *const T) {
    if HAS_PREFETCHW.load(Ordering::Relaxed) {
        // SAFETY: no effect but on caches, at any address; the processor has the instruction.
        unsafe {
            core::arch::asm!(
                "prefetchw [{0}]", in(reg) at, options(nostack, preserves_flags, readonly),
            );
        }
    }
}

/// Says that the caller reads what stands there, and then writes it.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn will_write<T>(_: *const T) {}

/// The caller alone may use what stands there now: a model reports it if that is not so.
#[inline(always)]
pub(crate) fn touched<T>(_: *const T) {}

/// In a model another thread may run here, or a fork find what is half done.
#[inline(always)]
pub(crate) fn point() {}

/// A value alone on its cache line: what all threads read must not share one with what some
/// write.
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

/// A plain memory cell; its twin in the models reports a data race on it. Whoever may reach the
/// memory it stands in says who may touch it: blocks by `remote`'s invariant 3, the reservation's fast
/// fields by `address_map::Map`.
#[repr(transparent)]
pub(crate) struct Plain<T>(UnsafeCell<T>);

impl<T: Copy> Plain<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> T {
        // SAFETY: its users see to it that no thread writes meanwhile.
        unsafe { *self.0.get() }
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: its users see to it that no thread reads or writes meanwhile.
        unsafe { *self.0.get() = value }
    }
}
