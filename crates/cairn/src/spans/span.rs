//! Owns: one run of slices cut into equal blocks: its lists, its counters, who may touch them.
//! Idea: free blocks cost nothing (a link in themselves), untouched blocks not even a page.
//! Never: knows thread-local state or size policy; of the system only how pages are given back.
//! Threads: the owner of the span alone (see `remote`), or the owner of the lock of the list
//!   that the span stands in, for the links.
//! Checked: `Span::check`, in debug builds and by `check()`; oracle tests.
//! Story: docs/design/spans.md

mod carve;
mod home;
pub(crate) mod marked;

pub(crate) use carve::Carved;
pub(crate) use home::Keep;

use crate::base::{ClassLayout, InHardened, Ordering, SLICE_SIZE, SizeClass, shares, touched};
use crate::map::{
    Block, END, FreeList, OWNER_ABANDONED, OWNER_NONE, RemoteWord, Slot, address_map,
};
use crate::os;
use crate::slices::{Fence, Fences, Leave, Memory, Partitions, Taken, arena};
use crate::spans::thin::{self, recount};
use crate::spans::tuning::HEIRS;
use crate::spans::waiting;
use crate::store::{Known, Live};
use core::{marker::PhantomPinned, sync::atomic::compiler_fence};

/// How the build's spans keep what is at home.
pub(crate) type Home = InHardened<home::Linked, marked::Marked>;

// The blocks of a span, in address order:
//
//     | slack | block 0 | block 1 | ... | carved - 1 | untouched ... | blocks - 1 |
//               in use, or in `local_free`, or          never linked,
//               set aside, or pending in the            perhaps zero
//               remote word
//
// Invariants
//  1. used = until_event + used_after_event; used + length of `local_free` + `hidden` = `carved`. A block in a
//     heap's cache, in a batch under way, or pending in the remote word counts as
//     used. `used_after_event` > 0 only in a list of full or of partial spans: the event comes before the last free
//     then. It is NO_EVENT in an active span that is not long: a pair of malloc and free empties
//     that each time.
//  2. All fields belong to the owner; `next` and `prev` belong to the lock of the list of abandoned spans
//     while the word says LISTED.
//  3. `start` and `class` do not change while the span exists.
//  4. The descriptors of all its slices point here and carry its class, first block and inverse;
//     they name the owner's tag, or ABANDONED while there is none or one is about to take over.
//  5. `hidden` blocks are free and in no list: those that are set aside (see `aside`).

/// The owner's metadata of a span.
#[repr(C, align(64))]
pub(crate) struct Span {
    // Written by every free.
    pub(crate) local_free: *mut Block,
    /// Local frees until the next event.
    pub(crate) until_event: u32,
    // Rarely written.
    pub(crate) carved: u16,
    pub(crate) hidden: u16,
    // Constant.
    pub(crate) start: *mut u8,
    // Links in the heap's or the abandoned spans' list.
    pub(crate) next: *mut Span,
    pub(crate) prev: *mut Span,
    /// Blocks in use when holes were last looked for.
    pub(crate) used_at_sweep: u16,
    /// Blocks in use when that event comes.
    pub(crate) used_after_event: i16,
    /// Constant, too.
    pub(crate) class: u8,
    /// Untouched blocks are zero (1); in its heap's list of full spans (2).
    pub(crate) flags: u8,
    /// The number of the partition that alone may use its slices, plus 1, or 0.
    pub(crate) partition: u8,
    /// So many times the next frees of its owner may be of blocks that others have allocated: see `inherit`.
    pub(crate) inherited: u8,
    /// What the heap that let go of it while it was full writes into descriptors, the last one, or 0. A hint: another
    /// thread may have that heap by now.
    pub(crate) let_go_by: u32,
    /// The epoch in which it was found with no block in use, plus 1, or 0: see `grace`.
    pub(crate) empty_since: usize,
    /// An owner's `&mut` does not claim all of it: others read what is constant (`is_block`).
    _read: PhantomPinned,
}

/// What it means if more blocks have come back than were handed out.
const FREED_TWICE: &str = "more blocks have been freed than were in use";

/// `used_after_event` of a span that has no event: it would come when one more is free than there are.
const NO_EVENT: i16 = -1;

pub(crate) const ZERO: u8 = 1;
const FULL: u8 = 2;
const KEPT: u8 = 4;

const _: () = assert!(size_of::<Span>() == size_of::<Slot>());

impl Span {
    /// Makes a span of `class` out of the run at `index`, held by the caller, with all its
    /// blocks untouched. Its descriptors name `owner`.
    ///
    /// # Safety
    /// The run is the caller's, as long as the class wants it; `zero` only if its bytes are zero.
    pub(crate) unsafe fn create(
        index: usize,
        zero: bool,
        class: SizeClass,
        owner: u32,
    ) -> *mut Span {
        let c = class.layout();
        let span: *mut Span = address_map::slot(index).cast();
        // SAFETY: the run is the caller's, and so is its slot; no block of it has been handed out. Null pointers and zeros are
        // what the rest starts with.
        unsafe {
            span.write(Span {
                local_free: END,
                start: address_map::slice_address(index).wrapping_add(c.slack as usize),
                class: class.number() as u8,
                flags: if zero { ZERO } else { 0 },
                ..core::mem::zeroed()
            });
            thin::begin(index, class);
            Live::begin(address_map::slice_address(index), c);
            Fences::put(index, c.slices.into(), Taken::ForSpan);
            address_map::describe(index, c.slices as usize, span.cast(), owner, class);
        }
        span
    }

