//! Owns: heaps that the program has deleted while their blocks live on, and whose memory no other heap may have: those of
//!   regions, and those whose blocks readers may use late.
//! Idea: they stay as they are. Blocks come home as ever, and who needs memory, or gives back what is free, collects them.
//! Never: allocates from one.
//! Threads: any; one lock.
//! Checked: tests/region.rs, tests/grace.rs
//! Story: docs/design/regions.md

use crate::base::{AtomicU32, AtomicUsize, LEFT_BEHIND, NOBODY, Ordering, SizeClass, Stack, fence};
use crate::heap::Heap;
use crate::os::{self, Lock};
use crate::slices::arena;
use crate::spans::SpanList;
use crate::thread::pool;
use crate::thread::tuning::{LEFT_MIN, LEFT_PAUSES};
use core::ptr::null_mut;

/// What the lock guards.
pub(crate) struct Left {
    pub(crate) all: Stack<Heap>,
    /// The one out of which a span is being taken; null for none.
    pub(crate) busy: *mut Heap,
}

// SAFETY: heaps are never unmapped, and those in here are the lock owner's.
unsafe impl Send for Left {}

pub(crate) static LEFT: Lock<Left> = Lock::new(Left { all: Stack::EMPTY, busy: null_mut() });

/// How many there are, and with how many all are looked at again: twice as many as were left. Relaxed, like the others: a measure.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOOK_FROM: AtomicUsize = AtomicUsize::new(LEFT_MIN);
/// When the last look by time was, and how often in a row one has found nothing.
static LOOKED_MS: AtomicUsize = AtomicUsize::new(0);
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Takes a heap that nobody uses any more, with the blocks in use.
///
/// # Safety
/// A closed heap of the caller's, which does not use it after this.
pub(crate) unsafe fn keep(heap: *mut Heap) {
    // SAFETY: the caller's, and the list's from now on.
    unsafe {
        (*heap).member.of = null_mut();
        LEFT.lock().all.push(heap);
    }
    IN_VAIN.store(0, Ordering::Relaxed);
    if COUNT.fetch_add(1, Ordering::Relaxed) >= LOOK_FROM.load(Ordering::Relaxed) {
        collect();
    }
    pool::look_besides();
}

/// Collects them now and then: less often as long as nothing comes home.
pub(super) fn step() {
    let (now, looked) = (os::now_ms() as usize, LOOKED_MS.load(Ordering::Relaxed));
    let in_vain = IN_VAIN.load(Ordering::Relaxed);
    let pause = arena::stroke_ms().saturating_mul(4 << in_vain);
    if COUNT.load(Ordering::Relaxed) == 0 || now < looked.saturating_add(pause) {
        return;
    }
    // One of many threads.
    if LOOKED_MS.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let in_vain = if collect() { 0 } else { (in_vain + 1).min(LEFT_PAUSES) };
        IN_VAIN.store(in_vain, Ordering::Relaxed);
    }
}

/// Slices of all spans of a closed heap.
#[inline(never)]
pub(crate) fn slices(heap: &Heap) -> usize {
    let of_class = |class: SizeClass| {
        let is_active = !heap.active[class.index()].is_null();
        (heap.partial[class.index()].len() + usize::from(is_active)) * class.span_slices()
    };
    heap.full_slices + SizeClass::all().map(of_class).sum::<usize>()
}

/// Gives back what is free in all of them; whether that is anything.
#[cold]
#[inline(never)]
pub(crate) fn collect() -> bool {
    let Some(mut left) = LEFT.lock_unless_inside() else { return false };
    let (mut all, mut has_given) = (core::mem::replace(&mut left.all, Stack::EMPTY), false);
    let mut count = 0;
    while !all.is_empty() {
        let heap = all.pop();
        // SAFETY: a heap of the list, which the lock's owner uses.
        unsafe {
            has_given |= give_back(heap, &mut left.busy);
            if slices(&*heap) > 0 {
                count += 1;
                left.all.push(heap);
            } else {
                pool::put_closed(heap);
            }
        }
    }
    COUNT.store(count, Ordering::Relaxed);
    LOOK_FROM.store((2 * count).max(LEFT_MIN), Ordering::Relaxed);
    has_given
}

/// Gives back the spans of a heap in which nothing is in use any more; whether there are any. Nothing else is changed: of what a
/// child finds half done it loses one span, not all that has come home.
///
/// # Safety
/// One of these heaps, which have no active spans and nothing in their caches. Under the lock, as is `busy`.
unsafe fn give_back(heap: *mut Heap, busy: &mut *mut Heap) -> bool {
    let mut has_given = false;
    // SAFETY: the caller's heap, whose spans those are; the next one is read before one may go.
    unsafe {
        let first = |class: SizeClass| (*heap).partial[class.index()].first();
        for first in SizeClass::all().map(first).chain([(*heap).full.first()]) {
            let mut next = first;
            while let Some(span) = next.as_mut() {
                next = SpanList::after(span);
                if span.word().pending() != span.used() {
                    continue;
                }
                has_given = true;
                *busy = heap;
                // A child that finds a change of the heap finds this, too.
                fence(Ordering::Release);
                (*heap).unlist(span);
                span.take_in();
                (*heap).park(span);
            }
        }
    }
    // A child that finds no busy heap finds all that was changed.
    fence(Ordering::Release);
    *busy = null_mut();
    has_given
}

/// Whether it is one of these. In a forked child, before it has a second thread: a heap that has been made.
#[inline(never)]
unsafe fn is_left(heap: *mut Heap) -> bool {
    // SAFETY: as above.
    unsafe {
        let (member, partition) = (&(*heap).member, (*heap).partition);
        let is_nobodys = member.of.is_null() && member.user.load(Ordering::Relaxed) == NOBODY;
        (*heap).is_closed() && member.turn.is_shut() && is_nobodys && partition == 0
    }
}

/// In a forked child, before it has a second thread: if another thread was changing the list, it is made anew. The heap that it
/// was busy with is a dead one (`bury`).
pub(crate) fn settle_in_child() {
    if !LEFT.settle_in_child() {
        return;
    }
    let mut left = LEFT.lock();
    left.all = Stack::EMPTY;
    let mut count = 0;
    // SAFETY: made, and in no list.
    for heap in pool::all().filter(|&heap| unsafe { is_left(heap) }) {
        count += 1;
        // SAFETY: as above.
        unsafe {
            if heap == left.busy {
                (*heap).member.user.store(LEFT_BEHIND, Ordering::Relaxed);
                pool::begin_salvage();
            } else {
                left.all.push(heap);
            }
        }
    }
    COUNT.store(count, Ordering::Relaxed);
}

/// Puts in a heap that has been made anew.
///
/// # Safety
/// A closed heap of nobody's that is in no list.
pub(super) unsafe fn put_anew(heap: *mut Heap) {
    let mut left = LEFT.lock();
    // SAFETY: the caller's.
    unsafe {
        if !(*heap).member.turn.is_shut() {
            (*heap).member.turn.shut();
        }
        (*heap).member.user.store(NOBODY, Ordering::Relaxed);
        left.all.push(heap);
    }
}
