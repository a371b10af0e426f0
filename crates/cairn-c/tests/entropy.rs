//! How much of a heap's layout can be guessed: the same small program in many processes, and what differs
//! between them. No times are taken.
//!
//! A quick run asks whether the bits that are claimed to be random are balanced. The long one prints a table
//! of all quantities, for the default build, the hardened one, and what `CAIRN_TEST_LIBRARY` names:
//! `cargo test -p cairn-c --test entropy -- --ignored --nocapture`.

mod common;

use common::{Build, Loading, Program, built_library, library, skip_for_stand_in};
use statrs::distribution::{ChiSquared, ContinuousCDF};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// A quantity of entropy.c, and the bits of it that are random.
struct Quantity {
    name: &'static str,
    random: RangeInclusive<u32>,
}

/// No bit is claimed. Then the table alone tells.
#[expect(clippy::reversed_empty_ranges, reason = "an empty range is what is meant")]
const NONE: RangeInclusive<u32> = 1..=0;

/// As docs/design/layout.md says: the window begins at one of 2^24 multiples of 2 MiB, its metadata at a multiple of
/// 64 KiB. The bits about 2^32 of the metadata's address are not claimed: no heap may stand at a multiple of that.
const QUANTITIES: [Quantity; 10] = [
    Quantity { name: "window", random: 21..=44 },
    Quantity { name: "metadata", random: 34..=44 },
    Quantity { name: "metadata-low-half", random: 16..=27 },
    Quantity { name: "metadata-from-window", random: 16..=29 },
    Quantity { name: "key", random: 0..=47 },
    Quantity { name: "block", random: 21..=44 },
    Quantity { name: "block-from-window", random: NONE },
    Quantity { name: "next-block-from-block", random: NONE },
    Quantity { name: "freed-block-back-first", random: NONE },
    Quantity { name: "others-before-it", random: NONE },
];

/// Below this, chance is no explanation: once in some ten thousand runs of all these tests together.
const CHANCE: f64 = 1e-6;

/// What each process of `count` says.
fn sampled(program: &Program, library: &Path, count: usize) -> BTreeMap<String, Vec<u64>> {
    let mut samples: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for _ in 0..count {
        let mut command = program.command(&[""; 0]);
        let output = command.env("LD_PRELOAD", library).output().expect("the program starts");
        assert!(output.status.success(), "{}: {}", library.display(), output.status);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let (name, value) = line.split_once(' ').expect("a name and a number");
            let value = u64::from_str_radix(value, 16).expect("a number");
            samples.entry(name.to_owned()).or_default().push(value);
        }
    }
    assert!(samples.values().all(|values| values.len() == count), "a quantity is missing");
    samples
}

/// How likely chance alone is as far from equal shares as these counts are.
fn chance(counts: &[usize]) -> f64 {
    let expected = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    let square = |count: &usize| (*count as f64 - expected).powi(2) / expected;
    let statistic = counts.iter().map(square).sum();
    ChiSquared::new((counts.len() - 1) as f64).expect("some freedom").sf(statistic)
}

/// Of `width` bits from `shift` on: chance, over their values.
fn chance_of(values: &[u64], shift: u32, width: u32) -> f64 {
    let mut counts = vec![0; 1 << width];
    for value in values {
        counts[(value >> shift) as usize % (1 << width)] += 1;
    }
    chance(&counts)
}

/// What the samples of a quantity say.
struct Judgement {
    distinct: usize,
    /// Bits: of all values, and of the most frequent one. Neither exceeds the logarithm of the count.
    shannon: f64,
    least: f64,
    /// The bits that are not the same in all samples, and those of them that chance explains.
    varying: usize,
    balanced: usize,
    /// The least chance of the claimed bits, and of bytes, or of half ones in a short run, of such bits.
    worst_bit: f64,
    worst_lane: f64,
}

