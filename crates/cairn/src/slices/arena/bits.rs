//! Owns: arithmetic on a chunk's bitmaps, a bit a slice.
//! Idea: runs of free slices are found by shifting a word over itself.
//! Never: touches memory.
//! Threads: any; holds nothing.
//! Checked: the unit test below; the arena's tests against a plain list of slices.
//! Story: docs/design/purging.md
#![forbid(unsafe_code)]

use crate::map::address_map::CHUNK_SLICES;

/// The bit of a slice in its chunk's words.
pub(super) fn bit(index: usize) -> u64 {
    1 << (index % CHUNK_SLICES)
}

/// `len` bits from `at` on; 1 <= len <= 64 - at.
pub(super) fn mask(at: usize, len: usize) -> u64 {
    (!0 >> (64 - len)) << at
}

/// The parts of a run that lie in one chunk each: (chunk, mask).
pub(super) fn pieces(index: usize, slices: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut at = index;
    let end = index + slices;
    core::iter::from_fn(move || {
        (at < end).then(|| {
            let offset = at % CHUNK_SLICES;
            let len = (end - at).min(CHUNK_SLICES - offset);
            let piece = (at / CHUNK_SLICES, mask(offset, len));
            at += len;
            piece
        })
    })
}

/// Bit i: slices i .. i + len are free; len <= 64.
pub(super) fn runs_of(free: u64, len: usize) -> u64 {
    let (mut runs, mut have) = (free, 1);
    while have < len {
        let by = have.min(len - have);
        runs &= runs >> by;
        have += by;
    }
    runs
}

/// The length of the longest run of ones.
pub(super) fn longest_run(free: u64) -> usize {
    // runs[k]: where runs of 2^k begin.
    let mut runs = [free; 7];
    for k in 1..7 {
        runs[k] = runs[k - 1] & (runs[k - 1] >> (1 << (k - 1)));
    }
    if runs[6] != 0 {
        return 64;
    }
    // Where the longest run known begins; longer by each power of two that still fits behind it.
    let (mut starts, mut len) = (!0, 0);
    for k in (0..6).rev() {
        let longer = starts & runs[k] >> len;
        if longer != 0 {
            (starts, len) = (longer, len + (1 << k));
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_is_found() {
        let plain = |word: u64| (0..=64).rev().find(|&len| len == 0 || runs_of(word, len) != 0);
        let mut x = 88172645463325252u64;
        for round in 0..if cfg!(miri) { 200 } else { 20_000 } {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let word = [x, x | x >> 1, x | x >> 3 | x << 5, x & x >> 9, !(x & x >> 2)][round % 5];
            assert_eq!(Some(longest_run(word)), plain(word), "{word:x}");
        }
        for len in 1..=64 {
            assert_eq!(longest_run(mask(64 - len, len)), len);
            assert_eq!(longest_run(mask(0, len)), len);
        }
        assert_eq!(longest_run(0), 0);
    }

    #[test]
    fn pieces_make_up_a_run() {
        for (index, slices) in [(0, 64), (3, 61), (3, 62), (63, 1), (60, 200), (128, 0)] {
            let all: Vec<usize> = pieces(index, slices)
                .flat_map(|(chunk, mask)| {
                    let set = (0..64).filter(move |at| mask >> at & 1 != 0);
                    set.map(move |at| chunk * CHUNK_SLICES + at)
                })
                .collect();
            assert!(all.into_iter().eq(index..index + slices));
        }
    }

    use std::vec::Vec;
}
