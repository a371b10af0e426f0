//! The heap profile: what is sampled, and that it is known when it is freed.

use crate::base::{MEDIUM_MAX, size_class};
use crate::samples::profile::{self, weighed};
use crate::tests::alone::alone;
use crate::tests::heaps::Other;
use crate::tests::{all_zero, filling};
use crate::{
    Heap, allocate, allocate_aligned, allocate_batch, allocate_zeroed, check, count, deallocate,
    deallocate_batch, guard_every, os, profile_every, reallocate, sample_every, usable_size,
    write_profile,
};
use core::time::Duration;
use std::collections::BTreeMap;
use std::string::String;
use std::time::Instant;
use std::vec::Vec;

fn free(block: *mut u8) {
    // SAFETY: a live block.
    unsafe { deallocate(block) };
}

/// Samples by the bytes that they were drawn as: allocated, freed, and bytes of the live ones.
fn tallies() -> BTreeMap<usize, [usize; 3]> {
    let mut all = BTreeMap::new();
    for site in profile::sites() {
        let tally: &mut [usize; 3] = all.entry(site.weighed).or_default();
        tally[0] += site.allocated.count;
        tally[1] += site.freed.count;
        tally[2] += site.allocated.bytes - site.freed.bytes;
    }
    all
}

/// The same of all sizes.
fn sum() -> [usize; 3] {
    tallies().values().fold([0; 3], |sum, tally| core::array::from_fn(|at| sum[at] + tally[at]))
}

/// Begins with a thread that has a heap.
fn begin(rate: usize) {
    free(allocate(64));
    assert!(profile_every(rate));
}

/// What a block of a class counts for.
fn class_bytes(size: usize) -> usize {
    size_class::class_of(size).block_size()
}

/// Whether so many samples stand for so many blocks, within what chance allows in one test of 100 million.
fn assert_stands_for(what: &str, samples: usize, bytes: usize, rate: usize, blocks: usize) {
    let chance = 1.0 - (-(bytes as f64) / rate as f64).exp();
    let (estimate, deviation) =
        (samples as f64 / chance, (blocks as f64 * (1.0 - chance) / chance).sqrt());
    let off = (estimate - blocks as f64) / deviation;
    assert!(off.abs() < 5.7, "{what}: {samples} samples for {blocks}: {off} deviations");
}

/// Each workload has blocks of a size of its own.
#[test]
fn samples_stand_for_what_is_allocated() {
    const RATE: usize = 64 << 10;
    alone(|| {
        begin(RATE);
        let pairs = |count: usize, size: usize| (0..count).for_each(|_| free(allocate(size)));
        let held = |rounds: usize, count: usize, size: usize| {
            for _ in 0..rounds {
                let blocks: Vec<_> = (0..count).map(|_| allocate(size)).collect();
                blocks.into_iter().for_each(free);
            }
        };
        pairs(2_000_000, filling(64));
        held(100, 5000, filling(96));
        held(20_000, 30, filling(128));
        held(1, 100_000, filling(1024));
        pairs(50_000, filling(20_480));
        pairs(20_000, 200_000);
        for _ in 0..100_000 {
            let (small, block) = (allocate(filling(160)), allocate_zeroed(filling(192)));
            // SAFETY: a live block, which may have twice as much from then on.
            free(unsafe { reallocate(block, filling(448)) });
            free(small);
        }
        let mut batch = [core::ptr::null_mut(); 50];
        for _ in 0..10_000 {
            assert_eq!(allocate_batch(filling(320), &mut batch), 50);
            // SAFETY: live blocks.
            unsafe { deallocate_batch(&batch) };
        }
        assert!(profile_every(0));
        let known = tallies();
        for (blocks, bytes) in [
            (2_000_000, 64),
            (500_000, 96),
            (600_000, 128),
            (100_000, 1024),
            (50_000, 20_480),
            (20_000, weighed(200_000)),
            (100_000, 160),
            (100_000, 192),
            (100_000, 448),
            (500_000, 320),
        ] {
            let [allocated, freed, live] = known[&bytes];
            assert_eq!((allocated, live), (freed, 0), "all of {bytes} bytes are free");
            assert_stands_for(&std::format!("{bytes} bytes"), allocated, bytes, RATE, blocks);
        }
        check();
    });
}

