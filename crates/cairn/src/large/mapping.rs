//! Owns: blocks with a mapping of their own.
//! Idea: a sorted table says where they are, for exact and interior addresses; the kernel
//!   grows them by moving page tables.
//! Never: touches the reservation, but to have it purged when the system has no more memory.
//! Threads: any; one lock, held across the system calls that change a mapping in the table.
//! Checked: oracle tests with contents; fault injection.
//! Story: docs/design/large-blocks.md

use super::{Allocated, COLOUR_STEP, Owned, Size, Sizes, Use, forget, next_colour};
use crate::base::{CANARY_BYTES, Ordering, point};
use crate::large::budget::Budget;
use crate::large::tuning::MOVE_MIN;
use crate::os::{self, Guard, Lock, Moves, Overcommit};
use crate::slices::{arena, limit};
use crate::store::{Behind, Canary, canary};
use core::ptr::{null, null_mut};
use core::sync::atomic::fence;

// Invariants, under the lock
//  1. The table in use is sorted by address; entries do not overlap, but for blocks that a thread was
//     moving which a fork has left behind.
//  2. start + usable + CANARY_BYTES = address + bytes of the mapping; start - address < an OS page, or what the program has asked for.
//  3. The table in use does not change but for an entry's numbers and owner: what is put in or taken out is so in
//     the other one, and `state` then says at once which it is and how long. A forked child finds the
//     one or the other.

/// A mapping with one block in it. Tools read the first three fields: they stay in place.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Mapping {
    /// Its first byte.
    pub(crate) address: *mut u8,
    /// Its length, whole pages.
    pub(crate) bytes: usize,
    /// The block, from there to the end.
    pub(crate) start: *mut u8,
    /// What the block belongs to, or null.
    pub(super) owner: *const Owned,
    /// Hardened: bytes that the program has of it.
    pub(super) asked: usize,
    /// It has been freed, and waits for its owner's readers.
    waits: bool,
}

impl Mapping {
    pub(super) fn usable(&self) -> usize {
        self.address.addr() + self.bytes - self.start.addr() - CANARY_BYTES
    }

    /// What the heap holds that it belongs to, if it belongs to one.
    fn budget(&self) -> Option<&'static Budget> {
        // SAFETY: a heap that goes takes its name out of the table first; this is asked under the lock.
        unsafe { self.owner.as_ref() }.map(|owned| &owned.budget)
    }
}

/// What the lock guards. Tools read it: the fields stay in place.
#[repr(C)]
pub(crate) struct Mappings {
    /// Two tables, of the same room.
    tables: [*mut Mapping; 2],
    room: usize,
    /// Twice the number of entries, plus which table they stand in.
    state: usize,
}

// SAFETY: reached under the lock only.
unsafe impl Send for Mappings {}

// SAFETY: numbers and null pointers.
pub(crate) static MAPPINGS: Lock<Mappings> = Lock::new(unsafe { core::mem::zeroed() });

/// Where the table stands, for tools.
pub(crate) const PLACE: *const Mappings =
    (&raw const MAPPINGS).wrapping_byte_add(Lock::<Mappings>::DATA).cast();

/// Allocates a block with a mapping of its own, `at` bytes behind a multiple of `align`; both, and the end of `size`
/// bytes there, are at most `isize::MAX`.
pub(super) fn allocate(size: usize, [align, at]: [usize; 2], used: Use) -> Allocated {
    let page = os::page_size();
    let colour = if align <= COLOUR_STEP && at == 0 { next_colour(page) % page } else { at };
    let bytes = os::round_up(size.max(1) + colour + CANARY_BYTES, page);
    let huge = used != Use::Sparse && bytes >= os::HUGE_PAGE;
    let align = if huge { align.max(os::HUGE_PAGE) } else { align };
    let mut address = map_counted(bytes, align);
    // What is dirty may be in the way, unless that is less.
    if address.is_null() && bytes <= arena::counted() {
        arena::purge_all();
        address = map_counted(bytes, align);
    }
    if address.is_null() {
        return Allocated::NONE;
    }
    arena::after_growth(bytes);
    if huge {
        os::allow_huge_pages(address, bytes);
    }
    let start = address.wrapping_add(colour);
    let mut mapping = Mapping { address, bytes, start, owner: null(), asked: 0, waits: false };
    let mut mappings = MAPPINGS.lock();
    // Under the lock, as in `ask`: who had these addresses before has left the table before the system had them.
    // SAFETY: nobody else's yet, with room for so many.
    unsafe { Size::set_mapping(&mut mapping, size) };
    let is_known = mappings.insert(mapping);
    drop(mappings);
    if !is_known {
        unmap(mapping);
        return Allocated::NONE;
    }
    Allocated { block: start, zero: true, untouched: true }
}

