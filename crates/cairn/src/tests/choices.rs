//! Which spans a refill takes, and how many full ones a heap holds.

use super::alone::alone;
use super::heaps::{IN_SPAN, Other, SHARED, SIZE, blocks, free, my_tag, owner, row};
use crate::{allocate, check, thread};
use std::vec::Vec;

/// Frees one block after the other out of spans that `gone` has left, so many of each; they are
/// this thread's then, with as many free blocks.
fn take_in(spans: &[&[*mut u8]], counts: &[usize]) {
    for (span, &count) in spans.iter().zip(counts) {
        span[..count].iter().copied().for_each(free);
        assert_eq!(owner(span[0]), my_tag());
    }
}

/// The index of the span, one of `spans`, that a block is in.
fn span_of(spans: &[&[*mut u8]], block: *mut u8) -> Option<usize> {
    spans.iter().position(|span| span[0].addr() >> 14 == block.addr() >> 14)
}

/// Of a heap's own spans the latest that was freed into comes first.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn the_latest_of_its_own_spans_is_taken() {
    alone(|| {
        let gone = Other::new();
        let held = gone.allocates(SIZE, 3 + 12 * IN_SPAN);
        gone.leaves();
        // This thread's heap has none of the class, and keeps no block for the next one.
        free(allocate(64));
        let spans: Vec<_> = held[3..].chunks(IN_SPAN).collect();
        let free_blocks = [3, 12, 8, 5, 10, 9, 1, 2];
        take_in(&spans, &free_blocks);
        for at in (0..free_blocks.len()).rev() {
            for _ in 0..free_blocks[at] {
                assert_eq!(span_of(&spans, allocate(SIZE)), Some(at));
            }
            check();
        }
        assert_eq!(span_of(&spans[..8], allocate(SIZE)), None);
    });
}

#[test]
fn what_others_free_in_the_active_span_comes_first() {
    alone(|| {
        let held = blocks(SIZE, IN_SPAN);
        let other = Other::new();
        other.allocates(64, 1);
        // What a class has not needed for long comes from the shared heap.
        let shared = blocks(SIZE, SHARED - SHARED.min(IN_SPAN / 4));
        other.frees(&held[3..6]);
        let again = blocks(SIZE, 3);
        assert!(again.iter().all(|block| held[3..6].contains(block)));
        assert_eq!(
            (row(SIZE).spans - usize::from(!shared.is_empty()), owner(again[0])),
            (1, my_tag())
        );
        other.leaves();
        check();
    });
}

/// Blocks that were never used are there for later in a span that had to make way.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn untouched_blocks_of_a_span_put_aside_are_used_later() {
    alone(|| {
        let mine = blocks(SIZE, 4);
        let gone = Other::new();
        let left = gone.allocates(SIZE, 3 + 4);
        gone.leaves();
        let spans = row(SIZE).spans;
        // The abandoned span comes before what is untouched, and is used up first.
        let next = blocks(SIZE, 2 * 12);
        let last = left.last().expect("some").addr() >> 14;
        assert!(next[..12].iter().all(|block| block.addr() >> 14 == last));
        assert!(next[12..].iter().all(|block| block.addr() >> 14 == mine[0].addr() >> 14));
        assert_eq!(row(SIZE).spans, spans);
        check();
        allocate(SIZE);
        assert_eq!(row(SIZE).spans, spans + 1);
    });
}

/// Runs upkeep so many times.
fn upkeep(times: usize) {
    // A refill for each round, an upkeep for each 64.
    for _ in 0..times * 64 {
        blocks(16, 100).into_iter().for_each(free);
    }
}

