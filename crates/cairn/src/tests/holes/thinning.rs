//! A heap that shrinks gives back the pages without a live byte, at once: none with one goes, no block is lost or handed out
//! twice, and who needs the memory again has it.

use crate::base::SLICE_SIZE;
use crate::map::address_map;
use crate::slices::arena;
use crate::spans::abandoned;
use crate::spans::waiting::{self, bytes_of};
use crate::tests::alone::{Random, alone};
use crate::tests::forks::child_does;
use crate::tests::heaps::{Other, free};
use crate::tests::misuse::last_words;
use crate::{Stats, allocate, check, os, purge, thread};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::vec::Vec;

/// A block, its size, and what it is filled with.
type Held = (*mut u8, usize, u8);

fn hold(size: usize, seed: u8) -> Held {
    let block = allocate(size);
    // SAFETY: a live block of that size.
    unsafe { block.write_bytes(seed, size) };
    (block, size, seed)
}

fn is_whole(&(block, size, seed): &Held) -> bool {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|&byte| byte == seed)
}

/// Bytes of the pages that hold a part of these blocks.
fn floor(live: &[Held]) -> usize {
    let page = os::page_size();
    let pages_of =
        |&(block, size, _): &Held| block.addr() / page..(block.addr() + size).div_ceil(page);
    live.iter().flat_map(pages_of).collect::<BTreeSet<_>>().len() * page
}

/// Frees all but one in `kept`: in the order in which they were allocated, or in any.
fn thin(live: &mut Vec<Held>, kept: usize, in_order: bool, random: &mut Random) {
    if !in_order {
        for at in (1..live.len()).rev() {
            live.swap(at, random.below(at + 1));
        }
    }
    live.retain(|&(block, ..)| {
        let stays = random.below(kept) == 0;
        if !stays {
            free(block);
        }
        stays
    });
}

fn resident() -> usize {
    let stats = Stats::take();
    stats.spans.resident + stats.dirty.resident
}

const MIB: usize = 1 << 20;

/// Fills 40 MiB, and frees most of it; twice, on what is left.
fn fill_and_thin(least: usize, most: usize, kept: usize, in_order: bool) {
    let mut random = Random(0x1357_2468_9abc_def1 + least as u64);
    let mut live: Vec<Held> = Vec::new();
    for round in 0..2 {
        let mut bytes = 0;
        while bytes < 40 * MIB {
            let size = least + random.below(most - least + 1);
            live.push(hold(size, live.len() as u8 | 1));
            bytes += size;
        }
        let starts: BTreeSet<_> = live.iter().map(|held| held.0).collect();
        assert_eq!(starts.len(), live.len());
        thin(&mut live, kept, in_order, &mut random);
        check();
        assert!(live.iter().all(is_whole), "{least} to {most}, one in {kept}");
        // What went in the first round is needed in the second: then more may stay.
        let (now, floor) = (resident(), floor(&live));
        let most_left = floor + floor / 8 + 8 * MIB;
        assert!(round > 0 || now <= most_left || os::page_size() > 4096, "{now}, floor {floor}");
    }
    live.iter().for_each(|&(block, ..)| free(block));
    check();
    purge();
    assert_eq!(Stats::take().spans.bytes, 0);
}

#[test]
fn blocks_of_many_sizes_freed_in_order() {
    alone(|| fill_and_thin(16, 4096, 16, true));
}

#[test]
fn blocks_of_many_sizes_freed_in_any_order() {
    alone(|| fill_and_thin(16, 4096, 16, false));
}

#[test]
fn blocks_of_middle_sizes_freed_in_order() {
    alone(|| fill_and_thin(512, 2048, 20, true));
}

#[test]
fn blocks_of_middle_sizes_freed_in_any_order() {
    alone(|| fill_and_thin(512, 2048, 20, false));
}

#[test]
fn nodes_freed_in_order() {
    alone(|| fill_and_thin(32, 80, 200, true));
}

#[test]
fn nodes_freed_in_any_order() {
    alone(|| fill_and_thin(32, 80, 200, false));
}

#[test]
fn medium_blocks_freed_in_order() {
    alone(|| fill_and_thin(5000, 60_000, 8, true));
}

