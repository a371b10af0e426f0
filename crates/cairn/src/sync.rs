//! Owns: the atomics and the one plain cell that the cross-thread protocols use.
//! Idea: one name for each of them, so that the models put their own in the place of this file.
//! Never: anything else; it knows nothing above it.
//! Threads: any; holds nothing.
//! Checked: by what is built on it.
//! Story: docs/design/remote-frees.md

pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

/// A value alone on its cache line: what all threads read must not share one with what some
/// write.
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

/// A plain memory cell; its twin in the models reports a data race on it. Whoever may reach the
/// memory it stands in says who may touch it: blocks by `remote`'s invariant 3, the reservation's fast
/// fields by `address_map::Map`.
#[repr(transparent)]
pub(crate) struct Plain<T>(core::cell::UnsafeCell<T>);

impl<T: Copy> Plain<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
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