/// A heap whose full spans others free into holds on to fewer; one that uses them again, to more.
#[test]
#[cfg_attr(
    feature = "hardened",
    ignore = "holds more; tests/quarantine.rs has what it does with them"
)]
fn how_many_full_spans_are_held_depends_on_who_frees() {
    alone(|| {
        let other = Other::new();
        other.allocates(64, 1);
        let mut held = blocks(SIZE, 3 + 140 * IN_SPAN);
        let mine = |held: &[*mut u8]| -> Vec<usize> {
            let spans = held[3..].chunks(IN_SPAN).enumerate();
            spans.filter(|(_, span)| owner(span[0]) == my_tag()).map(|(at, _)| at).collect()
        };
        // Half of the room, and the active one.
        assert_eq!(mine(&held).len(), 128 + 1);
        let oldest = 3 + mine(&held)[0] * IN_SPAN;
        other.frees(&held[oldest..=oldest]);
        // The next one pushes it out, which is noticed.
        held.extend(blocks(SIZE, 1));
        upkeep(20);
        let now = mine(&held);
        assert!((64..=66).contains(&now.len()), "a quarter of 256: {}", now.len());
        // Ten of them become usable again, by frees of their own.
        for &at in now.iter().skip(10).take(10) {
            held[3 + at * IN_SPAN..][..8].iter().copied().for_each(free);
        }
        let more = blocks(SIZE, 10 * 8 + 20 * IN_SPAN);
        assert!(more.iter().filter(|&&block| owner(block) == my_tag()).count() >= 10 * 8);
        upkeep(3);
        let heads: std::collections::HashSet<_> = held
            .iter()
            .chain(&more)
            .copied()
            .filter(|&block| owner(block) == my_tag())
            .map(|block| block.addr() >> 14)
            .collect();
        assert!((74..=76).contains(&heads.len()), "ten more: {}", heads.len());
        other.leaves();
        check();
    });
}

/// A class that is needed now and then keeps its spans, whoever there is.
#[test]
#[cfg_attr(feature = "hardened", ignore = "counts what the default build keeps")]
fn spans_of_a_class_in_use_stay() {
    alone(|| {
        let other = Other::new();
        other.allocates(64, 1);
        let held = blocks(SIZE, 3 + 40 * IN_SPAN);
        let spans: Vec<_> = held[3..].chunks(IN_SPAN).collect();
        spans.iter().for_each(|span| span[..8].iter().copied().for_each(free));
        for _ in 0..6 {
            upkeep(7);
            // Half of a round later: those of another span.
            blocks(SIZE, 8);
        }
        assert!(spans.iter().all(|span| owner(span[15]) == my_tag()));
        other.leaves();
        check();
    });
}

/// A thread that empties what another has filled, and allocates none of it, takes in more spans than at first, for a while.
#[test]
#[cfg_attr(feature = "hardened", ignore = "a heap keeps all full spans")]
fn who_empties_spans_takes_in_more() {
    alone(|| {
        // Before the others: else it would have the heap of who leaves.
        free(allocate(64));
        let (gone, stays) = (Other::new(), Other::new());
        stays.allocates(64, 4000);
        let held = gone.allocates(SIZE, 3 + 320 * IN_SPAN);
        gone.leaves();
        let spans: Vec<_> = held[3..].chunks_exact(IN_SPAN).collect();
        let takes_in = |spans: &[&[*mut u8]]| {
            spans.iter().for_each(|span| free(span[0]));
            let taken = spans.iter().filter(|span| owner(span[1]) == my_tag()).count();
            check();
            spans.iter().for_each(|span| span[1..].iter().copied().for_each(free));
            taken
        };
        assert_eq!(takes_in(&spans[..30]), 4);
        for span in &spans[30..260] {
            span.iter().copied().for_each(free);
        }
        // First those that may stay empty; then each one counts. Twelve more, or six, if an upkeep has come by.
        let taken = takes_in(&spans[260..290]);
        assert!((4 + 6..=4 + 12).contains(&taken), "{taken}");
        // Each upkeep leaves half of it.
        for _ in 0..5 * 64 {
            // SAFETY: this thread's heap.
            unsafe { (*thread::heap()).slow_tick() };
        }
        // One that has become empty may count.
        assert!(takes_in(&spans[290..]) <= 4);
        check();
        stays.leaves();
    });
}
