//! Owns: what takes the place of a cache's lists in the hardened build: for each class a few blocks that are
//!   ready, and a few that have just been freed.
//! Idea: a freed block takes a place among the latter, at random; when none is ready, they become ready. So nobody
//!   knows which block comes next, none comes back at once, and no block carries a link.
//! Never: does anything in the default build, where constants fold it away; hands out a block whose first bytes somebody has written to since it was freed.
//! Threads: the one whose caches they are; `peek` any.
//! Checked: tests/quarantine.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use crate::base::policy::{self, HARDENED};
use crate::base::size_class::{CLASS_COUNT, MIN_ALIGN, SizeClass, class_size};
use crate::map::address_map::{HEAP_BYTES, HEAP_SIZE};
use crate::map::block::{Block, overwritten};
use crate::store::tuning::{LEAST_ROOM, READY_TICK, ROW};
use crate::{os, store::live};
use core::ptr::null_mut;

// Invariants
//  1. A class has two rows of places. The blocks that are ready stand in one, those that wait in the other, from its begin
//     on. `ready` and `waiting` say where each ends: the number of a place, modulo `ROW` that of its blocks. Each is less
//     than `ROW`.
//  2. They are blocks of the class, of spans of the heap. They count as used there. The program has none of them, as
//     `live` says.
//  3. Their first `ZEROED_BYTES` are 0 unless somebody has written to them.
//  4. No block is taken in that would stand at `limit`.

/// Blocks that are ready, or wait, at most.
pub(crate) const READY: u32 = ROW as u32 - 1;
/// Bytes at the head of a free block that are zero.
const ZEROED_BYTES: usize = 128;
/// Bytes of these that are looked at when it is handed out: a cache line's. To look at all of them fetches a second line
/// for nothing else (docs/why-not.md).
const CHECKED_BYTES: usize = 64;
/// What is written and read at once of a head: a block's alignment.
type Unit = u128;
const UNIT: usize = size_of::<Unit>();

/// What a heap knows of its blocks; they stand behind the heap.
#[repr(C)]
pub(crate) struct Quarantine {
    random: [u64; HARDENED as usize],
    ready: [u8; CLASSES],
    waiting: [u8; CLASSES],
    limit: [u8; CLASSES],
    /// Where the last unit of the head of a block begins, and the last that is looked at.
    last_units: [[u8; 2]; CLASSES],
}

/// Classes that have some.
const CLASSES: usize = if HARDENED { CLASS_COUNT } else { 0 };

const _: () =
    assert!(!HARDENED || HEAP_BYTES + CLASS_COUNT * 2 * ROW * size_of::<*mut Block>() <= HEAP_SIZE);

impl Quarantine {
    /// No blocks.
    pub(crate) const EMPTY: Quarantine = Quarantine {
        random: [0; HARDENED as usize],
        ready: [0; CLASSES],
        waiting: [ROW as u8; CLASSES],
        limit: [ROW as u8; CLASSES],
        last_units: last_units(),
    };

    /// Whether it is time for a slow tick.
    pub(crate) fn is_tick(&self) -> bool {
        self.random.iter().any(|random| (random >> 32).is_multiple_of(READY_TICK))
    }

    /// How many are ready.
    pub(crate) fn ready(&self, class: SizeClass) -> i32 {
        self.ready.get(class.index()).map_or(0, |&end| in_row(end) as i32)
    }

    /// How many there are.
    pub(crate) fn len(&self, class: SizeClass) -> u32 {
        let waiting = self.waiting.get(class.index()).map_or(0, |&end| in_row(end));
        self.ready(class) as u32 + waiting as u32
    }

    /// It takes in no freed block of a class from now on.
    pub(crate) fn close(&mut self, class: SizeClass) {
        let end = self.waiting[class.index()];
        self.limit[class.index()] = end - in_row(end) as u8;
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self, class: SizeClass) -> bool {
        self.len(class) == 0
    }
}

/// How many blocks stand in the row that ends there.
#[inline(always)]
fn in_row(end: u8) -> usize {
    usize::from(end) % ROW
}

/// The places of a class.
#[inline(always)]
fn places(heap: *mut u8, class: SizeClass) -> *mut *mut Block {
    heap.wrapping_add(HEAP_BYTES).cast::<*mut Block>().wrapping_add(class.index() * 2 * ROW)
}

/// What a field says of a class.
#[inline(always)]
fn of(field: *mut [u8; CLASSES], class: SizeClass) -> *mut u8 {
    field.cast::<u8>().wrapping_add(class.index())
}

/// The number after another one, which is odd. Its upper bits are as good as random.
#[inline(always)]
fn after(random: u64) -> u64 {
    random.wrapping_mul(0x5851_f42d_4c95_7f2d)
}

