//! Owns: blocks with a mapping of their own.
//! Idea: a sorted table says where they are, for exact and interior addresses; the kernel
//!   grows them by moving page tables.
//! Never: touches the window, but to take pages over from it.
//! Threads: any; one lock, held across the system calls that change a mapping in the table.
//! Checked: oracle tests with contents; fault injection.
//! Story: docs/large-blocks.md

use super::{Allocated, COLOUR_STEP, MOVE_MIN, forget, next_colour};
use crate::arena;
use crate::os::{self, Fork, Lock};
use core::ptr::null_mut;

// Invariants, under the lock
//  1. `table[..len]` is sorted by address; entries do not overlap.
//  2. start + usable = address + bytes of the mapping; start - address < an OS page or aligned.

/// A mapping with one block in it.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    /// Its first byte.
    pub(crate) address: *mut u8,
    /// Its length, whole pages.
    pub(crate) bytes: usize,
    /// The block, from there to the end.
    pub(crate) start: *mut u8,
}

impl Mapping {
    fn usable(&self) -> usize {
        self.address.addr() + self.bytes - self.start.addr()
    }
}

struct Mappings {
    table: *mut Mapping,
    len: usize,
    room: usize,
}

// SAFETY: reached under the lock only.
unsafe impl Send for Mappings {}

// SAFETY: numbers and null pointers.
static MAPPINGS: Lock<Mappings> = Lock::new(unsafe { core::mem::zeroed() });

/// Allocates a block with a mapping of its own; `size` and `align` are at most `isize::MAX`.
pub(super) fn allocate(size: usize, align: usize, filled: bool) -> Allocated {
    let page = os::page_size();
    let colour = if align <= COLOUR_STEP { next_colour(page) % page } else { 0 };
    let bytes = os::round_up(size.max(1) + colour, page);
    let huge = filled && bytes >= os::HUGE_PAGE;
    let align = if huge { align.max(os::HUGE_PAGE) } else { align };
    let mut address = map_aligned(bytes, align);
    if address.is_null() {
        // What is dirty may be in the way.
        arena::purge_all();
        address = map_aligned(bytes, align);
    }
    if address.is_null() {
        return Allocated::NONE;
    }
    if huge {
        // Without the lock: the first one may be long in coming.
        os::allow_huge_pages(address, bytes, address);
    }
    let start = address.wrapping_add(colour);
    let mapping = Mapping { address, bytes, start };
    if !MAPPINGS.lock().insert(mapping) {
        unmap(mapping);
        return Allocated::NONE;
    }
    Allocated { block: start, zero: true }
}

/// Maps `bytes` at a multiple of `align`; null on failure.
fn map_aligned(bytes: usize, align: usize) -> *mut u8 {
    if align <= os::page_size() {
        return os::map(bytes);
    }
    // Reserved first: only the aligned part is ever charged for.
    let address = os::reserve_aligned(bytes, align);
    if address.is_null() || os::commit(address, bytes) {
        return address;
    }
    // SAFETY: reserved just now.
    unsafe { os::release(address, bytes) };
    null_mut()
}

/// What a block gets that grows to `exact` bytes, and may keep if it shrinks to them: a quarter more, and
/// if it is large, up to where a huge page ends.
fn roomy(exact: usize) -> usize {
    let unit = if exact >= 2 * os::HUGE_PAGE { os::HUGE_PAGE } else { os::page_size() };
    os::round_up(exact.saturating_add(exact / 4), unit)
}

/// Grows a mapping to `exact` bytes and room to spare, or to `exact`; null if it cannot be.
unsafe fn grown(address: *mut u8, old: usize, exact: usize) -> (*mut u8, usize) {
    for bytes in [roomy(exact), exact] {
        // SAFETY: the caller's contract: a mapping that is theirs to move.
        let p = unsafe { os::remap(address, old, bytes) };
        if !p.is_null() {
            // What grows has been filled.
            if bytes >= os::HUGE_PAGE {
                os::allow_huge_pages(p, bytes, p.wrapping_add(old));
            }
            return (p, bytes);
        }
    }
    (null_mut(), 0)
}

/// Frees the block at `p`; false if no mapping's block starts there.
#[cold]
pub(crate) fn free(p: *mut u8) -> bool {
    let mut mappings = MAPPINGS.lock();
    let Some((at, mapping)) = mappings.find(p).filter(|(_, m)| m.start == p) else { return false };
    forget(p);
    mappings.remove(at);
    drop(mappings);
    unmap(mapping);
    true
}

/// Bytes usable from `p`, the start of a block; None if no mapping's block starts there.
pub(crate) fn usable_size(p: *const u8) -> Option<usize> {
    base_of(p).filter(|&(start, _)| start.cast_const() == p).map(|(_, usable)| usable)
}

