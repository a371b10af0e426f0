//! Owns: the size classes: block sizes, how spans of each are cut, and (size, align) -> class.
//! Idea: everything is a constant table; one multiplication tells whether an address is a block's.
//! Never: touches memory.
//! Threads: any; holds nothing.
//! Checked: const assertions here, property tests over every size below.
//! Story: docs/design/spans.md
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "a number that is known to be one of a class needs no check")]
mod index;

pub(crate) use index::SizeClass;

use crate::base::policy::{CANARY_BYTES, in_hardened};
use crate::base::tuning::{CACHE_BLOCKS, CACHE_BYTES, CACHE_UNITS};

/// Bytes in a slice, the unit in which spans and large blocks take memory. Half of it doubles
/// the metadata; twice of it leaves more free blocks in small programs' spans.
pub(crate) const SLICE_SIZE: usize = 1 << SLICE_SHIFT;
/// log2 of `SLICE_SIZE`.
pub(crate) const SLICE_SHIFT: u32 = 14;
/// The largest size that the first fast path serves, by table.
pub(crate) const SMALL_MAX: usize = 1024 - CANARY_BYTES;
/// The largest size that spans serve; larger blocks own whole runs of slices.
pub(crate) const MEDIUM_MAX: usize = BLOCK_MAX - CANARY_BYTES;
/// The largest block of a span.
pub(crate) const BLOCK_MAX: usize = 64 * 1024;
/// Alignment of every block, and the step between the smallest classes.
pub(crate) const MIN_ALIGN: usize = 16;
/// Number of classes: 32 up to 1 KiB, then 4 in each of 6 doublings.
pub(crate) const CLASS_COUNT: usize = 56;
/// The first class, of blocks over 4 KiB, that has the longest spans.
const LONG_CLASS: usize = 40;

/// How spans of one class are cut. Tools read the table by way of `outside::HEADER`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ClassLayout {
    /// Bytes in a block.
    pub(crate) size: u32,
    /// Blocks in a span.
    pub(crate) blocks: u16,
    /// Slices in a span, a power of two; spans are aligned to their size.
    pub(crate) slices: u16,
    /// Unused bytes before the first block. They stand in front so that every address from
    /// the first block to the span's end belongs to a block, or to a guard.
    pub(crate) slack: u32,
    /// Free blocks that a heap's cache takes in, in units of which a block has `CACHE_UNITS`: a program that
    /// replaces blocks at random would refill for every few.
    pub(crate) cache_limit: u32,
    /// Inverse, modulo 2^64, of the odd part of `size`.
    pub(crate) inverse: u64,
    /// The bits that are 0 in `offset * inverse` exactly if `offset`, counted from a span's first
    /// block and wrapping, is a block's start. Exact for addresses whose descriptor names the
    /// span: the mask admits up to the next power of two of blocks, and what is beyond the last
    /// one is another span's.
    pub(crate) mask: u64,
}

impl ClassLayout {
    /// Free blocks that a heap's cache takes in.
    pub(crate) const fn cache_blocks(&self) -> u32 {
        self.cache_limit / CACHE_UNITS as u32
    }

    /// A number that is above `offset * inverse` of each block's start, and of no place behind the last block that
    /// the mask admits.
    #[inline(always)]
    pub(crate) const fn end(&self) -> u64 {
        (self.blocks as u64) << self.size.trailing_zeros()
    }

    const fn new(size: usize) -> ClassLayout {
        let slices = match size {
            ..=1024 => 1,
            1025..=4096 => 4,
            _ => 32,
        };
        let [before, after] = guards(slices);
        let bytes = slices * SLICE_SIZE - after;
        let blocks = (bytes - before) / size;
        let shift = size.trailing_zeros();
        let odd = (size >> shift) as u64;
        // Newton's iteration doubles the correct low bits each time, from 3.
        let mut inverse = odd;
        let mut i = 0;
        while i < 5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
            i += 1;
        }
        let fits = CACHE_BYTES / size;
        let cache_limit = if fits < CACHE_BLOCKS { fits } else { CACHE_BLOCKS };
        // offset * inverse = (offset / size) << shift if size divides offset, and no other
        // 64-bit offset gives such a value: both steps are bijections.
        let mask = !((blocks.next_power_of_two() as u64 - 1) << shift);
        ClassLayout {
            size: size as u32,
            blocks: blocks as u16,
            slices: slices as u16,
            slack: (bytes - blocks * size) as u32,
            // One unit less than a block more: the last block is taken in, too.
            cache_limit: (cache_limit as i32 * CACHE_UNITS + CACHE_UNITS - 1) as u32,
            inverse,
            mask,
        }
    }
}