/// Nothing that a thread allocates while it counts is a sample, nor is what comes then.
#[test]
fn who_counts_leaves_no_sample() {
    // The gigabyte has a sample but once in ten million, and the last block is one as seldom.
    const RATE: usize = 64 << 20;
    alone(|| {
        begin(RATE);
        assert!(count(true));
        for _ in 0..(1 << 30) / 96 {
            free(allocate(filling(96)));
        }
        count(false);
        free(allocate(filling(32)));
        assert_eq!(profile::sites().count(), 0);
    });
}

/// In a loop each refill comes at the same place: what a cache has missed is not drawn there.
#[test]
fn a_place_in_a_loop_is_not_blamed() {
    const RATE: usize = 256 << 10;
    const ROUNDS: usize = 500_000;
    alone(|| {
        begin(RATE);
        // The one beside 16 others keeps its size apart by what was asked for.
        let size = filling(64);
        for _ in 0..ROUNDS {
            let blocks: [_; 16] = core::array::from_fn(|_| allocate(size));
            blocks.into_iter().for_each(free);
            free(allocate(size - 1));
        }
        let (mut all, mut odd) = (0, 0);
        for site in profile::sites().filter(|site| site.weighed == 64) {
            all += site.allocated.count;
            odd += size * site.allocated.count - site.allocated.bytes;
        }
        assert_stands_for("all", all, 64, RATE, ROUNDS * 17);
        assert_stands_for("the odd one", odd, 64, RATE, ROUNDS);
    });
}

/// Who allocates beside others is a sample as often as its bytes say, not as refills do.
#[test]
fn refills_are_not_blamed() {
    const RATE: usize = 16 << 10;
    alone(|| {
        begin(RATE);
        // Every 16th keeps its size apart by what was asked for.
        let size = filling(64);
        let asked = |nth: usize| if nth.is_multiple_of(16) { size - 1 } else { size };
        for _ in 0..20_000 {
            let blocks: Vec<_> = (0..64).map(|nth| allocate(asked(nth))).collect();
            blocks.into_iter().for_each(free);
        }
        let mut odd = 0;
        for site in profile::sites().filter(|site| site.weighed == 64) {
            odd += size * site.allocated.count - site.allocated.bytes;
        }
        assert_stands_for("the odd ones", odd, 64, RATE, 20_000 * 4);
    });
}

#[test]
fn what_is_live_is_known() {
    alone(|| {
        begin(1);
        let sizes = [1, 16, 100, 1000, 5000, MEDIUM_MAX, 70_000, 1 << 20, 40 << 20];
        let blocks: Vec<_> = sizes.iter().map(|&size| allocate(size)).collect();
        let zeroed = allocate_zeroed(3000);
        let aligned: Vec<_> =
            [32, 256, 4096, 65_536, 1 << 21].map(|align| allocate_aligned(100, align)).into();
        let bytes = sizes.iter().sum::<usize>() + 3000 + 5 * 100;
        assert_eq!(sum(), [15, 0, bytes]);
        for (&block, size) in blocks.iter().zip(sizes) {
            // SAFETY: a live block of that size.
            unsafe {
                block.write_bytes(1, size);
                assert!(usable_size(block) >= size);
            }
        }
        // SAFETY: a live block.
        assert!(unsafe { all_zero(zeroed, 3000) });
        for (block, align) in aligned.iter().zip([32, 256, 4096, 65_536, 1 << 21]) {
            assert!(block.addr().is_multiple_of(align));
        }
        // Another thread frees them, alone and together.
        let addresses: Vec<_> =
            blocks.into_iter().chain([zeroed]).map(|block| block.expose_provenance()).collect();
        let freeing = std::thread::spawn(move || {
            for address in addresses {
                free(core::ptr::with_exposed_provenance_mut(address));
            }
        });
        freeing.join().expect("it frees");
        // SAFETY: live blocks.
        unsafe { deallocate_batch(&aligned) };
        assert_eq!(sum(), [15, 15, 0]);
        check();
    });
}

