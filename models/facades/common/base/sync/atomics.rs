//! What the models' atomics have in common: an atomic is its value, of the size that it has in
//! production. Each model says what the operations do.

use super::Plain;
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

#[repr(transparent)]
#[derive(Default)]
pub(crate) struct Atomic<T>(UnsafeCell<T>);

// SAFETY: how threads reach the value is each model's business.
unsafe impl<T> Sync for Atomic<T> {}

pub(crate) type AtomicBool = Atomic<bool>;
pub(crate) type AtomicU8 = Atomic<u8>;
pub(crate) type AtomicU32 = Atomic<u32>;
pub(crate) type AtomicU64 = Atomic<u64>;
pub(crate) type AtomicUsize = Atomic<usize>;
pub(crate) type AtomicPtr<T> = Atomic<*mut T>;

impl<T> Atomic<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.0.get()
    }
}

/// Whether `word` has that value, as a relaxed load tells.
#[track_caller]
pub(crate) fn holds(word: &AtomicU32, value: u32) -> bool {
    word.load(Ordering::Relaxed) == value
}

/// Adds to the word `AT` bytes behind `base`, which one thread alone changes.
#[track_caller]
pub(crate) unsafe fn add_at<const AT: usize, const MORE: i32>(base: *const u8, order: Ordering) {
    // SAFETY: the caller's.
    let word: &AtomicU32 = unsafe { &*base.add(AT).cast() };
    word.store(word.load(Ordering::Relaxed).wrapping_add_signed(MORE), order);
}

/// Whether the word `AT` bytes behind `base` is 0, as a relaxed load tells.
#[track_caller]
pub(crate) unsafe fn is_zero_at<const AT: usize>(base: *const u8) -> bool {
    // SAFETY: the caller's.
    holds(unsafe { &*base.add(AT).cast() }, 0)
}

/// Whether the word `AT` bytes behind `base` has that value, as a relaxed load tells.
#[track_caller]
pub(crate) unsafe fn holds_at<const AT: usize>(base: *const u8, value: u32) -> bool {
    // SAFETY: the caller's.
    holds(unsafe { &*base.add(AT).cast() }, value)
}

/// What waiting long does for who looks later: see the core's.
pub(crate) fn owners_fence() {
    super::fence(Ordering::SeqCst);
}

/// As above.
pub(crate) fn late_fence() {
    super::fence(Ordering::SeqCst);
}

impl<T> Plain<*mut T> {
    /// The upper 16 bits of the address.
    pub(crate) fn upper_bits(&self) -> u16 {
        (self.get().addr() >> 48) as u16
    }
}

/// A value alone on its cache line.
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

/// A constant of the other model's.
pub(crate) const fn production<T: Copy>(production: T, _model: T) -> T {
    production
}

/// A constant of this model's.
pub(crate) const fn model<T: Copy>(_production: T, model: T) -> T {
    model
}
