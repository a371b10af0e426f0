//! Owns: what takes the place of a cache's lists in the hardened build: for each class a few blocks that are
//!   ready, and a few that have just been freed.
//! Idea: a freed block takes a place among the latter, at random, and whatever has stood there becomes ready. So
//!   nobody knows which block comes next, none comes back at once, and no block carries a link.
//! Never: is asked in the default build; hands out a block whose first bytes somebody has written to since it was freed.
//! Threads: the one whose caches they are; `peek` any.
//! Checked: tests/quarantine.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use crate::address_map::{HEAP_BYTES, HEAP_SIZE};
use crate::block::{Block, overwritten};
use crate::policy::{HARDENED, in_hardened, mixed};
use crate::size_class::{CLASS_COUNT, MIN_ALIGN, SLICE_SIZE, SizeClass, class_size};
use crate::sync::Ordering;
use crate::{live, os};
use core::ptr::null_mut;
use core::sync::atomic::compiler_fence;

// Invariants
//  1. `ready[..count]` and `held` are blocks of the class, of spans of the heap, or null in `held`. They count as used
//     there. The program has none of them: their bits in `live` are 0.
//  2. Their first `ZEROED_BYTES` are 0 unless somebody has written to them.
//  3. `filled` has the bit of each class that may have some.

/// Blocks that are ready, at most.
pub(crate) const READY: u32 = 32;
/// Freed blocks that wait, at most; a power of two.
const HELD: usize = 32;
/// Bytes of freed blocks of a class that wait, unless one block has more.
const HELD_BYTES: usize = 8 << 10;
/// Bytes at the head of a free block that are zero.
const ZEROED_BYTES: usize = 128;
/// Bytes of these that are looked at when it is handed out: a cache line's. To look at all of them fetches a second line
/// for nothing else (docs/why-not.md).
const CHECKED_BYTES: usize = 64;
/// What is written and read at once of a head: a block's alignment.
type Unit = [u64; 2];
const UNIT: usize = size_of::<Unit>();
/// One in so many frees sends a block home, whatever room there is. A power of two.
const HOME: u64 = 1 << 14;
/// One in so many frees is a slow tick if it sends a block home. A smaller power of two.
const TICK: u64 = 1 << 6;

/// What a heap knows of its blocks; they stand behind the heap.
#[repr(C)]
pub(crate) struct Quarantine {
    random: [u64; HARDENED as usize],
    filled: [u64; HARDENED as usize],
    count: [u32; CLASSES],
    /// One less than the blocks of a class that wait.
    held_masks: [u8; CLASSES],
    /// Where the last unit of the head of a block begins.
    last_units: [u8; CLASSES],
}

/// Classes that have some.
const CLASSES: usize = if HARDENED { CLASS_COUNT } else { 0 };

/// The blocks of one class.
#[repr(C)]
struct Kept {
    ready: [*mut Block; READY as usize],
    held: [*mut Block; HELD],
}

const _: () = assert!(!HARDENED || HEAP_BYTES + CLASS_COUNT * size_of::<Kept>() <= HEAP_SIZE);

impl Quarantine {
    /// No blocks.
    pub(crate) const EMPTY: Quarantine = Quarantine {
        random: [0; HARDENED as usize],
        filled: [0; HARDENED as usize],
        count: [0; CLASSES],
        held_masks: held_masks(),
        last_units: last_units(),
    };

    /// Whether the free that has just been answered with a block is one of those that are slow ticks.
    pub(crate) fn is_tick(&self) -> bool {
        self.random.iter().any(|random| random & (TICK - 1) == 0)
    }

    /// Whether none is ready.
    pub(crate) fn is_empty(&self, class: SizeClass) -> bool {
        self.count.get(class.index()).is_none_or(|&count| count == 0)
    }
}

/// Where the blocks of a class stand.
#[inline(always)]
fn kept(heap: *mut u8, class: SizeClass) -> *mut Kept {
    heap.wrapping_add(HEAP_BYTES).cast::<Kept>().wrapping_add(class.index())
}

/// The number after another one. Its upper bits are as good as random; the lowest n are all 0 once in 2^n calls.
#[inline(always)]
fn after(random: u64) -> u64 {
    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
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
    let unit = |at: usize| block.wrapping_byte_add(at).cast::<Unit>();
    // SAFETY: inside the head, which is aligned.
    unsafe {
        unit(0).write([0; 2]);
        unit(last).write([0; 2]);
        let mut at = UNIT;
        while at < last {
            unit(at).write([0; 2]);
            unit(at + UNIT).write([0; 2]);
            at += 2 * UNIT;
            // Without this it becomes a call.
            compiler_fence(Ordering::SeqCst);
        }
    }
}

