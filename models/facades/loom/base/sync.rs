//! The atomics and the cells that loom watches.
//!
//! What is watched is known by its address. The first use in an execution makes loom's object
//! for it, with what memory holds there as its value; the memory itself is never written. So
//! constant constructors, statics and zeroed metadata work as they do in production, every
//! execution starts from the same state, and models may run side by side in one process.
//!
//! A first use must happen before every other one: models touch what they share before they
//! start threads. Loom reports it if one does not.

mod atomics;

pub(crate) use atomics::*;
pub(crate) use atomics::{model as in_loom, production as in_shuttle};
pub(crate) use loom::sync::atomic::{Ordering, fence};

use crate::map::address_map::MAP;
use loom::sync::atomic::AtomicU64 as Checked;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::mem::MaybeUninit;
use std::rc::Rc;

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

impl Word {
    #[track_caller]
    fn set(&self, bits: u64, order: Ordering) {
        match self {
            Word::Quiet(place) => place.set(bits),
            Word::Checked(word) => match EXECUTION.with_borrow(|e| e.loads) {
                // Loom would take the loads' read-modify-writes for later than a plain store.
                Loads::Newest => drop(word.swap(bits, order)),
                Loads::Allowed => word.store(bits, order),
            },
        }
    }
}

/// A cell with its value.
type Place = Rc<(loom::cell::UnsafeCell<()>, Cell<u64>)>;

#[derive(Default)]
struct Execution {
    loads: Loads,
    quiet: Quiet,
    growth: bool,
    words: HashMap<usize, Word>,
    places: HashMap<usize, Place>,
    copies: HashMap<usize, Vec<Line>>,
}

thread_local! {
    /// All loom threads of a model run on one thread of the system's.
    static EXECUTION: RefCell<Execution> = RefCell::default();
}

/// Begins an execution. `growth`: how far the reservation is committed is watched; its other fields
/// do not change once it exists.
pub(crate) fn start(loads: Loads, quiet: Quiet, growth: bool) {
    EXECUTION.set(Execution { loads, quiet, growth, ..Execution::default() });
}

impl Execution {
    fn is_quiet(&self, at: usize, file: &str, kind: &str) -> bool {
        let in_map = at.wrapping_sub((&raw const MAP).addr()) < size_of_val(&MAP);
        let grows = self.growth && at == (&raw const MAP.committed).addr();
        in_map && !grows || self.quiet.iter().any(|q| file.ends_with(q.0) && kind == q.1)
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
numbers!(u8, u32, u64, usize);

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

impl<T: Value> Atomic<T> {
    #[track_caller]
    fn word(&self) -> Word {
        let (at, file) = (self.as_ptr().addr(), Location::caller().file());
        EXECUTION.with_borrow_mut(|e| {
            if let Some(word) = e.words.get(&at) {
                return word.clone();
            }
            // SAFETY: nobody writes the memory; the value is loom's.
            let first = unsafe { *self.as_ptr() }.bits();
            let word = match e.is_quiet(at, file, core::any::type_name::<T>()) {
                true => Word::Quiet(Rc::new(Cell::new(first))),
                false => Word::Checked(Rc::new(Checked::new(first))),
            };
            e.words.insert(at, word.clone());
            word
        })
    }

    /// An operation, as it is if nobody watches and as it is if loom does; what it answers.
    #[track_caller]
    fn act(&self, quiet: impl FnOnce(u64) -> u64, checked: impl FnOnce(&Checked) -> u64) -> T {
        T::of(match self.word() {
            Word::Quiet(place) => place.replace(quiet(place.get())),
            Word::Checked(word) => checked(&word),
        })
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> T {
        self.act(
            |now| now,
            |word| match EXECUTION.with_borrow(|e| e.loads) {
                Loads::Newest => word.fetch_or(0, order),
                Loads::Allowed => word.load(order),
            },
        )
    }

    /// The newest value: what the system reads, whatever the model's loads may answer.
    #[track_caller]
    pub(crate) fn newest(&self) -> T {
        self.act(|now| now, |word| word.fetch_or(0, Ordering::Relaxed))
    }

    #[track_caller]
    pub(crate) fn store(&self, value: T, order: Ordering) {
        self.word().set(value.bits(), order);
    }

    #[track_caller]
    pub(crate) fn swap(&self, value: T, order: Ordering) -> T {
        self.act(|_| value.bits(), |word| word.swap(value.bits(), order))
    }

    #[track_caller]
    pub(crate) fn fetch_max(&self, value: T, order: Ordering) -> T {
        self.act(|now| now.max(value.bits()), |word| word.fetch_max(value.bits(), order))
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
    pub(crate) fn fetch_or(&self, bits: T, order: Ordering) -> T {
        let bits = bits.bits();
        self.act(|now| now | bits, |word| word.fetch_or(bits, order))
    }

    #[track_caller]
    pub(crate) fn fetch_and(&self, bits: T, order: Ordering) -> T {
        let bits = bits.bits();
        self.act(|now| now & bits, |word| word.fetch_and(bits, order))
    }

    #[track_caller]
    pub(crate) fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        change: impl Fn(T) -> Option<T>,
    ) -> Result<T, T> {
        let mut old = self.load(failure);
        while let Some(new) = change(old) {
            match self.compare_exchange(old, new, success, failure) {
                Err(now) => old = now,
                done => return done,
            }
        }
        Err(old)
    }
}

impl Atomic<usize> {
    #[track_caller]
    pub(crate) fn fetch_add(&self, n: usize, order: Ordering) -> usize {
        self.act(|now| now.wrapping_add(n as u64), |word| word.fetch_add(n as u64, order))
    }

    #[track_caller]
    pub(crate) fn fetch_sub(&self, n: usize, order: Ordering) -> usize {
        self.fetch_add(n.wrapping_neg(), order)
    }
}

fn place_at(at: usize, first: u64) -> Place {
    EXECUTION.with_borrow_mut(|e| {
        let make = || Rc::new((loom::cell::UnsafeCell::new(()), Cell::new(first)));
        e.places.entry(at).or_insert_with(make).clone()
    })
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

/// A part of a copy of what a static began with.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(MaybeUninit<[u8; 64]>);

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
            let copy = e.copies.entry((&raw const *self).addr()).or_insert_with(|| {
                let mut copy = vec![Line(MaybeUninit::uninit()); size_of::<T>().div_ceil(64)];
                // SAFETY: room for a T, aligned for all that the core's locks guard.
                unsafe { copy.as_mut_ptr().cast::<T>().copy_from_nonoverlapping(&self.0, 1) };
                copy
            });
            copy.as_mut_ptr().cast()
        })
    }
}
