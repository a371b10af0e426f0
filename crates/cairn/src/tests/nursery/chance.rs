//! Rows of random numbers: that nobody can guess where they begin.

use crate::base::{HARDENED, random};
use crate::large;
use crate::store::quarantine;
use std::collections::HashSet;
use std::vec::Vec;

/// Whatever the other two are, each bit of a seed, of a place and of a time makes another row. Of a time these are the
/// lowest 44: five hours.
#[test]
fn each_bit_that_is_not_known_makes_another_row() {
    let some = 0x5555_6666_7777_8888;
    for (seed, place, now) in [(0, 0, 0), (usize::MAX, usize::MAX, u64::MAX), (some, !some, 12345)]
    {
        let this = random::first(seed, place, now);
        let others = (0..usize::BITS).flat_map(|bit| {
            [random::first(seed ^ 1 << bit, place, now), random::first(seed, place ^ 1 << bit, now)]
        });
        assert!(others.into_iter().all(|other| other != this));
        assert!((0..44).all(|bit| random::first(seed, place, now ^ 1 << bit) != this));
    }
}

/// Heaps begin with numbers that are odd, as their rows have to be, and each with another one.
#[test]
fn each_heap_begins_with_another_number() {
    let places = (1..1000).map(|nth| core::ptr::without_provenance_mut(nth << 15));
    let first: Vec<_> = places.map(quarantine::first_random).collect();
    assert!(first.iter().all(|random| random % 2 == 1));
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), first.len());
}

/// The row of the pool of nurseries begins once, and slices get rows that follow from it. In the default build there is none.
#[test]
fn slices_of_nurseries_have_rows_of_one() {
    if !HARDENED {
        assert_eq!([0, 5].map(large::rows_of_nurseries), [([0; 2], 0), ([0; 2], 5)]);
        return;
    }
    let mut stands = 5;
    let rows = [(); 2].map(|()| random::next(&mut stands));
    assert_eq!(large::rows_of_nurseries(5), (rows, stands));
    let begun: Vec<_> = (0..100).map(|_| large::rows_of_nurseries(0)).collect();
    let numbers = begun.iter().flat_map(|&(rows, stands)| [rows[0], rows[1], stands]);
    assert_eq!(numbers.collect::<HashSet<_>>().len(), 300);
}
