//! Owns: the walk over the areas and blocks of a heap, or of all.
//! Idea: a block is in use unless it is in a list of free ones. All lists are gone through first, and what is found there
//!   is marked in a bitmap.
//! Never: allocates from a heap, or changes one.
//! Threads: one; by the caller's word no other uses the heap, or any if all are visited.
//! Checked: tests/visit.rs
//! Story: docs/design/closed-heaps.md

use super::{HeapId, heap_of, owner_thread};
use crate::base::{MIN_ALIGN, SLICE_SIZE, SizeClass};
use crate::heap::Handle;
use crate::large::NURSERY_BYTES;
use crate::map::{Block, OWNER_LARGE, address_map, all_heads, region};
use crate::spans::Span;
use crate::store::{Known, Live};
use crate::{large, os, thread::search};
use core::ptr::null_mut;

/// A span, or a large block: where blocks of one size are.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory");
/// assert!(!heap.allocate(1 << 20, 16).is_null());
/// let is_one = |area: &cairn::Area, _| area.used == 1 && area.heap == Some(heap.id());
/// // SAFETY: no other thread of this program is at work.
/// assert!(unsafe { cairn::visit(Some(heap.id()), false, is_one) });
/// # heap.destroy();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// The first block.
    pub start: *mut u8,
    /// From there to the end of the last block.
    pub bytes: usize,
    /// Bytes in a block.
    pub block_size: usize,
    /// Blocks there are.
    pub blocks: usize,
    /// Blocks that the program has.
    pub used: usize,
    /// The heap that it belongs to; None if it belongs to threads.
    pub heap: Option<HeapId>,
    /// The number of the thread that owns it; 0 if none does.
    pub thread: usize,
}

/// Where blocks may be: what is committed, and the pieces of regions; the first byte of each, and its bytes.
fn places() -> impl Iterator<Item = (*mut u8, usize)> {
    let own = (address_map::slice_address(0), address_map::committed() * SLICE_SIZE);
    core::iter::once(own).chain(region::places())
}

/// A bit for each place at which a block may start, and what there was of `places` when it was made: threads that have nothing to
/// do with the heap may commit more.
struct Marks {
    words: *mut u64,
    bytes: usize,
    places: [(*mut u8, usize); region::PLACES_MOST + 1],
}

impl Marks {
    fn new() -> Option<Marks> {
        let mut noted = [(null_mut(), 0); region::PLACES_MOST + 1];
        noted.iter_mut().zip(places()).for_each(|(noted, place)| *noted = place);
        let all = noted.iter().map(|place| place.1).sum::<usize>();
        let words = (all / MIN_ALIGN).div_ceil(u64::BITS as usize) * size_of::<u64>();
        let bytes = os::round_up(words.max(1), os::page_size());
        let words: *mut u64 = os::map(bytes).cast();
        (!words.is_null()).then_some(Marks { words, bytes, places: noted })
    }

    /// None for a block in memory that has been committed since.
    fn place(&self, block: *const u8) -> Option<(*mut u64, u64)> {
        let mut before = 0;
        for &(start, bytes) in &self.places {
            let offset = block.addr().wrapping_sub(start.addr());
            if offset < bytes {
                let number = (before + offset) / MIN_ALIGN;
                return Some((self.words.wrapping_add(number / 64), 1 << (number % 64)));
            }
            before += bytes;
        }
        None
    }

    fn set(&mut self, block: *mut Block) {
        let Some((word, bit)) = self.place(block.cast()) else { return };
        // SAFETY: one of the words.
        unsafe { *word |= bit };
    }

    fn has(&self, block: *const u8) -> bool {
        // SAFETY: as above.
        self.place(block).is_some_and(|(word, bit)| unsafe { *word & bit != 0 })
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { os::release(self.words.cast(), self.bytes) };
    }
}

