//! Owns: how a span keeps the free blocks that are at home, and the default build's way: a list.
//! Idea: a block that comes home is the next to be handed out: it is warm, and its link stands in itself.
//! Never: knows caches.
//! Threads: the owner of the span.
//! Checked: `Span::check`; tests/span.rs.
//! Story: docs/design/spans.md

use super::{FREED_TWICE, Span, ZERO};
use crate::map::{Block, END, FreeList, address_map};
use crate::store::Filling;
use crate::{base::touched, os};

/// What is at home in a span. `Span::free` counts it.
pub(crate) trait Keep {
    /// Keeps a block.
    ///
    /// # Safety
    /// As for `Span::push_local`.
    unsafe fn push(span: &mut Span, block: *mut Block);

    /// Whether any is there.
    fn has_any(span: &Span) -> bool;

    /// Hands out all; where no links lead to them, `fill` does.
    fn take(span: &mut Span) -> FreeList;

    /// Hands out `count` of those that `take` has no links to.
    fn fill(_span: &mut Span, _count: u32, _filling: &mut Filling) {}

    /// Ends a list that it has handed out behind its first blocks; the rest, or `END`.
    ///
    /// # Safety
    /// The caller owns the list, which has as many.
    unsafe fn split(list: &mut FreeList, count: u32) -> *mut Block;

    /// Takes back all but the first blocks of a list that this active span has just handed out.
    ///
    /// # Safety
    /// The list is the caller's.
    unsafe fn take_back(span: &mut Span, list: &mut FreeList, most: u32);

    /// Keeps blocks that others have freed, collected from the remote word.
    fn absorb(span: &mut Span, list: FreeList);

    /// Hands out such blocks of an active span, which has no other.
    fn pass_on(span: &mut Span, list: FreeList) -> FreeList;

    /// Hands out such blocks, or what else is there.
    fn pass_on_or_take(span: &mut Span, list: FreeList) -> FreeList;

    /// Hands out `count` blocks that were not there, in a row from number `first` on.
    fn hand_out_new(span: &mut Span, first: usize, count: usize) -> FreeList;

    /// Whether such blocks, which have never been handed out, are zero throughout.
    fn is_untouched(span: &Span, first: usize, count: usize) -> bool;

    /// Lets go of a list of those to which links lead.
    fn unlink(span: &mut Span) -> *mut Block;

    /// The numbers of the others. None of them is in a cache.
    fn each_unlinked(_span: &Span, _each: impl FnMut(usize)) {}

    /// A block that was set aside joins others in a list that `take` could have handed out.
    ///
    /// # Safety
    /// It is the caller's, and counts as used from here on.
    unsafe fn hand_out_aside(span: &mut Span, block: *mut Block, list: &mut FreeList);

    /// How many are there.
    fn count(span: &Span) -> u16;
}

/// The default build's: a list.
pub(crate) struct Linked;

impl Keep for Linked {
    #[inline(always)]
    unsafe fn push(span: &mut Span, block: *mut Block) {
        // SAFETY: the block is the caller's to free, and so free and this span's from here on.
        unsafe { Block::set_next(block, span.local_free) };
        touched(span);
        span.local_free = block;
    }

    #[inline]
    fn has_any(span: &Span) -> bool {
        span.local_free != END
    }

    #[inline]
    fn take(span: &mut Span) -> FreeList {
        touched(span);
        let list = FreeList { head: span.local_free, count: span.free() };
        debug_assert!(span.used_after_event <= 0);
        span.local_free = END;
        span.until_event += list.count;
        list
    }

    unsafe fn split(list: &mut FreeList, count: u32) -> *mut Block {
        // SAFETY: the caller's.
        unsafe { list.split(count) }
    }

    unsafe fn take_back(span: &mut Span, list: &mut FreeList, most: u32) {
        let count = list.count;
        // SAFETY: the blocks are of this span, and the caller's.
        unsafe {
            let rest = list.split(most);
            if span.local_free == END {
                span.until_event = span.until_event.wrapping_sub(count - most);
                span.local_free = rest;
            } else {
                span.push_list(rest);
            }
        }
    }

    /// They are touched only if something else is in `local_free`.
    #[inline(never)]
    fn absorb(span: &mut Span, list: FreeList) {
        let first = if list.count == 0 { END } else { list.head };
        let used = span.used();
        if cfg!(debug_assertions) && list.count > used {
            os::broken(FREED_TWICE);
        }
        if span.has_local_free() {
            // SAFETY: this span's, and free.
            unsafe { span.push_list(first) };
        } else {
            span.local_free = first;
        }
        let used = used.wrapping_sub(list.count);
        // An event that others' frees have passed comes not.
        let after = if used > span.used_after_event as u32 { span.used_after_event } else { 0 };
        span.set_used(used.wrapping_sub(after as u32), after);
    }

    /// They count as used already, and go on counting.
    fn pass_on(_span: &mut Span, list: FreeList) -> FreeList {
        list
    }

    fn pass_on_or_take(span: &mut Span, list: FreeList) -> FreeList {
        if list.count == 0 { span.take_local() } else { list }
    }

    /// Links them.
    fn hand_out_new(span: &mut Span, first: usize, count: usize) -> FreeList {
        let size = span.layout().size as usize;
        let first = span.start.wrapping_add(first * size);
        let mut at = first;
        for _ in 1..count {
            // Volatile: where it knows that the distance stays, the compiler takes thirteen instructions a block, not eight.
            // SAFETY: a local.
            let next = at.wrapping_add(unsafe { (&raw const size).read_volatile() });
            // SAFETY: untouched blocks are the owner's.
            unsafe { Block::set_next(at.cast(), next.cast()) };
            at = next;
        }
        // SAFETY: as above.
        unsafe { Block::set_next(at.cast(), END) };
        span.until_event += count as u32;
        FreeList { head: first.cast(), count: count as u32 }
    }

    #[inline(always)]
    fn is_untouched(span: &Span, first: usize, count: usize) -> bool {
        let zero = span.flags & ZERO != 0;
        if zero {
            span.expect_untouched(first, count);
        }
        zero
    }

    fn unlink(span: &mut Span) -> *mut Block {
        core::mem::replace(&mut span.local_free, END)
    }

    unsafe fn hand_out_aside(span: &mut Span, block: *mut Block, list: &mut FreeList) {
        // SAFETY: the caller's.
        unsafe { list.push(block) };
        span.until_event += 1;
    }

    fn count(span: &Span) -> u16 {
        let (d, head) = (address_map::descriptor_at(span.index()), span.head());
        let (mut at, mut count) = (span.local_free, 0);
        while at != END {
            // SAFETY: this is a span.
            let number = unsafe { d.probe(at.wrapping_byte_sub(head).cast()) }.1;
            assert_eq!(number & span.layout().mask, 0);
            count += 1;
            assert!(count <= span.carved);
            // SAFETY: free blocks are the owner's.
            at = unsafe { Block::next(at) };
        }
        count
    }
}
