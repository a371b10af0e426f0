//! Owns: which blocks had better be elsewhere, for programs that can move theirs.
//! Idea: what leaves the emptier spans fills the others; a span that has lost its last block goes.
//! Never: moves a block; says so of one for which the next allocation would give its neighbour.
//! Threads: any; holds nothing. Others' spans are read as they change: a wrong answer costs a move.
//! Checked: tests/density.rs; the example defrag.c.
//! Story: docs/guide/memory.md

use crate::base::{AtomicU32, AtomicU64, AtomicUsize, CLASS_COUNT, HARDENED, Ordering, SizeClass};
use crate::heap::Heap;
use crate::map::{OWNER_CLOSED, OWNER_LARGE, address_map, heads_from};
use crate::program::tuning::{BLOCK_PARTS, NO_ROOM_PART};
use crate::spans::Span;
use crate::store::Store;
use crate::{thread, thread::search};

// Why it ends: a block moves from a span that has room to the active one, which fills up and has none then. From a span
// without room none moves. So each block moves once, until others are freed. And while there are spans with room that
// are not active, blocks move: if all that are asked about are in fuller ones than the average, the bar rises.

/// Blocks in use in a span of each class that has room, on average, and an eighth more: where all are alike, none is
/// below the average. In parts. Relaxed, as all here: a guess.
static BARS: [AtomicU32; CLASS_COUNT] = [const { AtomicU32::new(0) }; CLASS_COUNT];
/// What has been answered since the last look, a bit for each class: no because of the bar, and yes.
static ANSWERS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Questions until all spans are looked at again: half as many as there are spans, so that it costs each question the
/// look at two.
static QUESTIONS: AtomicUsize = AtomicUsize::new(0);

/// Whether memory would be gained if the program moved a block: allocated another one, copied, and freed this one.
/// True for a block of up to 64 KiB in a span that has room and is no fuller than others of its class, and from
/// which no blocks are being allocated. False for what is no block, for large blocks, blocks of closed heaps,
/// and in the hardened build, where blocks take random places.
///
/// Then the thread's cache of that size is emptied, so that what is freed is not what is allocated next. Call it
/// right before the block is moved, on the thread that moves it. It does not move all at once: go over all blocks
/// again and again until it says no of each. That comes: each block moves about once.
///
/// ```
/// let block = cairn::allocate(100);
/// assert!(!cairn::should_move(block), "it is where blocks are being allocated");
/// # unsafe { cairn::deallocate(block) };
/// ```
#[must_use]
pub fn should_move(block: *const u8) -> bool {
    let Some((class, owner)) = address_map::span_block(block).filter(|_| !HARDENED) else {
        return false;
    };
    let index = address_map::span_index(block, class);
    let Some(live) = live_if_movable(class, owner, index) else { return false };
    look();
    let is_sparse = live * BLOCK_PARTS <= BARS[class.index()].load(Ordering::Relaxed) as usize;
    let answers = &ANSWERS[usize::from(is_sparse)];
    answers.store(answers.load(Ordering::Relaxed) | class.bit(), Ordering::Relaxed);
    if is_sparse {
        make_way(class);
    }
    is_sparse
}

/// Sees to it that the next block of a class comes from the active span, and that one that is freed goes home.
fn make_way(class: SizeClass) {
    if let Some(heap) = thread::own() {
        // SAFETY: the calling thread's own.
        unsafe {
            if (*heap).caches.left(class) > 0 {
                (*heap).empty_cache(class);
            }
        }
    }
}

/// Blocks in use in the span at slice `index`; None if it has no room. Untouched blocks are none: they come last when
/// blocks are allocated.
fn live_beside_room(index: usize) -> Option<usize> {
    let span: *const Span = address_map::slot(index).cast();
    // SAFETY: a slot that has held a span; what has been described is committed. Volatile: as in `peek_span`.
    unsafe {
        let (used, carved) = search::peek_span(span);
        let pending = address_map::remote_word(index).pending() as usize;
        let live = used.min(carved).saturating_sub(pending);
        ((carved - live) * NO_ROOM_PART > carved).then_some(live)
    }
}

/// The same, if its blocks may move: it is not closed, and not the one that blocks are allocated from.
fn live_if_movable(class: SizeClass, owner: u32, index: usize) -> Option<usize> {
    let live = live_beside_room(index)?;
    (owner & OWNER_CLOSED == 0 && !is_active(owner, class, index)).then_some(live)
}

/// Whether the span is the one that its owner's refills come from.
fn is_active(owner: u32, class: SizeClass, index: usize) -> bool {
    Heap::of_owner(owner).is_some_and(|heap| {
        // SAFETY: a heap that has been made: it owns spans. Volatile, and plain for its thread.
        let active = unsafe { (&raw const (*heap).active[class.index()]).read_volatile() };
        core::ptr::eq(active, address_map::slot(index).cast())
    })
}

/// Looks at all spans if that is due. Two threads may do so at once, and count a question less.
fn look() {
    let left = QUESTIONS.load(Ordering::Relaxed);
    if left > 0 {
        return QUESTIONS.store(left - 1, Ordering::Relaxed);
    }
    let mut sums = [(0, 0); CLASS_COUNT];
    let mut all = 0;
    for (index, owner, class) in heads_from(0).filter(|head| head.1 != OWNER_LARGE) {
        all += 1;
        // An empty one is a heap's to keep, and has no block that could move.
        if let Some(live) = live_if_movable(class, owner, index).filter(|&live| live > 0) {
            let (spans, blocks) = &mut sums[class.index()];
            *spans += 1;
            *blocks += live;
        }
    }
    let [no, yes] = [0, 1].map(|of: usize| ANSWERS[of].swap(0, Ordering::Relaxed));
    for ((class, bar), (spans, blocks)) in SizeClass::all().zip(&BARS).zip(sums) {
        let average = (blocks * BLOCK_PARTS).div_ceil(spans.max(1)) as u32;
        let before = bar.load(Ordering::Relaxed);
        // If it is stuck, what is emptier has blocks that do not move.
        let least = if no & !yes & class.bit() != 0 { before.saturating_mul(2) } else { 0 };
        bar.store(least.max(average + average / 8), Ordering::Relaxed);
    }
    QUESTIONS.store(all / 2, Ordering::Relaxed);
}
