//! How a model is run, and what many of them begin with.

use crate::base::policy::HARDENED;
use crate::base::size_class::SizeClass;
use crate::base::sync::{Loads, Ordering, Quiet};
use crate::map::address_map::{self, OWNER_NONE};
use crate::map::block::{Block, FreeList};
use crate::spans::span::{Keep, Span, marked::Marked};
use crate::store::filling::{Filling, READY};
use crate::store::live::Bits;
use crate::{base::sync, os, slices::arena, slices::reservation, spans::abandoned};
use core::ptr::null_mut;
use loom::thread::JoinHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The bounds of a model.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    /// Preemptions in one execution, at most, quick and full; None: as many as there can be.
    pub(crate) preemptions: [Option<usize>; 2],
    /// Atomics it does not watch.
    pub(crate) quiet: Quiet,
    /// It watches the reservation's growth.
    pub(crate) growth: bool,
}

/// All interleavings of everything.
pub(crate) const ALL: Model = Model { preemptions: [None, None], quiet: &[], growth: false };

/// What only the fork models watch: who is forking.
pub(crate) const FORKER: (&str, &str) = ("os/lock.rs", "usize");
/// `FORKER` first. Hints and numbers whose value decides only what is worth doing, and the parts of descriptors
/// that stay while a span exists.
pub(crate) const HINTS: Quiet = &[
    FORKER,
    ("arena/mod.rs", "usize"),
    ("heap/upkeep.rs", "usize"),
    ("pool/mod.rs", "usize"),
    ("shares.rs", "usize"),
];

/// Runs `scenario` in every execution there is, quick or in full (`cargo xtask models --full`), twice:
/// with loads that see the newest value, and with loads that see any they may. Prints a row of the
/// table of `cargo xtask models`: bound of preemptions, executions of both, seconds.
pub(crate) fn check<F>(model: Model, scenario: F)
where
    F: Fn(bool) + Send + Sync + 'static,
{
    let full = std::env::var("CAIRN_MODELS").is_ok_and(|size| size == "full");
    let bound = model.preemptions[usize::from(full)];
    let name = std::any::type_name_of_val(&scenario).trim_start_matches("protocol::");
    let name = name.trim_end_matches("::{{closure}}");
    let scenario = Arc::new(scenario);
    let begun = Instant::now();
    let executions = [Loads::Newest, Loads::Allowed].map(|loads| {
        let count = Arc::new(AtomicU64::new(0));
        let (counter, scenario) = (count.clone(), scenario.clone());
        let mut builder = loom::model::Builder::new();
        builder.max_branches = 20_000;
        builder.preemption_bound = bound;
        builder.check(move || {
            counter.fetch_add(1, Relaxed);
            sync::start(loads, model.quiet, model.growth);
            os::start();
            scenario(full);
        });
        count.load(Relaxed)
    });
    let bound = bound.map_or("all".to_owned(), |most| most.to_string());
    let seconds = begun.elapsed().as_secs_f64();
    let [newest, allowed] = executions;
    println!("model | {name} | {bound} | {newest} + {allowed} | {seconds:.1} |");
}

/// Starts a thread with a stack for the allocator's slow paths.
pub(crate) fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    const STACK_WORDS: usize = 1 << 14;
    let with_exit = || {
        let result = body();
        os::end_thread();
        result
    };
    loom::thread::Builder::new().stack_size(STACK_WORDS).spawn(with_exit).expect("it starts")
}

/// What the threads answer, when they have ended.
pub(crate) fn finish<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Lets a pointer travel to another thread.
#[derive(Clone, Copy)]
pub(crate) struct Sent<T>(pub(crate) T);

// SAFETY: loom checks what the threads do with it.
unsafe impl<T> Send for Sent<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Sent<T> {}

impl<T: Copy> Sent<T> {
    /// What it is.
    pub(crate) fn get(&self) -> T {
        self.0
    }
}

/// Who holds the spans of models that have no heaps.
pub(crate) const TAG: u32 = 4096;

/// A span, its index and blocks of it that are in use.
type Made = (*mut Span, usize, Vec<Sent<*mut Block>>);

/// Makes a span of `class` in the reservation, and that if there is none, with its first `used` blocks
/// handed out; it, its index and those blocks.
pub(crate) fn span(class: SizeClass, used: usize) -> Made {
    assert!(address_map::exists() || reservation::init());
    let run = arena::take_span(class.span_slices()).expect("the reservation has room");
    // SAFETY: the run is ours, and then the span.
    let span = unsafe { Span::create(run.index, run.zero, class, TAG) };
    // SAFETY: the span is ours.
    unsafe {
        assert!((*span).word().is_owned());
        (span, run.index, carve(span, used))
    }
}

/// Hands out the next `count` blocks of a span.
///
/// # Safety
/// The caller holds the span, which has so many that are untouched.
pub(crate) unsafe fn carve(span: *mut Span, count: usize) -> Vec<Sent<*mut Block>> {
    let mut blocks = Vec::new();
    // SAFETY: the caller's.
    unsafe {
        let mut block = (*span).carve(count).list.head;
        if HARDENED {
            let mut ready = [null_mut(); READY as usize];
            let mut filling = Filling { ready: ready.as_mut_ptr(), count: 0, random: 1 };
            Marked::fill(&mut *span, count as u32, &mut filling);
            blocks.extend(ready.into_iter().take(count).map(Sent));
            blocks.iter().for_each(|block| Bits::hand_out(block.get().cast()));
            return blocks;
        }
        for _ in 0..count {
            blocks.push(Sent(block));
            block = Block::next(block);
        }
    }
    blocks
}

/// As `span`, and its list has been used.
pub(crate) fn listable_span(class: SizeClass, used: usize) -> Made {
    let (span, index, blocks) = span(class, used);
    // SAFETY: the span is ours.
    unsafe {
        assert!(abandoned::list(span));
        let (reclaimed, pending) = abandoned::reclaim(class).expect("it is there");
        assert_eq!((reclaimed, pending.count), (span, 0));
        (*span).own(TAG);
    }
    (span, index, blocks)
}

/// Lets go of a held span as a heap does that gives everything up.
///
/// # Safety
/// The caller holds `span`, which is in no list.
pub(crate) unsafe fn give_up(span: *mut Span) {
    // SAFETY: the caller's contract.
    unsafe {
        if !(*span).has_local_free() {
            (*span).absorb((*span).collect());
        }
        if (*span).used() == 0 || !abandoned::list(span) {
            (*span).empty(FreeList::EMPTY);
            (*span).release();
        }
    }
}

/// Asserts that the slice at `index` has gone back to the arena, whole.
pub(crate) fn assert_released(index: usize) {
    let owner = address_map::descriptor_at(index).owner.load(Ordering::Relaxed);
    assert_eq!(owner, OWNER_NONE, "its descriptor names an owner");
    // SAFETY: a committed slice.
    let word = unsafe { address_map::remote_word(index) };
    assert_eq!(word.pending(), 0, "blocks were freed into it since");
    assert!(arena::take_exactly(index, 1).is_some(), "the arena has not got it back");
}
