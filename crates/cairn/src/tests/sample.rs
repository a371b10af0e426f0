//! Sampled allocations: exactly those in which the count runs out, whatever is freed meanwhile.

mod probes;
mod profile;
mod unwind;

use super::alone::alone;
use super::filling;
use super::heaps::Other;
use crate::samples::{self, Draw, guards, profile as profiles, sampling};
use crate::{
    allocate, allocate_zeroed, check, deallocate, guard_every, profile_every, sample_every,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

static SAMPLES: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);
static SIZE: AtomicUsize = AtomicUsize::new(0);

fn told(block: *mut u8, size: usize) {
    SAMPLES.fetch_add(1, Ordering::Relaxed);
    LAST.store(block.addr(), Ordering::Relaxed);
    SIZE.store(size, Ordering::Relaxed);
}

/// Whether the allocation of `block` was a sample, as the last one told of.
fn was_sampled(block: *mut u8, before: usize) -> bool {
    let samples = SAMPLES.load(Ordering::Relaxed) - before;
    assert!(samples <= 1);
    assert!(samples == 0 || LAST.load(Ordering::Relaxed) == block.addr());
    samples == 1
}

#[test]
fn each_allocation_is_counted_once() {
    alone(|| {
        // A full cache, which nobody has counted.
        let warm: Vec<_> = (0..200).map(|_| allocate(filling(64))).collect();
        // SAFETY: live blocks.
        warm.into_iter().for_each(|block| unsafe { deallocate(block) });
        sample_every(10_000, told);
        // 156 blocks of 64 bytes fit; the next one is the sample.
        for round in 0..5 * 157 {
            let before = SAMPLES.load(Ordering::Relaxed);
            let block = allocate(filling(64) - 4);
            assert_eq!(was_sampled(block, before), round % 157 == 156, "allocation {round}");
            // Some stay: pairs and batches are counted alike.
            if round % 3 > 0 {
                // SAFETY: a live block.
                unsafe { deallocate(block) };
            }
        }
        assert_eq!(SIZE.load(Ordering::Relaxed), 64);
        check();
    });
}

#[test]
fn classes_share_the_count() {
    alone(|| {
        sample_every(100_000, told);
        let mut bytes = 0;
        for round in 0..30_000 {
            let size = [16, 64, 1024, 4096][round % 4];
            bytes += size;
            let block = allocate(filling(size));
            // SAFETY: a live block.
            unsafe { deallocate(block) };
        }
        // What refills have handed out, and a sample that each class still owes.
        let (samples, exact) = (SAMPLES.load(Ordering::Relaxed), bytes / 100_000);
        assert!(samples.abs_diff(exact) <= exact / 20 + 4, "{samples} samples, not {exact}");
        check();
    });
}

/// Who ends its own sampling leaves that of another one who begins at the same time.
#[test]
#[cfg(not(miri))]
fn an_end_ends_no_other_s() {
    alone(|| {
        let other: samples::Told = |_, _| ();
        for round in 1..=5_000 {
            sampling::set(1 << 20, Draw::Each, told, None);
            let ready = AtomicUsize::new(0);
            let together = || {
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < 2 {
                    std::hint::spin_loop();
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    together();
                    sampling::end(told);
                });
                together();
                sampling::set(2 << 20, Draw::Each, other, None);
            });
            assert_eq!(sampling::wanted_interval(), 2 << 20, "round {round}");
        }
        sampling::end(other);
    });
}

#[test]
fn nothing_is_told_after_the_end() {
    alone(|| {
        sample_every(64, told);
        // SAFETY: a live block.
        let pair = || unsafe { deallocate(allocate(64)) };
        pair();
        sample_every(0, told);
        let before = SAMPLES.load(Ordering::Relaxed);
        (0..1000).for_each(|_| pair());
        assert_eq!(SAMPLES.load(Ordering::Relaxed), before);
        check();
    });
}

/// Who draws samples takes that over, and what another one has asked for is not done any more: a tool outside sees it, and may
/// ask again.
#[test]
fn who_loses_the_sampler_may_ask_again() {
    const RATE: usize = 1 << 20;
    alone(|| {
        let (guarded, profiled) = (&guards::ASKED, &profiles::CONTROL.asked);
        assert!(guard_every(RATE) && profile_every(RATE));
        assert_eq!((guarded.done(), profiled.done()), (0, RATE));
        guarded.want(RATE);
        guards::follow();
        assert_eq!((guarded.done(), profiled.done()), (RATE, 0));
        profiles::follow();
        assert_eq!((guarded.done(), profiled.done()), (RATE, 0), "nobody wants it now");
        profiled.want(RATE);
        profiles::follow();
        assert_eq!((guarded.done(), profiled.done()), (0, RATE));
        sample_every(10_000, told);
        assert_eq!((guarded.done(), profiled.done()), (0, 0));
    });
}

/// Nor does a loop that lives in its cache make a tool outside wait until upkeep is due, at each 64th slow tick: the heap
/// looks at each eighth slow tick.
#[test]
fn a_tool_outside_is_heard_at_a_slow_tick() {
    alone(|| {
        // SAFETY: a live block.
        let pair = || unsafe { deallocate(allocate(64)) };
        pair();
        for asked in [&profiles::CONTROL.asked, &guards::ASKED] {
            // The last one cannot be had: it is taken back.
            for bytes in [1 << 20, 0, usize::MAX] {
                asked.want(bytes);
                let pairs = (0..1 << 20).take_while(|_| {
                    pair();
                    samples::is_asked()
                });
                assert!(pairs.count() < 500_000, "{bytes}");
            }
        }
    });
}

/// Who is told of a sample shall not allocate. If it does all the same, nobody gets as zero what is not.
#[test]
fn zeroed_blocks_are_zero_whatever_is_done_when_told() {
    fn allocates(_: *mut u8, size: usize) {
        if SAMPLES.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            core::hint::black_box(allocate(size));
        }
    }
    alone(|| {
        const SIZE: usize = 48;
        let block = allocate(SIZE);
        sample_every(1, allocates);
        for _ in 0..1000 {
            let block = allocate_zeroed(SIZE);
            // SAFETY: the block has so many bytes, and goes.
            unsafe {
                assert!((0..SIZE).all(|at| block.add(at).read() == 0));
                block.write_bytes(0xee, SIZE);
                deallocate(block);
            }
        }
        sample_every(0, allocates);
        // SAFETY: a live block.
        unsafe { deallocate(block) };
        check();
    });
}

/// The first blocks of a thread, too, which it shares with others.
#[test]
fn the_first_blocks_of_each_thread_count() {
    alone(|| {
        // SAFETY: a live block.
        unsafe { deallocate(allocate(64)) };
        sample_every(1, told);
        let other = Other::new();
        let before = SAMPLES.load(Ordering::Relaxed);
        let size = filling(3072);
        let blocks = other.allocates(size, 5);
        assert!(SAMPLES.load(Ordering::Relaxed) - before >= 5);
        sample_every(0, told);
        // SAFETY: live blocks.
        blocks.into_iter().for_each(|block| unsafe { deallocate(block) });
        other.leaves();
        check();
    });
}