/// Bytes that the hardened build guards in front of the blocks of a span of so many slices, and behind them. The
/// latter are a multiple of all alignments that the span's blocks may have. Short spans have no guards: they would take
/// a quarter of them.
pub(crate) const fn guards(slices: usize) -> [usize; 2] {
    match in_hardened(0, slices) {
        4 => [GUARD, GUARD],
        32 => [GUARD, SLICE_SIZE],
        _ => [0, 0],
    }
}

/// Bytes of a guard: of most systems' pages. Where pages are larger there is none.
const GUARD: usize = 4096;

/// The classes, smallest first.
pub(crate) static CLASSES: [ClassLayout; CLASS_COUNT] = classes().0;
/// Their masks, apart: a free finds its own by one instruction, in its heap's copy.
pub(crate) const MASKS: [u64; CLASS_COUNT] = classes().1;

/// Bytes in a block of class number `class`.
pub(crate) const fn class_size(class: usize) -> usize {
    if class < 16 {
        (class + 1) * 16
    } else {
        // Steps of an eighth of a power of two up to 1 KiB, of a quarter above.
        let (base, per_doubling) = if class < 32 { (16, 8) } else { (32, 4) };
        let from = if class < 32 { 256 } else { 1024 };
        let power = from << ((class - base) / per_doubling);
        power + ((class - base) % per_doubling + 1) * (power / per_doubling)
    }
}

const fn classes() -> ([ClassLayout; CLASS_COUNT], [u64; CLASS_COUNT]) {
    let (mut table, mut masks) = ([ClassLayout::new(16); CLASS_COUNT], [0; CLASS_COUNT]);
    let mut i = 0;
    while i < CLASS_COUNT {
        table[i] = ClassLayout::new(class_size(i));
        masks[i] = table[i].mask;
        i += 1;
    }
    (table, masks)
}

/// The class of each size up to `SMALL_MAX`. By steps of 16 bytes it would be shorter, and take an
/// instruction more.
static SMALL_CLASS: [u8; SMALL_MAX + 1] = {
    let mut table = [0; SMALL_MAX + 1];
    let (mut class, mut size) = (0, 0);
    while size < table.len() {
        if size + CANARY_BYTES > class_size(class) {
            class += 1;
        }
        table[size] = class as u8;
        size += 1;
    }
    table
};

/// The class for a size up to `MEDIUM_MAX`.
#[inline(always)]
pub(crate) fn class_of(size: usize) -> SizeClass {
    if size <= SMALL_MAX { small_class(size) } else { medium_class(size) }
}

/// The class for a size up to `SMALL_MAX`.
#[inline(always)]
pub(crate) fn small_class(size: usize) -> SizeClass {
    SizeClass(usize::from(SMALL_CLASS[size]))
}

/// The class for a size in `SMALL_MAX + 1 ..= MEDIUM_MAX`.
#[inline(always)]
pub(crate) fn medium_class(size: usize) -> SizeClass {
    let last = size + CANARY_BYTES - 1;
    let power = last.ilog2() as usize;
    // 32 at 2^10, and 4 more for each doubling.
    SizeClass(power * 4 + ((last >> (power - 2)) & 3) - 8)
}

/// The smallest class whose blocks hold `size` bytes and are all aligned to `align`, a power
/// of two; None if no span serves that.
#[inline]
pub(crate) fn class_of_aligned(size: usize, align: usize) -> Option<SizeClass> {
    if align > SLICE_SIZE || size > MEDIUM_MAX {
        return None;
    }
    // A block lies at a multiple of its size from the span's end, which is aligned to a slice at
    // least. And the class of a multiple of `align` is one, too: sizes go in steps of powers of
    // two. A step that divides `align` meets that multiple itself; else `align` divides the step.
    // An alignment that is no power of two finds a class, too, whose blocks hold `size`.
    Some(class_of((((size + CANARY_BYTES).max(1) - 1) | (align - 1)) + 1 - CANARY_BYTES))
}

const _: () =
    assert!(class_size(31) == SMALL_MAX + CANARY_BYTES && class_size(CLASS_COUNT - 1) == BLOCK_MAX);
