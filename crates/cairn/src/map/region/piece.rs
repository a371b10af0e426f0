//! Owns: a piece of a region's memory: which of its slices are in use, begin a large block, or have memory behind them.
//! Idea: a bit for each, in bitmaps beside the memory.
//! Never: takes a lock, or touches the memory.
//! Threads: the holder of the lock of the regions.
//! Checked: `Piece::check`; tests/region.rs
//! Story: docs/design/regions.md

use super::RegionError;
use crate::base::SLICE_SIZE;
use crate::base::bits::{bit, pieces};
use crate::os;
use core::ptr::null_mut;

/// No address from here on is in a region.
const ADDRESS_END: usize = 1 << 48;

// Invariants
//  1. `free` is the number of bits of `used` that are 0. No slice below word `low` of `used` is free.
//  2. A slice that is a large block's first one has a bit in `heads`, and is in use.
//  3. A bit of `ready` says that the slice has been taken, with the program's `commit` if there is one, and no `decommit` since.

/// Some memory of a region.
pub(crate) struct Piece {
    /// The number of the region, plus 1; 0: there is none.
    pub(super) region: usize,
    /// The first whole slice.
    pub(crate) start: *mut u8,
    pub(crate) slices: usize,
    /// Three bitmaps, one behind the other: used, heads, ready.
    bits: *mut u64,
    pub(super) free: usize,
    low: usize,
    /// As the program has supplied it; and whether `reserve` has.
    pub(super) supplied: (*mut u8, usize),
    pub(super) origin: Origin,
}

/// Where a piece's memory comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The program has made the region of it, or added it.
    Given,
    /// The program's `reserve` has supplied it: its `release` gets it back.
    Reserved,
}

/// What a bit is, or becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bit {
    Zero,
    One,
}

/// Which of the bitmaps.
#[derive(Clone, Copy)]
pub(super) enum Bits {
    Used,
    Heads,
    Ready,
}

impl Piece {
    /// A piece of a region, of the whole slices among `bytes` bytes at `start`, in use by nobody; larger pages are whole, too.
    pub(crate) fn prepare(
        region: usize,
        start: *mut u8,
        bytes: usize,
        origin: Origin,
    ) -> Result<Piece, RegionError> {
        let unit = SLICE_SIZE.max(os::page_size());
        // The upper bits of a link are the mark of free blocks.
        let end = start.addr().checked_add(bytes).filter(|&end| end <= ADDRESS_END);
        let end = end.map(|end| end / unit * (unit / SLICE_SIZE));
        let first = start.addr().div_ceil(unit) * (unit / SLICE_SIZE);
        let slices = end.and_then(|end| end.checked_sub(first)).filter(|&slices| slices > 0);
        let slices = slices.ok_or(RegionError::Invalid)?;
        let mut piece = Piece {
            region: region + 1,
            start: start.with_addr(first * SLICE_SIZE),
            slices,
            bits: null_mut(),
            free: slices,
            low: 0,
            supplied: (start, bytes),
            origin,
        };
        piece.bits = os::map(piece.bits_bytes()).cast();
        if piece.bits.is_null() {
            return Err(RegionError::NoMemory);
        }
        // What is behind the end is in use.
        piece.set(Bits::Used, slices, piece.words() * 64 - slices, Bit::One);
        Ok(piece)
    }

    fn words(&self) -> usize {
        self.slices.div_ceil(64)
    }

    fn bits_bytes(&self) -> usize {
        os::round_up(3 * self.words() * size_of::<u64>(), os::page_size())
    }

    /// Gives up what is kept of it.
    pub(crate) fn drop_bits(&mut self) {
        // SAFETY: mapped by `prepare`; nothing refers to it after this.
        unsafe { os::release(self.bits.cast(), self.bits_bytes()) };
        self.bits = null_mut();
    }

    pub(super) fn words_of(&self, of: Bits) -> &[u64] {
        // SAFETY: the piece's, mapped with zeros; used under the lock.
        unsafe {
            core::slice::from_raw_parts(self.bits.add(of as usize * self.words()), self.words())
        }
    }

    fn word(&mut self, of: Bits, nth: usize) -> &mut u64 {
        debug_assert!(nth < self.words());
        // SAFETY: as above.
        unsafe { &mut *self.bits.add(of as usize * self.words() + nth) }
    }

