//! Owns: how the reservation is made: its size, its place, and where its metadata stands.
//! Idea: as large as the system allows, at a random place; a process with a limit on address space, or whose reservations
//!   count as locked, reserves the metadata alone.
//! Never: changes what has been made.
//! Threads: the one that makes it, under the lock of `thread`.
//! Checked: tests/reservation.rs; tests/limits.rs of the C layer.
//! Story: docs/design/layout.md

mod grow;

pub(crate) use grow::{commit, commit_heap, commit_metadata, keep_resident, metadata_extents};

use crate::base::{AtomicBool, AtomicUsize, Ordering, SLICE_SHIFT, in_hardened, in_loom, random};
use crate::map::{
    DESCRIPTOR_SHIFT, HEAP_SIZE, SECTION_BYTES, SECTION_SLICES, Tables, address_map, set_key,
};
use crate::os::{self, Overcommit};
use crate::slices::tuning::{LADDER, LOCKED_TIMES, PLACE_DRAWS};
use crate::store::{Behind, Canary, Known, Live};

const GIB: usize = 1 << 30;
/// No reservation is larger.
pub(crate) const RESERVATION_MAX: usize = in_loom(LADDER[0], LADDER[3]);
/// Where slices are mapped as they are needed, there are addresses for so many at least.
const WITHIN_MIN: usize = 32 << 20;
/// What the program wants it to be at most.
static MOST: AtomicUsize = AtomicUsize::new(LADDER[0]);
/// Whether the slices are reserved; else they are mapped as they are needed.
static RESERVED: AtomicBool = AtomicBool::new(false);
/// Windows begin at a multiple of this: huge pages do.
const PLACE: usize = 2 << 20;
/// Metadata begins at a multiple of this, the largest page of any supported machine.
const PAGE: usize = 64 << 10;

/// Where the parts of the metadata are, counted from its start.
pub(crate) struct Layout {
    sections: usize,
    pub(crate) heaps: usize,
    heap_limit: usize,
    pub(crate) live: usize,
    bytes: usize,
}

/// A number of this process's below `below`, the `nth` of several; 0 where the system has none to give.
fn random(nth: usize, below: usize) -> usize {
    if os::seed() == 0 {
        return 0;
    }
    // No bit of the kernel's number, which serves others too, can be read off the result.
    random::nth(os::seed() as u64, nth) as usize % below
}

/// How far in front of a reservation's slices the reservation begins.
const fn front_of(size: usize) -> usize {
    size / 8
}

/// Reserves `size` bytes and their front, at a multiple of 2 MiB; null on failure.
fn reserve_at_random(size: usize) -> *mut u8 {
    let whole = front_of(size) + size;
    // Far from where programs, libraries and stacks are put, and CLISP its heap, or in what 39 bits reach.
    let (low, room) = if size >= 1024 * GIB { (48 * size, 32 * size) } else { (size, 6 * size) };
    let place = low + random(0, room / PLACE) * PLACE;
    let p = os::reserve(core::ptr::without_provenance_mut(place), whole, Overcommit::Granted);
    if p.is_null() || p.addr().is_multiple_of(PLACE) {
        return p;
    }
    // SAFETY: reserved just now.
    unsafe { os::release(p, whole) };
    os::reserve_aligned(whole, PLACE, Overcommit::Granted)
}

pub(crate) fn layout_of(size: usize) -> Layout {
    let slices = size >> SLICE_SHIFT;
    let sections = os::round_up(slices << DESCRIPTOR_SHIFT, PAGE);
    let heaps = os::round_up(sections + slices / SECTION_SLICES * SECTION_BYTES, PAGE);
    let heap_limit = (size >> in_hardened(20, 23)).clamp(in_hardened(32, 64), 65536);
    let live = heaps + heap_limit * HEAP_SIZE;
    let bytes = live + os::round_up(slices * Live::SLICE_BYTES, PAGE);
    Layout { sections, heaps, heap_limit, live, bytes }
}

