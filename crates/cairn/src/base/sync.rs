//! Owns: the atomics and the one plain cell that the cross-thread protocols use.
//! Idea: one name for each of them, so that the models put their own in the place of this file.
//! Never: anything else; it knows nothing above it.
//! Threads: any; holds nothing.
//! Checked: by what is built on it.
//! Story: docs/design/remote-frees.md

pub(crate) use core::cell::UnsafeCell;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
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

/// Stands between a thread's store to one word and its load of another one. Somebody else stores to the other one, waits for as
/// long as it takes until stores are seen, and calls `late_fence` before it loads the first: then one of the two sees the
/// other's store. Here only the compiler is told; in the models it is a fence, for they know no time.
#[inline(always)]
pub(crate) fn owners_fence() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// See `owners_fence`.
#[inline(always)]
pub(crate) fn late_fence() {
    fence(Ordering::SeqCst);
}

/// Whether `word` has that value, as a relaxed load tells. The compiler does not fold an atomic load into
/// a comparison; this is that one instruction.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn holds(word: &AtomicU32, value: u32) -> bool {
    if cfg!(miri) {
        // It knows no assembly.
        return word.load(Ordering::Relaxed) == value;
    }
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

/// Adds to the word `AT` bytes behind `base`, which one thread alone changes, by a load and a store: here one instruction, and
/// not one that locks the line. A debug build does without assembly: tools that watch threads do not know it.
///
/// # Safety
/// A word stands there.
#[inline(always)]
pub(crate) unsafe fn add_at<const AT: usize, const MORE: i32>(base: *const u8, order: Ordering) {
    #[cfg(target_arch = "x86_64")]
    if !cfg!(any(miri, debug_assertions)) {
        // Each store releases on this machine, and the compiler moves nothing over this.
        let _ = order;
        // SAFETY: changes one aligned word.
        unsafe {
            core::arch::asm!(
                "add dword ptr [{0} + {1}], {2}",
                in(reg) base,
                const AT,
                const MORE,
                options(nostack),
            );
        }
        return;
    }
    // SAFETY: the caller's.
    let word = unsafe { &*base.add(AT).cast::<AtomicU32>() };
    word.store(word.load(Ordering::Relaxed).wrapping_add_signed(MORE), order);
}

/// Whether the word `AT` bytes behind `base` is 0: as `holds`, with the sum in the instruction.
///
/// # Safety
/// A word stands there.
#[inline(always)]
pub(crate) unsafe fn is_zero_at<const AT: usize>(base: *const u8) -> bool {
    #[cfg(target_arch = "x86_64")]
    if !cfg!(any(miri, debug_assertions)) {
        // SAFETY: reads one aligned word, as a relaxed load would.
        unsafe {
            core::arch::asm!(
                "cmp dword ptr [{0} + {1}], 0",
                "jne {2}",
                in(reg) base,
                const AT,
                label { return false },
                options(nostack, readonly),
            );
        }
        return true;
    }
    // SAFETY: the caller's.
    unsafe { (*base.add(AT).cast::<AtomicU32>()).load(Ordering::Relaxed) == 0 }
}

/// Whether the word `AT` bytes behind `base` has that value: as above.
///
/// # Safety
/// A word stands there.
#[inline(always)]
pub(crate) unsafe fn holds_at<const AT: usize>(base: *const u8, value: u32) -> bool {
    #[cfg(target_arch = "x86_64")]
    if !cfg!(any(miri, debug_assertions)) {
        // SAFETY: reads one aligned word, as a relaxed load would.
        unsafe {
            core::arch::asm!(
                "cmp dword ptr [{0} + {1}], {2:e}",
                "jne {3}",
                in(reg) base,
                const AT,
                in(reg) value,
                label { return false },
                options(nostack, readonly),
            );
        }
        return true;
    }
    // SAFETY: the caller's.
    unsafe { (*base.add(AT).cast::<AtomicU32>()).load(Ordering::Relaxed) == value }
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
