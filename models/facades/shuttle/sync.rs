//! Owns: as the core's file of this name, for the model of the whole core.
//! Idea: at each operation on an atomic, and at each write of a plain cell, another thread may run.
//!   The memory is sequentially consistent: weak orders are the loom models' business.
//! Never: knows who schedules.
//! Threads: any.
//! Checked: by what is built on it.
//! Story: docs/results/verification.md

pub(crate) use crate::whole::threads::point;
pub(crate) use core::cell::UnsafeCell;
use core::ops::Deref;
use core::sync::atomic;
pub(crate) use core::sync::atomic::Ordering;

/// As in production: this value is for loom.
pub(crate) const fn in_loom<T: Copy>(production: T, _model: T) -> T {
    production
}

/// Whether `word` has that value, as a relaxed load tells.
#[track_caller]
pub(crate) fn holds(word: &AtomicU32, value: u32) -> bool {
    word.load(Ordering::Relaxed) == value
}

/// The model's value of a constant.
pub(crate) const fn in_shuttle<T: Copy>(_production: T, model: T) -> T {
    model
}

/// Nobody watches: memory is sequentially consistent.
pub(crate) fn touched<T>(_: *const T) {}

/// An atomic. To reach its operations is to let others run first.
#[repr(transparent)]
#[derive(Default)]
pub(crate) struct Point<T>(T);

pub(crate) type AtomicBool = Point<atomic::AtomicBool>;
pub(crate) type AtomicU32 = Point<atomic::AtomicU32>;
pub(crate) type AtomicU64 = Point<atomic::AtomicU64>;
pub(crate) type AtomicUsize = Point<atomic::AtomicUsize>;
pub(crate) type AtomicPtr<T> = Point<atomic::AtomicPtr<T>>;

impl<T> Point<T> {
    /// The atomic itself; nobody runs before the next operation.
    pub(crate) fn at_once(&self) -> &T {
        &self.0
    }
}

impl<T> Deref for Point<T> {
    type Target = T;

    fn deref(&self) -> &T {
        point();
        &self.0
    }
}

// The core's statics need constructors that are const, and a trait has none.
impl Point<atomic::AtomicBool> {
    pub(crate) const fn new(value: bool) -> Self {
        Self(atomic::AtomicBool::new(value))
    }
}

impl Point<atomic::AtomicU32> {
    pub(crate) const fn new(value: u32) -> Self {
        Self(atomic::AtomicU32::new(value))
    }
}

impl Point<atomic::AtomicU64> {
    pub(crate) const fn new(value: u64) -> Self {
        Self(atomic::AtomicU64::new(value))
    }
}

impl Point<atomic::AtomicUsize> {
    pub(crate) const fn new(value: usize) -> Self {
        Self(atomic::AtomicUsize::new(value))
    }
}

impl<T> Point<atomic::AtomicPtr<T>> {
    /// # Safety
    /// As for the standard one.
    pub(crate) unsafe fn from_ptr<'a>(value: *mut *mut T) -> &'a Self {
        // SAFETY: the caller's; a point is its atomic, and that its value.
        unsafe { &*value.cast() }
    }

    pub(crate) const fn new(value: *mut T) -> Self {
        Self(atomic::AtomicPtr::new(value))
    }
}

/// As the core's.
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

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

impl<T> Default for Plain<*mut T> {
    fn default() -> Self {
        Self::new(core::ptr::null_mut())
    }
}
