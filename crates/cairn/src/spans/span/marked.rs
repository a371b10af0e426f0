//! Owns: in the hardened build, which free blocks of a span are at home, and which of them come next.
//! Idea: a free block carries nothing, so there is nothing in it to overwrite. What is at home is what has been carved,
//!   is not the program's (see `live`), and in no cache; and which of them come next is a matter of where one begins
//!   to look.
//! Never: links a block.
//! Threads: the owner of the span.
//! Checked: `Span::check`; tests/quarantine.rs.
//! Story: docs/design/policy.md

use super::{Span, ZERO, home::Keep};
use crate::base::random::below;
use crate::base::{ClassLayout, MIN_ALIGN, touched};
use crate::map::{Block, END, FreeList};
use crate::os;
use crate::spans::tuning::FEW_BLOCKS;
use crate::store::{Bits, Filling, Known, PLACES, zero_heads};

// Invariants
//  1. A carved block that is not the program's, not set aside and not pending is at home, or in a cache of the heap that
//     owns the span: `Span::free` counts those at home. Where a refill takes blocks from home, its cache has none of the
//     span's, or hides them.
//  2. The head of such a block is zero unless somebody has written to it (see `quarantine`).

/// The hardened build's: bits.
pub(crate) struct Marked;

impl Keep for Marked {
    unsafe fn push(_span: &mut Span, _block: *mut Block) {}

    #[inline]
    fn has_any(span: &Span) -> bool {
        span.free() > 0
    }

    #[inline]
    fn take(span: &mut Span) -> FreeList {
        FreeList::at_home(span.free())
    }

    /// Which, chance decides. There are as many at least.
    #[inline]
    fn fill(span: &mut Span, count: u32, filling: &mut Filling) {
        touched(span);
        debug_assert!(count <= span.free());
        let most = filling.count + count as usize;
        match span.layout() {
            ClassLayout { slices: 1, blocks: FEW_BLOCKS.., .. } if span.hidden == 0 => {
                span.take_many(most, filling)
            }
            _ => span.take_few(most, filling),
        }
        if filling.count < most {
            os::broken("a span has fewer free blocks than it counts");
        }
        span.until_event += count;
    }

    unsafe fn split(list: &mut FreeList, count: u32) -> *mut Block {
        list.count = count;
        END
    }

    unsafe fn take_back(_span: &mut Span, list: &mut FreeList, most: u32) {
        list.count = most;
    }

    /// Ends the process if one of these has come home before.
    fn absorb(span: &mut Span, list: FreeList) {
        let mut count = 0;
        Bits::came_home(list, |block| {
            // SAFETY: it is this span's, and free.
            unsafe { Block::unmark(block) };
            count += 1;
        });
        // The active span has no event; another's is not due before all have come.
        let after = span.used_after_event.min(0);
        let used = span.used().wrapping_sub(count);
        span.set_used(used.wrapping_add_signed(-i32::from(after)), after);
    }

    fn pass_on(span: &mut Span, list: FreeList) -> FreeList {
        Marked::pass_on_or_take(span, list)
    }

    fn pass_on_or_take(span: &mut Span, list: FreeList) -> FreeList {
        span.absorb(list);
        span.take_local()
    }

    fn hand_out_new(span: &mut Span, first: usize, count: usize) -> FreeList {
        let at = span.start.wrapping_add(first * span.layout().size as usize);
        // Where their memory is zero already, too: `malloc` reads first, and a page that is read before it is
        // written to takes the kernel two steps.
        // SAFETY: untouched blocks are the owner's.
        unsafe { zero_heads(at.cast(), span.class(), count) };
        FreeList::at_home(count as u32)
    }

    #[inline(always)]
    fn is_untouched(span: &Span, _first: usize, _count: usize) -> bool {
        span.flags & ZERO != 0
    }

    fn unlink(_span: &mut Span) -> *mut Block {
        END
    }

    fn each_unlinked(span: &Span, each: impl FnMut(usize)) {
        // What is in a cache would be handed out from there, too.
        debug_assert_eq!(span.kept().count(), span.free() as usize);
        span.kept().for_each(each);
    }

    /// It is at home again. Its head is zero still, or once more.
    unsafe fn hand_out_aside(_span: &mut Span, _block: *mut Block, list: &mut FreeList) {
        *list = FreeList::at_home(list.count + 1);
    }

    /// Others are in caches.
    fn count(span: &Span) -> u16 {
        (span.kept().count() as u16).min(span.free() as u16)
    }
}

impl Span {
    /// The numbers of the carved blocks that are not the program's, those in caches among them.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> {
        let (start, size) = (self.start, self.layout().size as usize);
        // SAFETY: a block of this span.
        let is_free = move |nth: &usize| unsafe { !Bits::is_live(start.wrapping_add(nth * size)) };
        (0..usize::from(self.carved)).filter(is_free).filter(|&nth| !self.is_set_aside(nth))
    }

    /// Takes some of one slice, of which none is set aside, until there are `most`.
    fn take_many(&self, most: usize, filling: &mut Filling) {
        let (base, layout) = (self.base(), self.layout());
        let carved = usize::from(self.carved) * layout.size as usize;
        let places = (layout.slack as usize + carved) / MIN_ALIGN;
        let words = places.div_ceil(PLACES);
        let random = filling.random;
        let mut take = |at: usize, mut allowed: u64| {
            if at + 1 == words {
                allowed &= !0 >> (words * PLACES - places);
            }
            let offset = at * PLACES * MIN_ALIGN;
            // SAFETY: the owner's.
            let found = unsafe { Bits::free_of(base, at) } & allowed;
            // SAFETY: free blocks of this span, and the caller's from here on.
            found != 0 && unsafe { filling.add_each(base.wrapping_add(offset), found, most) }
        };
        let first = below(random, words);
        // In the first word it begins anywhere, too: what is in front comes last.
        let behind = !0 << (random >> 26 & (PLACES as u64 - 1));
        if take(first, behind) || (first + 1..words).any(|at| take(at, !0)) {
            return;
        }
        let _ = (0..first).any(|at| take(at, !0)) || take(first, !behind);
    }

    /// The same where blocks are few, and their bits far apart, or some are set aside.
    fn take_few(&self, most: usize, filling: &mut Filling) {
        let (carved, size) = (usize::from(self.carved), self.layout().size as usize);
        let mut nth = below(filling.random, carved);
        for _ in 0..carved {
            let block = self.start.wrapping_add(nth * size);
            // SAFETY: a block of this span; if it is free and not set aside, the caller's from here on.
            unsafe {
                if !Bits::is_live(block) && !self.is_set_aside(nth) {
                    filling.add(block.cast());
                    if filling.count == most {
                        return;
                    }
                }
            }
            nth = if nth + 1 == carved { 0 } else { nth + 1 };
        }
    }
}
