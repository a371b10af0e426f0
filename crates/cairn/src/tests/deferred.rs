//! The program is called now and then to free what it has put off.

use super::alone::{Random, alone, only};
use super::forks::child_does;
use super::heaps::{Other, blocks, free};
use crate::base::{CACHE_UNITS, HARDENED, SizeClass};
use crate::slices::limit;
use crate::store::canary;
use crate::{
    Heap, allocate, allocate_zeroed, check, guard_every, on_deferred_free, os, profile_every,
    purge, reallocate, sample_every, set_memory_limits,
};
use std::cell::RefCell;
use std::string::String;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

const MIB: usize = 1 << 20;

std::thread_local! {
    /// The calls on this thread: with force or not, the heartbeat, the second word.
    static CALLS: RefCell<Vec<(bool, u64, usize)>> = RefCell::new(Vec::with_capacity(1 << 16));
    /// What is freed at the next call.
    static PUT_OFF: RefCell<Vec<*mut u8>> = const { RefCell::new(Vec::new()) };
}

fn note(force: bool, heartbeat: u64, words: [usize; 2]) {
    CALLS.with_borrow_mut(|calls| calls.push((force, heartbeat, words[1])));
}

fn calls() -> usize {
    CALLS.with_borrow(Vec::len)
}

fn forced() -> usize {
    CALLS.with_borrow(|calls| calls.iter().filter(|call| call.0).count())
}

/// Registers `note`; there is room for what it notes.
fn begin() {
    assert_eq!(calls(), 0);
    on_deferred_free(Some(note), [1, 2]);
}

/// The next call comes within so many pairs of malloc and free.
fn assert_comes_by(size: usize, most: usize) {
    let before = calls();
    let pairs = (0..).take_while(|_| {
        free(allocate(size));
        calls() == before
    });
    let pairs = pairs.count();
    assert!(pairs < most, "{size}: {pairs} pairs");
}

#[test]
fn each_class_comes_by_within_the_bound() {
    alone(|| {
        begin();
        for class in SizeClass::all() {
            let most = (class.layout().cache_blocks() as usize + 2) * CACHE_UNITS as usize;
            assert!(most <= 51_200);
            for held in [0, 1, 7, 100] {
                let held = blocks(canary::room(class), held);
                assert_comes_by(canary::room(class), most);
                held.into_iter().for_each(free);
            }
            // More blocks are free in a span than a cache takes in.
            if class.block_size() < 1000 {
                blocks(canary::room(class), 3000).into_iter().for_each(free);
                for _ in 0..5 {
                    assert_comes_by(canary::room(class), most);
                }
            }
        }
        let heartbeats: Vec<u64> = CALLS.with_borrow(|all| all.iter().map(|call| call.1).collect());
        assert!(heartbeats.iter().copied().eq(1..=heartbeats.len() as u64));
        assert!(CALLS.with_borrow(|all| all.iter().all(|call| call.2 == 2)) && forced() == 0);
        on_deferred_free(None, [0; 2]);
        let before = calls();
        blocks(100, 10_000).into_iter().for_each(free);
        assert_eq!(calls(), before, "nobody is called any more");
        check();
    });
}

#[test]
fn other_patterns_come_by_too() {
    alone(|| {
        begin();
        for size in [16, 100, 1000, 5000, 60_000] {
            for several in [2, 10, 47] {
                let before = calls();
                for _ in 0..51_200 / several {
                    blocks(size, several).into_iter().for_each(free);
                }
                assert!(calls() > before, "{several} of {size}");
            }
        }
        let before = calls();
        for nth in 0..50 {
            free(allocate(100_000 + nth * 1000));
            free(allocate_zeroed(40 * MIB));
        }
        assert_eq!(calls(), before + 100, "each large block");
    });
}

