//! Owns: which blocks the program has, in the hardened build: a bit for each 16 bytes of the reservation.
//! Idea: out of the program's reach, so that nothing that it writes makes a free block look like one in use. The same
//!   bits say which blocks a refill may take.
//! Never: knows anything in the default build, which has no such table.
//! Threads: whoever owns the block's span writes, and no other; any may ask about a block that it has. A word
//!   belongs to one span alone.
//! Checked: tests/quarantine.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use crate::base::{AtomicU32, ClassLayout, MIN_ALIGN, Ordering, Plain, SLICE_SIZE};
use crate::map::address_map::slice_address;
use crate::map::{Block, END, FreeList};
use crate::os;

// Invariants
//  1. The bit of a block's start is 0 exactly while the program has the block, as far as its span's owner
//     knows: a free by another thread counts when the owner collects it. While a refill looks for blocks, it is 0 for
//     those that wait in its cache, too. Of a span whose owner a fork has left behind, all are 0.
//  2. In a span, the bits of all other places are 0, but for those behind its last block that a class's mask admits.

/// What it means if the program gives back what it does not have.
pub(crate) const FREED_TWICE: &str = "the block is free: freed twice, or never allocated";

/// What is known of the blocks that the program has: in the default build nothing.
pub(crate) trait Known {
    /// Whether it is known which they are. Then only the owner of a span says what becomes of its blocks: others' frees go to it.
    const IS_KNOWN: bool = false;
    /// Bytes of the table for a slice.
    const SLICE_BYTES: usize = 0;

    /// Says where the table begins, and where the first slice is; once, by the thread that makes the reservation.
    fn install(_table: *mut u8, _base: *mut u8) {}

    /// The first slice's part of the table, if there is one.
    fn table() -> Option<*mut u8> {
        None
    }

    /// The block comes from the program; false if the program does not have it.
    ///
    /// # Safety
    /// It is a place in a span of the caller's.
    unsafe fn take_back(_p: *const u8) -> bool {
        true
    }

    /// Undoes `take_back`: the program has the block, as far as its span's owner knows.
    ///
    /// # Safety
    /// As for `take_back`, which has been true.
    unsafe fn undo(_p: *const u8) {}

    /// Whether the program has a block that starts at `p`.
    ///
    /// # Safety
    /// `p` is where a block of a span starts.
    unsafe fn is_live(_p: *const u8) -> bool {
        true
    }

    /// The program has no block in a span that is made here.
    ///
    /// # Safety
    /// The slices are the caller's, and committed.
    unsafe fn begin(_first: *const u8, _layout: &ClassLayout) {}

    /// The program has all blocks of a span, for all that is known.
    ///
    /// # Safety
    /// As for `begin`.
    unsafe fn forget(_first: *const u8, _slices: usize) {}

    /// Blocks have come from the program by way of other threads: does something with each. Ends the process if one of
    /// them has come before.
    fn came_home(_list: FreeList, _then: impl FnMut(*mut Block)) {}
}

/// The default build's.
pub(crate) struct Nothing;

impl Known for Nothing {}

/// The hardened build's: a bit for each place where a block may start.
pub(crate) struct Bits;

/// log2 of the bytes that a word stands for.
const WORD_SHIFT: u32 = 9;

const _: () = assert!(1 << WORD_SHIFT == MIN_ALIGN * u32::BITS as usize);

/// Where the table would say it of address 0.
struct Table(Plain<*const AtomicU32>);

// SAFETY: written once, by the thread that makes the reservation, before there is a block.
unsafe impl Sync for Table {}

static TABLE: Table = Table(Plain::new(core::ptr::null()));

/// The word of a block, and its bit there.
#[inline(always)]
unsafe fn place(p: *const u8) -> (&'static AtomicU32, u32) {
    let word = TABLE.0.get().wrapping_byte_add(p.addr() >> WORD_SHIFT << 2);
    // SAFETY: the table covers what is committed.
    (unsafe { &*word }, (p.addr() / MIN_ALIGN) as u32)
}

/// The words of a run of slices.
#[inline(always)]
fn words(first: *const u8) -> *mut u32 {
    TABLE.0.get().wrapping_byte_add(first.addr() >> WORD_SHIFT << 2).cast_mut().cast()
}

/// Places whose bits are looked at together.
pub(crate) const PLACES: usize = u64::BITS as usize;

