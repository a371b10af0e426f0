//! Owns: where each span of a heap stands: active, partial, full, or not the heap's any more.
//! Idea: a span moves when a count of frees runs out, or when a refill needs another one.
//! Never: leaves a span that the heap owns out of all lists.
//! Threads: as `heap`.
//! Checked: see `heap`.
//! Story: docs/design/heap.md

use super::{Heap, Role};
use crate::base::{FULL_FIRST, FULL_MOST, FULL_STEP, SLICE_SIZE, SizeClass, shares};
use crate::heap::tuning::{LOOK_SPANS, SPARE_SLICES, WORTHWHILE_BLOCKS};
use crate::map::Block;
use crate::os;
use crate::spans::{Span, SpanList};
use crate::store::{Caches, Store};
use core::ptr::null_mut;

/// Free blocks that make a full span of a class worth a refill. A quarter of a span of few blocks is worth as much: it must not
/// wait until empty.
fn worthwhile(class: SizeClass) -> u32 {
    WORTHWHILE_BLOCKS.min(u32::from(class.layout().blocks) / 4)
}

impl Heap {
    /// Makes `span`, which is in no list, the active one.
    #[inline(never)]
    pub(super) fn activate(&mut self, class: SizeClass, span: *mut Span) {
        debug_assert!(self.presence.is_worked_on());
        self.deactivate(class);
        // SAFETY: this heap owns it.
        unsafe { (*span).set_active() };
        self.active[class.index()] = span;
    }

    /// Makes a member of `partial` the active span.
    pub(super) fn activate_partial(&mut self, class: SizeClass, span: *mut Span) {
        // SAFETY: the caller has found it there.
        unsafe { self.remove_partial(class, span) };
        self.activate(class, span);
    }

    /// Parks the active span, if there is one.
    pub(crate) fn deactivate(&mut self, class: SizeClass) {
        let span = core::mem::replace(&mut self.active[class.index()], null_mut());
        if !span.is_null() {
            // SAFETY: this heap owns it, and it is in no list.
            unsafe { (*span).clear_event() };
            self.park(span);
        }
    }

    /// Finds a place for a span of this heap's that is neither active nor in a list.
    pub(crate) fn park(&mut self, span: *mut Span) {
        debug_assert!(self.presence.is_worked_on());
        // SAFETY: this heap owns the span.
        unsafe {
            let class = (*span).class();
            if (*span).used() == 0 && !self.member.holds(&mut *span) {
                self.release(span);
            } else if (*span).has_blocks() {
                self.list_partial(span);
            } else {
                (*span).set_full(worthwhile(class));
                self.full_slices += class.span_slices();
                self.full.push_front(span);
                // Hardened, a refill begins with it: blocks on their way to a list are none of a span's that goes.
                if !Caches::IS_MIXED && self.has_too_many_full() {
                    self.drop_oldest_full();
                }
            }
        }
    }

    /// Takes the oldest span out of `full`, and abandons it if it is full still.
    pub(crate) fn drop_oldest_full(&mut self) {
        let span = self.without_held(|heap| heap.full.last());
        if span.is_null() {
            return;
        }
        // SAFETY: a member of `full`, which this heap owns until it is abandoned.
        unsafe {
            self.unlist(span);
            if (*span).has_local_free() {
                self.list_partial(span);
            } else if !self.abandon_full(span) {
                // Others free what is allocated here.
                self.full_limit /= 4;
                (*span).take_in();
                self.park(span);
            }
        }
    }

    /// Gives the run of a span back.
    ///
    /// # Safety
    /// The heap owns `span`, which is in no list; nothing of it is in use.
    #[inline(never)]
    pub(crate) unsafe fn release(&mut self, span: *mut Span) {
        // SAFETY: as above. It is constant.
        self.member.give(unsafe { (*span).class() }.span_slices() * SLICE_SIZE);
        // SAFETY: as above.
        unsafe { (*span).release() };
    }

    /// Abandons a full span: it is nobody's until the next free; false if frees have come in.
    ///
    /// # Safety
    /// The heap owns the span, which is full and in no list.
    pub(super) unsafe fn abandon_full(&mut self, span: *mut Span) -> bool {
        // SAFETY: this heap owns it until the word says otherwise.
        unsafe {
            (*span).let_go_by = self.owner;
            (*span).disown();
            (*span).word().abandon() || {
                (*span).own(self.owner);
                false
            }
        }
    }