fn judged(values: &[u64], random: &RangeInclusive<u32>) -> Judgement {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(*value).or_default() += 1;
    }
    let share = |count: &usize| *count as f64 / values.len() as f64;
    let most = counts.values().max().expect("a sample");
    let differing = values.iter().fold(0, |all, value| all | (value ^ values[0]));
    let varying: Vec<u32> = (0..u64::BITS).filter(|bit| differing >> bit & 1 == 1).collect();
    let is_balanced = |bit: &&u32| chance_of(values, **bit, 1) > CHANCE;
    // Five of each value are the least that the test can do with.
    let width = if values.len() >= 5 * 256 { 8 } else { 4 };
    let lanes = random.clone().step_by(width as usize);
    let lanes = lanes.filter(|lane| lane + width - 1 <= *random.end());
    Judgement {
        distinct: counts.len(),
        shannon: counts.values().map(share).map(|share| -share * share.log2()).sum::<f64>().abs(),
        least: (1.0 / share(most)).log2(),
        varying: varying.len(),
        balanced: varying.iter().filter(is_balanced).count(),
        worst_bit: random.clone().map(|bit| chance_of(values, bit, 1)).fold(1.0, f64::min),
        worst_lane: lanes.map(|lane| chance_of(values, lane, width)).fold(1.0, f64::min),
    }
}

#[test]
fn the_bits_that_are_claimed_to_be_random_are() {
    if skip_for_stand_in() {
        return;
    }
    let program = Program::build("entropy.c", Loading::Preloaded).expect("a program");
    let samples = sampled(&program, &library().shared, 300);
    for Quantity { name, random } in QUANTITIES {
        let judgement = judged(&samples[name], &random);
        let (bit, lane) = (judgement.worst_bit, judgement.worst_lane);
        assert!(bit > CHANCE && lane > CHANCE, "{name}: a bit {bit:.1e}, bits together {lane:.1e}");
    }
}

/// A number from another, by the finalizer of splitmix64.
fn mixed(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The test itself sees what is not random.
#[test]
fn what_is_not_random_is_seen() {
    let values = |spoil: &dyn Fn(u64) -> u64| (1..2000).map(mixed).map(spoil).collect::<Vec<_>>();
    let well = judged(&values(&|x| x), &(0..=63));
    assert!(well.worst_bit > CHANCE && well.worst_lane > CHANCE && well.distinct == 1999);
    assert!(
        (well.shannon - 1999f64.log2()).abs() < 1e-9 && (well.least - well.shannon).abs() < 1e-9
    );
    let stuck = judged(&values(&|x| x | 1 << 20), &(0..=31));
    assert!(stuck.worst_bit < CHANCE);
    // Each bit is balanced, but two are the same.
    let twins = judged(&values(&|x| x & !2 | x << 1 & 2), &(0..=31));
    assert!(twins.worst_bit > CHANCE && twins.worst_lane < CHANCE);
    let same = judged(&[7; 300], &NONE);
    assert!(same.distinct == 1 && same.shannon == 0.0 && same.least == 0.0 && same.varying == 0);
}

#[test]
#[ignore = "10,000 processes for each library: a minute"]
fn table() {
    const PROCESSES: usize = 10_000;
    let program = Program::build("entropy.c", Loading::Preloaded).expect("a program");
    let mut libraries =
        [Build::Default, Build::Hardened].map(|build| built_library(build).shared).to_vec();
    if library().is_stand_in {
        libraries.push(library().shared.clone());
    }
    println!(
        "{PROCESSES} processes; no figure of bits exceeds {:.1}. p: of the worst claimed bit; of the worst byte \
         of such bits.\n",
        (PROCESSES as f64).log2()
    );
    println!(
        "| library | quantity | distinct | Shannon | min-entropy | bits vary | balanced | p bit | p byte |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut worst: f64 = 1.0;
    for path in libraries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_ours = path != library().shared || !library().is_stand_in;
        let samples = sampled(&program, &path, PROCESSES);
        for Quantity { name: quantity, random } in QUANTITIES {
            let Some(values) = samples.get(quantity) else { continue };
            let it = judged(values, if is_ours { &random } else { &NONE });
            let p =
                |p: f64| if is_ours && random != NONE { format!("{p:.4}") } else { "-".to_owned() };
            println!(
                "| {name} | {quantity} | {} | {:.2} | {:.2} | {} | {} | {} | {} |",
                it.distinct,
                it.shannon,
                it.least,
                it.varying,
                it.balanced,
                p(it.worst_bit),
                p(it.worst_lane),
            );
            worst = worst.min(it.worst_bit).min(it.worst_lane);
        }
    }
    assert!(worst > CHANCE, "a claimed bit is not random: {worst:.1e}");
}
