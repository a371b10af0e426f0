//! A heap that has a past: what half of the workloads begin with.
//!
//! A service that has run for days allocates between blocks that have stayed from former work. So blocks of all sizes
//! fill 16 MiB, most of them go in random order, and others come, three times over.

use fastrand::Rng;

/// Bytes that the heap has at its fullest.
const FULL: usize = 16 << 20;
/// The smallest block, and by how many doublings the largest is longer.
const LEAST: f64 = 16.0;
const DOUBLINGS: f64 = 13.0;
/// One block in so many stays.
const STAYS: usize = 16;

/// Ages the process's heap: the blocks that stay. They go with the process, after all that is measured.
pub(crate) fn age() -> Vec<Vec<u8>> {
    let mut rng = Rng::with_seed(7);
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut bytes: usize = held.iter().map(Vec::len).sum();
        while bytes < FULL {
            // As many from 16 to 32 bytes as from 64 to 128 KiB.
            let size = (LEAST * (rng.f64() * DOUBLINGS).exp2()) as usize;
            held.push(vec![1; size]);
            bytes += size;
        }
        rng.shuffle(&mut held);
        held.truncate(held.len() / STAYS);
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_blocks_of_all_sizes_stay() {
        let sizes: Vec<usize> = age().iter().map(Vec::len).collect();
        assert!((50..400).contains(&sizes.len()), "{}", sizes.len());
        assert!(sizes.iter().any(|&size| size < 64) && sizes.iter().any(|&size| size > 16 << 10));
        assert!(sizes.iter().sum::<usize>() < FULL / 4);
    }
}
