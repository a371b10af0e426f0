//! Pages that wait go back to the system while their span's owner needs them again. Loom watches the words of what waits, what is
//! swept, the owner's fields, and the pages.

use crate::base::policy::HARDENED;
use crate::base::size_class::{SizeClass, class_of};
use crate::base::sync::touched;
use crate::harness::{ALL, HINTS, Model, Sent, check, finish, span, spawn};
use crate::map::block::Block;
use crate::spans::span::Span;
use crate::spans::waiting;

const SWEEPS: Model = Model { preemptions: [Some(3), None], quiet: QUIET, ..ALL };
/// How much has gone is a number.
const QUIET: crate::base::sync::Quiet = &[HINTS[0], HINTS[1], ("arena/purge.rs", "usize")];

/// A block covers at least a page.
fn class() -> SizeClass {
    class_of(4096)
}

/// Frees blocks, and what is a page of them waits.
///
/// # Safety
/// The caller holds the span, and the blocks are in use.
unsafe fn put_aside(span: *mut Span, blocks: &[Sent<*mut Block>]) {
    // SAFETY: the caller's.
    unsafe {
        for block in blocks {
            (*span).push_local(block.get());
        }
        let pages = (*span).set_aside();
        waiting::add((*span).index(), (*span).free_among(pages));
    }
}

/// Takes a block back, and writes to it.
///
/// # Safety
/// The caller holds the span, in which blocks are set aside.
unsafe fn take(span: *mut Span) -> Sent<*mut Block> {
    // SAFETY: the caller's; the block is its own now.
    unsafe {
        let block = (*span).carve_aside(1).head;
        touched(block);
        block.cast::<u64>().add(8).write(7);
        Sent(block)
    }
}

/// A block that was taken back is its owner's.
///
/// # Safety
/// `take` has answered it.
unsafe fn is_whole(block: Sent<*mut Block>) -> bool {
    touched(block.get());
    // SAFETY: the caller's.
    unsafe { block.get().cast::<u64>().add(8).read() == 7 }
}

/// A span of which the pages of two blocks wait.
fn waiting_span() -> *mut Span {
    let (span, _, blocks) = span(class(), 2);
    // SAFETY: held.
    unsafe { put_aside(span, &blocks) };
    // Here loom gets to know the words of the area.
    waiting::sweep();
    // SAFETY: held, and these are the same blocks.
    unsafe {
        let again = [take(span), take(span)];
        put_aside(span, &again);
    }
    span
}

/// The owner takes a block back while another thread gives its page back: the block is the owner's, and stays so.
#[test]
fn an_owner_takes_back_what_goes() {
    check(SWEEPS, |_| {
        if HARDENED {
            return;
        }
        let span = waiting_span();
        let other = spawn(waiting::sweep);
        // SAFETY: held.
        let block = unsafe { take(span) };
        finish([other]);
        // SAFETY: taken above.
        assert!(unsafe { is_whole(block) });
    });
}

/// The owner frees it again meanwhile: whoever gives the page back does so after the owner's last access.
#[test]
fn an_owner_puts_back_what_it_took() {
    check(SWEEPS, |_| {
        if HARDENED {
            return;
        }
        let span = waiting_span();
        let other = spawn(waiting::sweep);
        // SAFETY: held.
        unsafe {
            let block = take(span);
            put_aside(span, &[block]);
        }
        finish([other]);
    });
}

/// Two threads sweep: no page goes twice at once, and none after its owner has taken it back.
#[test]
fn two_threads_sweep() {
    check(SWEEPS, |_| {
        if HARDENED {
            return;
        }
        let span = waiting_span();
        let others = [(); 2].map(|()| spawn(waiting::sweep));
        // SAFETY: held.
        let block = unsafe { take(span) };
        finish(others);
        // SAFETY: taken above.
        assert!(unsafe { is_whole(block) });
    });
}

/// Who asks for all that waits comes after whoever sweeps already: nothing waits then.
#[test]
fn who_asks_for_all_comes_after_others() {
    check(SWEEPS, |_| {
        if HARDENED {
            return;
        }
        let span = waiting_span();
        let other = spawn(waiting::sweep_part);
        waiting::sweep_after_others();
        // SAFETY: held.
        let (index, slices) = unsafe { ((*span).index(), (*span).layout().slices.into()) };
        assert_eq!(waiting::seen(index, slices), 0);
        finish([other]);
    });
}
