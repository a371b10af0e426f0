//! Atomics and cells of the model of the whole core: at each operation on an atomic, and at each write
//! of a plain cell, another thread may run. The memory is sequentially consistent: weak orders are
//! the loom models' business.

mod atomics;

pub(crate) use crate::whole::threads::point;
pub(crate) use atomics::*;
pub(crate) use atomics::{model as in_shuttle, production as in_loom};
pub(crate) use core::cell::UnsafeCell;
use core::ops::Deref;
use core::sync::atomic;
pub(crate) use core::sync::atomic::{Ordering, fence};

/// Nobody watches: memory is sequentially consistent.
pub(crate) fn touched<T>(_: *const T) {}

/// A value that has a standard atomic.
pub(crate) trait Value {
    type Atomic;
}

macro_rules! values {
    ($($value:ty: $atomic:ident),*) => {$(
        impl Value for $value {
            type Atomic = atomic::$atomic;
        }
    )*};
}
values!(bool: AtomicBool, u8: AtomicU8, u32: AtomicU32, u64: AtomicU64, usize: AtomicUsize);

impl<T> Value for *mut T {
    type Atomic = atomic::AtomicPtr<T>;
}

impl<T: Value> Atomic<T> {
    /// The standard atomic itself; nobody runs before the next operation.
    pub(crate) fn at_once(&self) -> &T::Atomic {
        // SAFETY: it has the representation of its value, and nobody reaches that otherwise.
        unsafe { &*self.as_ptr().cast() }
    }
}

/// To reach its operations is to let others run first.
impl<T: Value> Deref for Atomic<T> {
    type Target = T::Atomic;

    fn deref(&self) -> &T::Atomic {
        point();
        self.at_once()
    }
}

/// As the core's. Others may run before a write: links of blocks change under their eyes, if the
/// blocks are not the writer's alone.
#[repr(transparent)]
pub(crate) struct Plain<T>(UnsafeCell<T>);

impl<T: Copy> Plain<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> T {
        // SAFETY: its users see to it that no thread writes meanwhile.
        unsafe { *self.0.get() }
    }

    pub(crate) fn set(&self, value: T) {
        point();
        // SAFETY: its users see to it that no thread reads or writes meanwhile.
        unsafe { *self.0.get() = value }
    }
}
