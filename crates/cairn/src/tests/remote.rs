//! The remote word, state by state, in one thread. What several threads make of it is for the
//! models to say.

use crate::map::{Block, Chain, END, FreeList, Pushed, RemoteWord};
use std::boxed::Box;
use std::vec::Vec;

/// As many blocks of 16 bytes as the largest span has room for.
const BLOCKS: usize = 32 << 10;

/// A word, and a span's memory that is never looked at but through links.
struct Span {
    word: RemoteWord,
    base: *mut u8,
    /// What `base` points into.
    memory: *mut [u8],
}

impl Span {
    fn new() -> Span {
        let memory = Box::into_raw(std::vec![0u8; (BLOCKS + 1) * 16].into_boxed_slice());
        let start = memory.cast::<u8>();
        let base = start.wrapping_add(start.align_offset(16));
        Span { word: RemoteWord::default(), base, memory }
    }

    fn block(&self, i: usize) -> *mut Block {
        assert!(i < BLOCKS);
        self.base.wrapping_add(i * 16).cast()
    }

    fn push(&self, blocks: &[usize]) -> Pushed {
        let mut chain = Chain::EMPTY;
        // SAFETY: the memory is this test's alone; each block is named once at a time.
        unsafe {
            for &i in blocks {
                chain.push(self.block(i));
            }
            self.word.push(self.base, chain, None)
        }
    }

    /// The numbers of a list's blocks, which ends where it says.
    fn numbers(&self, list: FreeList) -> Vec<usize> {
        let mut numbers = Vec::new();
        let mut at = list.head;
        while !at.is_null() && at != END {
            numbers.push((at.addr() - self.base.addr()) / 16);
            // SAFETY: links of blocks that have been pushed.
            at = unsafe { Block::next(at) };
        }
        assert_eq!(numbers.len(), list.count as usize);
        numbers
    }

    fn assert_state(&self, held: bool, pending: u32, listed_live: Option<u32>) {
        assert_eq!(self.word.is_owned(), held);
        assert_eq!(self.word.pending(), pending);
        assert_eq!(self.word.listed_live(), listed_live);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: made so by `new`; nobody else has it.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

#[test]
fn what_is_pushed_comes_back_once_the_last_batch_first() {
    let span = Span::new();
    span.assert_state(true, 0, None);
    assert_eq!(span.numbers(span.word.collect(span.base)), []);
    assert_eq!(span.push(&[3]), Pushed::Queued);
    span.assert_state(true, 1, None);
    assert_eq!(span.push(&[0, BLOCKS - 1, 9]), Pushed::Queued);
    span.assert_state(true, 4, None);
    assert_eq!(span.numbers(span.word.collect(span.base)), [9, BLOCKS - 1, 0, 3]);
    span.assert_state(true, 0, None);
    assert_eq!(span.numbers(span.word.collect(span.base)), []);
    assert_eq!(span.push(&[7]), Pushed::Queued);
    assert_eq!(span.numbers(span.word.collect(span.base)), [7]);
}

#[test]
fn only_a_full_span_becomes_an_abandoned() {
    let span = Span::new();
    span.push(&[1]);
    assert!(!span.word.abandon());
    span.assert_state(true, 1, None);
    assert_eq!(span.numbers(span.word.collect(span.base)), [1]);
    assert!(span.word.abandon());
    span.assert_state(false, 0, None);
    assert!(span.word.reclaim(span.base).is_none());
}

#[test]
fn a_push_claims_an_abandoned_span_and_keeps_its_batch() {
    let span = Span::new();
    assert!(span.word.abandon());
    // Whatever stands in the last link: the claimer's chain ends there.
    // SAFETY: the memory is this test's alone.
    unsafe { Block::set_next(span.block(5), span.block(6)) };
    assert_eq!(span.push(&[5, 2]), Pushed::Claimed);
    span.assert_state(true, 0, None);
    let list = FreeList { head: span.block(2), count: 2 };
    let chain = Chain { list, tail: span.block(5) };
    assert_eq!(span.numbers(chain.list), [2, 5]);
    // The next is queued for the claimer.
    assert_eq!(span.push(&[8]), Pushed::Queued);
    span.assert_state(true, 1, None);
}

#[test]
fn a_listed_span_is_reclaimed_with_what_is_pending() {
    let span = Span::new();
    span.push(&[1]);
    assert!(span.word.list(4));
    span.assert_state(false, 1, Some(3));
    assert_eq!(span.push(&[2, 3]), Pushed::Listed);
    span.assert_state(false, 3, Some(1));
    let chain = span.word.reclaim(span.base).expect("it is listed");
    assert_eq!(span.numbers(chain), [3, 2, 1]);
    span.assert_state(true, 0, None);
    assert!(span.word.reclaim(span.base).is_none());
}

#[test]
fn the_last_free_into_a_listed_span_claims_it_empty() {
    let span = Span::new();
    assert!(span.word.list(3));
    span.assert_state(false, 0, Some(3));
    assert_eq!(span.push(&[1]), Pushed::Listed);
    assert_eq!(span.push(&[2, 3]), Pushed::ClaimedEmpty);
    span.assert_state(true, 0, None);
    assert!(span.word.reclaim(span.base).is_none());
}

#[test]
fn a_span_whose_blocks_are_all_pending_is_not_listed() {
    let span = Span::new();
    span.push(&[1, 2]);
    assert!(!span.word.list(2));
    span.assert_state(true, 2, None);
    assert_eq!(span.numbers(span.word.collect(span.base)), [2, 1]);
}

/// The widest numbers that the word can carry do not run into each other.
#[test]
fn the_fields_of_the_word_lie_apart() {
    let span = Span::new();
    const MOST: u32 = 2047;
    assert!(span.word.list(MOST));
    span.assert_state(false, 0, Some(MOST));
    // As many as any span has, the farthest of all.
    const COUNT: usize = 1024;
    let all: Vec<usize> = (BLOCKS - COUNT..BLOCKS).collect();
    assert_eq!(span.push(&all), Pushed::Listed);
    span.assert_state(false, COUNT as u32, Some(MOST - COUNT as u32));
    let chain = span.word.reclaim(span.base).expect("it is listed");
    let mut numbers = span.numbers(chain);
    numbers.reverse();
    assert_eq!(numbers, all);
    // The generation goes round, and takes nothing else along.
    let first = span.word.generation();
    assert_eq!(span.push(&all), Pushed::Queued);
    span.word.destroy();
    assert!(span.word.generation() != first);
    span.assert_state(true, 0, None);
    if !cfg!(miri) {
        (1..1 << 24).for_each(|_| span.word.destroy());
        assert!(span.word.generation() == first);
        span.assert_state(true, 0, None);
    }
}