/// The block around `p`: (start, usable bytes).
pub(crate) fn base_of(p: *const u8) -> Option<(*mut u8, usize)> {
    let (_, mapping) = MAPPINGS.lock().find(p)?;
    (p.addr() >= mapping.start.addr()).then(|| (mapping.start, mapping.usable()))
}

/// Resizes the block at `p` to `size` bytes, at most `isize::MAX`, in place or by moving its pages;
/// null if none is there. None: it shrinks so far that it is better copied, or the system refuses.
#[cold]
pub(crate) fn reallocate(p: *mut u8, size: usize) -> Option<*mut u8> {
    let mut mappings = MAPPINGS.lock();
    let Some((at, mapping)) = mappings.find(p) else { return Some(null_mut()) };
    let lead = mapping.start.addr() - mapping.address.addr();
    let exact = os::round_up(size + lead, os::page_size());
    if exact <= mapping.bytes {
        if size < MOVE_MIN / 2 {
            return None;
        }
        if mapping.bytes > roomy(exact) {
            let tail = mapping.address.wrapping_add(exact);
            // SAFETY: whole pages behind what the block keeps.
            if unsafe { os::release(tail, mapping.bytes - exact) } {
                // SAFETY: an entry of the table.
                unsafe { (*mappings.table.add(at)).bytes = exact };
            }
        }
        return Some(p);
    }
    // SAFETY: the block is the caller's, and the mapping with it.
    let (address, bytes) = unsafe { grown(mapping.address, mapping.bytes, exact) };
    if address.is_null() {
        // Where the kernel moves no pages at all (a sandbox), bytes still can be.
        return None;
    }
    forget(p);
    mappings.remove(at);
    let start = address.wrapping_add(lead);
    mappings.insert(Mapping { address, bytes, start });
    Some(start)
}

/// Calls `f` with each mapping. The lock is held: `f` does not come back here.
pub(crate) fn for_each(mut f: impl FnMut(&Mapping)) {
    let mappings = MAPPINGS.lock();
    (0..mappings.len).for_each(|at| f(&mappings.get(at)));
}

/// Holds the lock over a fork.
pub(crate) fn at_fork(step: Fork) {
    MAPPINGS.at_fork(step);
}

impl Mappings {
    fn get(&self, at: usize) -> Mapping {
        debug_assert!(at < self.len);
        // SAFETY: inside the table.
        unsafe { self.table.add(at).read() }
    }

    /// How many entries begin at or below `p`.
    fn rank(&self, p: *const u8) -> usize {
        if self.len == 0 {
            return 0;
        }
        // SAFETY: that many entries.
        let entries = unsafe { core::slice::from_raw_parts(self.table, self.len) };
        entries.partition_point(|mapping| mapping.address.addr() <= p.addr())
    }

    /// The mapping that `p` points into, and its place in the table.
    fn find(&self, p: *const u8) -> Option<(usize, Mapping)> {
        let at = self.rank(p).checked_sub(1)?;
        let mapping = self.get(at);
        (p.addr() - mapping.address.addr() < mapping.bytes).then_some((at, mapping))
    }

    /// Sees to it that the table has room for one more entry.
    fn make_room(&mut self) -> bool {
        if self.len < self.room {
            return true;
        }
        let old = self.room * size_of::<Mapping>();
        let new = os::round_up((old * 2).max(1), os::page_size());
        let table: *mut Mapping = os::map(new).cast();
        if table.is_null() {
            return false;
        }
        if old > 0 {
            // SAFETY: the table is this lock's alone, and the new one larger.
            unsafe {
                table.copy_from_nonoverlapping(self.table, self.len);
                os::release(self.table.cast(), old);
            }
        }
        (self.table, self.room) = (table, new / size_of::<Mapping>());
        true
    }

    fn insert(&mut self, mapping: Mapping) -> bool {
        if !self.make_room() {
            return false;
        }
        let at = self.rank(mapping.address);
        // SAFETY: there is room for one more; the entries behind move up.
        unsafe {
            let place = self.table.add(at);
            place.copy_to(place.add(1), self.len - at);
            place.write(mapping);
        }
        self.len += 1;
        true
    }

    fn remove(&mut self, at: usize) {
        self.len -= 1;
        // SAFETY: the entries behind move down.
        unsafe {
            let place = self.table.add(at);
            place.add(1).copy_to(place, self.len - at);
        }
    }
}

/// Unmaps a mapping that nobody knows any more. If the kernel refuses (too many mappings to
/// split one), at least its pages go.
fn unmap(mapping: Mapping) {
    // SAFETY: out of the table.
    if !unsafe { os::release(mapping.address, mapping.bytes) } {
        os::decommit(mapping.address, mapping.bytes);
    }
}
