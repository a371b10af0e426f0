//! Owns: what a build does with nurseries besides; the hardened one: zeros, what has been written to since, where the
//!   first block lies.
//! Idea: what nobody has is zero: the head of a freed block, and all of a nursery that no heap has. So each block comes
//!   as zeros, and what is not zero when the nursery is used again has been written to after its end.
//! Never: does anything in the default build; looks at what the program has.
//! Threads: who has the nursery; `zero_head` whoever frees the block.
//! Checked: tests/hardened_nursery.rs; the model `nurseries`.
//! Story: docs/design/closed-heaps.md

use super::{COUNTED, FREED, Freer, GAP, LIVE, NONE, NURSERY_BYTES, Nursery, PLACES};
use crate::base::{InHardened, MIN_ALIGN, Ordering, random};
use crate::large::tuning::NURSERY_ENDS;
use crate::os;

/// The build's.
pub(crate) type Nurse = InHardened<Plain, Careful>;

/// What is done with nurseries besides: in the default build nothing.
pub(crate) trait Care {
    /// Where another row of random numbers begins. That of the pool, which stands at `random`, begins here, too.
    fn row(_random: &mut u64) -> u64 {
        0
    }

    /// One of several, a bit each.
    fn choose(_random: &mut u64, among: u8) -> usize {
        among.trailing_zeros() as usize
    }

    /// Makes a nursery of memory that nobody has, all of it zero or not.
    ///
    /// # Safety
    /// It is the caller's, and so is the memory.
    unsafe fn prepare(_this: *mut Nursery, _random: &mut u64, _is_zero: bool) {}

    /// Ends the life of the block that begins at a place by a plain step: whether one in use does. None if that takes a
    /// step of one piece.
    ///
    /// # Safety
    /// As for `Nursery::end`; the block is the caller's to free.
    #[inline(always)]
    unsafe fn end_plainly(this: *mut Nursery, place: usize, freer: Freer) -> Option<bool> {
        if freer != Freer::User {
            return None;
        }
        // SAFETY: never unmapped.
        let state = unsafe { &(*this).states[place] };
        let is_live = state.load(Ordering::Relaxed) == LIVE;
        if is_live {
            state.store(FREED, Ordering::Relaxed);
            // SAFETY: the user's.
            unsafe { (*this).freed.set((*this).freed.get() + 1) };
        }
        Some(is_live)
    }

    /// Bytes that a nursery has for blocks when it is empty.
    fn room(_this: &Nursery) -> usize {
        NURSERY_BYTES
    }

    /// It is empty.
    ///
    /// # Safety
    /// Nobody has a block of it.
    #[inline(always)]
    unsafe fn reset(this: *mut Nursery) {
        // SAFETY: as above. Plain: who gets a block of it next has it from whoever empties it.
        unsafe {
            (*this).freed.set(0);
            (*this).states().write_bytes(NONE, PLACES);
        }
    }

    /// A number below `count` that nobody knows, where it matters.
    ///
    /// # Safety
    /// It is the caller's.
    unsafe fn chance(_this: *mut Nursery, _count: usize) -> usize {
        0
    }

    /// A heap is going to use it. Ends the process if somebody has written to it since it was empty.
    ///
    /// # Safety
    /// It is the caller's, and nobody has a block of it.
    unsafe fn expect_zero(_this: *mut Nursery) {}
}

/// The default build's.
pub(crate) struct Plain;

impl Care for Plain {}

/// The hardened build's.
pub(crate) struct Careful;

/// Places at the head of a freed block that are zero: 128 bytes, as in a block of a class.
const HEAD: usize = 8;

/// States in a word.
const IN_WORD: usize = size_of::<u64>();
/// What states have in common that say that a block has been freed, and that one has begun since the nursery was empty.
const FREED_ONES: u64 = u64::from_ne_bytes([FREED; IN_WORD]);
const BEGUN: u64 = FREED_ONES | u64::from_ne_bytes([LIVE; IN_WORD]);

const _: () =
    assert!(FREED & (LIVE | COUNTED | GAP) == 0 && COUNTED & LIVE != 0 && GAP & LIVE == 0);

impl Care for Careful {
    fn row(random: &mut u64) -> u64 {
        if *random == 0 {
            *random = random::first(os::seed(), core::ptr::from_mut(random).addr(), os::now_ns());
        }
        random::next(random)
    }

    /// Any.
    fn choose(random: &mut u64, mut among: u8) -> usize {
        let before = random::chance(random, among.count_ones() as usize);
        (0..before).for_each(|_| among &= among - 1);
        among.trailing_zeros() as usize
    }

