//! The simulated system's memory: one range of real addresses, handed out from the bottom; a table says
//! of each 4 KiB whether it is mapped and how. An illegal call panics; what the kernel refuses is
//! refused, and what it rounds is rounded. Outside of Miri the protection is real: a touch of what
//! is not accessible ends the run.
//!
//! Others may run before and after a call, never during it. It may fail if the model wants that. What
//! is unsafe asks for what it asks for in production, and looks whether it gets it.

use super::threads::{self, point};
use crate::os::{HUGE_PAGE, Moves, Overcommit, lock};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, OnceLock};

/// What the table counts in.
const UNIT: usize = 4096;
/// The reservation goes to the bottom and is no larger than this; mappings go above it.
const WINDOW: usize = if cfg!(miri) { 72 << 20 } else { 288 << 20 };
const SPACE: usize = WINDOW + (if cfg!(miri) { 32 << 20 } else { 512 << 20 });
/// Where the range is: the first place at which a reservation under a limit is tried.
const BASE: usize = 4 << 30;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unmapped,
    Reserved,
    Readable,
    Committed,
}

use State::{Committed, Readable, Reserved, Unmapped};

struct Memory {
    base: *mut u8,
    units: Vec<State>,
    /// Counts up: every second mapping that grows is moved.
    moves: usize,
}

// SAFETY: reached under the lock; the range lives as long as the process.
unsafe impl Send for Memory {}

static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(|| {
    let units = vec![Unmapped; SPACE / UNIT];
    Mutex::new(Memory { base: real::space(), units, moves: 0 })
});

/// What can differ from one system to another.
pub(crate) struct System {
    /// How large pages are.
    pub(crate) page: usize,
    /// How much address space there is.
    pub(crate) limit: usize,
    /// What is purged is decommitted, too.
    pub(crate) decommits: bool,
}

/// What most models run on.
pub(crate) const USUAL: System = System { page: 4096, limit: usize::MAX, decommits: false };

static SYSTEM: OnceLock<System> = OnceLock::new();

/// Says what the system is like; the first word counts, and comes before anything else.
pub(crate) fn configure(system: System) {
    SYSTEM.get_or_init(|| system);
}

fn system() -> &'static System {
    SYSTEM.get_or_init(|| USUAL)
}

pub(crate) fn purged_is_committed() -> bool {
    !system().decommits
}

pub(crate) fn page_size() -> usize {
    system().page
}

pub(crate) fn locked_memory_limit() -> usize {
    usize::MAX
}

pub(crate) fn populate(_: *mut u8, _: usize) {}

pub(crate) fn address_space_limit() -> usize {
    system().limit
}

/// A call to the system; `failed` is its answer if it fails.
fn call<T>(failed: T, act: impl FnOnce(&mut Memory) -> T) -> T {
    point();
    let answer = if threads::fails() { failed } else { act(&mut lock(&MEMORY)) };
    point();
    answer
}

/// A call that brings pages from one of the states `legal` into another.
fn change(
    name: &str,
    (at, size): (*mut u8, usize),
    legal: &[State],
    act: impl FnOnce(&mut Memory, Range<usize>),
) -> bool {
    call(false, |memory| {
        let Some(units) = memory.units(at, size) else { return false };
        memory.expect(&units, legal, name);
        act(memory, units);
        true
    })
}

fn to_pages(size: usize) -> usize {
    size.next_multiple_of(page_size())
}

impl Memory {
    fn address(&self, unit: usize) -> *mut u8 {
        self.base.wrapping_add(unit * UNIT)
    }

    /// The units of a range that begins at a page; None, as the kernel says EINVAL, elsewhere.
    /// The end is rounded up to a page, as the kernel does.
    fn units(&self, at: *mut u8, size: usize) -> Option<Range<usize>> {
        let offset = at.addr().wrapping_sub(self.base.addr());
        let inside = offset < SPACE && (1..=SPACE - offset).contains(&size);
        assert!(inside, "{at:p}+{size:#x} is nowhere");
        let first = offset / UNIT;
        at.addr().is_multiple_of(page_size()).then(|| first..first + to_pages(size) / UNIT)
    }

    fn are_free(&self, units: Range<usize>) -> bool {
        self.units.get(units).is_some_and(|units| units.iter().all(|&state| state == Unmapped))
    }

