//! Owns: in the hardened build, how many bytes of a large block the program has, and the canary behind them.
//! Idea: the number stands in the metadata, out of the program's reach, so the canary stands where they end.
//! Never: does anything in the default build, where it has all that is usable.
//! Threads: whoever has the block.
//! Checked: tests/canary.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use super::Large;
use super::mapping::{self, Mapping};
use crate::base::{InHardened, Ordering, fence};
use crate::map::address_map;
use crate::store::{Behind, Canary, canary};

// Invariants, for a large block that the program has, as far as nobody has written beyond its end
//  1. `CANARY_BYTES` at least of the run or mapping stand behind the bytes that the program has, and the first of them are
//     the canary of that place.
//  2. The canary is there before the number says so, Release and Acquire: another thread, or a child that is forked in
//     between, finds the one or the other.

/// What the build keeps of it.
pub(crate) type Size = InHardened<Usable, Requested>;

/// How many bytes the program has of large blocks: in the default build all that are usable.
pub(crate) trait Sizes {
    /// How many bytes the program has of the large block at `p`. Ends the process if somebody has written behind them: a
    /// message names `call`. None if no large block starts there, or if it has all.
    fn asked(_p: *mut u8, _call: &str) -> Option<usize> {
        None
    }

    /// Whether nobody has written behind them, or no large block starts there.
    fn is_whole(_p: *mut u8) -> bool {
        true
    }

    /// The program has `size` bytes of the large block at `p` from now on, if one starts there.
    ///
    /// # Safety
    /// If so, it is the caller's, and has `CANARY_BYTES` more.
    unsafe fn ask(_p: *mut u8, _size: usize) {}

    /// Bytes that the program has of a block.
    fn of(large: &Large) -> usize {
        large.usable()
    }

    /// The program has `size` bytes of a block from now on.
    ///
    /// # Safety
    /// It is the caller's, and has `CANARY_BYTES` more.
    unsafe fn set(_large: &Large, _size: usize) {}

    /// The same of a mapping.
    ///
    /// # Safety
    /// As for `set`.
    unsafe fn set_mapping(_mapping: &mut Mapping, _size: usize) {}
}

/// The default build's.
pub(crate) struct Usable;

impl Sizes for Usable {}

/// The hardened build's.
pub(crate) struct Requested;

impl Sizes for Requested {
    fn asked(p: *mut u8, call: &str) -> Option<usize> {
        let (size, is_whole) = look(p)?;
        if !is_whole {
            canary::overwritten(call, p);
        }
        Some(size)
    }

    fn is_whole(p: *mut u8) -> bool {
        look(p).is_none_or(|(_, is_whole)| is_whole)
    }

    unsafe fn ask(p: *mut u8, size: usize) {
        // SAFETY: the caller's.
        unsafe {
            match address_map::contains(p) {
                true => super::at(p).into_iter().for_each(|large| Self::set(large, size)),
                false => mapping::ask(p, size),
            }
        }
    }

    fn of(large: &Large) -> usize {
        // Acquire: pairs with `set`.
        large.asked.load(Ordering::Acquire)
    }

    unsafe fn set(large: &Large, size: usize) {
        debug_assert!(size <= large.usable());
        // SAFETY: the caller's.
        unsafe { canary::put(large.run().0.add(size)) };
        // Release: pairs with `of`. Who finds the number finds the canary.
        large.asked.store(size, Ordering::Release);
    }

    unsafe fn set_mapping(mapping: &mut Mapping, size: usize) {
        debug_assert!(size <= mapping.usable());
        // SAFETY: the caller's.
        unsafe { canary::put(mapping.start.add(size)) };
        mapping.asked = size;
    }
}

/// How many bytes the program has of the large block at `p`, any value at all, and whether nobody has written behind them.
fn look(p: *mut u8) -> Option<(usize, bool)> {
    let size = number_of(p)?;
    // SAFETY: `CANARY_BYTES` of the block stand there.
    if unsafe { canary::stands(p.add(size)) } {
        return Some((size, true));
    }
    // Another thread may have been told meanwhile that it has all of the block. Acquire: pairs with `grant`.
    fence(Ordering::Acquire);
    let size = number_of(p)?;
    // SAFETY: as above.
    Some((size, unsafe { canary::stands(p.add(size)) }))
}

/// How many bytes the program has of the large block at `p`, any value at all, as its metadata says.
fn number_of(p: *mut u8) -> Option<usize> {
    if !address_map::contains(p) {
        return mapping::asked(p);
    }
    super::at(p).map(Requested::of)
}

/// The program has all the `usable` bytes of the large block at `p` from now on. Two threads that have it may ask at the
/// same time, and one of them writes there at once.
///
/// # Safety
/// It is a live block.
pub(crate) unsafe fn grant(p: *mut u8, usable: usize, call: &str) {
    if Size::asked(p, call).is_some_and(|size| size < usable) {
        // SAFETY: the caller's. Two threads write the same.
        unsafe { Size::ask(p, usable) };
        // Release: who finds what the program writes then finds the number, too.
        fence(Ordering::Release);
    }
}

impl Large {
    /// Ends the process if somebody has written behind the bytes that the program has of it.
    ///
    /// # Safety
    /// The block is being freed, by the caller alone.
    pub(super) unsafe fn expect_whole(&self, call: &str) {
        // SAFETY: the caller's.
        if unsafe { !Canary::is_whole(self.run().0, Size::of(self)) } {
            canary::overwritten(call, self.run().0);
        }
    }
}
