//! malloc, touch the first word, free; over and over, one size at a time.
//!
//! Shows the length of the fast path, and the sizes at which an allocator falls off it.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::per_op;
use crate::malloc::Block;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const PAIRS: u64 = 500;

/// The cases. Their memory is that of any small process, which `hello` reports once.
pub const WORKLOADS: &[Workload] = &[
    case::<16>("pair-16"),
    case::<64>("pair-64"),
    case::<256>("pair-256"),
    case::<1024>("pair-1k"),
    case::<4096>("pair-4k"),
    case::<{ 32 * KIB }>("pair-32k"),
    case::<{ 64 * KIB }>("pair-64k"),
    case::<{ 128 * KIB }>("pair-128k"),
    case::<{ 256 * KIB }>("pair-256k"),
    case::<MIB>("pair-1m"),
    case::<{ 4 * MIB }>("pair-4m"),
];

const fn case<const SIZE: usize>(name: &'static str) -> Workload {
    const ABOUT: &str = "malloc, touch the first word, free: one size, over and over. The length \
                         of the fast path, and the sizes at which an allocator falls off it.";
    Case::new(name, Group::Single, ABOUT, const { &[Row::time("ns")] }).quick(0.1).c(run::<SIZE>)
}

fn run<const SIZE: usize>(settings: &Settings) -> Results {
    let time = per_op(settings, PAIRS, || {
        for tag in 0..PAIRS {
            Block::new(SIZE, tag).free(tag);
        }
    });
    Results::of([("ns", time.ns), ("cpu_ns", time.cpu_ns)])
}