/// Zeroes the head of a block of a class that is being freed.
///
/// # Safety
/// The caller's.
pub(crate) unsafe fn zero(block: *mut Block, class: SizeClass) {
    // SAFETY: as above.
    unsafe { zero_head(block, last_unit(class.block_size())) };
}

/// Whether the first `CHECKED_BYTES` of a free block are zero still.
///
/// # Safety
/// As for `zero_head`.
#[inline(always)]
unsafe fn is_zero(block: *mut Block, last: usize) -> bool {
    let unit = |at: usize| block.wrapping_byte_add(at).cast::<Unit>();
    let last = last.min(CHECKED_BYTES - UNIT);
    // SAFETY: as in `zero_head`.
    unsafe {
        let ([mut one, mut two], [three, four]) = (*unit(0), *unit(last));
        (one, two) = (one | three, two | four);
        if last > UNIT {
            let ([a, b], [c, d]) = (*unit(UNIT), *unit(2 * UNIT));
            (one, two) = (one | a | c, two | b | d);
        }
        one | two == 0
    }
}

const _: () = assert!(CHECKED_BYTES == 4 * UNIT);

/// Takes a block that is ready; null if there is none.
///
/// # Safety
/// The calling thread's heap, or a stand-in, which has none.
#[inline(always)]
pub(crate) unsafe fn pop(this: *mut Quarantine, heap: *mut u8, class: SizeClass) -> *mut Block {
    // SAFETY: the thread's own; invariant 1.
    unsafe {
        let count = (&raw mut (*this).count).cast::<u32>().add(class.index());
        let Some(left) = (*count).checked_sub(1) else { return null_mut() };
        *count = left;
        let block = *(&raw mut (*kept(heap, class)).ready).cast::<*mut Block>().add(left as usize);
        live::hand_out(block.cast());
        if !is_zero(block, last_of(this, class)) {
            overwritten(block);
        }
        block
    }
}

/// Takes in a freed block, and answers one that has to go home, or null. At most `most` are ready.
///
/// # Safety
/// As for `Caches::push`; the program does not have the block any more, as `live` says.
#[inline(always)]
pub(crate) unsafe fn push(
    this: *mut Quarantine,
    heap: *mut u8,
    class: SizeClass,
    most: i32,
    block: *mut Block,
) -> *mut Block {
    // SAFETY: the thread's own; invariant 1.
    unsafe {
        zero_head(block, last_of(this, class));
        let random = after(*(&raw const (*this).random).cast());
        *(&raw mut (*this).random).cast::<u64>() = random;
        let kept = kept(heap, class);
        let place = (random >> 56) as usize & held_mask(this, class);
        let held = (&raw mut (*kept).held).cast::<*mut Block>().add(place);
        let old = core::mem::replace(&mut *held, block);
        let count = (&raw mut (*this).count).cast::<u32>().add(class.index());
        if old.is_null() {
            *(&raw mut (*this).filled).cast::<u64>() |= class.bit();
            return old;
        }
        if *count as i32 >= most || random & (HOME - 1) == 0 {
            return old;
        }
        *(&raw mut (*kept).ready).cast::<*mut Block>().add(*count as usize) = old;
        *count += 1;
        null_mut()
    }
}

const fn held_masks() -> [u8; CLASSES] {
    let (mut masks, mut class) = ([0; CLASSES], 0);
    while class < masks.len() {
        let fits = HELD_BYTES / class_size(class);
        let count = if fits > HELD { HELD } else { fits };
        masks[class] = if count > 1 { (1 << count.ilog2()) - 1 } else { 0 };
        class += 1;
    }
    masks
}

const fn last_units() -> [u8; CLASSES] {
    let (mut last, mut class) = ([0; CLASSES], 0);
    while class < last.len() {
        last[class] = last_unit(class_size(class)) as u8;
        class += 1;
    }
    last
}

/// Where the last unit of the head of a block of so many bytes begins.
const fn last_unit(size: usize) -> usize {
    (if size < ZEROED_BYTES { size } else { ZEROED_BYTES }) - UNIT
}

#[inline(always)]
unsafe fn held_mask(this: *const Quarantine, class: SizeClass) -> usize {
    // SAFETY: the caller's, or constant.
    usize::from(unsafe { *(&raw const (*this).held_masks).cast::<u8>().add(class.index()) })
}

/// Where the last unit of the head of a block of a class begins.
#[inline(always)]
unsafe fn last_of(this: *const Quarantine, class: SizeClass) -> usize {
    // SAFETY: as above.
    usize::from(unsafe { *(&raw const (*this).last_units).cast::<u8>().add(class.index()) })
}