    unsafe fn prepare(this: *mut Nursery, random: &mut u64, is_zero: bool) {
        // SAFETY: the caller's.
        unsafe {
            ((*this).random, (*this).is_new) = (random::next(random), is_zero);
            if !is_zero {
                (*this).at(0).write_bytes(0, NURSERY_BYTES);
            }
            begin_anew(this);
        }
    }

    /// The head is zeroed before the state says that the block is freed: then the nursery may be used again.
    #[inline(always)]
    unsafe fn end_plainly(this: *mut Nursery, place: usize, _freer: Freer) -> Option<bool> {
        // SAFETY: never unmapped; the caller's.
        unsafe { (*this).zero_head(place) };
        None
    }

    #[inline(always)]
    fn room(this: &Nursery) -> usize {
        this.room.into()
    }

    /// Ends the process if somebody has written to what has been freed; zeroes all, unless no block has been there: then it
    /// is zero, or will be looked at.
    unsafe fn reset(this: *mut Nursery) {
        // SAFETY: as above. No step is atomic: the states are the caller's, and aligned to a line.
        unsafe {
            let (base, room, states) = ((*this).at(0), usize::from((*this).room), (*this).states());
            expect_zero(base.add(room), NURSERY_BYTES - room);
            let any = (*states.cast::<[u64; PLACES / IN_WORD]>()).iter().fold(0, |a, b| a | b);
            if any & FREED_ONES != 0 {
                let state = |place| states.add(place).read();
                for place in (0..PLACES).filter(|&place| state(place) == FREED) {
                    expect_zero(base.add(place * MIN_ALIGN), head(place, state));
                }
            }
            if any & BEGUN != 0 {
                base.write_bytes(0, NURSERY_BYTES);
                begin_anew(this);
            }
        }
    }

    unsafe fn chance(this: *mut Nursery, count: usize) -> usize {
        // SAFETY: the caller's.
        unsafe { random::chance(&mut (*this).random, count) }
    }

    #[inline(never)]
    unsafe fn expect_zero(this: *mut Nursery) {
        // SAFETY: the caller's.
        unsafe {
            // Pages that are nowhere yet would take the kernel two steps instead of one.
            if !core::mem::replace(&mut (*this).is_new, false) {
                expect_zero((*this).at(0), NURSERY_BYTES);
            }
        }
    }
}

/// No block has been there, and chance decides where the first one ends.
///
/// # Safety
/// The caller's, and nobody has a block of it.
unsafe fn begin_anew(this: *mut Nursery) {
    // SAFETY: the caller's.
    unsafe {
        Plain::reset(this);
        let end = PLACES - Careful::chance(this, NURSERY_ENDS);
        (*this).room = (end * MIN_ALIGN) as u16;
        if end < PLACES {
            (*this).states().add(end).write(GAP);
        }
    }
}

impl Nursery {
    /// Zeroes the head of the block that begins at a place, if one does that the program has.
    ///
    /// # Safety
    /// The block is the caller's to free.
    unsafe fn zero_head(&self, place: usize) {
        if self.state(place) & LIVE != 0 {
            // SAFETY: as above.
            unsafe { self.at(place).write_bytes(0, head(place, |at| self.state(at))) };
        }
    }

    fn state(&self, place: usize) -> u8 {
        self.states[place].load(Ordering::Relaxed)
    }

    fn at(&self, place: usize) -> *mut u8 {
        self.base.load(Ordering::Relaxed).wrapping_add(place * MIN_ALIGN)
    }
}

/// Bytes of the head of what begins at a place. What stands behind it was there before.
fn head(place: usize, state: impl Fn(usize) -> u8) -> usize {
    let most = (place + HEAD).min(PLACES);
    ((place + 1..most).find(|&next| state(next) != NONE).unwrap_or(most) - place) * MIN_ALIGN
}

/// Ends the process if bytes that nobody has are not zero.
///
/// # Safety
/// Memory of a nursery, so many bytes, a multiple of `MIN_ALIGN` as the address is.
unsafe fn expect_zero(at: *mut u8, bytes: usize) {
    // SAFETY: as above; nobody who may write to it does.
    let words = unsafe { core::slice::from_raw_parts(at.cast::<u64>(), bytes / size_of::<u64>()) };
    if words.iter().fold(0, |all, word| all | word) != 0 {
        let first = words.iter().position(|&word| word != 0).unwrap_or(0);
        written(at.wrapping_add(first * size_of::<u64>()));
    }
}

/// Two rows of a pool whose own stands at `random`, and where that stands then; for tests.
#[cfg(test)]
pub(crate) fn rows(mut random: u64) -> ([u64; 2], u64) {
    ([(); 2].map(|()| Nurse::row(&mut random)), random)
}

#[cold]
fn written(at: *mut u8) -> ! {
    os::fatal("cairn_heap", at, "this is in no block, and the program has written to it")
}