/// Calls `each` with every area of `heap`, or of the whole process if that is None, spans that no thread owns
/// included; and if `blocks`, after each area with every block of it that the program has. It goes on while `each`
/// answers true. Whether it has come to the end; false too if there is no memory for what it must note down, an eighth
/// of a byte for each 16 bytes.
///
/// Sampled blocks between guards are left out.
///
/// # Safety
/// The heap is there, no other thread allocates from it or frees into it meanwhile, and `each` does neither. If it is None, no
/// other thread allocates or frees at all, and no region ends.
///
/// ```
/// let heap = cairn::Heap::new().expect("memory");
/// let block = heap.allocate(100, 16);
/// let mut found = None;
/// // SAFETY: no other thread of this program is at work.
/// let whole = unsafe {
///     cairn::visit(Some(heap.id()), true, |_, block| {
///         found = found.or(block);
///         true
///     })
/// };
/// assert!(whole && found == Some(block));
/// # heap.destroy();
/// ```
pub unsafe fn visit(
    heap: Option<HeapId>,
    blocks: bool,
    mut each: impl FnMut(&Area, Option<*mut u8>) -> bool,
) -> bool {
    os::notice_fork();
    if !address_map::exists() {
        return true;
    }
    let Some(mut marks) = Marks::new() else { return false };
    mark_caches(&mut marks, heap.map(|heap| heap.0.as_ptr()));
    let is_meant = |p: *mut u8| heap.is_none_or(|heap| heap_of(p) == Some(heap));
    for (index, owner, class) in all_heads() {
        let at = address_map::slice_address(index);
        let goes_on = if owner == OWNER_LARGE && large::nursery_around(at).is_some() {
            visit_nurseries(at, &is_meant, blocks, &mut each)
        } else if owner == OWNER_LARGE {
            // SAFETY: by the caller's word nothing changes meanwhile.
            let block = large::block_in(index);
            block.is_none_or(|(start, usable)| {
                !is_meant(start) || visit_large(start, usable, blocks, &mut each)
            })
        } else {
            let first = at.wrapping_add(class.layout().slack as usize);
            !is_meant(first) || visit_span(index, class, blocks, &mut marks, &mut each)
        };
        if !goes_on {
            return false;
        }
    }
    let mut last = core::ptr::null();
    while let Some(mapping) = large::mapping_behind(last) {
        last = mapping.address;
        let usable = mapping.address.addr() + mapping.bytes - mapping.start.addr();
        if is_meant(mapping.start) && !visit_large(mapping.start, usable, blocks, &mut each) {
            return false;
        }
    }
    true
}

/// Marks what is in the caches of a heap, or of all.
fn mark_caches(marks: &mut Marks, of: Option<*mut Handle>) {
    for class in SizeClass::all() {
        for list in search::caches_of(class, of) {
            search::each(class, list).for_each(|block| marks.set(block));
        }
    }
}

/// An area that is one block, and the block, unless `each` wants no more.
fn visit_one(
    start: *mut u8,
    usable: usize,
    thread: usize,
    blocks: bool,
    each: &mut impl FnMut(&Area, Option<*mut u8>) -> bool,
) -> bool {
    let heap = heap_of(start);
    let area = Area { start, bytes: usable, block_size: usable, blocks: 1, used: 1, heap, thread };
    each(&area, None) && (!blocks || each(&area, Some(start)))
}

/// What waits for readers is left out.
fn visit_large(
    start: *mut u8,
    usable: usize,
    blocks: bool,
    each: &mut impl FnMut(&Area, Option<*mut u8>) -> bool,
) -> bool {
    large::waits(start) || visit_one(start, usable, 0, blocks, each)
}

fn visit_span(
    index: usize,
    class: SizeClass,
    blocks: bool,
    marks: &mut Marks,
    each: &mut impl FnMut(&Area, Option<*mut u8>) -> bool,
) -> bool {
    let span: *const Span = address_map::slot(index).cast();
    for list in search::lists_of(index) {
        search::each(class, list).for_each(|block| marks.set(block));
    }
    // SAFETY: a span, by the caller's word at rest.
    let (span, carved) = unsafe { (&*span, search::peek_span(span).1) };
    let is_live = |nth: &usize| {
        let block = span.start.wrapping_add(nth * class.block_size());
        // SAFETY: a block of a span.
        !marks.has(block) && (unsafe { Live::is_live(block) })
    };
    let in_use = || (0..carved).filter(|&nth| !span.is_set_aside(nth)).filter(is_live);
    let start = span.start.wrapping_sub(span.head());
    let count = usize::from(class.layout().blocks);
    let area = Area {
        start,
        bytes: count * class.block_size(),
        block_size: class.block_size(),
        blocks: count,
        used: in_use().count(),
        heap: heap_of(start),
        thread: owner_thread(start),
    };
    each(&area, None)
        && (!blocks
            || in_use().all(|nth| each(&area, Some(start.wrapping_add(nth * class.block_size())))))
}

/// The blocks of a nursery are of all sizes: each is an area.
fn visit_nurseries(
    slice: *mut u8,
    is_meant: &impl Fn(*mut u8) -> bool,
    blocks: bool,
    each: &mut impl FnMut(&Area, Option<*mut u8>) -> bool,
) -> bool {
    let starts = (0..SLICE_SIZE / NURSERY_BYTES).map(|nth| slice.wrapping_add(nth * NURSERY_BYTES));
    let mut meant =
        starts.filter(|&start| is_meant(start)).filter_map(|start| large::nursery_around(start));
    meant.all(|nursery| {
        let mut all = nursery.blocks();
        all.all(|(start, usable)| visit_one(start, usable, owner_thread(start), blocks, each))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another thread's cache may have blocks of memory that is newer than the marks.
    #[test]
    fn what_is_beyond_the_marks_is_not_marked() {
        crate::allocate(1);
        let mut marks = Marks::new().expect("memory");
        let inside = address_map::slice_address(0);
        let committed = marks.places[0].1;
        for distance in [committed, 1 << 38, 1 << 39] {
            let beyond = inside.wrapping_add(distance);
            marks.set(beyond.cast());
            assert!(!marks.has(beyond), "{distance}");
        }
        marks.set(inside.cast());
        assert!(marks.has(inside) && !marks.has(inside.wrapping_add(MIN_ALIGN)));
    }
}