impl Bits {
    /// The block goes to the program.
    ///
    /// # Safety
    /// It is a free block of the caller's.
    #[inline(always)]
    pub(crate) unsafe fn hand_out(p: *const u8) {
        // SAFETY: a block is in a committed slice. The owner alone writes: no atomic step is needed.
        let (word, bit) = unsafe { place(p) };
        debug_assert_ne!(word.load(Ordering::Relaxed) & 1u32.wrapping_shl(bit), 0);
        word.store(word.load(Ordering::Relaxed) & !1u32.wrapping_shl(bit), Ordering::Relaxed);
    }

    /// The bits of the `nth` so many places of a span, which are not the program's.
    ///
    /// # Safety
    /// The span is the caller's, and has so many.
    #[inline(always)]
    pub(crate) unsafe fn free_of(first: *const u8, nth: usize) -> u64 {
        // SAFETY: the table covers it. The owner alone writes.
        let [low, high] = unsafe { words(first).cast::<[u32; 2]>().add(nth).read() };
        u64::from(low) | u64::from(high) << 32
    }
}

impl Known for Bits {
    const IS_KNOWN: bool = true;
    const SLICE_BYTES: usize = SLICE_SIZE / MIN_ALIGN / 8;

    fn install(table: *mut u8, base: *mut u8) {
        TABLE.0.set(table.wrapping_sub(base.addr() / SLICE_SIZE * Self::SLICE_BYTES).cast());
    }

    fn table() -> Option<*mut u8> {
        let before = slice_address(0).addr() / SLICE_SIZE * Self::SLICE_BYTES;
        Some(TABLE.0.get().wrapping_byte_add(before).cast_mut().cast())
    }

    #[inline(always)]
    unsafe fn take_back(p: *const u8) -> bool {
        // SAFETY: a span's slices are committed. The owner alone writes.
        let (word, bit) = unsafe { place(p) };
        let old = word.load(Ordering::Relaxed);
        let was_free = old >> (bit % u32::BITS) & 1 != 0;
        if !was_free {
            word.store(old | 1u32.wrapping_shl(bit), Ordering::Relaxed);
        }
        !was_free
    }

    #[inline(always)]
    unsafe fn undo(p: *const u8) {
        // SAFETY: as above.
        unsafe { Bits::hand_out(p) };
    }

    /// Relaxed, as all here: who has a block has it by the program's own synchronisation, later than the bit; what becomes
    /// of other bits of the word does not change this one.
    #[inline(always)]
    unsafe fn is_live(p: *const u8) -> bool {
        // SAFETY: a span's slices are committed.
        let (word, bit) = unsafe { place(p) };
        word.load(Ordering::Relaxed) & 1u32.wrapping_shl(bit) == 0
    }

    unsafe fn begin(first: *const u8, layout: &ClassLayout) {
        let (mut at, stride) =
            (layout.slack as usize / MIN_ALIGN, layout.size as usize / MIN_ALIGN);
        let words = words(first);
        if layout.slices > 1 {
            // SAFETY: the caller's. Nobody else asks about a span before it is described.
            unsafe { Bits::forget(first, layout.slices.into()) };
            // Behind the last block are places that look like the start of one.
            while at < usize::from(layout.slices) * SLICE_SIZE / MIN_ALIGN {
                // SAFETY: inside the span.
                unsafe { *words.add(at / u32::BITS as usize) |= 1u32.wrapping_shl(at as u32) };
                at += stride;
            }
            return;
        }
        // The same 64 places at a time: the blocks of a short span are many, and end where it ends.
        let (mut starts, mut known) = (1u64, stride);
        while known < PLACES {
            starts |= starts << known;
            known *= 2;
        }
        let step = PLACES % stride;
        for nth in 0..SLICE_SIZE / MIN_ALIGN / PLACES {
            let word = starts << at;
            // SAFETY: as above.
            unsafe { words.cast::<[u32; 2]>().add(nth).write([word as u32, (word >> 32) as u32]) };
            at = if at >= step { at - step } else { at + stride - step };
        }
    }

    unsafe fn forget(first: *const u8, slices: usize) {
        // SAFETY: the table covers it.
        unsafe { words(first).cast::<u8>().write_bytes(0, slices * Self::SLICE_BYTES) };
    }

    fn came_home(list: FreeList, mut then: impl FnMut(*mut Block)) {
        let mut at = if list.count > 0 { list.head } else { END };
        while at != END {
            // SAFETY: blocks of a span of the caller's, free and linked. The link is read before the block goes.
            unsafe {
                if !Bits::take_back(at.cast()) {
                    os::fatal("free", at.cast(), FREED_TWICE);
                }
                let next = Block::next(at);
                then(at);
                at = next;
            }
        }
    }
}