/// A number below another one.
#[inline(always)]
pub(crate) fn below(random: u64, count: usize) -> usize {
    ((random >> 32) as usize * count) >> 32
}

/// Whether a block that is handed out is zero throughout.
#[inline(always)]
pub(crate) fn zeroes_all_of(class: SizeClass) -> bool {
    class.block_size() <= CHECKED_BYTES
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
pub(crate) unsafe fn zero(first: *mut Block, class: SizeClass, count: usize) {
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

/// Takes a block that is ready; null if there is none.
///
/// # Safety
/// The calling thread's heap, or a stand-in, which has none.
#[inline(always)]
pub(crate) unsafe fn pop(this: *mut Quarantine, heap: *mut u8, class: SizeClass) -> *mut Block {
    // SAFETY: the thread's own; invariants 1 and 2.
    unsafe {
        let ready = of(&raw mut (*this).ready, class);
        let end = usize::from(*ready);
        if end % ROW == 0 {
            return null_mut();
        }
        *ready = (end - 1) as u8;
        let block = *places(heap, class).add(end - 1);
        live::hand_out(block.cast());
        if !is_zero(block, last_of(this, class, 1)) {
            overwritten(block);
        }
        block
    }
}

/// Takes in a freed block, or answers it, its head zeroed, if it has to go home; else null.
///
/// # Safety
/// As for `Caches::push`; the program does not have the block any more, as `live` says.
#[inline(always)]
pub(crate) unsafe fn push(
    this: *mut Quarantine,
    heap: *mut u8,
    class: SizeClass,
    block: *mut Block,
) -> *mut Block {
    // SAFETY: the thread's own; invariants 1 and 4.
    unsafe {
        zero_head(block, last_of(this, class, 0));
        let waiting = of(&raw mut (*this).waiting, class);
        let end = *waiting;
        if end >= *of(&raw mut (*this).limit, class) {
            return block;
        }
        let random = after(*(&raw const (*this).random).cast());
        *(&raw mut (*this).random).cast::<u64>() = random;
        let last = places(heap, class).add(end.into());
        let place = last.sub(below(random, in_row(end) + 1));
        *last = *place;
        *place = block;
        *waiting = end + 1;
        null_mut()
    }
}

/// How many freed blocks may wait, where a cache may take in so many: some, or none.
pub(crate) fn room(most: i32) -> i32 {
    if most > 0 { most.clamp(LEAST_ROOM, READY as i32) } else { most }
}

/// Where none is ready, makes those that wait ready, and pops one; null if they are not more than half of `most`, which may
/// wait: a refill finds more.
///
/// # Safety
/// The calling thread's heap.
#[inline]
pub(crate) unsafe fn turn(
    this: *mut Quarantine,
    heap: *mut u8,
    class: SizeClass,
    most: i32,
) -> *mut Block {
    // SAFETY: the caller's own; invariants 1 and 4.
    unsafe {
        let waiting = of(&raw mut (*this).waiting, class);
        // A cache that takes in none says that its blocks are zero, or serves a quiet heap.
        if most <= 0 || in_row(*waiting) as i32 <= most / 2 {
            return null_mut();
        }
        let ready = of(&raw mut (*this).ready, class);
        (*ready, *waiting) = (*waiting, *ready);
        *of(&raw mut (*this).limit, class) = *waiting + most as u8;
        pop(this, heap, class)
    }
}

const fn last_units() -> [[u8; 2]; CLASSES] {
    let (mut last, mut class) = ([[0; 2]; CLASSES], 0);
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
unsafe fn last_of(this: *const Quarantine, class: SizeClass, which: usize) -> usize {
    // SAFETY: constant.
    usize::from(unsafe {
        (*(&raw const (*this).last_units).cast::<[u8; 2]>().add(class.index()))[which]
    })
}

/// Blocks of a class on their way to be ready. Apart from the heap: the compiler keeps it in registers.
pub(crate) struct Filling {
    pub(crate) ready: *mut *mut Block,
    pub(crate) count: usize,
    /// A random number, another one with each block.
    pub(crate) random: u64,
}

impl Filling {
    /// One more, at a random place among the others.
    ///
    /// # Safety
    /// It is a free block of the class, and the caller's; there are less than `READY`.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, block: *mut Block) {
        debug_assert!(self.count < READY as usize);
        self.random = after(self.random);
        let place = below(self.random, self.count + 1);
        // SAFETY: the caller's; the places are inside.
        unsafe {
            *self.ready.add(self.count) = *self.ready.add(place);
            *self.ready.add(place) = block;
        }
        self.count += 1;
    }

    /// The blocks for which a bit is set, one for each `MIN_ALIGN` bytes from `from` on, until there are `most`: true
    /// then. By itself it has registers enough.
    ///
    /// # Safety
    /// As for `add`; there are less than `most`, at most `READY`.
    #[inline(never)]
    pub(crate) unsafe fn add_each(&mut self, from: *mut u8, mut bits: u64, most: usize) -> bool {
        let mut filling = Filling { ..*self };
        while bits != 0 && filling.count < most {
            let place = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the caller's.
            unsafe { filling.add(from.wrapping_add(place * MIN_ALIGN).cast()) };
        }
        *self = filling;
        self.count == most
    }
}

/// Blocks of a class, of which none is ready, are going to be.
///
/// # Safety
/// The heap is the calling thread's.
#[inline(always)]
pub(crate) unsafe fn begin(this: *mut Quarantine, heap: *mut u8, class: SizeClass) -> Filling {
    // SAFETY: the caller's own.
    unsafe {
        let mut random = *(&raw mut (*this).random).cast::<u64>();
        if random == 0 {
            random = first_random(heap);
        }
        // Invariant 1; and what is ready already would be found once more.
        debug_assert_eq!((*this).ready(class), 0);
        let row = places(heap, class).add((*of(&raw mut (*this).ready, class)).into());
        Filling { ready: row, count: 0, random: after(random) }
    }
}

/// Now they are, and `most` freed ones may wait.
///
/// # Safety
/// As for `begin`.
#[inline(always)]
pub(crate) unsafe fn end(this: *mut Quarantine, class: SizeClass, filling: Filling, most: i32) {
    // SAFETY: the caller's own.
    unsafe {
        *(&raw mut (*this).random).cast::<u64>() = filling.random;
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
    policy::first_random(os::seed(), heap.addr(), os::now_ns()) | 1
}

/// Says that the program has those that wait, while a refill looks for blocks that it has not.
///
/// # Safety
/// As for `begin`.
pub(crate) unsafe fn hide(this: *mut Quarantine, heap: *mut u8, class: SizeClass) {
    // SAFETY: the caller's own; invariant 1.
    unsafe { each_waiting(this, heap, class, |block| live::hand_out(block.cast())) };
}

/// Says again that it has not.
///
/// # Safety
/// As for `begin`; after `hide`.
pub(crate) unsafe fn show(this: *mut Quarantine, heap: *mut u8, class: SizeClass) {
    // SAFETY: the caller's own; invariant 1.
    unsafe { each_waiting(this, heap, class, |block| _ = live::take_back(block.cast())) };
}

#[inline(always)]
unsafe fn each_waiting(
    this: *mut Quarantine,
    heap: *mut u8,
    class: SizeClass,
    each: impl Fn(*mut Block),
) {
    // SAFETY: the caller's own; invariant 1.
    unsafe {
        let end = *of(&raw mut (*this).waiting, class);
        for nth in usize::from(end) - in_row(end)..end.into() {
            each(*places(heap, class).add(nth));
        }
    }
}

/// Takes a block of a class out that is meant, of those that wait, too; null if there is none.
///
/// # Safety
/// The heap is the calling thread's.
pub(crate) unsafe fn take_one(
    this: *mut Quarantine,
    heap: *mut u8,
    class: SizeClass,
    is_meant: impl Fn(*mut Block) -> bool,
) -> *mut Block {
    if !HARDENED {
        return null_mut();
    }
    // SAFETY: the caller's own; invariant 1.
    unsafe {
        for field in [&raw mut (*this).ready, &raw mut (*this).waiting] {
            let end = of(field, class);
            for nth in (usize::from(*end) - in_row(*end)..(*end).into()).rev() {
                let block = *places(heap, class).add(nth);
                if is_meant(block) {
                    *end -= 1;
                    *places(heap, class).add(nth) = *places(heap, class).add((*end).into());
                    return block;
                }
            }
        }
    }
    null_mut()
}

/// Forgets all blocks: their spans are gone.
///
/// # Safety
/// The heap is the caller's.
pub(crate) unsafe fn forget(this: *mut Quarantine) {
    // SAFETY: the caller's own.
    unsafe { this.write(Quarantine { random: (*this).random, ..Quarantine::EMPTY }) };
}

/// How many blocks of a class there are, while the heap's thread may be at work.
///
/// # Safety
/// The heap has been made.
pub(crate) unsafe fn peek(this: *const Quarantine, class: SizeClass) -> usize {
    let this = this.cast_mut();
    // SAFETY: heaps are never unmapped. Volatile, and plain for the thread.
    unsafe {
        let in_row = |field| in_row(of(field, class).read_volatile());
        in_row(&raw mut (*this).ready) + in_row(&raw mut (*this).waiting)
    }
}
