//! One block grows: by doubling, or by one page at a time.
//!
//! Every page gets one mark when it first belongs to the block, and all marks are checked
//! at the end, outside the time. An allocator that copies at each step of the second kind
//! moves hundreds of GiB; the driver's time limit is the answer to that.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use crate::malloc::Growing;
use std::time::Instant;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case("realloc-double", "16 B to 256 MiB by doubling, each new page touched.").c(double),
    case("realloc-step-64m", "+4 KiB at a time to 64 MiB, last byte touched.")
        .quick(0.25)
        .c(|s| step(s, 64 * MIB)),
    case("realloc-step-256m", "+4 KiB at a time to 256 MiB, last byte touched.")
        .quick(0.0)
        .c(|s| step(s, 256 * MIB)),
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Single, about, Row::MS_PEAK)
}

fn double(settings: &Settings) -> Results {
    let limit = settings.scaled(256 * MIB);
    let mut block = Growing::new();
    let start = Instant::now();
    let (mut size, mut marked) = (16, 0);
    while size <= limit {
        block.grow(size);
        while marked < size {
            block.set(marked, mark(marked));
            marked += PAGE;
        }
        size *= 2;
    }
    let ms = ms_since(start);
    for at in (0..size / 2).step_by(PAGE) {
        block.check(at, mark(at));
    }
    Results::of([("ms", ms)])
}

fn step(settings: &Settings, limit: usize) -> Results {
    let steps = settings.scaled(limit / PAGE);
    let mut block = Growing::new();
    let start = Instant::now();
    for size in (1..=steps).map(|n| n * PAGE) {
        block.grow(size);
        block.set(size - 1, mark(size - 1));
    }
    let ms = ms_since(start);
    for at in (1..=steps).map(|n| n * PAGE - 1) {
        block.check(at, mark(at));
    }
    Results::of([("ms", ms)])
}

/// The mark of the page around `at`: not a constant, so that swapped pages show.
fn mark(at: usize) -> u8 {
    (at / PAGE % 251) as u8 + 1
}