#[test]
fn heaps_of_the_programs_come_by() {
    alone(|| {
        begin();
        let (owned, shared) = (Heap::new().expect("memory"), Heap::shared().expect("memory"));
        let serve = |allocate: &dyn Fn(usize) -> *mut u8, bound: usize| {
            for size in [16, 100, 1000, 10_000, 100_000] {
                let before = calls();
                let count = (0..).take_while(|_| {
                    free(allocate(size));
                    calls() == before
                });
                let count = count.count();
                assert!(count < bound, "{size}: {count}");
            }
        };
        serve(&|size| owned.allocate(size, 16), 51_200);
        serve(&|size| shared.allocate(size, 16), 51_200);
        // A young heap, which has nurseries.
        for _ in 0..100 {
            let heap = Heap::new().expect("memory");
            let before = calls();
            (0..30).for_each(|_| assert!(!heap.allocate(100, 16).is_null()));
            assert!(HARDENED || calls() > before);
            heap.destroy();
        }
        owned.destroy();
        shared.destroy();
    });
}

/// Frees what has been put off, and allocates.
fn reclaim(force: bool, heartbeat: u64, words: [usize; 2]) {
    note(force, heartbeat, words);
    let some = PUT_OFF.with_borrow_mut(|all| {
        let count = if force { all.len() } else { all.len().min(100) };
        all.split_off(all.len() - count)
    });
    for block in some {
        let before = calls();
        free(block);
        free(allocate(3000));
        assert_eq!(calls(), before, "it is not called inside itself");
    }
}

#[test]
fn the_program_may_allocate_and_free_meanwhile() {
    alone(|| {
        on_deferred_free(Some(reclaim), [0; 2]);
        let mut random = Random(5);
        let mut live = Vec::new();
        for turn in 0..200_000 {
            let block = allocate(random.below(2000));
            assert!(!live.contains(&block) || turn > 1000);
            live.push(block);
            if live.len() > 200 {
                let gone = live.swap_remove(random.below(200));
                PUT_OFF.with_borrow_mut(|all| all.push(gone));
            }
        }
        let left = PUT_OFF.with_borrow(Vec::len);
        assert!(left < 100_000, "{left}");
        purge();
        assert!(forced() == 1 && PUT_OFF.with_borrow(Vec::is_empty));
        live.into_iter().for_each(free);
        check();
    });
}

#[test]
fn it_frees_before_an_allocation_fails() {
    alone(|| {
        // What it does without force is not enough.
        let lazy = |force, heartbeat, words| {
            if force {
                reclaim(force, heartbeat, words);
            }
        };
        on_deferred_free(Some(lazy), [0; 2]);
        let mut heap = Heap::new().expect("memory");
        assert!(heap.set_limits(0, 2 * MIB, None, [0; 2]));
        for size in [1000, 100_000] {
            for _ in 0..20 * MIB / size {
                let block = heap.allocate(size, 16);
                assert!(!block.is_null(), "{size}");
                PUT_OFF.with_borrow_mut(|all| all.push(block));
            }
            assert!(forced() >= 5, "{}", forced());
            heap.purge();
            assert!(PUT_OFF.with_borrow(Vec::is_empty));
        }
        // Nothing is left to free: it fails, after one more call.
        let held: Vec<_> = std::iter::repeat_with(|| heap.allocate(10_000, 16))
            .take_while(|block| !block.is_null())
            .collect();
        let before = forced();
        assert!(heap.allocate(10_000, 16).is_null() && forced() > before);
        held.into_iter().for_each(free);
        heap.destroy();
        check();
    });
}

/// In its place a block needs less than beside it.
#[test]
fn it_frees_before_a_block_cannot_grow() {
    alone(|| {
        let lazy = |force, heartbeat, words| {
            if force {
                reclaim(force, heartbeat, words);
            }
        };
        // SAFETY: live blocks.
        unsafe {
            assert!(set_memory_limits(limit::NO_GROUP, 150 * MIB));
            let block = allocate(60 * MIB);
            PUT_OFF.with_borrow_mut(|all| all.extend([allocate(40 * MIB), allocate(40 * MIB)]));
            on_deferred_free(Some(lazy), [0; 2]);
            let grown = reallocate(block, 100 * MIB);
            assert!(!grown.is_null() && forced() > 0);
            free(grown);
            assert!(set_memory_limits(limit::NO_GROUP, 0));

            let mut heap = Heap::new().expect("memory");
            assert!(heap.set_limits(0, 100 * MIB, None, [0; 2]));
            let block = heap.allocate(40 * MIB, 16);
            PUT_OFF.with_borrow_mut(|all| all.push(heap.allocate(50 * MIB, 16)));
            let grown = heap.id().reallocate(block, 70 * MIB, 16);
            assert!(!grown.is_null() && PUT_OFF.with_borrow(Vec::is_empty));
            heap.destroy();
        }
        check();
    });
}