    /// Abandons a span, whatever is in it.
    ///
    /// # Safety
    /// The heap owns the span, which is in no list.
    pub(super) unsafe fn abandon(&mut self, span: *mut Span) {
        // SAFETY: this heap owns the span until it is let go.
        unsafe {
            if !(*span).has_local_free() {
                (*span).take_in();
            }
            if (*span).used() == 0 {
                self.release(span);
            } else if (*span).has_blocks() {
                self.list_thin(span);
            } else if !self.abandon_full(span) {
                self.list_partial(span);
            }
        }
    }

    /// Whether it has more full spans than pay, or than its share.
    pub(crate) fn has_too_many_full(&mut self) -> bool {
        let earned = self.full_limit.saturating_sub(FULL_FIRST);
        let most = self.full_limit.min(shares::full_share().max(earned));
        self.full_slices > most && self.role != Role::Closed
    }

    /// The heap's thread has freed into a full span that was allocated from here: it may keep more of them, unless it has
    /// freed what others had allocated. The shared heap has no thread, and may keep none ever.
    ///
    /// # Safety
    /// The heap owns `span`, or is about to take it over.
    pub(crate) unsafe fn earn_full(&mut self, span: *mut Span) {
        // SAFETY: as above.
        let inherited = unsafe { &mut (*span).inherited };
        if *inherited > 0 {
            *inherited -= 1;
        } else if (1..=FULL_MOST - FULL_STEP).contains(&self.full_limit) {
            self.full_limit += FULL_STEP;
        }
    }

    /// Notes what of a span that it has just taken over others have allocated.
    ///
    /// # Safety
    /// The heap owns `span`.
    pub(super) unsafe fn inherit(&self, span: *mut Span) {
        // SAFETY: as above.
        unsafe { (*span).inherit(self.owner, worthwhile((*span).class())) };
    }

    /// Looks for frees of others in full spans of a heap that is closed, quiet or sampled, if the next block of `class` would
    /// need a new span.
    pub(crate) fn collect_before_growing(&mut self, class: SizeClass) {
        // SAFETY: invariant 2: this heap owns it.
        let active = unsafe { self.active[class.index()].as_ref() };
        if self.partial[class.index()].len() == 0 && active.is_none_or(|span| !span.has_blocks()) {
            self.collect_full(LOOK_SPANS);
        }
    }

    /// The same of a thread's heap that has more full spans than its share, before it grows and at each upkeep: others may
    /// free there, too.
    pub(super) fn collect_earned(&mut self) {
        if !Caches::IS_MIXED && self.full_slices > shares::full_share() && !self.is_closed() {
            self.collect_full(LOOK_SPANS);
        }
    }

    /// Looks for frees of others in some of the full spans, in turn: they stay the heap's own.
    #[cold]
    #[inline(never)]
    pub(crate) fn collect_full(&mut self, most: usize) {
        for _ in 0..most.min(self.full.len()) {
            let span = self.full.last();
            if span.is_null() {
                // To park one may have others leave.
                return;
            }
            // SAFETY: a member of `full`, which this heap owns.
            unsafe {
                self.unlist(span);
                if !(*span).has_local_free() {
                    (*span).take_in();
                }
            }
            self.park(span);
        }
    }

    /// Frees a block into a span of the heap's, where the cache has no room for it; or does something else, in a tail call, if
    /// the span may be another's by now.
    ///
    /// # Safety
    /// The calling thread's heap, which has owned `span` just now; the block is of that span, and the thread's to free.
    #[inline(always)]
    pub(crate) unsafe fn free_home(
        this: *mut Heap,
        span: *mut Span,
        block: *mut Block,
        otherwise: impl FnOnce(),
    ) {
        // SAFETY: as above: nobody has taken the span if nobody has looked.
        unsafe {
            if !Heap::enters(this) {
                return otherwise();
            }
            if (*span).push_local(block) {
                return (*this).event_of_free(span);
            }
            Heap::leaves(this);
        }
    }

    /// # Safety
    /// As for `span_event`; the thread is inside, and leaves.
    #[cold]
    #[inline(never)]
    unsafe fn event_of_free(&mut self, span: *mut Span) {
        // SAFETY: the heap owns the span.
        unsafe {
            self.span_event(span);
            Heap::leaves(self);
        }
    }

