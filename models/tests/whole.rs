//! The allocator as a whole, its own files but for those in `facades/shuttle`, in a simulated
//! system: threads run in an order that a seed decides, pages know what may be done to them. Here
//! are the tests: few threads and few operations, many executions; spans of few blocks fill and
//! empty.
//!
//! | file | has |
//! | --- | --- |
//! | `memory` | the simulated system's pages, and what may be done to each |
//! | `threads` | its threads, forks, clock and failures |
//! | `held` | blocks with contents, and the list of all that are live |
//! | `work` | what the threads do |
//! | `heaps` | what they do with heaps of the program's |
//! | `runs` | how they are run: many times, each time in a process; under Miri once, as they are |
//!
//! A run is a process: `CAIRN_MODEL=random:7:100` says that shuttle's random scheduler, seeded
//! with 7, runs 100 executions in it; `pct` is its other scheduler; `alone` is one thread that no
//! scheduler interrupts, and 100 operations. What the allocator has stays from one execution to
//! the next, and so a failure is repeated by repeating its run: the message says how.
//! `CAIRN_MODEL_SECONDS=60` makes each model run that long, with one seed after the other.
#![allow(dead_code, unused_imports)] // Not everything that the core offers is used here.
#![allow(unreachable_pub, private_interfaces)] // What is public in the core is not in a test.

include!(concat!(env!("OUT_DIR"), "/shuttle/lib.rs"));

