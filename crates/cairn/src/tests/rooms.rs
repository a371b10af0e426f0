//! Rooms by themselves, on a test's own memory: nothing is reserved and no process started. So Miri
//! runs them, too (`cargo xtask miri`), and fewer rounds.

use super::alone::Random;
use crate::base::size_class::class_of;
use crate::base::{CACHE_UNITS, values};
use crate::heap::Member;
use crate::large::Budget;
use crate::map::{Block, Chain, END, FreeList};
use crate::os::Got;
use crate::os::Lock;
use crate::spans::{Span, SpanList, expect_end};
use crate::store::caches::Lists;
use crate::store::filling::READY;
use crate::store::{Filling, Limit, Store};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::boxed::Box;
use std::collections::VecDeque;
use std::vec::Vec;

const ROUNDS: usize = if cfg!(miri) { 200 } else { 20_000 };

/// The memory of some blocks.
struct Blocks {
    memory: Vec<[MaybeUninit<u128>; 3]>,
}

impl Blocks {
    fn new(count: usize) -> Blocks {
        Blocks { memory: std::vec![[MaybeUninit::uninit(); 3]; count] }
    }

    fn all(&mut self) -> Vec<*mut Block> {
        let start: *mut [MaybeUninit<u128>; 3] = self.memory.as_mut_ptr();
        (0..self.memory.len()).map(|nth| start.wrapping_add(nth).cast()).collect()
    }
}

/// The blocks from `first` on.
fn listed(first: *mut Block) -> Vec<*mut Block> {
    // SAFETY: links that the test has set.
    let next = |&at: &*mut Block| Some(unsafe { Block::next(at) }).filter(|next| *next != END);
    core::iter::successors(Some(first).filter(|first| *first != END), next).collect()
}

#[test]
fn chains_have_their_blocks_in_order() {
    let (mut memory, mut chain) = (Blocks::new(20), Chain::EMPTY);
    let blocks = memory.all();
    // SAFETY: the blocks are the test's, as below.
    blocks.iter().rev().for_each(|&block| unsafe { chain.push(block) });
    assert_eq!((chain.list.head, chain.tail, chain.list.count), (blocks[0], blocks[19], 20));
    let mut list = chain.list;
    assert_eq!(listed(list.head), blocks);
    // SAFETY: it has as many.
    let rest = unsafe { list.split(7) };
    assert_eq!(list.count, 7);
    assert_eq!(listed(list.head), blocks[..7]);
    assert_eq!(listed(rest), blocks[7..]);
    let one = Chain::one(blocks[3]);
    assert_eq!((one.list.head, one.tail, one.list.count), (blocks[3], blocks[3], 1));
}

#[test]
fn a_link_is_marked_until_the_program_has_the_block() {
    let mut memory = Blocks::new(2);
    let blocks = memory.all();
    // SAFETY: the test's blocks; what is looked at has been written.
    unsafe {
        Block::set_next(blocks[0], blocks[1]);
        Block::set_next(blocks[1], END);
        for block in &blocks {
            assert!(Block::is_marked(*block));
        }
        assert_eq!(Block::peek_next(blocks[0]), blocks[1]);
        assert_eq!(Block::peek_next(blocks[1]), END);
        Block::unmark(blocks[0]);
        assert!(!Block::is_marked(blocks[0]));
        assert!(Block::raw_link(blocks[0]).is_null() && Block::peek_next(blocks[0]).is_null());
    }
}

#[test]
fn caches_give_what_came_last_and_take_up_to_their_limit() {
    let mut memory = Blocks::new(64);
    let (blocks, class) = (memory.all(), class_of(48));
    let mut caches = Lists::EMPTY;
    let this = &raw mut caches;
    // SAFETY: the test's caches and blocks.
    unsafe {
        assert!(Lists::pop(this, class).is_null() && (*this).is_empty(class));
        assert_eq!(Lists::push(this, class, blocks[0]), blocks[0], "it takes in none yet");
        let mut list = FreeList::EMPTY;
        blocks[..3].iter().rev().for_each(|&block| list.push(block));
        let limit = Limit(8 * CACHE_UNITS + CACHE_UNITS - 1);
        assert_eq!(Lists::fill(this, class, list, limit, |_, _| ()), blocks[0]);
        let taken =
            blocks[3..].iter().take_while(|&&block| Lists::push(this, class, block).is_null());
        let taken = taken.count();
        assert_eq!(taken, 6, "two are there, and each costs a unit more");
        assert_eq!((*this).first(class), blocks[8]);
        assert_eq!(Lists::peek(this, class), blocks[8]);
        for nth in (3..9).rev().chain(1..3) {
            let block = Lists::pop(this, class);
            assert_eq!(block, blocks[nth]);
            assert!(Block::raw_link(block).is_null());
        }
        expect_end(class, (*this).first(class));
        assert!(Lists::pop(this, class).is_null());
        assert!((*this).is_empty(class_of(64)) && (*this).take_all(class) == END);
        assert_eq!((*this).left(class), 0);
    }
}

