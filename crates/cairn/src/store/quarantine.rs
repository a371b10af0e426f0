//! Owns: what takes the place of a cache's lists in the hardened build: for each class a few blocks that are
//!   ready, and a few that have just been freed.
//! Idea: a freed block takes a place among the latter, at random; when none is ready, they become ready. So nobody
//!   knows which block comes next, none comes back at once, and no block carries a link.
//! Never: hands out a block whose first bytes somebody has written to since it was freed.
//! Threads: the one whose caches they are; `peek` any.
//! Checked: tests/quarantine.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use crate::base::random::{self, after, below};
use crate::base::size_class::class_size;
use crate::base::{CACHE_UNITS, CLASS_COUNT, SizeClass};
use crate::map::{Block, END, FreeList, HEAP_BYTES, overwritten};
use crate::os;
use crate::store::caches::{Limit, Limits, Store};
use crate::store::filling::{Filling, READY};
use crate::store::live::{Bits, Known};
use crate::store::tuning::{LEAST_ROOM, READY_TICK, ROW};
use core::ptr::null_mut;

// Invariants
//  1. A class has two rows of places. The blocks that are ready stand in one, those that wait in the other, from its begin
//     on. `ready` and `waiting` say where each ends: the number of a place, modulo `ROW` that of its blocks. Each is less
//     than `ROW`.
//  2. They are blocks of the class, of spans of the heap. They count as used there. The program has none of them, as
//     `live` says.
//  3. Their first `ZEROED_BYTES` are 0 unless somebody has written to them.
//  4. No block is taken in that would stand at `limit`.

/// Bytes at the head of a free block that are zero.
const ZEROED_BYTES: usize = 128;
/// Bytes of these that are looked at when it is handed out: a cache line's. To look at all of them fetches a second line
/// for nothing else (docs/why-not.md).
const CHECKED_BYTES: usize = 64;
/// What is written and read at once of a head: a block's alignment.
type Unit = u128;
const UNIT: usize = size_of::<Unit>();

/// What a heap, whose first field it is, knows of its blocks; they stand behind the heap.
#[repr(C)]
pub(crate) struct Rows {
    limits: Limits,
    random: u64,
    ready: [u8; CLASS_COUNT],
    waiting: [u8; CLASS_COUNT],
    limit: [u8; CLASS_COUNT],
    /// Where the last unit of the head of a block begins, and the last that is looked at.
    last_units: [[u8; 2]; CLASS_COUNT],
}

impl Rows {
    /// How many are ready.
    pub(crate) fn ready(&self, class: SizeClass) -> u32 {
        in_row(self.ready[class.index()]) as u32
    }

    /// How many there are.
    pub(crate) fn len(&self, class: SizeClass) -> u32 {
        self.ready(class) + in_row(self.waiting[class.index()]) as u32
    }
}

/// How many blocks stand in the row that ends there.
#[inline(always)]
fn in_row(end: u8) -> usize {
    usize::from(end) % ROW
}

/// The places of a class.
#[inline(always)]
fn places(this: *mut Rows, class: SizeClass) -> *mut *mut Block {
    this.wrapping_byte_add(HEAP_BYTES).cast::<*mut Block>().wrapping_add(class.index() * 2 * ROW)
}

/// What a field says of a class.
#[inline(always)]
fn of(field: *mut [u8; CLASS_COUNT], class: SizeClass) -> *mut u8 {
    field.cast::<u8>().wrapping_add(class.index())
}

/// Zeroes the head of a block that is being freed.
///
/// # Safety
/// A block with a head whose last `UNIT` bytes begin at `last`; the caller's.
#[inline(always)]
unsafe fn zero_head(block: *mut Block, last: usize) {
    let zero = |at: usize| {
        // SAFETY: inside the head, which is aligned.
        unsafe { block.wrapping_byte_add(at).cast::<Unit>().write(0) }
    };
    [0, last].into_iter().for_each(zero);
    if last > UNIT {
        [UNIT, 2 * UNIT].into_iter().for_each(zero);
        if last > 3 * UNIT {
            [3 * UNIT, 4 * UNIT].into_iter().for_each(zero);
            if last > 5 * UNIT {
                [5 * UNIT, 6 * UNIT].into_iter().for_each(zero);
            }
        }
    }
}

const _: () = assert!(ZEROED_BYTES == 8 * UNIT);

/// Zeroes the heads of `count` free blocks of a class that lie in a row.
///
/// # Safety
/// The caller's.
pub(crate) unsafe fn zero_heads(first: *mut Block, class: SizeClass, count: usize) {
    let (size, last) = (class.block_size(), last_unit(class.block_size(), ZEROED_BYTES));
    for nth in 0..count {
        // SAFETY: as above.
        unsafe { zero_head(first.wrapping_byte_add(nth * size), last.into()) };
    }
}