    /// A local free into `span` was the one before an event.
    ///
    /// # Safety
    /// The heap owns `span`.
    #[cold]
    pub(super) unsafe fn span_event(&mut self, span: *mut Span) {
        debug_assert!(!self.presence.is_torn(), "an event is its thread's");
        os::notice_fork();
        // SAFETY: the heap owns the span; invariant 2 says which list it is in.
        unsafe {
            let class = (*span).class();
            if span == self.active[class.index()] {
                // Without a cache it is one block that comes and goes.
                if !self.caches.is_empty(class) {
                    self.release_active(class);
                }
                return;
            }
            if (*span).used() > 0 && !(*span).is_full() {
                return self.thin(span);
            }
            self.unlist(span);
            if (*span).used() > 0 {
                self.earn_full(span);
                self.list_partial(span);
            } else {
                self.keep_or_release(span);
            }
        }
    }

    /// A span has become empty. The only one of its class may stay: the next refill would ask the
    /// arena for its like.
    ///
    /// # Safety
    /// The heap owns `span`, which is in no list; nothing of it is in use.
    unsafe fn keep_or_release(&mut self, span: *mut Span) {
        // SAFETY: as above.
        let class = unsafe {
            if (*span).has_aside() {
                self.thinning.count_emptied((*span).bytes());
            }
            (*span).class()
        };
        let is_small = class.span_slices() <= shares::share(SPARE_SLICES);
        // SAFETY: as above.
        let waits = unsafe { self.member.holds(&mut *span) };
        if waits || self.partial[class.index()].len() == 0 && is_small {
            // SAFETY: as above.
            return unsafe { self.partial[class.index()].push_front(span) };
        }
        // SAFETY: as above.
        if unsafe { self.keep_empty(span) } {
            return self.slow_tick();
        }
        self.earn_room(class);
        // SAFETY: as above.
        unsafe { self.release(span) };
        if class.is_long() {
            self.release_active(class);
        }
        self.slow_tick();
        self.keep_little_back(class);
    }

    /// Releases the active span of a class whose spans become empty, if only the cache has blocks of
    /// it: else a burst of frees leaves one of each class, and long ones count.
    fn release_active(&mut self, class: SizeClass) {
        // SAFETY: invariant 2: this heap owns it.
        let in_use = |span: *mut Span| unsafe { span.as_ref() }.map_or(u32::MAX, Span::used);
        if Caches::IS_MIXED || in_use(self.active[class.index()]) <= class.layout().cache_blocks() {
            self.empty_cache(class);
        }
        if in_use(self.active[class.index()]) == 0 {
            self.deactivate(class);
        }
    }

    /// Takes a span that is not active out of its list.
    ///
    /// # Safety
    /// The heap owns the span.
    pub(crate) unsafe fn unlist(&mut self, span: *mut Span) {
        debug_assert!(self.presence.is_worked_on());
        // SAFETY: a span of this heap's; invariant 2.
        unsafe {
            if (*span).is_full() {
                (*span).clear_event();
                self.full_slices -= (*span).class().span_slices();
                self.full.remove(span);
            } else {
                self.remove_partial((*span).class(), span);
            }
        }
    }

    /// Takes a span out of `partial`.
    ///
    /// # Safety
    /// It is a member.
    pub(super) unsafe fn remove_partial(&mut self, class: SizeClass, span: *mut Span) {
        debug_assert!(self.presence.is_worked_on());
        // SAFETY: a member; invariant 5.
        unsafe {
            if self.sweep_next == span {
                self.sweep_next = SpanList::after(span);
            }
            (*span).clear_event();
            self.partial[class.index()].remove(span);
        }
    }

    /// Puts a span into its list of partial ones: in front if it has a list of free blocks.
    ///
    /// # Safety
    /// The heap owns the span, which is in no list.
    #[inline(never)]
    pub(super) unsafe fn list_partial(&mut self, span: *mut Span) {
        debug_assert!(self.presence.is_worked_on());
        // SAFETY: as above.
        unsafe {
            let partial = &mut self.partial[(*span).class().index()];
            if (*span).has_local_free() {
                partial.push_front(span)
            } else {
                partial.push_back(span)
            }
            if self.role != Role::Shared {
                (*span).expect_thinner_of(self.owner);
            }
        }
    }
}