mod whole {
    #[cfg(not(miri))]
    pub(crate) mod heaps;
    pub(crate) mod held;
    pub(crate) mod memory;
    #[cfg_attr(miri, path = "real_threads.rs")]
    pub(crate) mod runs;
    pub(crate) mod threads;
    pub(crate) mod work;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
#[cfg(not(miri))]
use whole::heaps::Heaps;
use whole::held::{Bag, Held, Random};
use whole::memory::{self, System, USUAL};
use whole::runs::{alone, explore};
use whole::threads::{self, spawn};
use whole::work::{KIB, Size, any, ballast, crew, drop_ballast, finish, mapping, run, small, work};

/// Three threads pass blocks of all kinds of spans to each other.
#[test]
fn blocks_go_round() {
    explore("blocks_go_round", || {
        crew(3, move |bag, random| work(bag, random, 40, small));
    });
}

/// One thread allocates, two free.
#[test]
fn one_allocates_others_free() {
    explore("one_allocates_others_free", || {
        let bag = Bag::default();
        let done = Arc::new(AtomicBool::new(false));
        let consumer = |thread| {
            let (bag, done) = (bag.clone(), done.clone());
            spawn(move || {
                let mut random = Random::new(thread);
                loop {
                    let last = done.load(Ordering::SeqCst);
                    match bag.take(&mut random) {
                        Some(held) => held.free(),
                        None if last => return,
                        None => threads::pause(),
                    }
                }
            })
        };
        let consumers = [consumer(1), consumer(2)];
        let mut random = Random::new(0);
        let size = small(&mut random);
        bag.fill(80, size);
        done.store(true, Ordering::SeqCst);
        finish(consumers);
    });
}

/// Threads begin and end while others run; what they leave is freed and taken over by those. Some
/// go on after they have given their heap back.
#[test]
fn threads_come_and_go() {
    explore("threads_come_and_go", || {
        let bag = Bag::default();
        let mut running = Vec::new();
        let bytes = small(&mut Random::new(0));
        for generation in 1..9 {
            let shared = bag.clone();
            running.push(spawn(move || {
                let mut random = Random::new(generation);
                let mine: Vec<_> =
                    (0..20 + random.below(20)).filter_map(|_| Held::allocate(bytes)).collect();
                shared.pass_on(mine, 3, &mut random);
                for at in 0..25 {
                    if at == 20 && generation % 2 == 0 {
                        // What comes now is like later destructors: there is no heap any more.
                        threads::leave();
                        shared.fill(2, bytes);
                    }
                    shared.free_one(&mut random);
                }
            }));
            if running.len() > 2 {
                finish([running.remove(0)]);
            }
        }
        finish(running);
        bag.empty();
    });
}

/// Threads make closed heaps, others free what is in them, and they go, with what is left in use or without.
#[test]
fn closed_heaps() {
    explore("closed_heaps", || {
        crew(2, |_, random| {
            for round in 0..4 {
                let heap = crate::Heap::new().expect("calls do not fail");
                let bag = Bag::default();
                let free = |thread: u64| {
                    let bag = bag.clone();
                    spawn(move || {
                        let mut random = Random::new(thread);
                        for _ in 0..12 {
                            bag.free_one(&mut random);
                        }
                    })
                };
                let more = |bag: &Bag, random: &mut Random| {
                    let size = [small, small, small, run, mapping][random.below(5)](random);
                    let count = if size < 4 * KIB { 10 } else { 1 };
                    let new = |_| Held::allocate_in(heap.id(), size);
                    (0..count).filter_map(new).for_each(|held| bag.put(held));
                };
                more(&bag, random);
                let others = [free(round * 2), free(round * 2 + 1)];
                for _ in 0..5 {
                    more(&bag, random);
                    // Its own frees, and what it has in the meantime of the others' memory.
                    bag.free_one(random);
                    Held::allocate(small(random)).into_iter().for_each(Held::free);
                }
                if random.below(3) == 0 {
                    // They go on freeing meanwhile.
                    drop(heap);
                    finish(others);
                    bag.empty();
                } else {
                    finish(others);
                    std::mem::take(&mut *bag.all()).into_iter().for_each(|held| _ = held.forget());
                    heap.destroy();
                }
            }
        });
    });
}

/// Threads make heaps, allocate from them, hand them on, delete and destroy them, and come and go; others free meanwhile.
#[cfg(not(miri))]
#[test]
fn heaps_of_all_kinds() {
    explore("heaps_of_all_kinds", || busy_heaps(|_, _| ()));
}

/// The same, and one thread forks while the others are anywhere in that. The child may use each heap, and ends it.
#[cfg(not(miri))]
#[test]
fn forks_of_busy_heaps() {
    explore("forks_of_busy_heaps", || {
        busy_heaps(|heaps, bag| {
            threads::fork(|| (), || heaps.take_over(bag, &mut Random::new(9)));
        });
    });
}

/// A thread has mappings of a heap grow, which moves them, while another one forks. The child ends the heap.
#[cfg(not(miri))]
#[test]
fn forks_of_a_heap_whose_mappings_move() {
    explore("forks_of_a_heap_whose_mappings_move", || {
        Held::allocate(1000).into_iter().for_each(Held::free);
        let id = crate::HeapId::new_shared().expect("there is memory");
        let other = spawn(move || {
            for _ in 0..3 {
                let mut held = Held::allocate_in(id, 520 * KIB).expect("there is memory");
                for kib in [700, 900, 1200] {
                    held.resize(kib * KIB);
                }
                held.free();
            }
        });
        for _ in 0..3 {
            Held::allocate(600 * KIB).into_iter().for_each(Held::free);
            let child = || {
                let mine = Held::allocate(600 * KIB);
                Held::forget_all_of(id);
                // SAFETY: nobody uses it in this process.
                unsafe { id.destroy() };
                mine.into_iter().for_each(Held::free);
                crate::check();
            };
            threads::fork(|| (), child);
        }
        finish([other]);
        // SAFETY: the other thread has ended.
        unsafe { id.destroy() };
    });
}

/// A thread deletes heaps for readers, which are kept with what is in use of them, and collects what comes home, while another
/// one forks. In the child they go with their last blocks.
#[cfg(not(miri))]
#[test]
fn forks_while_deleted_heaps_are_collected() {
    explore("forks_while_deleted_heaps_are_collected", || {
        if crate::base::policy::HARDENED {
            return;
        }
        Held::allocate(1000).into_iter().for_each(Held::free);
        let bag = Bag::default();
        let theirs = bag.clone();
        let other = spawn(move || {
            let mut random = Random::new(1);
            for _ in 0..8 {
                let id = crate::HeapId::new_concurrent(16).expect("there is memory");
                let new = |_| Held::allocate_in(id, small(&mut random));
                (0..4).filter_map(new).for_each(|held| theirs.put(held));
                // SAFETY: nobody uses it any more.
                unsafe { id.delete() };
                (0..3).for_each(|_| theirs.free_one(&mut random));
                crate::thread::pool::left::collect();
            }
        });
        for _ in 0..4 {
            (0..4).for_each(|nth| bag.free_one(&mut Random::new(nth)));
            let child = || {
                bag.empty();
                crate::purge();
                crate::check();
                // SAFETY: heaps that have been made; there is one thread.
                let is_closed = |&heap: &*mut crate::heap::Heap| unsafe { (*heap).is_closed() };
                let kept = crate::thread::pool::all().filter(is_closed).count();
                // One was being made, or deleted; a block of another one was being freed, or a span of it was being given back.
                assert!(kept <= 2, "{kept} heaps stay");
            };
            threads::fork(|| (), child);
        }
        finish([other]);
        bag.empty();
    });
}

#[cfg(not(miri))]
fn busy_heaps(meanwhile: impl Fn(&Heaps, &Bag)) {
    let (heaps, bag) = (Heaps::default(), Bag::default());
    // The allocator's handlers are there.
    Held::allocate(1000).into_iter().for_each(Held::free);
    let mut shares = heaps.shares();
    let start = |thread| {
        let (heaps, bag, shares) = (heaps.clone(), bag.clone(), shares.clone());
        spawn(move || heaps.work(&bag, shares, &mut Random::new(thread), 30))
    };
    let mut others = vec![start(1), start(2)];
    let mut random = Random::new(3);
    for epoch in 1..4 {
        heaps.work(&bag, shares.clone(), &mut random, 8);
        meanwhile(&heaps, &bag);
        heaps.next_epoch(&shares, epoch);
        if epoch == 2 {
            finish([others.remove(0)]);
            others.push(start(4));
        }
    }
    shares.clear();
    heaps.work(&bag, Vec::new(), &mut random, 8);
    finish(others);
    heaps.empty(&bag, &mut random);
}

/// Threads need more than the reservation has, while others free.
#[test]
fn the_reservation_grows() {
    explore("the_reservation_grows", || {
        let ballast = ballast();
        let size: Size = |random| [1000, 60 * KIB, 60 * KIB, 100 * KIB, 450 * KIB][random.below(5)];
        crew(3, move |bag, random| work(bag, random, 12, size));
        drop_ballast(ballast);
    });
}

#[test]
fn free_memory_is_purged() {
    explore("free_memory_is_purged", purge_among_threads);
}

/// One thread gives everything back again and again, and ticks and bursts do, while others
/// allocate and free: nobody's contents change, and zeroed memory is zero.
fn purge_among_threads() {
    set_purge_delay_ms(1);
    // Little is free, and so what has just been purged is what is needed next.
    let mut ballast = ballast();
    drop_ballast(ballast.split_off(ballast.len().saturating_sub(3)));
    let size: Size = |random| if random.below(2) == 0 { run(random) } else { small(random) };
    crew(3, move |bag, random| {
        if random.below(3) > 0 {
            return work(bag, random, 25, size);
        }
        for _ in 0..3 {
            purge();
            work(bag, random, 6, size);
        }
    });
    drop_ballast(ballast);
}

/// Runs are resized, in place and away, while their neighbours are freed.
#[test]
fn runs_grow_and_shrink() {
    explore("runs_grow_and_shrink", || {
        set_purge_delay_ms(3);
        crew(3, move |bag, random| {
            work(bag, random, 10, run);
            let Some(mut grower) = Held::allocate(run(random)) else { return };
            for _ in 0..6 {
                grower.resize(40 * KIB + random.below(700 * KIB));
                grower.find(random);
                bag.free_one(random);
            }
            bag.put(grower);
        });
    });
}

#[test]
fn mappings_grow_and_shrink() {
    explore("mappings_grow_and_shrink", resize_mappings);
}

/// The same of mappings; blocks are looked for from inside meanwhile.
fn resize_mappings() {
    set_purge_delay_ms(3);
    crew(3, move |bag, random| {
        for _ in 0..if cfg!(miri) { 3 } else { 8 } {
            if let Some(mut held) = Held::allocate(mapping(random)) {
                held.find(random);
                held.resize(mapping(random) + random.below(3) * 512 * KIB);
                held.find(random);
                bag.put(held);
            }
            if random.below(4) == 0 {
                bag.all().iter().for_each(Held::verify);
            }
            for _ in 0..random.below(3) {
                bag.free_one(random);
            }
        }
    });
}

/// Three threads take runs and mappings within a hard limit that they meet.
#[cfg(not(miri))]
#[test]
fn a_hard_limit_holds() {
    explore("a_hard_limit_holds", || {
        const LIMIT: usize = 5 << 20;
        set_purge_delay_ms(3);
        // No call fails, and yet allocations may.
        threads::FAILING.store(usize::MAX, Ordering::Relaxed);
        assert!(set_memory_limits(usize::MAX, LIMIT));
        crew(3, move |bag, random| {
            for _ in 0..10 {
                let bytes = if random.below(2) == 0 { run(random) } else { mapping(random) };
                if let Some(mut held) = Held::allocate(bytes) {
                    held.resize(bytes / 2 + random.below(bytes));
                    bag.put(held);
                }
                let counted = MemoryUse::take().counted;
                assert!(counted <= LIMIT, "{counted} bytes count");
                if random.below(2) == 0 {
                    bag.free_one(random);
                }
            }
        });
        assert!(set_memory_limits(0, 0));
        threads::FAILING.store(0, Ordering::Relaxed);
    });
}

/// Four threads need a few blocks each of many classes: the shared heap serve them.
#[test]
fn few_blocks_of_many_classes() {
    explore("few_blocks_of_many_classes", || {
        crew(4, move |bag, random| {
            for _ in 0..14 {
                let bytes = 1 + random.below(1024);
                bag.fill(1 + random.below(3), bytes);
                for _ in 0..random.below(4) {
                    bag.free_one(random);
                }
            }
        });
    });
}

/// A thread forks while others are anywhere in their work. In the child every block is whole
/// and can be freed, and no block is handed out that is in use.
#[cfg(not(miri))]
#[test]
fn forks_of_busy_threads() {
    explore("forks_of_busy_threads", || {
        let bag = Bag::default();
        let start = |thread| {
            let bag = bag.clone();
            let size: Size =
                |random| if random.below(6) == 0 { run(random) } else { small(random) };
            spawn(move || work(&bag, &mut Random::new(thread), 30, size))
        };
        let busy = [start(1), start(2)];
        let mut random = Random::new(3);
        // The allocator's handlers are there, and the forker may have a heap.
        let first = Held::allocate(1000);
        for _ in 0..2 {
            work(&bag, &mut random, 4, small);
            let between = || {
                for bytes in [1000, 100 * KIB, 600 * KIB] {
                    Held::allocate(bytes).into_iter().for_each(Held::free);
                }
            };
            threads::fork(between, || {
                check();
                bag.all().iter().for_each(Held::verify);
                let mut random = Random::new(4);
                let mine: Vec<_> =
                    (0..60).filter_map(|_| Held::allocate(small(&mut random))).collect();
                bag.empty();
                work(&bag, &mut random, 30, any);
                mine.into_iter().for_each(Held::free);
                bag.empty();
                check();
                purge();
                check();
            });
        }
        finish(busy);
        first.into_iter().for_each(Held::free);
        bag.empty();
    });
}

/// The same where other threads fill spans and empty them, which their heaps keep and use again.
#[cfg(not(miri))]
#[test]
fn forks_while_spans_are_emptied() {
    explore("forks_while_spans_are_emptied", || {
        let bag = Bag::default();
        let start = |thread| {
            let bag = bag.clone();
            spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..4 {
                    let size = small(&mut random);
                    let held: Vec<_> = (0..60).filter_map(|_| Held::allocate(size)).collect();
                    held.into_iter().for_each(Held::free);
                    Held::allocate(size).into_iter().for_each(|held| bag.put(held));
                }
            })
        };
        let busy = [start(1), start(2)];
        let first = Held::allocate(1000);
        for _ in 0..2 {
            let between = || Held::allocate(1000).into_iter().for_each(Held::free);
            threads::fork(between, || {
                check();
                purge();
                let mine: Vec<_> = (0..100).filter_map(|_| Held::allocate(1000)).collect();
                bag.all().iter().for_each(Held::verify);
                check();
                mine.into_iter().for_each(Held::free);
                bag.empty();
                purge();
                check();
            });
        }
        finish(busy);
        first.into_iter().for_each(Held::free);
        bag.empty();
    });
}

