//! Owns: where all handles are, and those that no heap and no thread has; the lock for parts.
//! Idea: they stand in pieces of memory that are never unmapped, so that any address can be asked about.
//! Never: looks at what a handle is for.
//! Threads: any; one lock for what changes, none to ask.
//! Checked: tests/closed.rs
//! Story: docs/design/closed-heaps.md

use super::Handle;
use crate::base::{AtomicPtr, AtomicUsize, Ordering, Stack};
use crate::heap::tuning::{FIRST_HANDLES, HANDLE_PIECES};
use crate::os::{self, Lock};
use core::ptr::null_mut;

/// Those that no heap and no thread has.
pub(crate) static FREE: Lock<Stack<Handle>> = Lock::new(Stack::EMPTY);
/// Taken to change which parts a shared heap has, or who uses one. The lists are whole at any time.
pub(crate) static PARTS: Lock<()> = Lock::new(());
/// Where they are: pieces of memory with as many handles as that, each twice as many as the one before. Written under
/// the lock, as is the next.
static PIECES: [AtomicPtr<Handle>; HANDLE_PIECES] =
    [const { AtomicPtr::new(null_mut()) }; HANDLE_PIECES];
/// How many there are.
static MADE: AtomicUsize = AtomicUsize::new(0);

pub(super) fn put(handle: *mut Handle) {
    let mut free = FREE.lock();
    // SAFETY: the caller's, which gives it up.
    unsafe {
        (*handle).keeper.store(0, Ordering::Relaxed);
        free.push(handle);
    }
}

pub(super) fn take() -> *mut Handle {
    let mut free = FREE.lock();
    let handle = free.pop();
    if !handle.is_null() {
        return handle;
    }
    let made = MADE.load(Ordering::Relaxed);
    let (piece, nth) = place(made);
    let Some(at) = PIECES.get(piece) else { return null_mut() };
    if nth == 0 {
        at.store(os::map((FIRST_HANDLES << piece) * size_of::<Handle>()).cast(), Ordering::Relaxed);
    }
    let first = at.load(Ordering::Relaxed);
    if first.is_null() {
        return null_mut();
    }
    // Release: who sees the number sees the piece.
    MADE.store(made + 1, Ordering::Release);
    first.wrapping_add(nth)
}

/// All handles that there are.
pub(crate) fn made() -> impl Iterator<Item = *mut Handle> {
    // Acquire: pairs with `take`.
    (0..MADE.load(Ordering::Acquire)).filter_map(|number| {
        let (piece, nth) = place(number);
        Some(PIECES.get(piece)?.load(Ordering::Relaxed).wrapping_add(nth))
    })
}

/// Whether a handle stands there, in use or not. Any address is answered.
pub(crate) fn is_made(handle: *const Handle) -> bool {
    let made = MADE.load(Ordering::Acquire);
    let in_piece = |(piece, at): (usize, &AtomicPtr<Handle>)| {
        let offset = handle.addr().wrapping_sub(at.load(Ordering::Relaxed).addr());
        let nth = offset / size_of::<Handle>();
        let before = FIRST_HANDLES * ((1 << piece) - 1);
        nth < FIRST_HANDLES << piece
            && before + nth < made
            && offset.is_multiple_of(size_of::<Handle>())
    };
    PIECES.iter().enumerate().any(in_piece)
}

/// In a forked child, before it has a second thread: a list that another thread was changing is given up.
pub(crate) fn settle_in_child() {
    PARTS.settle_in_child();
    FREE.give_up_in_child(Stack::EMPTY);
}

/// In which piece a handle stands, and where there.
fn place(number: usize) -> (usize, usize) {
    let piece = (number / FIRST_HANDLES + 1).ilog2() as usize;
    (piece, number - FIRST_HANDLES * ((1 << piece) - 1))
}