#[test]
fn medium_blocks_freed_in_any_order() {
    alone(|| fill_and_thin(5000, 60_000, 8, false));
}

#[test]
fn threads_that_shrink_side_by_side() {
    alone(|| {
        let others: Vec<_> = (0..3).map(|_| Other::new()).collect();
        let left: Vec<Vec<Held>> = others
            .iter()
            .map(|other| {
                other.does(|| {
                    let mut random = Random(0x77);
                    let mut live: Vec<_> =
                        (0..24_000).map(|at| hold(16 + random.below(4000), at as u8 | 1)).collect();
                    thin(&mut live, 16, false, &mut random);
                    live
                })
            })
            .collect();
        let live: Vec<Held> = left.into_iter().flatten().collect();
        let (now, floor) = (resident(), floor(&live));
        assert!(now <= floor + floor / 8 + 10 * MIB || os::page_size() > 4096, "{now}, {floor}");
        // What a thread leaves behind others take over, and hand out.
        others.into_iter().for_each(Other::leaves);
        check();
        let mut again: Vec<_> = (0..40_000).map(|at| hold(16 + at % 4000, 5)).collect();
        assert!(live.iter().chain(&again).all(is_whole));
        again.extend(live);
        again.into_iter().for_each(|(block, ..)| free(block));
        check();
    });
}

/// A thread fills, and waits; another frees most of it. What is left is as little as if the first one had freed.
fn others_thin(in_order: bool) {
    let other = Other::new();
    let fill = |count: usize| {
        move || {
            let mut random = Random(0x5a);
            let each = (0..count).map(|at| hold(16 + random.below(4000), at as u8 | 1));
            each.collect::<Vec<_>>()
        }
    };
    let mut live = other.does(fill(40_000));
    thin(&mut live, 16, in_order, &mut Random(0xa5));
    let (now, floor) = (resident(), floor(&live));
    assert!(now <= floor + floor / 8 + 10 * MIB || os::page_size() > 4096, "{now}, {floor}");
    check();
    // Who has filled them fills them again.
    let again = other.does(fill(40_000));
    assert!(live.iter().chain(&again).all(is_whole));
    live.extend(again);
    live.into_iter().for_each(|(block, ..)| free(block));
    check();
    other.leaves();
    purge();
    assert_eq!(Stats::take().spans.bytes, 0);
}

#[test]
fn blocks_of_a_thread_that_waits_freed_by_another_in_order() {
    alone(|| others_thin(true));
}

#[test]
fn blocks_of_a_thread_that_waits_freed_by_another_in_any_order() {
    alone(|| others_thin(false));
}

/// Who empties others' spans allocates of their class meanwhile: what its cache has of a span is not set aside with the rest.
#[test]
fn who_empties_others_spans_allocates_meanwhile() {
    alone(|| {
        let (other, mut random) = (Other::new(), Random(3));
        let mut live = other.does(|| (0..60_000).map(|_| hold(1000, 9)).collect::<Vec<_>>());
        let (mut frees, before) = (0, resident());
        live.retain(|&(block, ..)| {
            let stays = random.below(16) == 0;
            if !stays {
                free(block);
            }
            frees += 1;
            if frees % 64 == 0 {
                let few: Vec<_> = (0..8).map(|_| allocate(1000)).collect();
                few.into_iter().for_each(free);
            }
            stays
        });
        assert!(resident() < before / 2 || os::page_size() > 4096, "{} {before}", resident());
        assert!(live.iter().all(is_whole));
        check();
        other.leaves();
    });
}

/// Bytes that count as gone from spans in use: a 64th of the rest may wait.
fn gone() -> usize {
    let counts = arena::counts();
    let used = address_map::committed() - counts.clean - counts.dirty;
    used * SLICE_SIZE - 64 * arena::may_wait()
}

/// What has gone counts until it is needed again, or until its span ends.
#[test]
fn what_has_gone_counts_as_long_as_it_is_gone() {
    alone(|| {
        let mut random = Random(3);
        let mut live: Vec<_> = (0..40_000).map(|_| hold(1000, 9)).collect();
        thin(&mut live, 16, false, &mut random);
        let (spans, before) = (Stats::take().spans, gone());
        assert!(before > MIB || os::page_size() > 4096, "{before}");
        assert!(before <= spans.bytes - spans.resident + 64, "{before}, {spans:?}");
        live.extend((0..20_000).map(|_| hold(1000, 9)));
        let spans = Stats::take().spans;
        assert!(gone() <= (spans.bytes - spans.resident + 64).min(before), "{}", gone());
        live.into_iter().for_each(|(block, ..)| free(block));
        check();
        // What is in a cache is in use.
        purge();
        assert!(gone() < 64, "{}", gone());
    });
}