/// Where the metadata of a reservation begins whose front is there, counted from it. No heap's address is a
/// multiple of 2^32: its tag would be `OWNER_NONE`. A place where one would be is drawn again. If there is no other, the
/// heaps end there, or begin behind it.
pub(crate) fn place_of(front: usize, size: usize) -> usize {
    let layout = layout_of(size);
    let draw = |nth| random(nth, (front_of(size) - layout.bytes) / PAGE + 1) * PAGE;
    // How much of the heaps would be behind a multiple, and where that is.
    let beyond = |place: usize| {
        let multiple = (front + place + layout.heaps).next_multiple_of(4 * GIB);
        (front + place + layout.live).checked_sub(multiple).filter(|&beyond| beyond > 0)
    };
    let found = (PLACE_DRAWS..2 * PLACE_DRAWS).map(draw).find(|&place| beyond(place).is_none());
    let place = found.unwrap_or_else(|| draw(1));
    match beyond(place) {
        None => place,
        Some(beyond) if beyond <= place => place - beyond,
        Some(beyond) => place + layout.live - layout.heaps - beyond + PAGE,
    }
}

/// Has the reservation be of at most so many bytes, rounded down to a power of two: 256 MiB at least. With less, 32 MiB at least,
/// nothing but its metadata is reserved, and what is needed is mapped then. It counts if nothing has been allocated yet.
pub fn set_address_space(bytes: usize) {
    // Relaxed: read by the thread that makes the reservation; whoever is earlier makes it larger.
    MOST.store(1 << bytes.clamp(WITHIN_MIN, LADDER[0]).ilog2(), Ordering::Relaxed);
}

/// Makes the reservation. False if there is no address space for it.
pub(crate) fn init() -> bool {
    let most = MOST.load(Ordering::Relaxed);
    if !LADDER.iter().any(|&size| size <= most) {
        return init_within(most);
    }
    // Whether it has been made; None if there is no room for it.
    let make = |size: usize| {
        let front = reserve_at_random(size);
        (!front.is_null()).then(|| install(front, size, Reserved::All))
    };
    if let Some(made) = make(most) {
        return made;
    }
    let smaller = LADDER.into_iter().filter(|&size| size < most);
    let made = match os::address_space_limit() {
        usize::MAX => smaller.into_iter().find_map(make).unwrap_or(false),
        limit => init_within(limit.min(most)),
    };
    // All that is mapped may count as locked.
    made || match os::locked_memory_limit() {
        usize::MAX => false,
        limit => init_within(limit.saturating_mul(LOCKED_TIMES).min(most)),
    }
}

/// Where every byte reserved counts against a limit: reserves the metadata alone, at an address with
/// room behind it. Slices are mapped as they are needed.
fn init_within(limit: usize) -> bool {
    let size = limit.clamp(WITHIN_MIN, LADDER[0]).next_power_of_two();
    let bytes = layout_of(size).bytes;
    for attempt in 0..8 {
        let front = 4 * GIB + random(2 + attempt, 1 << 16) * PLACE;
        let place = place_of(front, size);
        let at = core::ptr::without_provenance_mut(front + place);
        let got = os::reserve(at, bytes, Overcommit::Granted);
        if got.addr() == front + place {
            return install(got.wrapping_sub(place), size, Reserved::Metadata);
        }
        if !got.is_null() {
            // SAFETY: reserved just now.
            unsafe { os::release(got, bytes) };
        }
    }
    false
}

/// What of a reservation the system knows of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserved {
    All,
    Metadata,
}

fn install(front: *mut u8, size: usize, reserved: Reserved) -> bool {
    let (layout, slices) = (layout_of(size), size >> SLICE_SHIFT);
    debug_assert!(front.addr().is_multiple_of(PLACE) && size.is_power_of_two());
    let table = front.wrapping_add(place_of(front.addr(), size));
    let (from, whole) = match reserved {
        Reserved::All => (front, front_of(size) + size),
        Reserved::Metadata => (table, layout.bytes),
    };
    os::keep_small_pages(from, whole);
    if !os::make_readable(table, layout.sections) {
        // SAFETY: reserved by the caller, unused.
        unsafe { os::release(from, whole) };
        return false;
    }
    RESERVED.store(reserved == Reserved::All, Ordering::Relaxed);
    set_key(random(10, usize::MAX));
    Canary::install(|nth| random(nth, usize::MAX));
    Live::install(table.wrapping_add(layout.live), front.wrapping_add(front_of(size)));
    address_map::install(&Tables {
        base: front.wrapping_add(front_of(size)),
        slices,
        descriptors: table,
        sections: table.wrapping_add(layout.sections),
        heaps: table.wrapping_add(layout.heaps),
        heap_limit: layout.heap_limit,
    });
    true
}
