//! Owns: arithmetic on bitmaps: words of 64 bits, each a bit for a slice or a page.
//! Idea: runs of ones are found by shifting a word over itself. Where the words stand differs: with the arena's chunks, with
//!   a region's pieces, atomic if there is no lock. What is done with one is the same.
//! Never: touches memory.
//! Threads: any; holds nothing.
//! Checked: the unit tests below; the arena's tests against a plain list of slices.
//! Story: docs/design/purging.md
#![forbid(unsafe_code)]

/// Bits in a word.
pub(crate) const WORD: usize = u64::BITS as usize;

/// The bit with that number in its word.
pub(crate) fn bit(index: usize) -> u64 {
    1 << (index % WORD)
}

/// `len` bits from `at` on; 1 <= len <= 64 - at.
pub(crate) fn mask(at: usize, len: usize) -> u64 {
    (!0 >> (64 - len)) << at
}

/// The numbers of the ones, from the lowest on.
pub(crate) fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let first = word.trailing_zeros() as usize;
        (word != 0).then(|| {
            word &= word - 1;
            first
        })
    })
}

/// The parts of a run of bits that lie in one word each: (word, mask).
pub(crate) fn pieces(index: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut at = index;
    let end = index + count;
    core::iter::from_fn(move || {
        (at < end).then(|| {
            let offset = at % WORD;
            let len = (end - at).min(WORD - offset);
            let piece = (at / WORD, mask(offset, len));
            at += len;
            piece
        })
    })
}

/// Bit i: those from i to i + len are 1; len <= 64.
pub(crate) fn runs_of(word: u64, len: usize) -> u64 {
    let (mut runs, mut have) = (word, 1);
    while have < len {
        let by = have.min(len - have);
        runs &= runs >> by;
        have += by;
    }
    runs
}

/// The starts of aligned runs of one, four (`lane` 1), or 32 ones.
pub(crate) fn aligned_runs(word: u64, lane: usize) -> u64 {
    match lane {
        0 => word,
        1 => runs_of(word, 4) & 0x1111_1111_1111_1111,
        _ => runs_of(word, 32) & 0x1_0000_0001,
    }
}

/// The length of the run of ones around a bit that is one.
pub(crate) fn run_around(word: u64, at: usize) -> usize {
    ((word << (WORD - 1 - at)).leading_ones() + (word >> at).trailing_ones()) as usize - 1
}

/// The length of the longest run of ones.
pub(crate) fn longest_run(word: u64) -> usize {
    // runs[k]: where runs of 2^k begin.
    let mut runs = [word; 7];
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
        let mut state = 0;
        for round in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let x = crate::base::random::next(&mut state);
            let word = [x, x | x >> 1, x | x >> 3 | x << 5, x & x >> 9, !(x & x >> 2)][round % 5];
            assert_eq!(Some(longest_run(word)), plain(word), "{word:x}");
            let around = ones(word).map(|at| run_around(word, at)).max();
            assert_eq!(around, plain(word).filter(|&len| len > 0), "{word:x}");
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
                    set.map(move |at| chunk * WORD + at)
                })
                .collect();
            assert!(all.into_iter().eq(index..index + slices));
        }
    }

    use std::vec::Vec;
}