/// Maps `bytes` at a multiple of `align`, which count then; null on failure. Where there is no hard limit to keep, what the system
/// refuses never counts: other threads would make room for it.
fn map_counted(bytes: usize, align: usize) -> *mut u8 {
    let is_limited = limit::hard() > 0;
    if is_limited && !arena::reserve_mapped(bytes) {
        return null_mut();
    }
    let address = map_aligned(bytes, align);
    count_got(is_limited, bytes, if address.is_null() { 0 } else { bytes });
    address
}

/// Of so many bytes more, which count already if they were reserved, so many have been got.
fn count_got(were_reserved: bool, asked: usize, got: usize) {
    if were_reserved { limit::take_mapped(asked - got) } else { limit::add_mapped(got) }
}

/// Maps `bytes` at a multiple of `align`; null on failure.
fn map_aligned(bytes: usize, align: usize) -> *mut u8 {
    if align <= os::page_size() {
        return os::map(bytes);
    }
    // Reserved first: only the aligned part is ever charged for.
    let address = os::reserve_aligned(bytes, align, Overcommit::Checked);
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

/// Grows a mapping to the first of two lengths that it can have; null if it can have neither. It may move, to a
/// multiple of a page.
///
/// # Safety
/// The mapping is the caller's; nobody else reads it, or changes it, meanwhile.
unsafe fn grown(
    address: *mut u8,
    old: usize,
    lengths: [usize; 2],
    moves: Moves,
) -> (*mut u8, usize) {
    for bytes in lengths {
        // SAFETY: the mapping is the caller's, to move as far as `moves` says.
        let p = unsafe { os::remap(address, old, bytes, moves) };
        if !p.is_null() {
            // What grows has been filled.
            if bytes >= os::HUGE_PAGE {
                os::allow_huge_pages(p, bytes);
            }
            return (p, bytes);
        }
    }
    (null_mut(), 0)
}

/// Frees the block at `p`; false if no mapping's block starts there. Ends the process if somebody has written beyond its end: a
/// message names `call`.
#[cold]
pub(crate) fn free(p: *mut u8, call: &str) -> bool {
    let mappings = MAPPINGS.lock();
    let Some((at, mapping)) = mappings.block(p) else { return false };
    // SAFETY: under the lock nobody else frees it.
    if unsafe { !Canary::is_whole(p, mapping.asked) } {
        // A signal's handler may allocate.
        drop(mappings);
        canary::overwritten(call, p);
    }
    take_out(mappings, at, mapping);
    true
}

/// Ends the mapping at place `at` of the table, and lets go of that.
fn take_out(mut mappings: Guard<'static, Mappings>, at: usize, mapping: Mapping) {
    forget(mapping.start);
    mappings.remove(at);
    if let Some(budget) = mapping.budget() {
        budget.give_large(mapping.bytes);
    }
    drop(mappings);
    unmap(mapping);
}

/// Says what the block at `p` belongs to; false, and nothing is done, if that must not have it.
pub(super) fn set_owner(p: *mut u8, owner: *const Owned) -> bool {
    let mut mappings = MAPPINGS.lock();
    mappings.find(p).is_some_and(|(at, mapping)| {
        let owned = Mapping { owner, ..mapping };
        let fits = owned.budget().is_none_or(|budget| budget.take_large(mapping.bytes));
        if fits {
            mappings.entry(at).owner = owner;
        }
        fits
    })
}

/// What the block at `p` belongs to; null if it belongs to nobody, or if none starts there.
pub(super) fn owner_of(p: *const u8) -> *const Owned {
    MAPPINGS.lock().block(p).map_or(null(), |(_, mapping)| mapping.owner)
}

/// Says that the block at `p` waits for its owner's readers; false if it does already.
pub(super) fn set_waits(p: *mut u8) -> bool {
    let mut mappings = MAPPINGS.lock();
    let Some((at, _)) = mappings.block(p) else { return false };
    !core::mem::replace(&mut mappings.entry(at).waits, true)
}

/// Whether the block at `p` waits.
pub(super) fn waits(p: *const u8) -> bool {
    MAPPINGS.lock().block(p).is_some_and(|(_, mapping)| mapping.waits)
}

/// The blocks that wait, and what they belong to. For a forked child before it has a second thread.
pub(super) fn waiting() -> impl Iterator<Item = (&'static Owned, *mut u8)> {
    let mut last = null();
    let each = core::iter::from_fn(move || {
        let mapping = behind(last)?;
        last = mapping.address;
        Some(mapping)
    });
    // SAFETY: a heap that goes takes its name out of the table first.
    let owned = |mapping: Mapping| Some((unsafe { mapping.owner.as_ref() }?, mapping.start));
    each.filter(|mapping| mapping.waits).filter_map(owned)
}

/// The blocks that belong to `owner` belong to nobody any more. Those of which `goes` says so, by whether they wait, are freed
/// in the same step: who frees one a second time meanwhile is late.
pub(super) fn disown(owner: *const Owned, goes: impl Fn(bool) -> bool) {
    loop {
        let mut mappings = MAPPINGS.lock();
        let is_owned = |mapping: &Mapping| core::ptr::eq(mapping.owner, owner);
        let Some(at) = mappings.entries().iter().position(is_owned) else { return };
        let mapping = *mappings.entry(at);
        if goes(mapping.waits) {
            take_out(mappings, at, mapping);
        } else {
            mappings.entry(at).owner = null();
        }
    }
}

/// How many bytes the program has of the block at `p`, as the table says; None if none starts there.
pub(super) fn asked(p: *const u8) -> Option<usize> {
    MAPPINGS.lock().block(p).map(|(_, mapping)| mapping.asked)
}

/// The program has `size` bytes of the block at `p` from now on, if one starts there.
///
/// # Safety
/// If so, it is the caller's, and has `CANARY_BYTES` more.
pub(super) unsafe fn ask(p: *mut u8, size: usize) {
    let mut mappings = MAPPINGS.lock();
    if let Some((at, _)) = mappings.block(p) {
        // SAFETY: the caller's.
        unsafe { Size::set_mapping(mappings.entry(at), size) };
    }
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

/// Resizes the block at `p` to `size` bytes, at most `isize::MAX`, in place or, as far as `align`
/// allows, by moving its pages; null if none is there. None: it shrinks so far that it is better copied, or the system or its
/// heap's limit refuses. Who calls says how many bytes the program has from then on (`ask`).
#[cold]
pub(crate) fn reallocate(p: *mut u8, size: usize, align: usize) -> Option<*mut u8> {
    match resize(p, size, align) {
        Err(No::Room) if size <= limit::hard() && arena::purge_all() > 0 => resize(p, size, align),
        resized => resized,
    }
    .ok()
}

/// Why a mapping does not become what it should.
enum No {
    /// Its heap or the process may not have so much.
    Room,
    /// Bytes had better be copied, or must be.
    Move,
}

/// Counts so many bytes more, unless that goes beyond a limit; for the process only where it has one.
#[inline(never)]
fn grant(budget: Option<&Budget>, bytes: usize, is_limited: bool) -> bool {
    if budget.is_some_and(|budget| !budget.grow_large(bytes)) {
        return false;
    }
    let fits = !is_limited || arena::try_reserve_mapped(bytes);
    if !fits && let Some(budget) = budget {
        budget.ungrow_large(bytes);
    }
    fits
}

#[inline(never)]
fn resize(p: *mut u8, size: usize, align: usize) -> Result<*mut u8, No> {
    let mut mappings = MAPPINGS.lock();
    let Some((at, mapping)) = mappings.find(p) else { return Ok(null_mut()) };
    let lead = mapping.start.addr() - mapping.address.addr();
    let exact = os::round_up(size + lead + CANARY_BYTES, os::page_size());
    if exact <= mapping.bytes {
        if size < MOVE_MIN / 2 {
            return Err(No::Move);
        }
        if mapping.bytes > roomy(exact) && !arena::keeps() {
            let tail = mapping.address.wrapping_add(exact);
            // First: a child that is forked in between loses pages, and has none twice.
            mappings.entry(at).bytes = exact;
            // SAFETY: whole pages behind what the block keeps.
            match unsafe { os::release(tail, mapping.bytes - exact) } {
                true => {
                    limit::take_mapped(mapping.bytes - exact);
                    mapping.budget().inspect(|budget| budget.shrink_large(mapping.bytes - exact));
                }
                false => mappings.entry(at).bytes = mapping.bytes,
            }
        }
        return Ok(p);
    }
    let moves = if align <= os::page_size() { Moves::Anywhere } else { Moves::Nowhere };
    // Its heap pays for the room to spare, too, or does without; and so does the process.
    let (lengths, budget) = ([roomy(exact), exact], mapping.budget());
    let is_limited = limit::hard() > 0;
    let fits = |&bytes: &usize| grant(budget, bytes - mapping.bytes, is_limited);
    let most = lengths.into_iter().find(fits).ok_or(No::Room)?;
    // No heap's meanwhile: a child that is forked in between loses it, and unmaps nothing where it has been.
    mappings.entry(at).owner = null();
    // SAFETY: the block is the caller's, and the mapping with it.
    let (address, bytes) = unsafe { grown(mapping.address, mapping.bytes, [most, exact], moves) };
    point();
    let not_got = most - bytes.max(mapping.bytes);
    count_got(is_limited, most - mapping.bytes, most - not_got - mapping.bytes);
    budget.inspect(|budget| budget.ungrow_large(not_got));
    if address.is_null() {
        mappings.entry(at).owner = mapping.owner;
        // Where the kernel moves no pages at all (a sandbox), bytes still can be.
        return Err(No::Move);
    }
    forget(p);
    mappings.remove(at);
    let start = address.wrapping_add(lead);
    mappings.insert(Mapping { address, bytes, start, ..mapping });
    drop(mappings);
    arena::after_growth(bytes - mapping.bytes);
    Ok(start)
}

/// The first mapping behind the address `p`.
pub(crate) fn behind(p: *const u8) -> Option<Mapping> {
    let mappings = MAPPINGS.lock();
    mappings.entries().get(mappings.rank(p)).copied()
}

/// In a forked child, before it has a second thread: there is nothing to repair (invariant 3).
pub(crate) fn settle_in_child() {
    MAPPINGS.settle_in_child();
}

impl Mappings {
    fn len(&self) -> usize {
        self.state / 2
    }

    /// The table in use, and the other one.
    fn tables(&self) -> (*mut Mapping, *mut Mapping) {
        let [first, second] = self.tables;
        if self.state.is_multiple_of(2) { (first, second) } else { (second, first) }
    }

    /// Makes the other table, filled with so many entries, the one in use.
    fn publish(&mut self, len: usize) {
        // The entries are there before the table is in use: a forked child may stop in between.
        fence(Ordering::Release);
        self.state = 2 * len + 1 - self.state % 2;
    }

    fn entries(&self) -> &[Mapping] {
        match self.len() {
            0 => &[],
            // SAFETY: that many entries.
            len => unsafe { core::slice::from_raw_parts(self.tables().0, len) },
        }
    }

    fn entry(&mut self, at: usize) -> &mut Mapping {
        debug_assert!(at < self.len());
        // SAFETY: an entry of the table, which is this lock's alone.
        unsafe { &mut *self.tables().0.add(at) }
    }

    /// How many entries begin at or below `p`.
    fn rank(&self, p: *const u8) -> usize {
        self.entries().partition_point(|mapping| mapping.address.addr() <= p.addr())
    }

    /// The mapping that `p` points into, and its place in the table.
    fn find(&self, p: *const u8) -> Option<(usize, Mapping)> {
        let at = self.rank(p).checked_sub(1)?;
        let mapping = *self.entries().get(at)?;
        (p.addr() - mapping.address.addr() < mapping.bytes).then_some((at, mapping))
    }

    /// The one whose block starts at `p`.
    fn block(&self, p: *const u8) -> Option<(usize, Mapping)> {
        self.find(p).filter(|(_, mapping)| mapping.start.cast_const() == p)
    }

    /// Sees to it that both tables have room for one more entry.
    fn make_room(&mut self) -> bool {
        if self.len() < self.room {
            return true;
        }
        let old = self.room * size_of::<Mapping>();
        let new = os::round_up((old * 2).max(1), os::page_size());
        let both: *mut Mapping = os::map(2 * new).cast();
        if both.is_null() {
            return false;
        }
        let len = self.len();
        let room = new / size_of::<Mapping>();
        let (tables, before) = ([both, both.wrapping_byte_add(new)], self.tables);
        // SAFETY: both tables are this lock's alone, and the new ones larger.
        unsafe { tables[self.state % 2].copy_from_nonoverlapping(before[self.state % 2], len) };
        fence(Ordering::Release);
        self.tables = tables;
        self.room = room;
        if old > 0 {
            // SAFETY: nothing refers to them any more.
            unsafe { os::release(before[0].cast(), 2 * old) };
        }
        true
    }

    fn insert(&mut self, mapping: Mapping) -> bool {
        if !self.make_room() {
            return false;
        }
        let (at, len, (now, next)) = (self.rank(mapping.address), self.len(), self.tables());
        // SAFETY: there is room for one more in the table that is not in use.
        unsafe {
            next.copy_from_nonoverlapping(now, at);
            next.add(at).write(mapping);
            point();
            next.add(at + 1).copy_from_nonoverlapping(now.add(at), len - at);
        }
        self.publish(len + 1);
        true
    }

    fn remove(&mut self, at: usize) {
        let (len, (now, next)) = (self.len(), self.tables());
        // SAFETY: both tables have room for what the one holds.
        unsafe {
            next.copy_from_nonoverlapping(now, at);
            next.add(at).copy_from_nonoverlapping(now.add(at + 1), len - at - 1);
        }
        self.publish(len - 1);
    }
}

/// Unmaps a mapping that nobody knows any more. If the kernel refuses (too many mappings to
/// split one), at least its pages go.
fn unmap(mapping: Mapping) {
    limit::take_mapped(mapping.bytes);
    // SAFETY: out of the table.
    unsafe {
        if !os::release(mapping.address, mapping.bytes) {
            os::purge(mapping.address, mapping.bytes);
        }
    }
}
