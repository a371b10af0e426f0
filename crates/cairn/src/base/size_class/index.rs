//! Owns: the number of a size class.
//! Idea: a number that only the table can make needs no check where it is used.
//! Never: touches memory.
//! Threads: any; holds nothing.
//! Checked: debug builds assert each number.
//! Story: docs/design/spans.md

use super::{CLASS_COUNT, CLASSES, ClassLayout, LONG_CLASS};
use core::hint::assert_unchecked;

/// A size class: a number below `CLASS_COUNT`, always.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub(crate) struct SizeClass(pub(super) usize);

impl SizeClass {
    /// The class of the smallest blocks; it also stands in the descriptors of large blocks.
    pub(crate) const FIRST: SizeClass = SizeClass(0);

    /// The class of that number.
    ///
    /// # Safety
    /// There is one: the number is below `CLASS_COUNT`.
    #[inline(always)]
    pub(crate) const unsafe fn from_number(number: u32) -> SizeClass {
        debug_assert!((number as usize) < CLASS_COUNT);
        SizeClass(number as usize)
    }

    /// The class of that number, counted round and round: what comes after the last one is the first.
    pub(crate) const fn in_turn(number: usize) -> SizeClass {
        SizeClass(number % CLASS_COUNT)
    }

    /// All classes, smallest blocks first.
    pub(crate) fn all() -> impl Iterator<Item = SizeClass> {
        (0..CLASS_COUNT).map(SizeClass)
    }

    /// Its place in tables with an entry for each class.
    #[inline(always)]
    pub(crate) fn index(self) -> usize {
        // SAFETY: the invariant of the type.
        unsafe { assert_unchecked(self.0 < CLASS_COUNT) };
        self.0
    }

    /// Its number, as descriptors have it.
    #[inline(always)]
    pub(crate) fn number(self) -> u32 {
        self.0 as u32
    }

    /// Its bit in a word with one for each class.
    #[inline(always)]
    pub(crate) fn bit(self) -> u64 {
        1 << self.index()
    }

    /// How its spans are cut.
    #[inline(always)]
    pub(crate) fn layout(self) -> &'static ClassLayout {
        &CLASSES[self.index()]
    }

    /// Bytes in a block.
    #[inline(always)]
    pub(crate) fn block_size(self) -> usize {
        self.layout().size as usize
    }

    /// Slices in a span, a power of two.
    #[inline(always)]
    pub(crate) fn span_slices(self) -> usize {
        self.layout().slices as usize
    }

    /// Whether it has the longest spans.
    pub(crate) fn is_long(self) -> bool {
        self.index() >= LONG_CLASS
    }
}

const _: () = assert!(CLASS_COUNT <= 64);