#[test]
fn zeroed_caches_say_so() {
    let mut memory = Blocks::new(3);
    let (blocks, class) = (memory.all(), class_of(48));
    let (mut caches, mut list) = (Lists::EMPTY, FreeList::EMPTY);
    let this = &raw mut caches;
    // SAFETY: the test's caches and blocks.
    unsafe {
        blocks.iter().rev().for_each(|&block| list.push(block));
        assert_eq!(Lists::fill(this, class, list, Limit::ZEROED, |_, _| ()), blocks[0]);
        assert!((*this).is_zeroed(class));
        assert_eq!(Lists::push(this, class, blocks[0]), blocks[0], "it is not zero");
        assert_eq!(Lists::pop(this, class), blocks[1]);
        assert!((*this).is_zeroed(class));
    }
}

/// Each block once, wherever it comes to stand.
#[test]
fn rows_are_filled_with_each_block_once() {
    let mut memory = Blocks::new(READY as usize);
    let blocks = memory.all();
    for (bits, most) in [(0b1011_u64 << 40 | 1, 31), (!0, 5), (0, 31)] {
        let mut row = [null_mut(); READY as usize];
        let mut filling = Filling { ready: row.as_mut_ptr(), count: 0, random: 12345 };
        // SAFETY: the row has room; what it has is not looked at.
        let is_full = unsafe {
            filling.add(blocks[30]);
            filling.add_each(blocks[0].cast(), bits, most)
        };
        let places = (0..64).filter(|place| bits >> place & 1 == 1);
        let all = places.map(|place| blocks[0].wrapping_byte_add(place * 16));
        let mut expected: Vec<_> = [blocks[30]].into_iter().chain(all.take(most - 1)).collect();
        let count = filling.count;
        assert_eq!((count, is_full), (expected.len(), expected.len() == most));
        expected.sort();
        let mut found = row[..count].to_vec();
        found.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn lists_of_spans_agree_with_a_plain_one() {
    let mut random = Random(77);
    // SAFETY: numbers and null pointers.
    let mut spans: Box<[Span; 9]> = unsafe { Box::new_zeroed().assume_init() };
    let start: *mut Span = spans.as_mut_ptr();
    let (mut list, mut plain) = (SpanList::EMPTY, VecDeque::new());
    for _ in 0..ROUNDS {
        let span = start.wrapping_add(random.below(9));
        // SAFETY: the test's spans; one that is in the list is in this one.
        unsafe {
            if let Some(at) = plain.iter().position(|other| *other == span) {
                let after = plain.get(at + 1).copied().unwrap_or(null_mut());
                assert_eq!(SpanList::after(span), after);
                list.remove(span);
                plain.remove(at);
                assert!(SpanList::after(span).is_null());
            } else if random.below(2) == 0 {
                list.push_front(span);
                plain.push_front(span);
            } else {
                list.push_back(span);
                plain.push_back(span);
            }
        }
        let ends = [plain.front(), plain.back()].map(|end| end.copied().unwrap_or(null_mut()));
        assert_eq!(([list.first(), list.last()], list.len()), (ends, plain.len()));
        assert!(
            list.iter().map(core::ptr::from_ref).eq(plain.iter().map(|span| span.cast_const()))
        );
    }
}

fn budget() -> Budget {
    // SAFETY: all zeros are nothing, and no limits.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[test]
fn a_budget_is_kept() {
    let budget = budget();
    assert!(budget.take(300) && !budget.is_limited() && budget.limit(500, 1000));
    assert!(!budget.limit(0, 299) && budget.has_limit());
    assert!(budget.take_large(200) && !budget.is_due());
    budget.take_nursery(1);
    assert!(budget.is_over() && budget.is_due() && !budget.is_due(), "it is told once");
    assert!(
        !budget.take(500) && !budget.may_take(500) && budget.take(499) && !budget.grow_large(1)
    );
    budget.give(499);
    budget.shrink_large(50);
    assert!(!budget.is_over() && budget.grow_large(51) && budget.is_due(), "and again");
    let stats = budget.stats();
    assert_eq!((stats.spans, stats.large, stats.large_blocks, stats.peak), (301, 201, 1, 1000));
    budget.give_large(201);
    budget.give_nursery(1);
    budget.give(300);
    let stats = budget.stats();
    assert_eq!((stats.spans, stats.large, stats.large_blocks, stats.peak), (0, 0, 0, 1000));
    assert!(!budget.take(usize::MAX), "no sum overflows");
    budget.set_told(core::ptr::dangling_mut(), [7, 8]);
    assert_eq!(budget.told(), Some((core::ptr::dangling_mut(), [7, 8])));
}

#[test]
fn nobody_is_told_of_what_was_never_there() {
    let budget = budget();
    assert!(budget.limit(500, 0) && budget.take_large(400) && budget.grow_large(200));
    budget.ungrow_large(200);
    assert!(!budget.is_due() && !budget.is_over());
    assert_eq!((budget.stats().large, budget.stats().peak), (400, 400));
    assert!(budget.grow_large(200) && budget.is_due(), "and then of what is");
    budget.ungrow_large(10);
    assert!(budget.is_over(), "there is more than that still");
}

#[test]
fn threads_together_keep_a_budget() {
    let budget = budget();
    assert!(budget.limit(0, 100));
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let budget = &budget;
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..ROUNDS {
                    let bytes = 1 + random.below(60);
                    if budget.take_large(bytes) {
                        assert!(budget.stats().large <= 100);
                        budget.give_large(bytes);
                    }
                }
            });
        }
    });
    assert_eq!((budget.stats().spans, budget.stats().large), (0, 0));
}

