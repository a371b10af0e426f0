//! Owns: how the reservation grows: memory and metadata behind more slices, and behind heaps.
//! Idea: a growing prefix is committed; its metadata with it, a page at a time.
//! Never: takes anything back.
//! Threads: the arena's, under its lock; heaps under the pool's.
//! Checked: tests/reservation.rs; the models of growth; failing calls.
//! Story: docs/design/layout.md

use super::RESERVED;
use crate::base::{AtomicBool, HARDENED, Ordering, SLICE_SHIFT, SLICE_SIZE};
use crate::map::address_map::{self, committed, heap_address, slice_address, slice_limit};
use crate::map::{DESCRIPTOR_SHIFT, HEAP_SIZE, SECTION_BYTES, SECTION_SLICES};
use crate::os;
use crate::store::{Known, Live};
use core::ptr::null_mut;

/// The pages under bytes `from..to`, counted from `start`: (address, bytes).
fn pages(start: *mut u8, from: usize, to: usize) -> (*mut u8, usize) {
    let page = os::page_size();
    let low = (start.addr() + from) & !(page - 1);
    (start.with_addr(low), os::round_up(start.addr() + to, page) - low)
}

/// The pages under the descriptors of slices `from..to`, the second part from the table's start on, and
/// under their sections, and under what the table of live blocks has of them: (address, bytes), 0 for none.
fn metadata(from: usize, to: usize) -> [(*mut u8, usize); 4] {
    let slices = slice_limit();
    if slices == 0 {
        return [(null_mut(), 0); 4];
    }
    let address_map::Tables { descriptors: table, sections, .. } = address_map::tables();
    let start = ((slice_address(0).addr() >> SLICE_SHIFT) + from) & (slices - 1);
    let end = start + (to - from);
    let bytes = |slice: usize| slice << DESCRIPTOR_SHIFT;
    let sections_end = to.div_ceil(SECTION_SLICES) * SECTION_BYTES;
    let beyond = match end.saturating_sub(slices) {
        0 => (table, 0),
        count => pages(table, 0, bytes(count)),
    };
    [
        pages(table, bytes(start), bytes(end.min(slices))),
        beyond,
        pages(sections, from.div_ceil(SECTION_SLICES) * SECTION_BYTES, sections_end),
        Live::table().map_or((table, 0), |live| {
            pages(live, from * Live::SLICE_BYTES, to * Live::SLICE_BYTES)
        }),
    ]
}

/// Whether metadata becomes resident when it is committed: who wants no page faults later has them at once. Relaxed: who
/// sees it late has some later.
static RESIDENT: AtomicBool = AtomicBool::new(false);

/// Says whether it does from now on; what there is becomes so now.
pub(crate) fn keep_resident(on: bool) {
    RESIDENT.store(on, Ordering::Relaxed);
    populate(metadata(0, committed()));
}

/// Makes pages resident, if they are to be.
fn populate<const N: usize>(parts: [(*mut u8, usize); N]) {
    if RESIDENT.load(Ordering::Relaxed) {
        parts.into_iter().filter(|part| part.1 > 0).for_each(|(at, bytes)| os::populate(at, bytes));
    }
}

/// Puts metadata behind slices whose addresses others than the reservation's slices have; false if the system refuses.
pub(crate) fn commit_metadata(from: usize, to: usize) -> bool {
    let mut parts = metadata(from - from % SECTION_SLICES, to).into_iter();
    parts.all(|(at, bytes)| bytes == 0 || os::commit(at, bytes))
}

/// Puts memory and metadata behind `count` more slices; false, and nothing changed, if the
/// system refuses.
pub(crate) fn commit(count: usize) -> bool {
    debug_assert!(count > 0, "the kernel always grants nothing: no growth");
    let from = committed();
    let to = from + count;
    if to > slice_limit() {
        return false;
    }
    let data = slice_address(from);
    let is_done = |(at, bytes)| bytes == 0 || os::commit(at, bytes);
    let done = metadata(from, to).into_iter().all(is_done)
        && if RESERVED.load(Ordering::Relaxed) {
            // Where purged slices have to be committed, the arena commits new ones, too.
            !os::purged_is_committed() || os::commit(data, count * SLICE_SIZE)
        } else {
            os::map_at(data, count * SLICE_SIZE)
        };
    if done {
        address_map::set_committed(to);
        populate(metadata(from, to));
        if HARDENED && from == 0 {
            seal(metadata(from, to));
        }
    }
    done
}

/// Seals what the start has committed, but the last page of each part, which is committed again with what follows. Not
/// what comes later: by then the program may have forbidden itself system calls that it does not know.
fn seal(parts: [(*mut u8, usize); 4]) {
    let whole = parts.map(|(at, bytes)| (at, bytes.saturating_sub(os::page_size())));
    whole.into_iter().filter(|part| part.1 > 0).for_each(|(at, bytes)| os::seal(at, bytes));
}

/// Makes heap number `index` usable memory; its neighbours on the same page come with it.
pub(crate) fn commit_heap(index: usize) -> bool {
    let pages = heap_address(index).map(|at| pages(at, 0, HEAP_SIZE));
    let part = pages.filter(|&(at, bytes)| os::commit(at, bytes));
    part.into_iter().for_each(|part| populate([part]));
    part.is_some()
}

/// The parts of the metadata that can be resident: (address, bytes), whole pages.
pub(crate) fn metadata_extents() -> [(*mut u8, usize); 5] {
    let [descriptors, beyond, sections, live] = metadata(0, committed());
    let address_map::Tables { heaps, heap_limit, .. } = address_map::tables();
    [descriptors, beyond, sections, live, pages(heaps, 0, heap_limit * HEAP_SIZE)]
}