/// One system call in four fails. What cannot be had is refused, and nothing is lost.
#[test]
fn calls_fail() {
    explore("calls_fail", || {
        set_purge_delay_ms(2);
        threads::FAILING.store(4, Ordering::Relaxed);
        let size: Size = |random| if random.below(5) == 0 { mapping(random) } else { any(random) };
        crew(3, move |bag, random| {
            work(bag, random, 25, size);
            if random.below(2) == 0 {
                purge();
            }
        });
        threads::FAILING.store(0, Ordering::Relaxed);
    });
}

/// Mappings grow and shrink, and one system call in four fails.
#[test]
fn mappings_cannot_grow() {
    explore("mappings_cannot_grow", || {
        threads::FAILING.store(4, Ordering::Relaxed);
        resize_mappings();
        threads::FAILING.store(0, Ordering::Relaxed);
    });
}

/// Two threads free the same large block, one that no heap keeps: exactly one is told.
#[test]
fn large_blocks_freed_twice() {
    explore("large_blocks_freed_twice", || {
        let bag = Bag::default();
        for bytes in [400 * KIB, 600 * KIB] {
            let block = Held::allocate(bytes).expect("there is memory").forget();
            let block = Arc::new(AtomicPtr::new(block));
            let told = Arc::new(AtomicUsize::new(0));
            let counted = told.clone();
            crew(2, move |_, _| {
                let freed = std::panic::catch_unwind(|| {
                    // SAFETY: one of the two owns the block; the other is the misuse to be told of.
                    unsafe { crate::deallocate(block.load(Ordering::Relaxed)) };
                });
                if let Err(panic) = freed {
                    let words = panic.downcast::<String>().unwrap_or_default();
                    assert!(words.starts_with("cairn: free(0x"), "{words}");
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
            assert_eq!(told.load(Ordering::SeqCst), 1, "one of two frees is told");
            bag.put(Held::allocate(bytes).expect("there is memory"));
        }
        bag.empty();
    });
}

// Systems in which what is purged is no memory any more until it is committed again.

const DECOMMITTING: System = System { decommits: true, ..USUAL };

#[cfg(not(miri))]
#[test]
fn purged_memory_is_committed_again_among_threads() {
    explore("purged_memory_is_committed_again_among_threads", || {
        memory::configure(DECOMMITTING);
        purge_among_threads();
    });
}

/// Tests of one thread: their names, the systems that they run on, and one call of how many fails; 0: none.
macro_rules! one_thread {
    ($($name:ident: $system:expr, $failing:expr;)*) => {$(
        #[test]
        fn $name() {
            alone(stringify!($name), $system, $failing);
        }
    )*};
}

one_thread! { pages_of_4_kib: USUAL, 0; }

// Under Miri all tests share one reservation, and that has pages of one size. Where there is little
// address space, it is made at a fixed place and mapped as it grows.
#[cfg(not(miri))]
one_thread! {
    purged_memory_is_committed_again: DECOMMITTING, 0;
    calls_fail_where_purged_memory_is_committed_again: DECOMMITTING, 6;
    pages_of_16_kib: System { page: 16 * KIB, ..USUAL }, 0;
    pages_of_64_kib: System { page: 64 * KIB, ..USUAL }, 0;
    calls_fail_with_pages_of_64_kib: System { page: 64 * KIB, ..USUAL }, 6;
    little_address_space: System { limit: 200 << 20, ..USUAL }, 0;
}