const _: () = assert!(SLICE_SIZE.is_multiple_of(MIN_ALIGN));
const _: () = assert!(CLASSES[LONG_CLASS - 1].slices == 4 && CLASSES[LONG_CLASS].slices == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_class_within_the_waste_bound() {
        for size in 1..=MEDIUM_MAX {
            let class = class_of(size).index();
            let (block, taken) = (CLASSES[class].size as usize, size + CANARY_BYTES);
            assert!(block >= taken);
            assert!(class == 0 || (CLASSES[class - 1].size as usize) < taken, "{size}");
            let waste = block - taken;
            if size <= SMALL_MAX {
                assert!(waste < 16 || waste * 8 <= block, "{size} in {block}");
            } else {
                assert!(waste * 4 < taken, "{size} in {block}");
            }
        }
        assert_eq!(class_of(0), SizeClass::FIRST);
    }

    /// C++ programs may name any number as an alignment.
    #[test]
    fn any_alignment_finds_blocks_that_are_large_enough() {
        for size in (0..=MEDIUM_MAX).step_by(37).chain([MEDIUM_MAX - 1, MEDIUM_MAX]) {
            for align in (1..=SLICE_SIZE).step_by(41).chain((0..=14).map(|power| 1 << power)) {
                let class = class_of_aligned(size, align).expect("a span serves it").index();
                assert!(CLASSES[class].size as usize >= size + CANARY_BYTES, "{size} at {align}");
            }
        }
    }

    /// The table is made by the compiler; here by the program.
    #[test]
    fn spans_have_one_of_three_lengths() {
        for (c, made) in CLASSES.iter().zip(classes().0) {
            let slices = match c.size {
                ..=1024 => 1,
                1025..=4096 => 4,
                _ => 32,
            };
            assert_eq!(c.slices, slices);
            assert!((c.slack as usize) < c.size as usize + guards(slices.into())[0]);
            let of = |c: &ClassLayout| (c.size, c.blocks, c.slices, c.slack, c.inverse, c.mask);
            assert_eq!(of(c), of(&made));
            assert_eq!((c.size as u64 >> c.size.trailing_zeros()).wrapping_mul(c.inverse), 1);
        }
    }

    #[test]
    fn classes_ascend_and_spans_hold_at_least_eight() {
        for (i, c) in CLASSES.iter().enumerate() {
            assert_eq!(c.size as usize, class_size(i));
            assert!(c.blocks >= in_hardened(8, 7));
            let [before, after] = guards(c.slices.into());
            let blocks = c.blocks as usize * c.size as usize;
            assert!(c.slack as usize >= before);
            assert_eq!(c.slack as usize + blocks + after, c.slices as usize * SLICE_SIZE);
            assert!(i == 0 || CLASSES[i - 1].size < c.size);
        }
    }

    #[test]
    fn block_test_is_exact_over_whole_spans_and_beyond() {
        for c in &CLASSES {
            // As `Descriptor::probe` and its callers do with copies of the two.
            let is_block = |offset: usize| {
                let number = (offset as u64).wrapping_mul(c.inverse);
                number & c.mask == 0 && number < in_hardened(u64::MAX, c.end())
            };
            let bytes = c.slices as usize * SLICE_SIZE;
            let first = c.slack as usize;
            for at in 0..bytes {
                let offset = at.wrapping_sub(first);
                let is = at >= first
                    && (at - first).is_multiple_of(c.size as usize)
                    && (at - first) / (c.size as usize) < c.blocks.into();
                assert_eq!(is_block(offset), is, "size {} at {at}", c.size);
            }
            let mut x = 0x9e37_79b9_7f4a_7c15u64;
            for _ in 0..20_000 {
                let far = crate::base::random::next(&mut x) as usize;
                if far.wrapping_add(first) >= bytes
                    && far / c.size as usize >= (c.blocks as usize).next_power_of_two()
                {
                    assert!(!is_block(far));
                }
            }
        }
    }

    #[test]
    fn aligned_requests_are_total_up_to_a_slice() {
        for shift in 0..=SLICE_SHIFT {
            let align = 1usize << shift;
            for size in (0..=MEDIUM_MAX).step_by(7).chain([MEDIUM_MAX]) {
                let c = class_of_aligned(size, align).expect("served").layout();
                assert!(c.size as usize >= size + CANARY_BYTES);
                for i in 0..c.blocks as usize {
                    assert_eq!((c.slack as usize + i * c.size as usize) % align, 0);
                }
            }
        }
        assert_eq!(class_of_aligned(1, SLICE_SIZE * 2), None);
        assert_eq!(class_of_aligned(MEDIUM_MAX + 1, 1), None);
    }
}