/// Which blocks of a span are at home: a bit for each that it can have (see `free_bits`).
pub(crate) type FreeBits = [u64; in_hardened(0, SLICE_SIZE / MIN_ALIGN / u64::BITS as usize)];

/// No block is.
pub(crate) const NONE_FREE: FreeBits =
    [0; in_hardened(0, SLICE_SIZE / MIN_ALIGN / u64::BITS as usize)];

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
        let place = ((self.random >> 32) as usize * (self.count + 1)) >> 32;
        // SAFETY: the caller's; the places are inside.
        unsafe {
            *self.ready.add(self.count) = *self.ready.add(place);
            *self.ready.add(place) = block;
        }
        self.count += 1;
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
        *(&raw mut (*this).filled).cast::<u64>() |= class.bit();
        let ready = (&raw mut (*kept(heap, class)).ready).cast::<*mut Block>();
        Filling { ready, count: 0, random: after(random) }
    }
}

/// Now they are.
///
/// # Safety
/// As for `begin`.
#[inline(always)]
pub(crate) unsafe fn end(this: *mut Quarantine, class: SizeClass, filling: Filling) {
    // SAFETY: the caller's own.
    unsafe {
        *(&raw mut (*this).random).cast::<u64>() = filling.random;
        *(&raw mut (*this).count).cast::<u32>().add(class.index()) = filling.count as u32;
    }
}

/// What a heap begins with.
#[cold]
fn first_random(heap: *mut u8) -> u64 {
    mixed(os::seed() as u64 ^ heap.addr() as u64 ^ os::now_ns() << 20) | 1
}

/// Takes a block of a class out, of those that wait, too; null if there is none.
///
/// # Safety
/// The heap is the calling thread's.
pub(crate) unsafe fn take_one(
    this: *mut Quarantine,
    heap: *mut u8,
    class: SizeClass,
) -> *mut Block {
    // SAFETY: the caller's own.
    unsafe {
        let filled = (&raw mut (*this).filled).cast::<u64>();
        if !HARDENED || *filled & class.bit() == 0 {
            return null_mut();
        }
        let kept = kept(heap, class);
        let count = (&raw mut (*this).count).cast::<u32>().add(class.index());
        if *count > 0 {
            *count -= 1;
            return *(&raw mut (*kept).ready).cast::<*mut Block>().add(*count as usize);
        }
        let held = (&raw mut (*kept).held).cast::<*mut Block>();
        for nth in 0..=held_mask(this, class) {
            let block = core::mem::replace(&mut *held.add(nth), null_mut());
            if !block.is_null() {
                return block;
            }
        }
        *filled &= !class.bit();
    }
    null_mut()
}

/// Forgets all blocks: their spans are gone.
///
/// # Safety
/// The heap is the caller's.
pub(crate) unsafe fn forget(this: *mut Quarantine, heap: *mut u8) {
    if !HARDENED {
        return;
    }
    // SAFETY: the caller's own.
    unsafe {
        let filled = (&raw mut (*this).filled).cast::<u64>();
        for class in SizeClass::all().filter(|class| *filled & class.bit() != 0) {
            (&raw mut (*kept(heap, class)).held).write_bytes(0, 1);
        }
        this.cast::<Quarantine>().write(Quarantine { random: (*this).random, ..Quarantine::EMPTY });
    }
}

/// Forgets all blocks of a heap whose thread a fork has left behind, wherever it has been.
///
/// # Safety
/// The heap is the caller's.
pub(crate) unsafe fn wipe(heap: *mut u8) {
    let (kept, bytes) = (heap.wrapping_add(HEAP_BYTES), HEAP_SIZE - HEAP_BYTES);
    // SAFETY: what stands behind the heap.
    unsafe {
        if HARDENED && !(os::page_size() <= HEAP_BYTES && os::purge(kept, bytes)) {
            kept.write_bytes(0, bytes);
        }
    }
}

/// How many blocks of a class there are, while the heap's thread may be at work.
///
/// # Safety
/// The heap has been made.
pub(crate) unsafe fn peek(this: *const Quarantine, heap: *const u8, class: SizeClass) -> usize {
    // SAFETY: heaps are never unmapped. Volatile, and plain for the thread.
    unsafe {
        if (&raw const (*this).filled).cast::<u64>().read_volatile() & class.bit() == 0 {
            return 0;
        }
        let count = (&raw const (*this).count).cast::<u32>().add(class.index()).read_volatile();
        let held = (&raw const (*kept(heap.cast_mut(), class)).held).cast::<*mut Block>();
        let waits = |nth: &usize| !held.add(*nth).read_volatile().is_null();
        count as usize + (0..=held_mask(this, class)).filter(waits).count()
    }
}
