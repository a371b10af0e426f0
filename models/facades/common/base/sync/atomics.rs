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