    /// Says that no block is in use: all have come back by a way that does not count them.
    ///
    /// `last` are those with which the count has been reached, linked with all that were pending.
    pub(crate) fn empty(&mut self, last: FreeList) {
        [last, self.collect()].into_iter().for_each(|list| Live::came_home(list, |_| {}));
        self.local_free = END;
        self.set_used(0, 0);
        self.forget_aside();
    }

    /// Says whether its heap keeps it as an empty one. A forked child believes that: it is said after the last block has
    /// come back, and taken back before the first one goes. The fences hold the compiler to that; a block that the child's
    /// thread has came there by the program's own synchronisation, and what was stored before it, too.
    pub(crate) fn set_kept(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.flags |= KEPT;
        compiler_fence(Ordering::SeqCst);
    }

    /// Takes that back.
    pub(crate) fn unset_kept(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.flags &= !KEPT;
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether that has been said.
    pub(crate) fn is_kept(&self) -> bool {
        self.flags & KEPT != 0
    }

    /// Ends a span with no block in use, whose run stays the caller's: the first slice.
    pub(crate) fn let_go(&mut self) -> usize {
        debug_assert_eq!(self.used(), 0);
        self.forget_aside();
        self.carved = recount(self.index(), self.class(), self.carved, self.layout().blocks);
        let index = self.index();
        address_map::set_owner(index, self.layout().slices as usize, OWNER_NONE);
        index
    }

    /// Gives the run of a span with no block in use back to the arena.
    pub(crate) fn release(&mut self) {
        let index = self.let_go();
        self.give_back(index, self.layout().slices as usize);
    }

    /// Gives its run back: to the arena, or to its partition.
    fn give_back(&self, index: usize, slices: usize) {
        if !Partitions::keep(self.partition, index, slices) {
            arena::release(index, slices, Memory::Written);
        }
    }

    /// Ends the span, whatever of it is in use: nobody uses that any more. Frees that come late are dropped.
    pub(crate) fn destroy(&mut self) {
        self.forget_aside();
        self.carved = recount(self.index(), self.class(), self.carved, self.layout().blocks);
        let (index, slices) = (self.index(), self.layout().slices as usize);
        // Before the generation: who finds the next one must not find this owner.
        address_map::set_owner(index, slices, OWNER_NONE);
        self.word().destroy();
        self.give_back(index, slices);
    }

    /// Takes back a block. True if an event is due.
    ///
    /// # Safety
    /// The caller holds the span; `block` is one of its blocks, in use, the caller's to free.
    #[inline(always)]
    pub(crate) unsafe fn push_local(&mut self, block: *mut Block) -> bool {
        // SAFETY: the caller's.
        unsafe { Home::push(self, block) };
        self.until_event = self.until_event.wrapping_sub(1);
        self.until_event == 0
    }

    /// Hands out all blocks that were freed here.
    #[inline]
    pub(crate) fn take_local(&mut self) -> FreeList {
        Home::take(self)
    }

    /// Keeps blocks collected from the remote word as if they had been freed here.
    pub(crate) fn absorb(&mut self, list: FreeList) {
        Home::absorb(self, list);
    }

    /// Becomes the owner's by claim: the batch is all that is free.
    pub(crate) fn claim(&mut self, batch: FreeList) {
        debug_assert!(self.used() == u32::from(self.layout().blocks) && self.hidden == 0);
        self.absorb(batch);
    }

    /// Takes blocks back one by one from a list.
    ///
    /// # Safety
    /// As for `push_local`, for each block of the list.
    pub(crate) unsafe fn push_list(&mut self, mut list: *mut Block) {
        while list != END {
            // SAFETY: each block is the caller's to free; its link is read before it is pushed.
            unsafe {
                let next = Block::next(list);
                self.push_local(list);
                list = next;
            }
        }
    }

    /// Becomes its heap's active span of its class: no event comes, but to a long one when nothing
    /// is in use.
    pub(crate) fn set_active(&mut self) {
        debug_assert_eq!(self.used_after_event, 0);
        // Blocks on its holes may be handed out: as many in use as at a sweep says nothing then.
        (self.empty_since, self.used_at_sweep) = (0, 0);
        if !self.class().is_long() {
            self.set_used(self.until_event + 1, NO_EVENT);
        }
    }

    /// Bytes that it covers.
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.layout().slices) * SLICE_SIZE
    }

    /// Goes into its heap's list of full spans: the next event comes after `frees`, or when
    /// nothing is in use.
    pub(crate) fn set_full(&mut self, frees: u32) {
        debug_assert!(frees > 0);
        let used = self.used();
        let until_event = used.min(frees);
        self.set_used(until_event, (used - until_event) as i16);
        self.flags |= FULL;
    }

    /// Comes out of that list, or is not the active span any more.
    pub(crate) fn clear_event(&mut self) {
        self.set_used(self.used(), 0);
        self.flags &= !FULL;
    }

    /// Whether it stands in its heap's list of full spans.
    pub(crate) fn is_full(&self) -> bool {
        self.flags & FULL != 0
    }

    /// The word through which others free.
    #[inline(always)]
    pub(crate) fn word(&self) -> &'static RemoteWord {
        // SAFETY: a span's slices are committed.
        unsafe { address_map::remote_word(self.index()) }
    }

    /// What head offsets in the word count from.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        address_map::slice_address(self.index())
    }

    /// Takes the blocks that others have freed.
    #[inline]
    pub(crate) fn collect(&self) -> FreeList {
        self.word().collect(self.base())
    }

    /// Keeps the blocks that others have freed.
    #[inline(never)]
    pub(crate) fn take_in(&mut self) {
        self.absorb(self.collect());
    }

    /// Says in the descriptors that nobody owns this span. Before the word says so. The head last: a child that is forked in
    /// between finds it owned by whom it does not have, and takes all of it over.
    #[inline(never)]
    pub(crate) fn disown(&self) {
        let (first, slices) = (self.index(), self.layout().slices as usize);
        address_map::set_owner(first + 1, slices - 1, OWNER_ABANDONED);
        address_map::set_owner(first, 1, OWNER_ABANDONED);
    }

    /// Writes the owner's tag into the descriptors, the head's first. After the word says so.
    pub(crate) fn own(&self, tag: u32) {
        address_map::set_owner(self.index(), self.layout().slices as usize, tag);
    }

    /// `heir` has taken it over, which looks at it after so many frees each time, and has not allocated what is in use in it if
    /// another heap had let go of it. With few heaps that does not count: only so many can wait and keep what they have.
    pub(crate) fn inherit(&mut self, heir: u32, frees: u32) {
        if shares::in_use() > HEIRS && self.let_go_by != heir {
            self.inherited = (self.used() / frees).min(u8::MAX.into()) as u8;
        }
    }

    /// Index of its first slice: spans are aligned to their size.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        address_map::span_index(self.start, self.class())
    }

    /// Its size class.
    #[inline(always)]
    pub(crate) fn class(&self) -> SizeClass {
        // SAFETY: invariant 3: made with a class.
        unsafe { SizeClass::from_number(u32::from(self.class)) }
    }

    /// The class of a span whose links are not the reader's.
    ///
    /// # Safety
    /// There is a span.
    pub(crate) unsafe fn class_at(this: *const Span) -> SizeClass {
        // SAFETY: invariant 3; nothing else of the span is read.
        unsafe { SizeClass::from_number(u32::from((*this).class)) }
    }

    /// How it is cut.
    #[inline]
    pub(crate) fn layout(&self) -> &'static ClassLayout {
        self.class().layout()
    }

    pub(crate) fn set_used(&mut self, until_event: u32, used_after_event: i16) {
        self.until_event = until_event;
        self.used_after_event = used_after_event;
    }

    /// Blocks in use, as the owner sees it.
    #[inline(always)]
    pub(crate) fn used(&self) -> u32 {
        touched(self);
        self.until_event.wrapping_add_signed(i32::from(self.used_after_event))
    }

    /// Blocks in `local_free`.
    pub(crate) fn free(&self) -> u32 {
        let (carved, used) = (u32::from(self.carved - self.hidden), self.used());
        if cfg!(debug_assertions) && used > carved {
            os::broken(FREED_TWICE);
        }
        carved.wrapping_sub(used)
    }

    /// Blocks that have never been handed out, or whose memory has gone.
    #[inline]
    pub(crate) fn untouched(&self) -> usize {
        usize::from(self.layout().blocks - self.carved + self.hidden)
    }

    /// Whether it has blocks to hand out.
    pub(crate) fn has_blocks(&self) -> bool {
        self.has_local_free() || self.untouched() > 0
    }

    /// Whether blocks wait in `local_free`.
    #[inline]
    pub(crate) fn has_local_free(&self) -> bool {
        Home::has_any(self)
    }

    /// Invariants 1 and 4, for the owner.
    pub(crate) fn check(&self) {
        let free = Home::count(self);
        assert_eq!(self.used() + u32::from(free + self.hidden), u32::from(self.carved));
        assert!(self.carved <= self.layout().blocks);
        assert!(self.used_after_event <= 0 || self.until_event <= self.used(), "it is to come");
        assert_eq!(self.count_aside(), usize::from(self.hidden));
        if !address_map::is_supplied(self.index()) {
            let waiting = waiting::seen(self.index(), self.layout().slices.into());
            assert_eq!(self.free_among(waiting), waiting, "what waits is free");
        }
        for i in 0..self.layout().slices as usize {
            let d = address_map::descriptor_at(self.index() + i);
            // SAFETY: this is a span.
            assert_eq!(unsafe { d.probe(self.start.wrapping_sub(self.head())) }, (self.class(), 0));
        }
    }
}
