//! The atomics and the cells that loom watches.
//!
//! What is watched is known by its address. The first use in an execution makes loom's object
//! for it, with what memory holds there as its value; the memory itself is never written. So
//! constant constructors, statics and zeroed metadata work as they do in production, every
//! execution starts from the same state, and models may run side by side in one process.
//!
//! A first use must happen before every other one: models touch what they share before they
//! start threads. Loom reports it if one does not.

use loom::sync::atomic::AtomicU64 as Checked;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

pub(crate) use loom::sync::atomic::Ordering;

/// What a load answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Loads {
    /// Always the newest value, in all interleavings. Loom 0.7 does not come back to a load that
    /// another thread's load follows, and so never runs a later store before it; here a load is
    /// a read-modify-write that changes nothing, and is revisited.
    #[default]
    Newest,
    /// Any value that its ordering allows, in the interleavings that loom finds then.
    Allowed,
}

/// Atomics that a model does not watch: they are plain numbers there, and no thread is
/// interrupted at them. By file and type of value; the file is the one that uses them first.
pub(crate) type Quiet = &'static [(&'static str, &'static str)];

#[derive(Clone)]
enum Word {
    Checked(Rc<Checked>),
    Quiet(Rc<Cell<u64>>),
}

/// A cell with its value.
type Place = Rc<(loom::cell::UnsafeCell<()>, Cell<u64>)>;

#[derive(Default)]
struct Execution {
    loads: Loads,
    quiet: Quiet,
    loud: usize,
    words: HashMap<usize, Word>,
    places: HashMap<usize, Place>,
    copies: HashMap<usize, Copied>,
}

thread_local! {
    /// All loom threads of a model run on one thread of the system's.
    static EXECUTION: RefCell<Execution> = RefCell::default();
}

/// Begins an execution. `loud`: the address of a field of the reservation's that is watched all the
/// same, or 0; the others do not change once the reservation exists.
pub(crate) fn start(loads: Loads, quiet: Quiet, loud: usize) {
    EXECUTION.set(Execution { loads, quiet, loud, ..Execution::default() });
}

impl Execution {
    fn is_quiet(&self, at: usize, file: &str, kind: &str) -> bool {
        let map = &raw const crate::address_map::MAP;
        let in_map = (map.addr()..map.wrapping_add(1).addr()).contains(&at);
        in_map && at != self.loud || self.quiet.iter().any(|q| file.ends_with(q.0) && kind == q.1)
    }
}

/// A value that fits a word.
pub(crate) trait Value: Copy {
    fn bits(self) -> u64;
    fn of(bits: u64) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn bits(self) -> u64 {
                self as u64
            }
            fn of(bits: u64) -> Self {
                bits as $number
            }
        }
    )*};
}
numbers!(u32, u64, usize);

impl Value for bool {
    fn bits(self) -> u64 {
        u64::from(self)
    }
    fn of(bits: u64) -> Self {
        bits != 0
    }
}

impl<T> Value for *mut T {
    fn bits(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn of(bits: u64) -> Self {
        core::ptr::with_exposed_provenance_mut(bits as usize)
    }
}

impl<T> Value for *const T {
    fn bits(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn of(bits: u64) -> Self {
        core::ptr::with_exposed_provenance(bits as usize)
    }
}

/// An atomic of the size that it has in production.
#[repr(transparent)]
#[derive(Default)]
pub(crate) struct Atomic<T>(T);

pub(crate) type AtomicBool = Atomic<bool>;
pub(crate) type AtomicU32 = Atomic<u32>;
pub(crate) type AtomicU64 = Atomic<u64>;
pub(crate) type AtomicUsize = Atomic<usize>;
pub(crate) type AtomicPtr<T> = Atomic<*mut T>;

// SAFETY: the memory is never written; the value is loom's.
unsafe impl<T> Sync for Atomic<T> {}

#[track_caller]
fn word_at(at: usize, kind: &str, first: u64) -> Word {
    let file = Location::caller().file();
    EXECUTION.with_borrow_mut(|e| {
        if let Some(word) = e.words.get(&at) {
            return word.clone();
        }
        let word = match e.is_quiet(at, file, kind) {
            true => Word::Quiet(Rc::new(Cell::new(first))),
            false => Word::Checked(Rc::new(Checked::new(first))),
        };
        e.words.insert(at, word.clone());
        word
    })
}

impl<T: Value> Atomic<T> {
    /// # Safety
    /// As for the standard atomics.
    pub(crate) unsafe fn from_ptr<'a>(value: *mut T) -> &'a Self {
        // SAFETY: the caller's; an atomic is its value.
        unsafe { &*value.cast() }
    }

    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    #[track_caller]
    fn word(&self) -> Word {
        word_at((&raw const *self).addr(), core::any::type_name::<T>(), self.0.bits())
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> T {
        match self.word() {
            Word::Quiet(value) => T::of(value.get()),
            Word::Checked(word) => match EXECUTION.with_borrow(|e| e.loads) {
                Loads::Newest => T::of(word.fetch_or(0, order)),
                Loads::Allowed => T::of(word.load(order)),
            },
        }
    }

    #[track_caller]
    pub(crate) fn store(&self, value: T, order: Ordering) {
        match self.word() {
            Word::Quiet(place) => place.set(value.bits()),
            Word::Checked(word) => match EXECUTION.with_borrow(|e| e.loads) {
                // Loom would take the loads' read-modify-writes for later than a plain store.
                Loads::Newest => drop(word.swap(value.bits(), order)),
                Loads::Allowed => word.store(value.bits(), order),
            },
        }
    }

    #[track_caller]
    pub(crate) fn swap(&self, value: T, order: Ordering) -> T {
        match self.word() {
            Word::Quiet(place) => T::of(place.replace(value.bits())),
            Word::Checked(word) => T::of(word.swap(value.bits(), order)),
        }
    }

    #[track_caller]
    pub(crate) fn fetch_max(&self, value: T, order: Ordering) -> T {
        match self.word() {
            Word::Quiet(place) => T::of(place.replace(place.get().max(value.bits()))),
            Word::Checked(word) => T::of(word.fetch_max(value.bits(), order)),
        }
    }

    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        old: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        let (old, new) = (old.bits(), new.bits());
        let done = match self.word() {
            Word::Quiet(place) if place.get() == old => Ok(place.replace(new)),
            Word::Quiet(place) => Err(place.get()),
            Word::Checked(word) => word.compare_exchange(old, new, success, failure),
        };
        done.map(T::of).map_err(T::of)
    }