/// Whoever else is there to see allocations.
#[test]
fn it_frees_before_an_allocation_fails_that_is_watched() {
    alone(|| {
        let lazy = |force, heartbeat, words| {
            if force {
                reclaim(force, heartbeat, words);
            }
        };
        let watchers: [(&str, fn()); 5] = [
            ("nobody", || {}),
            ("the profile", || assert!(profile_every(64 << 10))),
            ("each guarded", || assert!(guard_every(4 << 10))),
            ("guards", || assert!(guard_every(1 << 20))),
            ("a sampler", || sample_every(4 << 10, |_, _| {})),
        ];
        free(allocate(1));
        assert!(set_memory_limits(limit::NO_GROUP, 40 * MIB));
        on_deferred_free(Some(lazy), [0; 2]);
        for (name, begin) in watchers {
            let before = forced();
            begin();
            for turn in 0..100 * MIB / 1000 {
                let block = allocate(1000);
                assert!(!block.is_null(), "{name}, after {turn}");
                PUT_OFF.with_borrow_mut(|all| all.push(block));
            }
            assert!(forced() >= before + 2, "{name}: {}", forced() - before);
            purge();
        }
        sample_every(0, |_, _| {});
        check();
    });
}

#[test]
fn the_process_is_out_of_memory() {
    alone(|| {
        on_deferred_free(Some(reclaim), [0; 2]);
        let block = allocate(40 * MIB);
        PUT_OFF.with_borrow_mut(|all| all.reserve(100));
        assert!(allocate(isize::MAX as usize / 2).is_null());
        assert_eq!(forced(), 1);
        // The system refuses all from here on.
        free(block);
        let mut held = blocks(60_000, 100);
        os::fault::arm(0, true);
        while let block = allocate(60_000)
            && !block.is_null()
        {
            held.push(block);
        }
        assert_eq!(forced(), 2);
        PUT_OFF.with_borrow_mut(|all| all.push(held.pop().expect("a hundred")));
        let again = allocate(60_000);
        os::fault::disarm();
        // Hardened, a block that has just been freed is held back.
        assert!(HARDENED || !again.is_null(), "what has been put off serves");
        free(again);
        held.into_iter().for_each(free);
    });
}

#[test]
fn threads_have_calls_of_their_own() {
    alone(|| {
        let other = Other::new();
        other.allocates(100, 1000).into_iter().for_each(free);
        begin();
        let theirs = other.does(|| {
            blocks(100, 100_000).into_iter().for_each(free);
            CALLS.with_borrow(|all| (all.len(), all.last().map(|call| call.1)))
        });
        assert!(theirs.0 > 100 && theirs.1 == Some(theirs.0 as u64), "{theirs:?}");
        let new = Other::once(|| {
            blocks(100, 100_000).into_iter().for_each(free);
            calls()
        });
        assert!(new > 100, "{new}");
        assert!(crate::count(true));
        let before = calls();
        blocks(100, 10_000).into_iter().for_each(free);
        assert!(calls() > before + 10, "a thread that counts");
        crate::count(false);
        assert!(child_does(|| {
            let before = calls();
            blocks(100, 10_000).into_iter().for_each(free);
            assert!(calls() > before + 10);
        }));
    });
}

static BETWEEN: AtomicUsize = AtomicUsize::new(0);