/// Whether the first `CHECKED_BYTES` of a free block are zero still, the last of which begin at `last`.
///
/// # Safety
/// As for `zero_head`.
#[inline(always)]
unsafe fn is_zero(block: *mut Block, last: usize) -> bool {
    let unit = |at: usize| {
        // SAFETY: as in `zero_head`.
        unsafe { block.wrapping_byte_add(at).cast::<[u64; 2]>().read() }
    };
    let ([mut one, mut two], [three, four]) = (unit(0), unit(last));
    (one, two) = (one | three, two | four);
    if last > UNIT {
        let ([a, b], [c, d]) = (unit(UNIT), unit(2 * UNIT));
        (one, two) = (one | a | c, two | b | d);
    }
    one | two == 0
}

const _: () = assert!(CHECKED_BYTES == 4 * UNIT);

impl Store for Rows {
    const EMPTY: Rows = Rows {
        limits: Limits::NOTHING,
        random: 0,
        ready: [0; CLASS_COUNT],
        waiting: [ROW as u8; CLASS_COUNT],
        limit: [ROW as u8; CLASS_COUNT],
        last_units: last_units(),
    };
    const BEHIND_BYTES: usize = CLASS_COUNT * 2 * ROW * size_of::<*mut Block>();
    const IS_MIXED: bool = true;

    #[inline(always)]
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn most(wanted: u32) -> u32 {
        wanted.min(READY)
    }

    /// Takes one that is ready.
    #[inline(always)]
    unsafe fn pop(this: *mut Rows, class: SizeClass) -> *mut Block {
        // SAFETY: the thread's own; invariants 1 and 2. A stand-in has none.
        unsafe {
            let ready = of(&raw mut (*this).ready, class);
            let end = usize::from(*ready);
            if end % ROW == 0 {
                return null_mut();
            }
            *ready = (end - 1) as u8;
            let block = *places(this, class).add(end - 1);
            Bits::hand_out(block.cast());
            if !is_zero(block, last_of(this, class, 1)) {
                overwritten(block);
            }
            block
        }
    }

    /// It waits. The head of one that goes home is zeroed, too.
    #[inline(always)]
    unsafe fn push(this: *mut Rows, class: SizeClass, block: *mut Block) -> *mut Block {
        // SAFETY: the thread's own; invariants 1 and 4.
        unsafe {
            zero_head(block, last_of(this, class, 0));
            let waiting = of(&raw mut (*this).waiting, class);
            let end = *waiting;
            if end >= *of(&raw mut (*this).limit, class) {
                return block;
            }
            let random = after((*this).random);
            (*this).random = random;
            let last = places(this, class).add(end.into());
            let place = last.sub(below(random, in_row(end) + 1));
            *last = *place;
            *place = block;
            *waiting = end + 1;
            null_mut()
        }
    }

    unsafe fn prepare(block: *mut Block, class: SizeClass) {
        // SAFETY: the caller's.
        unsafe { zero_heads(block, class, 1) };
    }

    /// With as many as there is room for. The program counts as having those that wait while others are looked for.
    unsafe fn fill(
        this: *mut Rows,
        class: SizeClass,
        list: FreeList,
        limit: Limit,
        find: impl FnOnce(u32, &mut Filling),
    ) -> *mut Block {
        // SAFETY: the caller's own; invariant 1.
        unsafe {
            let most = room(limit.0 / CACHE_UNITS);
            (*this).limits.left[class.index()] = if most > 0 { Limit(most) } else { limit };
            let mut filling = begin(this, class);
            each_waiting(this, class, |block| Bits::hand_out(block.cast()));
            find(Rows::most(list.count), &mut filling);
            each_waiting(this, class, |block| _ = Bits::take_back(block.cast()));
            end(this, class, filling, most);
            Rows::pop(this, class)
        }
    }

    #[inline(always)]
    fn is_zeroed(&self, class: SizeClass) -> bool {
        self.limits.left[class.index()].is_zeroed() || class.block_size() <= CHECKED_BYTES
    }

    fn is_empty(&self, class: SizeClass) -> bool {
        self.len(class) == 0
    }

    fn first(&self, _class: SizeClass) -> *mut Block {
        END
    }

    fn take_all(&mut self, class: SizeClass) -> *mut Block {
        self.limits.left[class.index()] = Limit::NOTHING;
        let end = self.waiting[class.index()];
        self.limit[class.index()] = end - in_row(end) as u8;
        END
    }

    unsafe fn peek(_this: *const Rows, _class: SizeClass) -> *mut Block {
        END
    }

    /// How many are ready: what is freed waits for the refill.
    fn tells(&self, class: SizeClass) -> i32 {
        self.ready(class) as i32
    }

    fn told(_class: SizeClass, _before: i32, after: i32) -> i32 {
        after
    }

    /// What is freed comes back without one.
    fn comes_to_refills(_freed: bool) -> bool {
        false
    }

    fn is_tick(&self) -> bool {
        (self.random >> 32).is_multiple_of(READY_TICK)
    }