    #[track_caller]
    pub(crate) fn compare_exchange_weak(
        &self,
        old: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        self.compare_exchange(old, new, success, failure)
    }

    #[track_caller]
    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        mut f: impl FnMut(T) -> Option<T>,
    ) -> Result<T, T> {
        let mut old = self.load(fetch);
        while let Some(new) = f(old) {
            match self.compare_exchange(old, new, set, fetch) {
                Ok(old) => return Ok(old),
                Err(now) => old = now,
            }
        }
        Err(old)
    }

    /// The newest value: what the system reads, whatever the model's loads may answer.
    #[track_caller]
    pub(crate) fn newest(&self) -> T {
        match self.word() {
            Word::Quiet(value) => T::of(value.get()),
            Word::Checked(word) => T::of(word.fetch_or(0, Ordering::Relaxed)),
        }
    }
}

impl Atomic<usize> {
    #[track_caller]
    pub(crate) fn fetch_add(&self, n: usize, order: Ordering) -> usize {
        match self.word() {
            Word::Quiet(place) => place.replace(place.get().wrapping_add(n as u64)) as usize,
            Word::Checked(word) => word.fetch_add(n as u64, order) as usize,
        }
    }

    #[track_caller]
    pub(crate) fn fetch_sub(&self, n: usize, order: Ordering) -> usize {
        self.fetch_add(n.wrapping_neg(), order)
    }
}

/// A value alone on its cache line.
#[repr(align(64))]
pub(crate) struct Apart<T>(pub(crate) T);

fn place_at(at: usize, first: u64) -> Place {
    EXECUTION.with_borrow_mut(|e| {
        let make = || Rc::new((loom::cell::UnsafeCell::new(()), Cell::new(first)));
        e.places.entry(at).or_insert_with(make).clone()
    })
}

/// Whether `word` has that value, as a relaxed load tells.
#[track_caller]
pub(crate) fn holds(word: &AtomicU32, value: u32) -> bool {
    word.load(Ordering::Relaxed) == value
}

/// The model's value of a constant.
pub(crate) const fn in_loom<T: Copy>(_production: T, model: T) -> T {
    model
}

/// As in production: this value is for shuttle.
pub(crate) const fn in_shuttle<T: Copy>(production: T, _model: T) -> T {
    production
}

/// Loom switches threads at atomic operations.
pub(crate) fn point() {}

/// Says that the caller alone may use what stands at `at`. Loom reports it if another thread's
/// use does not happen before this one, or after it.
pub(crate) fn touched<T>(at: *const T) {
    place_at(at.addr(), 0).0.with_mut(|_| ());
}

/// Says that nobody changes what stands at `at` while the caller reads it.
pub(crate) fn seen<T>(at: *const T) {
    place_at(at.addr(), 0).0.with(|_| ());
}

/// A plain memory cell, of a pointer or a number.
#[repr(transparent)]
pub(crate) struct Plain<T>(T);

impl<T: Value> Plain<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    fn place(&self) -> Place {
        place_at((&raw const *self).addr(), self.0.bits())
    }

    pub(crate) fn get(&self) -> T {
        let place = self.place();
        place.0.with(|_| T::of(place.1.get()))
    }

    pub(crate) fn set(&self, value: T) {
        let place = self.place();
        place.0.with_mut(|_| place.1.set(value.bits()));
    }
}

impl<T> Default for Plain<*mut T> {
    fn default() -> Self {
        Self::new(core::ptr::null_mut())
    }
}

/// Memory that holds what a static began with.
struct Copied(*mut u8, Layout);

impl Copied {
    fn of<T>(value: &T) -> Copied {
        const PART: usize = 4096;
        let layout = Layout::new::<T>();
        let from: *const u8 = (&raw const *value).cast();
        // SAFETY: no layout here is empty; both sides hold a T. Most of a large one is zero, and
        // needs no copy.
        unsafe {
            let to = alloc_zeroed(layout);
            if to.is_null() {
                handle_alloc_error(layout);
            }
            for at in (0..layout.size()).step_by(PART) {
                let len = PART.min(layout.size() - at);
                let part = core::slice::from_raw_parts(from.add(at), len);
                if part.iter().any(|&byte| byte != 0) {
                    to.add(at).copy_from_nonoverlapping(from.add(at), len);
                }
            }
            Copied(to, layout)
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // SAFETY: allocated so. What a lock guards in the core needs no drop.
        unsafe { dealloc(self.0, self.1) };
    }
}

/// What a lock guards. Each execution has its own copy.
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(T);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    /// As the core's, and says that the caller alone may use it now.
    pub(crate) fn get(&self) -> *mut T {
        touched(self);
        EXECUTION.with_borrow_mut(|e| {
            let at = (&raw const *self).addr();
            e.copies.entry(at).or_insert_with(|| Copied::of(&self.0)).0.cast()
        })
    }
}
