//! Owns: where a refill finds blocks, rung by rung.
//! Idea: what is free already comes first, others' frees too; untouched memory last.
//! Never: holds more for a class than its cache limit and one span's blocks.
//! Threads: as `heap`.
//! Checked: see `heap`.
//! Story: docs/design/heap.md

use super::Heap;
use crate::base::{SHARED_REFILLS, SLICE_SIZE, SizeClass, shares};
use crate::heap::tuning::{CARVE_BLOCKS, CARVE_BYTES, COLD_CARVES, HOT_CARVE_BYTES, LOOK_SPANS};
use crate::map::{Block, FreeList};
use crate::samples::sampling;
use crate::slices::{Leave, Partitions, Run, arena};
use crate::spans::{Carved, Home, Keep, Span, SpanList, abandoned, expect_end};
use crate::store::{Caches, Limit, Store};
use core::ptr::null_mut;

/// What a refill has found.
struct Found {
    list: FreeList,
    /// What the cache may take in then.
    limit: Limit,
    /// The blocks have been freed in the active span.
    freed: bool,
}

impl Heap {
    // The ladder of a refill. Each rung is tried if the one before gave nothing.
    //
    // refill             with a slow tick:
    //   active_frees     what was freed in the active span, by others too
    //   partial_frees    another span of this heap
    //   reclaim          a span that somebody has abandoned
    //   carve            untouched blocks of the active span, a page's worth
    //   carve_partial    the same of another span
    //   let_go_of_others spans of threads that wait, and reclaim again
    //   carve_new        an empty span that the heap has kept, or a new one, from the arena
    //   fill_carefully   a quiet heap, or a sampled one: fewer blocks than were found
    // A closed heap has neither shared nor abandoned spans. Before it takes a new one it looks for others'
    // frees in its full ones.

