//! Owns: heaps that the program has deleted while their blocks live on, and whose memory no other heap may have: those of
//!   regions, and those whose blocks readers may use late.
//! Idea: they stay as they are. Blocks come home as ever, and who needs memory, or gives back what is free, collects them.
//! Never: allocates from one.
//! Threads: any; one lock.
//! Checked: tests/region.rs, tests/grace.rs
//! Story: docs/design/regions.md

use crate::base::{AtomicU32, AtomicUsize, Ordering, SizeClass, Stack};
use crate::heap::{Heap, handle::LEFT};
use crate::os;
use crate::slices::arena;
use crate::thread::pool;
use crate::thread::tuning::{LEFT_MIN, LEFT_PAUSES};

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
        (*heap).member.of = core::ptr::null_mut();
        LEFT.lock().push(heap);
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
    let (mut all, mut has_given) = (core::mem::replace(&mut *left, Stack::EMPTY), false);
    let mut count = 0;
    while !all.is_empty() {
        let heap = all.pop();
        // SAFETY: a heap of the list, which the lock's owner uses.
        unsafe {
            let before = slices(&*heap);
            (*heap).give_back();
            let now = slices(&*heap);
            has_given |= now < before;
            if now > 0 {
                count += 1;
                left.push(heap);
            } else {
                pool::put_closed(heap);
            }
        }
    }
    COUNT.store(count, Ordering::Relaxed);
    LOOK_FROM.store((2 * count).max(LEFT_MIN), Ordering::Relaxed);
    has_given
}