#[test]
fn threads_take_turns_at_a_lock() {
    static LOCK: Lock<Vec<usize>> = Lock::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || (0..ROUNDS).for_each(|_| LOCK.lock().push(thread)));
        }
    });
    let all = LOCK.lock();
    (0..3).for_each(|thread| assert_eq!(all.iter().filter(|&&by| by == thread).count(), ROUNDS));
}

#[test]
fn values_are_read_to_their_end() {
    let switches: [(&[u8], _); 5] =
        [(b"1", Some(true)), (b"0", Some(false)), (b"", Some(false)), (b"2", None), (b"11", None)];
    switches.iter().for_each(|(text, value)| assert_eq!(values::switch(text), *value));
    let times: [(&[u8], _); 6] = [
        (b"250ms", Some(250)),
        (b"2s", Some(2000)),
        (b"0", Some(0)),
        (b"7", None),
        (b"ms", None),
        (b"18446744073709551615s", None),
    ];
    times.iter().for_each(|(text, value)| assert_eq!(values::milliseconds(text), *value));
    let sizes: [(&[u8], _); 8] = [
        (b"10MiB", Some(10 << 20)),
        (b"3KiB", Some(3 << 10)),
        (b"2GiB", Some(2 << 30)),
        (b"99", Some(99)),
        (b"", None),
        (b"1kib", None),
        (b"18446744073709551616", None),
        (b"17179869184GiB", None),
    ];
    sizes.iter().for_each(|(text, value)| assert_eq!(values::bytes(text), *value));
}

/// Whose turn it is: one at a time, and nobody's after the last one.
#[test]
fn turns_are_taken_one_at_a_time() {
    let turn = Member::of_nobody().turn;
    assert!(turn.enter() == Got::Alone && turn.enter() == Got::Alone && !turn.is_shut());
    turn.shut();
    assert!(turn.is_shut() && turn.enter() == Got::Nothing);
    let turn = Member::of_nobody().turn;
    turn.open();
    for _ in 0..2 {
        for _ in 0..2 {
            assert!(turn.enter() == Got::Turn && turn.enter() == Got::Nothing);
            turn.leave();
        }
        turn.shut();
        assert!(turn.is_shut() && turn.enter() == Got::Nothing);
        turn.begin_anew();
    }
    turn.shut();
    turn.close();
    turn.begin_anew();
    assert!(turn.enter() == Got::Alone);
}
