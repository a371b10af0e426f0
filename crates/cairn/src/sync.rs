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
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

/// A plain memory cell; loom's twin reports a data race on it.
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
    pub(crate) fn new(value: T) -> Self {
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
