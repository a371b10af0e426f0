//! Owns: the canaries of the hardened build: the last word of each block of a span that the program has, and a word behind
//!   each large one (see `large`).
//! Idea: it says how many bytes the block has behind those that were asked for, combined with a number of its
//!   place's; the first of these bytes is a byte of that number, so that one byte written beyond the end shows.
//! Never: does anything in the default build; says anything of a free block.
//! Threads: whoever has the block.
//! Checked: tests/canary.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use crate::base::{BLOCK_MAX, CANARY_BYTES, MIN_ALIGN, Ordering, Plain, SizeClass, fence};
use crate::os;

// Invariants, for a block of a span that the program has, as far as nobody has written beyond its end
//  1. Its last word is `number(block) ^ left * TWICE`, its lowest byte first. `left` bytes, `CANARY_BYTES` at least,
//     stand behind what was asked for.
//  2. The first of these bytes is the lowest of the number, and odd: no zero.
//  3. None of them makes a mark of what the program has written: bit 7 of that byte is 0, and of the last one. What
//     else of them stands in the block's first `MIN_ALIGN` bytes is zero.

/// What stands behind the bytes that the program has of a block: in the default build nothing.
pub(crate) trait Behind {
    /// Chooses what the numbers are made of, out of random ones; once, by the thread that makes the reservation.
    fn install(_random: impl Fn(usize) -> usize) {}

    /// The program gets `size` bytes of a block.
    ///
    /// # Safety
    /// The caller's block of that class, whose first `MIN_ALIGN` bytes are zero behind `size`; at most `room`.
    unsafe fn write(_block: *mut u8, _class: SizeClass, _size: usize) {}

    /// Bytes that the program has of a block. Ends the process if somebody has written behind them: a message names
    /// `call`.
    ///
    /// # Safety
    /// A block of that class that the program has.
    unsafe fn size_of(_block: *const u8, class: SizeClass, _call: &str) -> usize {
        room(class)
    }

    /// Ends the process if somebody has written behind the program's bytes of a block that it gives back.
    ///
    /// # Safety
    /// As for `size_of`; nobody else has it any more.
    unsafe fn expect(_block: *const u8, _class: SizeClass, _call: &str) {}

    /// Whether nobody has written behind the first `size` bytes of a large block. Frees look when nobody else can free the
    /// block any more: else its memory may be gone.
    ///
    /// # Safety
    /// The block is being freed, by the caller alone; the program has so many bytes of it.
    unsafe fn is_whole(_block: *mut u8, _size: usize) -> bool {
        true
    }

    /// The program has `size` bytes from now on, of a block that it has.
    ///
    /// # Safety
    /// As for `size_of`; at most `room`.
    unsafe fn change(_block: *mut u8, _class: SizeClass, _size: usize, _call: &str) {}

    /// The program has all the room of a block that it has from now on. Two threads that have it may ask at the same time,
    /// and one of them writes there at once.
    ///
    /// # Safety
    /// As for `size_of`.
    unsafe fn grant(_block: *mut u8, class: SizeClass, _call: &str) -> usize {
        room(class)
    }
}

/// The default build's.
pub(crate) struct Nothing;

impl Behind for Nothing {}

/// The hardened build's: a word.
pub(crate) struct Canaries;

/// Puts a number into a word twice, and nothing into its lowest byte: no bit can be changed alone.
const TWICE: u64 = 1 << 8 | 1 << 36;

const _: () = assert!(BLOCK_MAX < 1 << (36 - 8) && BLOCK_MAX < 1 << (63 - 36));

/// What the numbers are made of; the second is odd.
struct Secrets {
    sum: Plain<u64>,
    factor: Plain<u64>,
}

// SAFETY: written once, by the thread that makes the reservation, before there is a block.
unsafe impl Sync for Secrets {}

static SECRETS: Secrets = Secrets { sum: Plain::new(0), factor: Plain::new(0) };

/// The number of a block's place.
#[inline(always)]
fn number(block: *const u8) -> u64 {
    mixed((block.addr() / MIN_ALIGN) as u64, SECRETS.sum.get(), SECRETS.factor.get())
}

/// A place and two secrets. The lowest byte is the product's highest, which all bits of the place have changed; odd, for a
/// string's end is what programs write beyond theirs. Who reads a process from outside makes the same.
#[inline(always)]
pub(crate) fn mixed(place: u64, sum: u64, factor: u64) -> u64 {
    let product = (place ^ sum).wrapping_mul(factor);
    product.swap_bytes() & !(1 << 63 | 1 << 7) | 1
}

