//! Owns: the generator of random numbers.
//! Idea: a row of numbers by splitmix64: where it stands is a number that is counted up, and mixed. A cheaper step serves what
//!   only a cache's order hangs on.
//! Never: asks the system: where a row begins is its user's to say.
//! Threads: any; holds nothing.
//! Checked: tests/choices.rs, tests/quarantine.rs
//! Story: docs/design/policy.md

/// From one number of a row to the next.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where a row begins that nobody can guess: other processes have another seed, other rows of this one another place or
/// time. No bit of the kernel's seed, which serves others too, can be read off it.
pub(crate) fn first(seed: usize, place: usize, now_ns: u64) -> u64 {
    mixed(seed as u64 ^ place as u64 ^ now_ns << 20)
}

/// The next of a row, of which `state` is where it stands.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(STEP);
    mixed(*state)
}

/// The next of them, as a number below `count`.
pub(crate) fn chance(state: &mut u64, count: usize) -> usize {
    below(next(state), count)
}

/// Number `nth` of the row that begins there.
pub(crate) fn nth(first: u64, nth: usize) -> u64 {
    mixed(first.wrapping_add((nth as u64 + 1).wrapping_mul(STEP)))
}

/// A random number as one below `count`.
#[inline(always)]
pub(crate) fn below(random: u64, count: usize) -> usize {
    ((random >> 32) as usize * count) >> 32
}

/// The number after another one, which is odd, by one product: its upper bits are as good as random.
#[inline(always)]
pub(crate) fn after(random: u64) -> u64 {
    random.wrapping_mul(0x5851_f42d_4c95_7f2d)
}

/// A random number as one of the exponential distribution of that mean, rounded down.
pub(crate) fn exponential(random: u64, mean: usize) -> usize {
    const BITS: u32 = 40;
    // ln 2 in units of 2^-60.
    const LN_2: u128 = 0x0b17_217f_7d1c_f79a;
    // The random number is 2^-(zeros + 1) times one from 1 up to 2, in units of 2^-63, whose logarithm to the base 2 is
    // found bit by bit: it is squared, and the bit says whether that is 2 or more.
    let zeros = (random | 1).leading_zeros();
    let mut number = (random | 1) << zeros;
    let mut logarithm = 0;
    for _ in 0..BITS {
        let square = (u128::from(number) * u128::from(number)) >> 63;
        let bit = (square >> 64) as u64;
        logarithm = logarithm << 1 | bit;
        number = (square >> bit) as u64;
    }
    let negative = (u64::from(zeros + 1) << BITS) - logarithm;
    // Less than 45 means: it fits for any mean that is less than 2^57.
    let means = (u128::from(negative) * LN_2) >> BITS;
    ((means * mean as u128) >> 60) as usize
}

/// Not more than `exponential` of the same, in a few instructions.
pub(crate) fn exponential_min(random: u64, mean: usize) -> usize {
    // -ln x >= 1 - x.
    ((u128::from(!(random | 1)) * mean as u128) >> 64) as usize
}

/// A number out of which the argument cannot be read: the finalizer of splitmix64.
pub(crate) fn mixed(number: u64) -> u64 {
    let x = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