/// Whichever blocks are samples, and whatever has been in a block before.
#[test]
fn zeroed_blocks_are_zero() {
    alone(|| {
        begin(64 << 10);
        for round in 0..20_000 {
            let size = 1 + round * 7919 % MEDIUM_MAX;
            let block = allocate_zeroed(size);
            // SAFETY: a live block of that size.
            unsafe {
                assert!(all_zero(block, size), "{size} bytes in round {round}");
                block.write_bytes(0xaa, size);
            }
            free(block);
        }
        check();
    });
}

#[test]
fn resized_blocks_are_allocated_anew() {
    alone(|| {
        begin(1);
        let steps = [100, 60, 5000, 100_000, 150_000, 90_000, 3 << 20, 50 << 20, 60 << 20, 10];
        let mut block = allocate(16);
        for (step, size) in steps.into_iter().enumerate() {
            // SAFETY: a live block.
            unsafe {
                block = reallocate(block, size);
                block.write_bytes(1, size);
            }
            let [allocated, freed, live] = sum();
            assert_eq!((allocated - freed, live), (1, size), "step {step}");
        }
        // Without memory it stays what it is.
        // SAFETY: a live block.
        assert!(unsafe { reallocate(block, isize::MAX as usize) }.is_null());
        assert_eq!(sum()[2], 10);
        free(block);
        let [allocated, freed, live] = sum();
        assert_eq!((allocated, live), (freed, 0));
        check();
    });
}

#[test]
fn it_stops_and_starts_again() {
    alone(|| {
        begin(1);
        let early = allocate(100);
        assert!(profile_every(0));
        let between = allocate(200);
        assert_eq!(sum(), [1, 0, 100]);
        assert!(profile_every(1));
        let late = allocate(300);
        assert_eq!(sum(), [2, 0, 400]);
        [early, between].into_iter().for_each(free);
        assert!(profile_every(0));
        free(late);
        assert_eq!(sum(), [2, 2, 0]);
        check();
    });
}

/// Whoever asks last draws; what is known stays so.
#[test]
fn it_takes_turns_with_guards() {
    alone(|| {
        begin(1);
        let block = allocate(100);
        assert!(guard_every(1));
        free(allocate(100));
        sample_every(1, |_, _| {});
        // That is not the profile's any more.
        assert!(profile_every(0));
        sample_every(0, |_, _| {});
        assert_eq!(sum(), [1, 0, 100]);
        free(block);
        assert_eq!(sum(), [1, 1, 0]);
    });
}