/// What was given back is needed at once, again and again: then it stays for a while.
#[test]
fn who_grows_and_shrinks_by_turns_keeps_its_pages() {
    alone(|| {
        let mut random = Random(3);
        let mut most = 0;
        for _ in 0..12 {
            let mut live: Vec<_> = (0..16_000).map(|_| hold(1000, 9)).collect();
            thin(&mut live, 16, false, &mut random);
            most = most.max(resident());
            live.into_iter().for_each(|(block, ..)| free(block));
        }
        // Once at least, if not each time: a turn takes less than the pause.
        assert!(most > 12 * MIB, "{most}");
        check();
    });
}

/// The same where one thread fills, and another empties.
#[test]
fn what_one_fills_and_another_empties_by_turns_keeps_its_pages() {
    alone(|| {
        let (other, mut random) = (Other::new(), Random(3));
        let mut most = 0;
        for turn in 0..12 {
            let fill = || (0..40_000).map(|_| hold(1000, 9)).collect::<Vec<_>>();
            let mut live = other.does(fill);
            thin(&mut live, 16, false, &mut random);
            // Once is another phase of the program.
            assert!(turn > 0 || resident() < 20 * MIB || os::page_size() > 4096, "{}", resident());
            most = most.max(resident());
            live.into_iter().for_each(|(block, ..)| free(block));
        }
        assert!(most > 30 * MIB, "{most}");
        check();
        other.leaves();
    });
}

/// Others may have been adding while who swept was not at work, and nobody frees any more: the next part is as long as it must
/// be.
#[test]
fn much_more_than_may_wait_goes_in_one_part() {
    // The longest span's.
    const AT_ONCE: usize = 32;
    alone(|| {
        let mut blocks: Vec<_> = (0..11).map(|_| allocate(10 * MIB)).collect();
        // Of the last one not all slices are described.
        blocks.sort();
        let spans_in = |&block: &*mut u8| {
            let first = address_map::slice_of(block).next_multiple_of(AT_ONCE);
            (first..first + 9 * MIB / SLICE_SIZE).step_by(AT_ONCE)
        };
        let spans = || blocks[..10].iter().flat_map(spans_in);
        let every_other = u128::MAX / 3;
        for index in spans() {
            waiting::add(index, every_other);
        }
        let left = || spans().map(|index| bytes_of(waiting::seen(index, AT_ONCE))).sum::<usize>();
        assert_eq!(left(), 45 * MIB);
        let most = 2 * arena::may_wait();
        assert!((3 * MIB..4 * MIB).contains(&most) && waiting::sweep_part());
        assert!(left() <= most, "{}", left());
        // What may wait goes in small parts.
        while left() > 2 * arena::may_wait() {
            waiting::sweep_part();
        }
        let before = left();
        assert!(waiting::sweep_part() && before > left() && before - left() <= MIB / 2);
        waiting::sweep_after_others();
        assert_eq!(left(), 0);
        blocks.into_iter().for_each(free);
    });
}

/// By the clock alone, as the purge thread strikes it where nobody allocates.
#[test]
fn what_waits_goes_by_time() {
    alone(|| {
        let block = allocate(10 * MIB);
        waiting::add(address_map::slice_of(block).next_multiple_of(32), u128::MAX / 3);
        assert!(waiting::bytes() > 0);
        arena::set_purge_delay_ms(0);
        for _ in 0..10_000 {
            crate::tick();
            if waiting::bytes() == 0 {
                return free(block);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{} bytes wait", waiting::bytes());
    });
}

/// Who leaves while somebody else sweeps goes over it again: that sweep may have been past its pages.
#[test]
fn who_leaves_sweeps_after_others() {
    alone(|| {
        let other = Other::new();
        let sweeps = waiting::hold();
        let live = other.does(|| {
            let mut live = (0..60_000).map(|_| hold(1000, 9)).collect();
            thin(&mut live, 16, true, &mut Random(3));
            live
        });
        assert!(waiting::bytes() > 20 * MIB, "{}", waiting::bytes());
        // Long enough for the other one to come upon the sweep. Where it is not, nothing is shown, and nothing fails.
        let ends = std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(sweeps);
        });
        other.leaves();
        assert!(waiting::bytes() <= arena::may_wait(), "{}", waiting::bytes());
        ends.join().expect("it only sleeps");
        assert!(live.iter().all(is_whole));
        check();
    });
}