/// At which allocations of a program the calls come, with pauses and purges by the clock if it is to `dawdle`.
fn run(dawdle: bool) -> Vec<usize> {
    on_deferred_free(
        Some(|_, _, _| {
            CALLS.with_borrow_mut(|calls| calls.push((false, 0, BETWEEN.load(Ordering::Relaxed))));
        }),
        [0; 2],
    );
    // An empty span of a class, and rounds of upkeep that leave that class alone.
    for phase in 0..4 {
        blocks(64, 5000).into_iter().for_each(free);
        if dawdle {
            std::thread::sleep(std::time::Duration::from_millis(40));
        }
        let several = (0..100).map(|nth| {
            BETWEEN.store(1000 * phase + nth, Ordering::Relaxed);
            allocate(2048)
        });
        several.collect::<Vec<_>>().into_iter().for_each(free);
    }
    let mut random = Random(77);
    let mut live = Vec::with_capacity(1 << 12);
    for turn in 0..60_000 {
        BETWEEN.store(turn, Ordering::Relaxed);
        let size = if random.below(100) == 0 { 80_000 } else { random.below(3000) };
        live.push(if random.below(2) == 0 { allocate(size) } else { allocate_zeroed(size) });
        if random.below(2) == 0 || live.len() > 2000 {
            free(live.swap_remove(random.below(live.len())));
        }
        if turn % 20_000 == 19_999 {
            live.drain(..).for_each(free);
        }
        if dawdle && turn % 2000 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(40));
            crate::tick();
        }
    }
    CALLS.with_borrow(|calls| calls.iter().map(|call| call.2).collect())
}

/// The clock has no say: a program that takes breaks, in which memory goes back, has its calls where one without has them.
#[test]
fn a_program_has_the_same_calls_in_each_run() {
    if HARDENED {
        return;
    }
    let told = |dawdle: &str| -> String {
        let output = only("tests::deferred::a_run").env("CAIRN_RUN", dawdle).output();
        let output = output.expect("it starts");
        let text = String::from_utf8(output.stdout).expect("plain text");
        let line = text.lines().find_map(|line| line.split("CALLS ").nth(1));
        line.unwrap_or_else(|| panic!("{text}")).into()
    };
    let quick = told("quick");
    assert!(quick.split(' ').count() > 300, "{quick}");
    for _ in 0..3 {
        assert_eq!(told("quick"), quick);
    }
    assert_eq!(told("dawdle"), quick);
}

/// What that test runs.
#[test]
fn a_run() {
    let Ok(kind) = std::env::var("CAIRN_RUN") else { return };
    let calls = run(kind == "dawdle");
    let words: Vec<String> = calls.into_iter().map(|at| std::format!("{at}")).collect();
    std::println!("CALLS {}", words.join(" "));
}

/// A thread that begins after a function has been taken away does not call it, whatever the thread before did that had its heap.
#[test]
fn who_begins_later_calls_nobody() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    fn told(_: bool, _: u64, _: [usize; 2]) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    extern "C" fn allocates(_: *mut libc::c_void) -> *mut libc::c_void {
        let heap = crate::HeapId::new_owned().expect("memory");
        // SAFETY: this thread's.
        unsafe {
            assert!(!heap.allocate(100, 16).is_null());
            heap.destroy();
        }
        core::ptr::null_mut()
    }
    alone(|| {
        on_deferred_free(Some(told), [0; 2]);
        Other::once(|| blocks(100, 5000).into_iter().for_each(free));
        let before = CALLS.load(Ordering::Relaxed);
        assert!(before > 0);
        on_deferred_free(None, [0; 2]);
        // Not one of Rust's: such a one allocates as it begins.
        let thread = crate::start_small_thread(1 << 16, allocates).expect("memory");
        crate::os::join_thread(thread);
        assert_eq!(CALLS.load(Ordering::Relaxed), before);
    });
}

/// No panic passes through an allocation: whoever has asked for it may not be unwound.
#[test]
fn a_panic_ends_the_process() {
    alone(|| {
        let said = super::misuse::last_words(|| {
            std::panic::set_hook(std::boxed::Box::new(|_| ()));
            on_deferred_free(Some(|_, _, _| panic!("on purpose")), [0; 2]);
            let _ = std::panic::catch_unwind(|| blocks(100, 5000).len());
        });
        assert!(said.contains("called inside of allocations has panicked"), "{said}");
    });
}