#[test]
fn a_child_goes_on_with_what_it_has() {
    alone(|| {
        begin(1);
        let blocks: Vec<_> = (0..100).map(|_| allocate(100)).collect();
        // Others change the table meanwhile.
        let busy = || {
            std::thread::spawn(|| {
                (0..20_000).for_each(|round| free(allocate(1 + round % 100)));
            })
        };
        let threads = [busy(), busy()];
        for _ in 0..20 {
            // SAFETY: the child allocates, frees and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let before = sum();
                blocks.iter().for_each(|&block| free(block));
                let block = allocate(100);
                let after = sum();
                let is_right = after[0] == before[0] + 1 && after[1] == before[1] + 100;
                free(block);
                // SAFETY: nothing is to be done at its end.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            let mut status = 0;
            // SAFETY: the place is valid.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it goes on"));
        blocks.into_iter().for_each(free);
        let [allocated, freed, live] = sum();
        assert_eq!((allocated, live), (freed, 0));
    });
}

/// Blocks of the program's heaps are none: they may go at once.
#[test]
fn blocks_of_destroyed_heaps_are_not_live() {
    alone(|| {
        begin(1);
        let mut mapped = Vec::new();
        for _ in 0..200 {
            mapped.push(mapped_pages());
            let heap = Heap::new().expect("there is memory");
            let block = heap.allocate(100_000, 16);
            // SAFETY: a live block.
            unsafe { reallocate(block, 120_000) };
            assert!(!heap.allocate(100, 16).is_null());
            heap.destroy();
            // In the same place.
            let block = allocate(100_000);
            assert_eq!(sum()[2], 100_000);
            free(block);
            assert_eq!(sum()[2], 0);
        }
        // They leave nothing behind.
        assert!(mapped[199] <= mapped[50] + 20, "{} and {} pages", mapped[50], mapped[199]);
        check();
    });
}

fn mapped_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("a line");
    text.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number")
}

/// What was live when most was stays known, whatever comes and goes after it.
#[test]
fn the_peak_is_known() {
    let at_peak = |size: usize| {
        let sites = profile::sites().filter(|site| site.weighed == class_bytes(size));
        sites.map(|site| site.at_peak.count).sum::<usize>()
    };
    alone(|| {
        begin(1);
        let few: Vec<_> = (0..10).map(|_| allocate(100)).collect();
        assert_eq!(at_peak(100), 10);
        few[..6].iter().for_each(|&block| free(block));
        assert_eq!(at_peak(100), 10);
        let many: Vec<_> = (0..20).map(|_| allocate(1000)).collect();
        assert_eq!((at_peak(100), at_peak(1000)), (4, 20));
        many.into_iter().for_each(free);
        let others: Vec<_> = (0..20).map(|_| allocate(500)).collect();
        few[6..].iter().for_each(|&block| free(block));
        assert_eq!((at_peak(100), at_peak(1000), at_peak(500)), (4, 20, 0));
        let large = allocate(100_000);
        assert_eq!((at_peak(100), at_peak(1000), at_peak(500)), (0, 0, 20));
        free(large);
        others.into_iter().for_each(free);
        assert_eq!(at_peak(500), 20);
    });
}

/// By what samples stand for: the peak is that of all blocks, not of samples.
#[test]
fn the_peak_counts_all_blocks() {
    alone(|| {
        begin(64 << 10);
        let blocks: Vec<_> = (0..200_000).map(|_| allocate(filling(96))).collect();
        blocks.into_iter().for_each(free);
        // 11 MiB, less than 18, in blocks that are samples each, or nearly.
        let large: Vec<_> = (0..30).map(|_| allocate(400_000)).collect();
        large.into_iter().for_each(free);
        let sites = profile::sites().filter(|site| site.weighed == 96);
        let (all, peak) = sites.fold((0, 0), |(all, peak), site| {
            (all + site.allocated.count, peak + site.at_peak.count)
        });
        assert!(all > 200 && all == peak, "{peak} of {all}");
    });
}

#[test]
fn lifetimes_are_known() {
    alone(|| {
        begin(1);
        let begun = Instant::now();
        free(allocate(100));
        let was_soon = begun.elapsed() < Duration::from_millis(1);
        let late = allocate(100);
        std::thread::sleep(Duration::from_millis(15));
        free(late);
        let mut lived = [0; 8];
        for site in profile::sites().filter(|site| site.weighed == class_bytes(100)) {
            lived.iter_mut().zip(site.lived()).for_each(|(sum, count)| *sum += count);
        }
        assert_eq!(lived.iter().sum::<u32>(), 2, "{lived:?}");
        assert!(lived[2..].iter().any(|&count| count > 0), "{lived:?}");
        assert!(lived[0] == 1 || !was_soon, "{lived:?}");
    });
}