    /// Asserts that all pages of a range are in one of the states `legal`.
    fn expect(&self, units: &Range<usize>, legal: &[State], call: &str) {
        for unit in units.clone() {
            let (state, at) = (self.units[unit], self.address(unit));
            let (first, end) = (self.address(units.start), self.address(units.end));
            assert!(legal.contains(&state), "{call}, {first:p}..{end:p}: {at:p} is {state:?}");
        }
    }

    fn set(&mut self, units: Range<usize>, state: State) {
        real::protect(self.address(units.start), &self.units[units.clone()], state);
        self.units[units].fill(state);
    }

    /// Room for `size` bytes that nobody uses, above the reservation or, if they are one, there.
    fn find(&self, size: usize) -> Option<Range<usize>> {
        let (from, count) = (if size < WINDOW { WINDOW / UNIT } else { 0 }, to_pages(size) / UNIT);
        let step = page_size() / UNIT;
        let mut first = from;
        while first + count <= self.units.len() {
            // A page more than asked for: what is written beyond a mapping's end is noticed.
            let end = (first + count + step).min(self.units.len());
            match self.units[first..end].iter().rposition(|&state| state != Unmapped) {
                Some(at) => first = (first + at + 1).next_multiple_of(step),
                None => return Some(first..first + count),
            }
        }
        None
    }

    fn map(&mut self, size: usize, state: State) -> *mut u8 {
        let Some(units) = self.find(size) else { return null_mut() };
        let at = self.address(units.start);
        self.set(units, state);
        at
    }

    /// Unmaps units; what is mapped there next is zero.
    fn unmap(&mut self, units: Range<usize>) {
        real::clear(self.address(units.start), units.len() * UNIT);
        self.set(units, Unmapped);
    }
}

pub(crate) fn reserve(hint: *mut u8, size: usize, _: Overcommit) -> *mut u8 {
    call(null_mut(), |memory| {
        if size > WINDOW {
            return null_mut();
        }
        let offset = hint.addr().wrapping_sub(memory.base.addr());
        if hint.is_null() || size >= WINDOW || offset >= WINDOW {
            return memory.map(size, Reserved);
        }
        let at = memory.base.wrapping_add(offset);
        let Some(units) = memory.units(at, size) else { return null_mut() };
        memory.expect(&units, &[Unmapped], "reserve at a place");
        memory.set(units, Reserved);
        at
    })
}

pub(crate) fn map(size: usize) -> *mut u8 {
    call(null_mut(), |memory| memory.map(size, Committed))
}

pub(crate) fn map_at(at: *mut u8, size: usize) -> bool {
    call(false, |memory| {
        let Some(units) = memory.units(at, size) else { return false };
        let free = memory.are_free(units.clone());
        if free {
            memory.set(units, Committed);
        }
        free
    })
}

pub(crate) fn commit(at: *mut u8, size: usize) -> bool {
    change("commit", (at, size), &[Reserved, Readable, Committed], |memory, units| {
        memory.set(units, Committed);
    })
}

pub(crate) fn make_readable(at: *mut u8, size: usize) -> bool {
    change("make_readable", (at, size), &[Reserved], |memory, units| memory.set(units, Readable))
}

pub(crate) unsafe fn purge(at: *mut u8, size: usize) -> bool {
    // What has been purged may be purged again, with its neighbours.
    let legal = if purged_is_committed() { &[Committed][..] } else { &[Committed, Reserved] };
    change("purge", (at, size), legal, |memory, units| {
        real::clear(at, units.len() * UNIT);
        if !purged_is_committed() {
            memory.set(units, Reserved);
        }
    })
}

/// What was there is gone: it was dead.
pub(crate) unsafe fn use_huge_page(at: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { purge(at, HUGE_PAGE) };
}

pub(crate) fn allow_huge_pages(_at: *mut u8, size: usize) -> bool {
    point();
    size.is_multiple_of(3)
}

pub(crate) fn may_ask() -> bool {
    true
}

pub(crate) fn is_filled(_at: *mut u8, size: usize) -> bool {
    point();
    size.is_multiple_of(32)
}

