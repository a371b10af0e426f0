//! Owns: the atomics and the one plain cell that the cross-thread protocols use.
//! Idea: the same protocol code runs on `core` in production and on loom in the models.
//! Never: anything else; it knows nothing above it.
//! Threads: any; holds nothing.
//! Checked: by what is built on it.
//! Story: docs/protocol.md

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::Ordering;

/// Loom's, but for loads: loom 0.7 does not come back to a load that another thread's load
/// follows, and so never runs a later store before it. As a read-modify-write it is revisited.
#[cfg(loom)]
#[derive(Default)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

#[cfg(loom)]
impl AtomicU64 {
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.fetch_or(0, order)
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    pub(crate) fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, success, failure)
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, success, failure)
    }
}

/// A value alone on its cache line: what all threads read must not share one with what some
/// write.
#[cfg(not(loom))]
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

/// A plain memory cell; loom's twin reports a data race on it. Whoever may reach the memory
/// it stands in says who may touch it: blocks by `remote`'s invariant 3, the window's fast
/// fields by `address_map::Map`.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct Plain<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
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

#[cfg(loom)]
pub(crate) struct Plain<T>(loom::cell::UnsafeCell<T>);

#[cfg(loom)]
impl<T: Copy> Plain<T> {
    fn new(value: T) -> Self {
        Self(loom::cell::UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> T {
        // SAFETY: loom checks that no other thread writes meanwhile.
        self.0.with(|p| unsafe { *p })
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: loom checks that no other thread reads or writes meanwhile.
        self.0.with_mut(|p| unsafe { *p = value })
    }
}

impl<T> Default for Plain<*mut T> {
    fn default() -> Self {
        Self::new(core::ptr::null_mut())
    }
}
