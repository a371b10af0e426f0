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

/// A number out of which the argument cannot be read: the finalizer of splitmix64.
pub(crate) fn mixed(number: u64) -> u64 {
    let x = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