    /// A refill finds more if those that wait are not more than half of what may.
    #[inline]
    unsafe fn turn(this: *mut Rows, class: SizeClass) -> *mut Block {
        // SAFETY: the caller's own; invariants 1 and 4.
        unsafe {
            let (waiting, most) = (of(&raw mut (*this).waiting, class), (*this).left(class));
            // A cache that takes in none says that its blocks are zero, or serves a quiet heap.
            if most <= 0 || in_row(*waiting) as i32 <= most / 2 {
                return null_mut();
            }
            let ready = of(&raw mut (*this).ready, class);
            (*ready, *waiting) = (*waiting, *ready);
            *of(&raw mut (*this).limit, class) = *waiting + most as u8;
            Rows::pop(this, class)
        }
    }

    /// One that is ready, or waits.
    unsafe fn take_one(
        this: *mut Rows,
        class: SizeClass,
        is_meant: impl Fn(*mut Block) -> bool,
    ) -> *mut Block {
        // SAFETY: the caller's own; invariant 1.
        unsafe {
            for field in [&raw mut (*this).ready, &raw mut (*this).waiting] {
                let end = of(field, class);
                for nth in (usize::from(*end) - in_row(*end)..(*end).into()).rev() {
                    let block = *places(this, class).add(nth);
                    if is_meant(block) {
                        *end -= 1;
                        *places(this, class).add(nth) = *places(this, class).add((*end).into());
                        return block;
                    }
                }
            }
        }
        null_mut()
    }

    unsafe fn peek_len(this: *const Rows, class: SizeClass) -> usize {
        let this = this.cast_mut();
        // SAFETY: heaps are never unmapped. Volatile, and plain for the thread.
        unsafe {
            let in_row = |field| in_row(of(field, class).read_volatile());
            in_row(&raw mut (*this).ready) + in_row(&raw mut (*this).waiting)
        }
    }

    unsafe fn forget(this: *mut Rows) {
        let Rows { ready, waiting, limit, .. } = Rows::EMPTY;
        // SAFETY: the caller's own.
        unsafe { ((*this).ready, (*this).waiting, (*this).limit) = (ready, waiting, limit) };
    }
}

/// How many freed blocks may wait, where a cache may take in so many: some, or none.
fn room(most: i32) -> i32 {
    if most > 0 { most.clamp(LEAST_ROOM, READY as i32) } else { most }
}

/// Blocks of a class, of which none is ready, are going to be.
///
/// # Safety
/// The heap is the calling thread's.
#[inline(always)]
unsafe fn begin(this: *mut Rows, class: SizeClass) -> Filling {
    // SAFETY: the caller's own.
    unsafe {
        let mut random = (*this).random;
        if random == 0 {
            random = first_random(this.cast());
        }
        // Invariant 1; and what is ready already would be found once more.
        debug_assert_eq!((*this).ready(class), 0);
        let row = places(this, class).add((*of(&raw mut (*this).ready, class)).into());
        Filling { ready: row, count: 0, random: after(random) }
    }
}

/// Now they are, and `most` freed ones may wait.
///
/// # Safety
/// As for `begin`.
#[inline(always)]
unsafe fn end(this: *mut Rows, class: SizeClass, filling: Filling, most: i32) {
    // SAFETY: the caller's own.
    unsafe {
        (*this).random = filling.random;
        let ready = of(&raw mut (*this).ready, class);
        let other = *ready ^ ROW as u8;
        debug_assert_eq!(
            usize::from(*of(&raw mut (*this).waiting, class)) / ROW,
            usize::from(other) / ROW
        );
        *of(&raw mut (*this).limit, class) = other + most.max(0) as u8;
        *ready += filling.count as u8;
    }
}

/// What a heap begins with.
#[cold]
pub(crate) fn first_random(heap: *mut u8) -> u64 {
    random::first(os::seed(), heap.addr(), os::now_ns()) | 1
}

/// Does something with each block that waits.
///
/// # Safety
/// As for `begin`.
#[inline(always)]
unsafe fn each_waiting(this: *mut Rows, class: SizeClass, each: impl Fn(*mut Block)) {
    // SAFETY: the caller's own; invariant 1.
    unsafe {
        let end = *of(&raw mut (*this).waiting, class);
        for nth in usize::from(end) - in_row(end)..end.into() {
            each(*places(this, class).add(nth));
        }
    }
}

const fn last_units() -> [[u8; 2]; CLASS_COUNT] {
    let (mut last, mut class) = ([[0; 2]; CLASS_COUNT], 0);
    while class < last.len() {
        let size = class_size(class);
        last[class] = [last_unit(size, ZEROED_BYTES), last_unit(size, CHECKED_BYTES)];
        class += 1;
    }
    last
}

/// Where the last unit of the first `most` bytes of a block of `size` bytes begins.
const fn last_unit(size: usize, most: usize) -> u8 {
    ((if size < most { size } else { most }) - UNIT) as u8
}

/// Where the last unit of the head of a block of a class begins, 0, or the last that is looked at, 1.
#[inline(always)]
unsafe fn last_of(this: *const Rows, class: SizeClass, which: usize) -> usize {
    // SAFETY: constant.
    usize::from(unsafe {
        (*(&raw const (*this).last_units).cast::<[u8; 2]>().add(class.index()))[which]
    })
}