    pub(super) fn has(&self, of: Bits, slice: usize) -> bool {
        self.words_of(of).get(slice / 64).is_some_and(|word| word & bit(slice) != 0)
    }

    /// Writes the bits of a run.
    #[inline(never)]
    pub(super) fn set(&mut self, of: Bits, first: usize, slices: usize, to: Bit) {
        for (nth, mask) in pieces(first, slices) {
            let word = self.word(of, nth);
            *word = match to {
                Bit::One => *word | mask,
                Bit::Zero => *word & !mask,
            };
        }
    }

    /// The first slice from `at` on whose bit in `of` is `bit`.
    pub(super) fn next(&self, of: Bits, at: usize, bit: Bit) -> Option<usize> {
        let mut mask = !0 << (at % 64);
        let words = self.words_of(of).iter().enumerate().skip(at / 64);
        for (nth, &word) in words {
            let wanted = if bit == Bit::One { word } else { !word } & mask;
            if wanted != 0 {
                return Some(nth * 64 + wanted.trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }

    /// The lowest free run of `slices` that begins at a multiple of `align` slices.
    pub(super) fn find(&self, slices: usize, align: usize) -> Option<usize> {
        let before = self.start.addr() / SLICE_SIZE;
        let aligned = |at: usize| Some((before + at).checked_next_multiple_of(align)? - before);
        let mut at = self.low * 64;
        loop {
            at = aligned(self.next(Bits::Used, at, Bit::Zero)?)?;
            let used = self.next(Bits::Used, at, Bit::One).unwrap_or(self.slices).min(self.slices);
            if at < used && used - at >= slices {
                return Some(at);
            }
            at = at.max(used) + usize::from(at >= used);
            if at >= self.slices {
                return None;
            }
        }
    }

    pub(super) fn take(&mut self, at: usize, slices: usize) {
        self.set(Bits::Used, at, slices, Bit::One);
        self.free -= slices;
        if at / 64 == self.low {
            let free = self.next(Bits::Used, self.low * 64, Bit::Zero).unwrap_or(self.slices);
            self.low = free / 64;
        }
    }

    pub(super) fn put(&mut self, at: usize, slices: usize) {
        debug_assert!((at..at + slices).all(|at| self.has(Bits::Used, at)));
        self.set(Bits::Used, at, slices, Bit::Zero);
        self.free += slices;
        self.low = self.low.min(at / 64);
    }

    pub(super) fn address(&self, slice: usize) -> *mut u8 {
        self.start.wrapping_add(slice * SLICE_SIZE)
    }

    /// The slice under `p`, if that is in this piece.
    pub(super) fn slice_of(&self, p: *const u8) -> Option<usize> {
        let at = p.addr().wrapping_sub(self.start.addr()) / SLICE_SIZE;
        (self.region > 0 && at < self.slices).then_some(at)
    }
}

impl Piece {
    /// The first run from slice `from` on that is free, and may have memory; whole pages of it.
    pub(super) fn free_and_ready(&self, from: usize) -> Option<(usize, usize)> {
        let unit = (os::page_size() / SLICE_SIZE).max(1);
        let mut at = from;
        loop {
            at = self.next(Bits::Ready, at, Bit::One).filter(|&at| at < self.slices)?;
            let end = |of, bit| self.next(of, at, bit).unwrap_or(self.slices).min(self.slices);
            let behind = end(Bits::Ready, Bit::Zero).min(end(Bits::Used, Bit::One));
            let [first, last] = [at.next_multiple_of(unit), behind / unit * unit];
            if first < last {
                return Some((first, last - first));
            }
            at = if behind > at { behind } else { end(Bits::Used, Bit::Zero) };
        }
    }

    /// All slices are free.
    pub(super) fn clear(&mut self) {
        self.set(Bits::Used, 0, self.slices, Bit::Zero);
        self.set(Bits::Heads, 0, self.slices, Bit::Zero);
        (self.free, self.low) = (self.slices, 0);
    }

    /// Invariants 1 and 2.
    pub(super) fn check(&self) {
        let free = (0..self.slices).filter(|&at| !self.has(Bits::Used, at));
        assert_eq!(free.clone().count(), self.free);
        assert!(free.clone().all(|at| at / 64 >= self.low));
        assert!((0..self.slices).all(|at| !self.has(Bits::Heads, at) || self.has(Bits::Used, at)));
    }
}
