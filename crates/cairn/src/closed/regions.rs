//! Owns: how regions of the program's are made, grow and end.
//! Idea: a piece of memory is a region's as soon as its metadata is set aside; heaps take slices from there on.
//! Never: touches a byte of a region.
//! Threads: any; one at a time adds or takes a piece, by the lock, inside which the arena's is taken.
//! Checked: tests/region.rs
//! Story: docs/design/regions.md

use crate::base::{HARDENED, SLICE_SIZE};
use crate::map::region::Grower;
use crate::map::{MAKING, Origin, Piece, RegionCalls, RegionError, address_map, region};
use crate::thread::pool::{left, salvage};
use crate::{os, slices::arena, thread};

/// Makes a region of `bytes` bytes at `start`, 0 for none at first: its name.
pub(crate) fn make(start: *mut u8, bytes: usize, calls: RegionCalls) -> Result<usize, RegionError> {
    if HARDENED {
        return Err(RegionError::Hardened);
    }
    if !thread::start() {
        return Err(RegionError::NoMemory);
    }
    let making = MAKING.lock();
    let (number, name) = region::create(calls).ok_or(RegionError::NoMemory)?;
    let is_bare = bytes == 0 && calls.reserve.is_some();
    let made = if is_bare { Ok(()) } else { add(number, start, bytes, Origin::Given) };
    drop(making);
    if made.is_err() {
        region::end(name, |_, _| ());
    }
    made.map(|()| name)
}

/// Adds memory to a region. Under the lock.
fn add(number: usize, start: *mut u8, bytes: usize, origin: Origin) -> Result<(), RegionError> {
    let (first, last) = (start, start.wrapping_add(bytes.wrapping_sub(1)));
    let is_ours = |p: *mut u8| address_map::contains(p);
    let meets = |(at, bytes): (*mut u8, usize)| (first..=last).contains(&at) && bytes > 0;
    if start.is_null() || is_ours(first) || is_ours(last) || region::places().any(meets) {
        return Err(RegionError::Invalid);
    }
    let piece = Piece::prepare(number, start, bytes, origin)?;
    arena::set_aside(piece)
}

/// Makes room for a run of slices in a region: what deleted heaps have free there, or memory that the program supplies, to one
/// thread at a time. False if there is no more than before; after another one's turn there may be.
pub(crate) fn make_room(number: usize, slices: usize) -> bool {
    // The hardened build has no regions.
    if HARDENED {
        return false;
    }
    if left::collect() {
        return true;
    }
    let calls = match region::begin_growing(number) {
        Grower::Caller(calls) => calls,
        Grower::Other => {
            os::rest();
            return true;
        }
        Grower::Nobody => return false,
    };
    // There are few pieces for all regions: each is an eighth of what its region has, or more, in pages of any machine.
    let least = region::bytes_for(slices);
    let eighth = (region::counts(number).1 * SLICE_SIZE / 8).next_multiple_of(64 << 10);
    let has_grown = eighth > least && supply(number, &calls, eighth, least)
        || supply(number, &calls, least, least);
    region::end_growing(number);
    has_grown
}

/// Has the program supply `wish` bytes for a region, or `least` at the least, and adds them; whether it has.
#[inline(never)]
fn supply(number: usize, calls: &RegionCalls, mut wish: usize, least: usize) -> bool {
    let Some(reserve) = calls.reserve else { return false };
    // SAFETY: the program's, for what it is made for.
    let start = unsafe { reserve(&raw mut wish, calls.argument()) };
    if start.is_null() {
        return false;
    }
    let making = MAKING.lock();
    let added = if wish < least {
        Err(RegionError::Invalid)
    } else {
        add(number, start, wish, Origin::Reserved)
    };
    drop(making);
    if let (Err(_), Some(release)) = (added, calls.release) {
        // SAFETY: as above, for what `reserve` has supplied.
        unsafe { release(start, wish, calls.argument()) };
    }
    added.is_ok()
}

/// Ends the region of that name; false, and nothing is done, if a heap allocates from it, or a block of it is in use, or if
/// another thread ends it.
pub(crate) fn end(name: usize) -> bool {
    if HARDENED {
        return false;
    }
    salvage::all();
    left::collect();
    region::end(name, |start, slices| {
        let _making = MAKING.lock();
        arena::put_back(start, slices);
    })
}