    /// Fills the cache of `class` and pops a block; null if there is no more memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(&mut self, class: SizeClass) -> *mut Block {
        let _inside = self.presence.enter();
        self.begin(class);
        let found = self.find_blocks(class);
        if found.list.count == 0 {
            return null_mut();
        }
        self.fill(class, found)
    }

    /// Fills it with shared blocks, at least one. They go back when they are freed: others need as little of
    /// them.
    pub(crate) fn refill_with(&mut self, class: SizeClass, list: FreeList) -> *mut Block {
        let _inside = self.presence.enter();
        self.begin(class);
        self.fill(class, Found { list, limit: Limit::NOTHING, freed: false })
    }

    /// Whether the next blocks of a class are to come from the shared heap. `&mut`: the thread is outside (`_read`).
    #[inline(always)]
    pub(crate) fn asks_shared(&mut self, class: SizeClass) -> bool {
        self.carves[class.index()] < SHARED_REFILLS && shares::in_use() > 1
    }

    /// Counts that they do: how often they have.
    pub(crate) fn ask_shared(&mut self, class: SizeClass) -> u8 {
        self.carves[class.index()] += 1;
        self.carves[class.index()] - 1
    }

    #[inline(always)]
    fn begin(&mut self, class: SizeClass) {
        expect_end(class, self.caches.first(class));
        self.slow_tick();
        self.thinning.end();
        if Caches::IS_MIXED {
            self.keep_fewer_full(class);
        }
        if self.ordinary & class.bit() == 0 && !self.is_only_sampled(class) {
            self.refilled |= class.bit();
            self.judge_quiet();
            self.collect_before_growing(class);
        }
    }

    #[inline(always)]
    fn fill(&mut self, class: SizeClass, found: Found) -> *mut Block {
        if self.ordinary & class.bit() == 0 {
            return self.fill_carefully(class, found);
        }
        self.fill_cache(class, found.list, found.limit)
    }

    #[inline(always)]
    fn find_blocks(&mut self, class: SizeClass) -> Found {
        let mut list = self.active_frees(class);
        if list.count == 0 {
            list = self.partial_frees(class);
        }
        if list.count == 0 {
            list = self.reclaim(class);
        }
        if list.count > 0 {
            return Found { list, limit: Limit::of(class), freed: true };
        }
        let mut carved = self.carve(class);
        if carved.list.count == 0 {
            carved = self.carve_partial(class);
        }
        if carved.list.count == 0 {
            self.collect_earned();
            list = self.partial_frees(class);
            if list.count == 0 && self.let_go_of_others(class) {
                list = self.reclaim(class);
            }
            if list.count > 0 {
                return Found { list, limit: Limit::of(class), freed: true };
            }
            carved = self.carve_new(class);
        }
        let limit = if carved.zeroed { Limit::ZEROED } else { Limit::of(class) };
        Found { list: carved.list, limit, freed: false }
    }

    /// Fills the cache of a heap that is sampled, quiet, or closed. A quiet one takes a single block of what has
    /// been freed.
    #[cold]
    #[inline(never)]
    fn fill_carefully(&mut self, class: SizeClass, found: Found) -> *mut Block {
        let Found { mut list, mut limit, freed } = found;
        if self.sampling.is_strict() {
            return self.fill_cut(class, list, u32::MAX, limit);
        }
        limit = self.sampling.limit(limit, freed);
        let mut most = self.sampling.most(class);
        if freed && self.is_quiet() {
            (most, limit) = (1, Limit::NOTHING);
        }
        if self.sampling.is_by_chance() {
            return self.fill_cut(class, list, most, limit);
        }
        if list.count > most {
            // SAFETY: the active span has just handed it out.
            unsafe { Home::take_back(&mut *self.active[class.index()], &mut list, most) };
        }
        self.fill_cache(class, list, limit)
    }

    /// Fills it with a list that is not empty; hardened, with as many that the active span has at home.
    #[inline(always)]
    fn fill_cache(&mut self, class: SizeClass, list: FreeList, limit: Limit) -> *mut Block {
        let span = self.active[class.index()];
        // SAFETY: the list is this heap's now, and not empty, and so is what the span has at home.
        unsafe {
            Caches::fill(&raw mut self.caches, class, list, limit, |count, filling| {
                Home::fill(&mut *span, count, filling);
            })
        }
    }

    /// Fills the cache up to the next sample, or with that alone, and with `most` blocks. The rest goes back.
    fn fill_cut(
        &mut self,
        class: SizeClass,
        mut list: FreeList,
        most: u32,
        limit: Limit,
    ) -> *mut Block {
        let count = Caches::most(list.count.min(most));
        let cut = self.sampling.cut(class, count, limit, self.caches.left(class));
        // SAFETY: the list is this heap's, perhaps of the shared heap's spans, and longer than that.
        let rest = unsafe { Home::split(&mut list, cut.most) };
        self.put_all_back(class, rest);
        let block = self.fill_cache(class, list, cut.limit);
        if cut.is_told {
            let left = self.caches.left(class);
            sampling::tell(block.cast::<u8>().wrapping_sub(self.head.into()), class.block_size());
            // The program has been called. If it has allocated, what is known of the cache may not hold for this block.
            if self.caches.left(class) != left {
                self.empty_cache(class);
            }
        }
        block
    }

    fn active_frees(&mut self, class: SizeClass) -> FreeList {
        let span = self.active[class.index()];
        if span.is_null() {
            return FreeList::EMPTY;
        }
        // SAFETY: invariant 2: this heap owns it.
        let span = unsafe { &mut *span };
        match span.has_local_free() {
            true => span.take_local(),
            false if span.has_aside() => self.take_aside(class),
            false => Home::pass_on(span, span.collect()),
        }
    }

    /// Some of the blocks that are set aside in the active span.
    #[cold]
    fn take_aside(&mut self, class: SizeClass) -> FreeList {
        let most = class.layout().cache_blocks() as usize;
        // SAFETY: invariant 2: this heap owns it.
        let list = unsafe { (*self.active[class.index()]).carve_aside(most) };
        self.thinning.judge(list.count as usize * class.block_size());
        list
    }

    fn partial_frees(&mut self, class: SizeClass) -> FreeList {
        let span = self.usable_partial(class);
        if span.is_null() {
            return FreeList::EMPTY;
        }
        self.activate_partial(class, span);
        // SAFETY: this heap owns it.
        if unsafe { (*span).has_aside() && !(*span).has_local_free() } {
            return self.take_aside(class);
        }
        // SAFETY: as above.
        unsafe { (*span).take_local() }
    }

    /// The first of a few of its spans in which somebody has freed a block; null if there is none.
    fn usable_partial(&mut self, class: SizeClass) -> *mut Span {
        let mut at = self.partial[class.index()].first();
        for _ in 0..LOOK_SPANS {
            if at.is_null() {
                break;
            }
            // SAFETY: this heap owns the members of `partial`.
            unsafe {
                if !(*at).has_local_free() {
                    (*at).take_in();
                }
                if (*at).has_local_free() || (*at).has_aside() {
                    return at;
                }
                at = SpanList::after(at);
            }
        }
        null_mut()
    }

    #[inline(always)]
    fn reclaim(&mut self, class: SizeClass) -> FreeList {
        if abandoned::count(class) == 0 || self.is_closed() {
            return FreeList::EMPTY;
        }
        self.reclaim_one(class)
    }

    #[inline(never)]
    fn reclaim_one(&mut self, class: SizeClass) -> FreeList {
        let Some((span, pending)) = abandoned::reclaim(class) else { return FreeList::EMPTY };
        self.activate(class, span);
        // SAFETY: this heap owns it now.
        unsafe {
            (*span).own(self.owner);
            self.inherit(span);
            Home::pass_on_or_take(&mut *span, pending)
        }
    }

    fn carve(&mut self, class: SizeClass) -> Carved {
        let span = self.active[class.index()];
        if span.is_null() {
            return Carved::NONE;
        }
        let carves = &mut self.carves[class.index()];
        *carves = carves.saturating_add(1);
        let bytes = if *carves <= COLD_CARVES { CARVE_BYTES } else { HOT_CARVE_BYTES };
        let limit = (bytes / class.block_size()).clamp(1, CARVE_BLOCKS);
        // SAFETY: invariant 2; its `local_free` was found empty on an earlier rung.
        unsafe { (*span).carve(limit) }
    }

    fn carve_partial(&mut self, class: SizeClass) -> Carved {
        let span = self.partial[class.index()].first();
        // SAFETY: this heap owns the members of `partial`.
        if span.is_null() || unsafe { (*span).has_local_free() || (*span).untouched() == 0 } {
            return Carved::NONE;
        }
        self.activate_partial(class, span);
        self.carve(class)
    }

    /// A run of slices for a span; None if there is none, or if the heap must not have it.
    fn take_run(&mut self, class: SizeClass) -> Option<Run> {
        let slices = class.span_slices();
        let slice = if slices == 1 { self.take_slice() } else { None };
        if slice.is_some() {
            return slice;
        }
        let anywhere =
            || Partitions::take(self.partition, slices).or_else(|| arena::take_span(slices));
        if self.member.of.is_null() { anywhere() } else { self.member.take_run(slices, anywhere) }
    }

    fn carve_new(&mut self, class: SizeClass) -> Carved {
        self.thinning.judge_growth(class.span_slices() * SLICE_SIZE);
        let mut span = self.take_empty(class);
        if span.is_null() {
            let Some(run) = self.take_run(class) else { return Carved::NONE };
            // In `commit` of its region the program may have freed blocks of the class.
            self.member.region().inspect(|_| self.empty_cache(class));
            // SAFETY: the run is ours, taken just now in the class's length.
            span = unsafe { Span::create(run.index, run.zero, class, self.owner) };
            // SAFETY: made just now.
            unsafe { (*span).begin(self.partition, self.head) };
        }
        self.activate(class, span);
        // SAFETY: this heap owns it. One that has been kept may have a list.
        let span = unsafe { &mut *span };
        if !span.has_local_free() {
            return self.carve(class);
        }
        Carved { list: span.take_local(), zeroed: false }
    }
}