/// What survivors keep is the pages that they touch, where their neighbours have gone; before, their own bytes.
#[test]
fn what_survivors_keep_is_known() {
    let kept = |size: usize| {
        let (mut text, mut pinned) = (Vec::new(), 0.0);
        write_profile(|piece| text.extend_from_slice(piece));
        let (mut is_ours, size_text) = (false, size.to_string());
        for line in std::str::from_utf8(&text).expect("it is text").lines() {
            let mut words = line.split(' ');
            match (words.next(), words.next()) {
                (Some("site"), weighed) => is_ours = weighed == Some(&*size_text),
                (Some("pinned"), Some(bytes)) if is_ours => {
                    pinned += bytes.parse::<f64>().expect("a number");
                }
                _ => {}
            }
        }
        let sites = profile::sites().filter(|site| site.weighed == size);
        pinned / sites.map(|site| site.allocated.count - site.freed.count).sum::<usize>() as f64
    };
    for (size, count) in [(96, 100_000), (class_bytes(2200), 4000), (class_bytes(4200), 2000)] {
        alone(|| {
            begin(4 << 10);
            let blocks: Vec<_> = (0..count).map(|_| allocate(filling(size))).collect();
            let (dense, bytes, page) = (kept(size), size as f64, os::page_size() as f64);
            assert!((bytes * 0.93..bytes * 1.3).contains(&dense), "{size}: {dense}");
            for (nth, block) in blocks.iter().enumerate() {
                if nth % 50 != 0 {
                    free(*block);
                }
            }
            let sparse = kept(size);
            assert!((page * 0.4..=page + bytes).contains(&sparse), "{size}: {sparse}");
            assert!(sparse > bytes * 1.3, "{size}: {sparse}");
            blocks.into_iter().step_by(50).for_each(free);
        });
    }
}

#[test]
fn it_is_written_as_text() {
    alone(|| {
        begin(1);
        // Of which no block lies on two pages.
        let asked = filling(128);
        let block = allocate(asked);
        let mut text = Vec::new();
        write_profile(|piece| text.extend_from_slice(piece));
        free(block);
        let text = String::from_utf8(text).expect("it is text");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("cairn heap profile 2"));
        assert_eq!(lines.next(), Some("rate 1"));
        assert_eq!(lines.next(), Some("dropped 0"));
        let site = lines.next().expect("a site");
        let start = std::format!("site {} 1 1 {asked} 0 0 ", class_bytes(asked));
        // Behind it the stack, where one is read.
        assert!(std::format!("{site} ").starts_with(&start), "{site}");
        assert_eq!(lines.next(), Some(&*std::format!("peak 1 {asked}")));
        assert_eq!(lines.next(), Some(&*std::format!("pinned {}", os::page_size())));
        assert_eq!(lines.next(), Some("mappings"));
        assert!(lines.clone().any(|line| line.contains(" r-xp ")));
        assert_eq!(lines.last(), Some("end"));
    });
}

#[test]
fn without_memory_it_says_so() {
    alone(|| {
        free(allocate(64));
        os::fault::arm(0, true);
        assert!(!profile_every(1));
        os::fault::disarm();
        free(allocate(64));
        assert!(profile_every(1));
        let block = allocate(100);
        assert_eq!(sum(), [1, 0, 100]);
        free(block);
    });
}

/// What a heap has for its samples stays with its place, whatever stands there next.
#[test]
fn heaps_that_come_and_go_lose_no_page() {
    fn mapped() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        status.split(' ').next().expect("pages").parse().expect("a number")
    }
    alone(|| {
        begin(64 << 10);
        let turn = || {
            Other::once(|| free(allocate(64)));
            let heap = Heap::shared().expect("memory");
            free(heap.allocate(100, 16));
            heap.destroy();
        };
        (0..20).for_each(|_| turn());
        let before = mapped();
        (0..300).for_each(|_| turn());
        assert!(mapped() < before + 100, "{} more", mapped() - before);
    });
}