pub(crate) unsafe fn release(at: *mut u8, size: usize) -> bool {
    change("release", (at, size), &[Reserved, Readable, Committed], Memory::unmap)
}

pub(crate) unsafe fn remap(at: *mut u8, old: usize, new: usize, moves: Moves) -> *mut u8 {
    call(null_mut(), |memory| {
        if moves == Moves::Nowhere {
            return null_mut();
        }
        let Some(units) = memory.units(at, old) else { return null_mut() };
        memory.expect(&units, &[Committed], "remap");
        let end = units.start + to_pages(new) / UNIT;
        if end <= units.end {
            memory.unmap(end..units.end);
            return at;
        }
        memory.moves += 1;
        if memory.are_free(units.end..end) && memory.moves.is_multiple_of(2) {
            memory.set(units.end..end, Committed);
            return at;
        }
        let to = memory.map(new, Committed);
        if !to.is_null() {
            // SAFETY: both ranges are committed, and apart.
            unsafe { to.copy_from_nonoverlapping(at, units.len() * UNIT) };
            memory.unmap(units);
        }
        to
    })
}

pub(crate) fn look(at: *mut u8, pages: &mut [u8]) -> bool {
    let memory = lock(&MEMORY);
    let first = (at.addr() - memory.base.addr()) / UNIT;
    for (nth, page) in pages.iter_mut().enumerate() {
        *page = u8::from(memory.units[first + nth * page_size() / UNIT] == Committed);
    }
    true
}

/// How many bytes are mapped outside of the reservation, in any way.
pub(crate) fn mapped_above_the_reservation() -> usize {
    let units = &lock(&MEMORY).units[WINDOW / UNIT..];
    units.iter().filter(|&&state| state != Unmapped).count() * UNIT
}

/// The range itself: real pages.
#[cfg(not(miri))]
mod real {
    use super::{BASE, SPACE, State, UNIT};

    pub(super) fn space() -> *mut u8 {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        let place = std::ptr::without_provenance_mut(BASE);
        // SAFETY: a new mapping, where there is none.
        let at = unsafe { libc::mmap(place, SPACE, libc::PROT_NONE, flags, -1, 0) };
        assert_eq!(at, place, "the simulated memory has its place to itself");
        at.cast()
    }

    pub(super) fn protect(at: *mut u8, old: &[State], state: State) {
        let size = old.len() * UNIT;
        let access = match state {
            State::Unmapped | State::Reserved => libc::PROT_NONE,
            State::Readable => libc::PROT_READ,
            State::Committed => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: pages of the range; who touches them has been told not to.
        assert_eq!(unsafe { libc::mprotect(at.cast(), size, access) }, 0);
    }

    pub(super) fn clear(at: *mut u8, size: usize) {
        // SAFETY: pages of the range, whose contents are dead.
        assert_eq!(unsafe { libc::madvise(at.cast(), size, libc::MADV_DONTNEED) }, 0);
    }
}

/// The range itself: one block of Miri's, in which what is not accessible has no value.
#[cfg(miri)]
mod real {
    use super::{SPACE, State, UNIT, WINDOW};
    use std::mem::MaybeUninit;

    pub(super) fn space() -> *mut u8 {
        let layout = std::alloc::Layout::from_size_align(SPACE, 2 << 20).expect("it is valid");
        // SAFETY: its size is not zero.
        let at = unsafe { std::alloc::alloc(layout) };
        assert!(!at.is_null());
        at
    }

    pub(super) fn protect(at: *mut u8, old: &[State], state: State) {
        let accessible = |state| matches!(state, State::Readable | State::Committed);
        for (i, &old) in old.iter().enumerate() {
            let unit: *mut MaybeUninit<[u8; UNIT]> = at.wrapping_add(i * UNIT).cast();
            // SAFETY: a unit of the range, that nobody uses.
            match (accessible(old), accessible(state)) {
                (false, true) => unsafe { unit.write(MaybeUninit::zeroed()) },
                (true, false) => unsafe { unit.write(MaybeUninit::uninit()) },
                _ => {}
            }
        }
    }

    pub(super) fn clear(at: *mut u8, size: usize) {
        // SAFETY: bytes of the range, whose contents are dead.
        unsafe { at.write_bytes(0, size) };
    }
}
