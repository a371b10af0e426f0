//! Eight threads pass blocks of two sizes through shared slots: nearly every block is freed by
//! another thread than its allocator, all of them out of few spans. This is the traffic in which
//! spans change their owner most often.
//!
//! Every word of a block is written with the block's tag when it is allocated, and looked at when
//! it is freed: a block that is handed out twice, or written to while it is free, is noticed.
//!
//! To run it, and the random operations of oracle.rs, for ten minutes each:
//!
//! ```text
//! CAIRN_STRESS_SECONDS=600 cargo test --profile library -p cairn-malloc --test traffic --test oracle
//! ```

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 8;
const SIZES: [usize; 2] = [64, 1024];
/// Few enough that a block stays in its slot for a short time only.
const SLOTS: usize = 512;
/// Rounds of a thread between two looks at the clock.
const ROUNDS: usize = 4096;

/// One shared place for each size, so that a block found there has a known size.
static TABLE: [[AtomicPtr<u64>; SLOTS]; 2] =
    [const { [const { AtomicPtr::new(null_mut()) }; SLOTS] }; 2];

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

/// A block all of whose words say `tag`, each in its own way.
fn make(size: usize, tag: u64) -> *mut u64 {
    let block: *mut u64 = cairn::allocate(size).cast();
    assert!(!block.is_null());
    for word in 0..size / 8 {
        // SAFETY: inside the block.
        unsafe { block.add(word).write(tag ^ (word as u64) << 48) };
    }
    block
}

fn destroy(block: *mut u64, size: usize) {
    // SAFETY: whoever took the block out of its slot owns it; its words have been written.
    unsafe {
        let tag = block.read();
        for word in 0..size / 8 {
            let got = block.add(word).read() ^ (word as u64) << 48;
            assert_eq!(got, tag, "word {word} of {size} bytes at {block:p}");
            // Nobody may find the tag in a block that is free.
            block.add(word).write(!0);
        }
        assert_ne!(tag, !0, "{size} bytes at {block:p} are free already");
        cairn::deallocate(block.cast());
    }
}

/// Exchanges blocks until `until_event`; `burst` blocks are allocated at a time.
fn exchange(seed: u64, burst: usize, until: Instant) {
    static NEXT_TAG: AtomicU64 = AtomicU64::new(1);
    let mut state = seed;
    let mut hand = Vec::with_capacity(burst);
    loop {
        let first_tag = NEXT_TAG.fetch_add(ROUNDS as u64, Ordering::Relaxed);
        for round in (0..ROUNDS).step_by(burst) {
            let which = random(&mut state) >> 20 & 1;
            let (size, slots) = (SIZES[which], &TABLE[which]);
            for i in 0..burst {
                hand.push(make(size, first_tag + (round + i) as u64));
            }
            for block in hand.drain(..) {
                let slot = &slots[(random(&mut state) >> 20) % SLOTS];
                // Release: the words of what goes in; acquire: of what comes out.
                let found = slot.swap(block, Ordering::AcqRel);
                if !found.is_null() {
                    destroy(found, size);
                }
            }
        }
        if Instant::now() >= until {
            return;
        }
    }
}

fn drain() {
    for (which, slots) in TABLE.iter().enumerate() {
        for slot in slots {
            let block = slot.swap(null_mut(), Ordering::AcqRel);
            if !block.is_null() {
                destroy(block, SIZES[which]);
            }
        }
    }
}

#[test]
fn blocks_of_one_size_go_round_between_threads() {
    let seconds = std::env::var("CAIRN_STRESS_SECONDS").ok().and_then(|s| s.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    // Generations: what one leaves in the slots is freed by the next, after its threads are gone.
    for generation in 1.. {
        let end = until.min(Instant::now() + Duration::from_millis(500));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                // Some alternate, some allocate more than a span at a time.
                let burst = [1, 1, 8, 64, 1, 8, 64, 512][thread as usize % 8];
                let seed = generation * THREADS + thread + 0x9e37_79b9;
                std::thread::spawn(move || exchange(seed, burst, end))
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread finds a wrong word");
        }
        cairn::check();
        if generation % 3 == 0 {
            drain();
            cairn::purge();
            cairn::check();
        }
        if Instant::now() >= until && generation >= 3 {
            break;
        }
    }
    drain();
    cairn::purge();
    cairn::check();
    let left = cairn::Stats::take();
    let blocks: usize = left.classes.iter().map(|class| class.in_use + class.cached).sum();
    assert_eq!(blocks, 0, "blocks are lost");
    assert_eq!(left.spans.bytes, 0, "spans without blocks in use are kept");
}