/// Bytes that the program may have of a block of a class.
#[inline(always)]
pub(crate) fn room(class: SizeClass) -> usize {
    class.block_size() - CANARY_BYTES
}

/// Puts the canary of a place there: behind what the program has of a large block, whose metadata says how much that is.
///
/// # Safety
/// So many bytes of the block stand there, and are nobody's.
#[inline(never)]
pub(crate) unsafe fn put(place: *mut u8) {
    // SAFETY: the caller's.
    unsafe { place.cast::<u64>().write_unaligned(number(place).to_le()) }
}

/// Whether the canary of a place stands there.
///
/// # Safety
/// As for `put`.
#[inline(never)]
pub(crate) unsafe fn stands(place: *const u8) -> bool {
    // SAFETY: the caller's.
    u64::from_le(unsafe { place.cast::<u64>().read_unaligned() }) == number(place)
}

/// Bytes that the program has of a block; None if somebody has written behind them.
///
/// # Safety
/// A block of that class that the program has.
#[inline(always)]
unsafe fn read(block: *const u8, class: SizeClass) -> Option<usize> {
    let (end, number) = (class.block_size(), number(block));
    // SAFETY: inside the block, as `left` is seen to be.
    unsafe {
        let word = u64::from_le(block.add(room(class)).cast::<u64>().read()) ^ number;
        let left = (word >> TWICE.ilog2()) as usize;
        let is_left = left as u64 * TWICE == word && left <= end;
        (is_left && *block.add(end - left) == number as u8).then(|| end - left)
    }
}

/// Ends the process, unless another thread has been told meanwhile that it has all the room of the block.
#[cold]
#[inline(never)]
unsafe fn read_again(block: *const u8, class: SizeClass, call: &str) -> usize {
    // Acquire: pairs with `grant`.
    fence(Ordering::Acquire);
    // SAFETY: the caller's.
    unsafe { read(block, class) }.unwrap_or_else(|| overwritten(call, block))
}

#[cold]
#[inline(never)]
pub(crate) fn overwritten(call: &str, block: *const u8) -> ! {
    os::fatal(call, block, "the program has written beyond the end of this block")
}

impl Behind for Canaries {
    fn install(random: impl Fn(usize) -> usize) {
        SECRETS.sum.set(random(11) as u64);
        SECRETS.factor.set(random(12) as u64 | 1);
    }

    #[inline(always)]
    unsafe fn write(block: *mut u8, class: SizeClass, size: usize) {
        let (end, number) = (class.block_size(), number(block));
        debug_assert!(size <= room(class) && number & 1 == 1);
        // SAFETY: inside the block.
        unsafe {
            block.add(size).write(number as u8);
            block
                .add(room(class))
                .cast::<u64>()
                .write((number ^ ((end - size) as u64 * TWICE)).to_le());
        }
    }

    #[inline(never)]
    unsafe fn size_of(block: *const u8, class: SizeClass, call: &str) -> usize {
        // SAFETY: the caller's.
        unsafe { read(block, class).unwrap_or_else(|| read_again(block, class, call)) }
    }

    #[inline(always)]
    unsafe fn expect(block: *const u8, class: SizeClass, call: &str) {
        // SAFETY: the caller's.
        if unsafe { read(block, class) }.is_none() {
            overwritten(call, block);
        }
    }

    #[inline(never)]
    unsafe fn is_whole(block: *mut u8, size: usize) -> bool {
        // SAFETY: `CANARY_BYTES` stand behind what the program has.
        unsafe { stands(block.add(size)) }
    }

    #[inline]
    unsafe fn change(block: *mut u8, class: SizeClass, size: usize, call: &str) {
        // SAFETY: inside the block.
        unsafe {
            Self::expect(block, class, call);
            if size < MIN_ALIGN {
                block.add(size).write_bytes(0, MIN_ALIGN - size);
            }
            Self::write(block, class, size);
        }
    }

    #[inline(never)]
    unsafe fn grant(block: *mut u8, class: SizeClass, call: &str) -> usize {
        // SAFETY: inside the block. Two threads write the same.
        unsafe {
            if Self::size_of(block, class, call) < room(class) {
                Self::write(block, class, room(class));
                // Release: who finds what the program writes then finds the canary, too.
                fence(Ordering::Release);
            }
        }
        room(class)
    }
}