/// A block that is set aside is free: whoever frees it again is told so. Where its page has gone, its mark has, too.
#[test]
fn a_block_that_is_set_aside_is_free() {
    alone(|| {
        let live: Vec<_> = (0..20_000).map(|_| hold(1000, 9)).collect();
        let odd = |&(at, _): &(usize, &Held)| at % 2 == 1;
        live.iter().enumerate().filter(odd).for_each(|(_, held)| free(held.0));
        for at in [1, 9_001, 19_999] {
            let said = last_words(|| free(live[at].0));
            assert!(said.contains("freed"), "{at}: {said:?}");
        }
        check();
    });
}

/// Children that are forked while another thread shrinks have its blocks, and take over what they free of them.
#[test]
fn a_child_forked_meanwhile_goes_on() {
    static DONE: AtomicBool = AtomicBool::new(false);
    alone(|| {
        let other = Other::new();
        let kept = other.does(|| (0..500).map(|at| hold(900, at as u8 | 1)).collect::<Vec<_>>());
        other.begins(|| {
            let mut random = Random(0x99);
            while !DONE.load(Ordering::Relaxed) {
                let mut live: Vec<_> =
                    (0..3000).map(|at| hold(500 + random.below(3000), at as u8 | 1)).collect();
                thin(&mut live, 16, false, &mut random);
                assert!(live.iter().all(is_whole));
                live.into_iter().for_each(|(block, ..)| free(block));
            }
        });
        for _ in 0..60 {
            let went = child_does(|| {
                assert!(kept.iter().all(is_whole));
                while crate::tick() {}
                let mut live: Vec<_> = (0..2000).map(|at| hold(500 + at % 3000, 7)).collect();
                kept.iter().step_by(2).for_each(|&(block, ..)| free(block));
                live.extend((0..500).map(|_| hold(900, 3)));
                assert!(live.iter().all(is_whole));
                assert!(kept.iter().skip(1).step_by(2).all(is_whole));
                thin(&mut live, 16, true, &mut Random(5));
                assert!(live.iter().all(is_whole));
                thread::start();
            });
            assert!(went);
        }
        DONE.store(true, Ordering::Relaxed);
        other.leaves();
    });
}

/// Their thread is gone, or has let go of them; what others free there is in no list of anybody's.
#[test]
fn spans_that_nobody_holds_are_thinned() {
    alone(|| {
        const SIZE: usize = 2000;
        let fill = || {
            let all: Vec<_> = (0..5000).map(|_| hold(SIZE, 7)).collect();
            // With some room they are listed when the thread leaves.
            all.iter().step_by(16).for_each(|&(block, ..)| free(block));
            all.iter().map(|&(block, ..)| block.expose_provenance()).collect::<Vec<_>>()
        };
        let all = std::thread::spawn(fill).join().expect("it ends");
        let held = |&at: &usize| (core::ptr::with_exposed_provenance_mut(at), SIZE, 7);
        let (mut live, mut freed) = (Vec::<Held>::new(), 0);
        for block in all.iter().enumerate().filter(|(nth, _)| nth % 16 != 0).map(|(_, at)| held(at))
        {
            if freed % 40 == 0 {
                live.push(block);
            } else {
                free(block.0);
            }
            freed += 1;
        }
        let before = resident();
        (0..1000).for_each(|_| abandoned::thin_next());
        let after = resident();
        assert!(after < before / 2 && after >= floor(&live), "{before} {after}, {}", floor(&live));
        assert!(live.iter().all(is_whole));
        check();
        live.iter().for_each(|&(block, ..)| free(block));
        check();
    });
}
