//! One block grows: by doubling, or by one page at a time.
//!
//! Every page gets one mark when it first belongs to the block, and all marks are checked
//! at the end, outside the time. An allocator that copies at each step of the second kind
//! moves hundreds of GiB; the driver's time limit is the answer to that.

use super::values;
use crate::case::{Case, Row, Run, Settings, Values};
use crate::clock::ms_since;
use crate::malloc::Growing;
use std::time::Instant;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

const ROWS: &[Row] = &[Row::time("ms"), Row::PEAK];

/// The cases.
pub const CASES: &[Case] = &[
    Case {
        name: "realloc-double",
        about: "16 B to 256 MiB by doubling, each new page touched",
        rows: ROWS,
        quick_scale: 1.0,
        run: Run::Workload(double),
    },
    Case {
        name: "realloc-step-64m",
        about: "+4 KiB at a time to 64 MiB, last byte touched",
        rows: ROWS,
        quick_scale: 1.0,
        run: Run::Workload(|s| step(s, 64 * MIB)),
    },
    Case {
        name: "realloc-step-256m",
        about: "+4 KiB at a time to 256 MiB, last byte touched",
        rows: ROWS,
        quick_scale: 1.0,
        run: Run::Workload(|s| step(s, 256 * MIB)),
    },
];

fn double(settings: &Settings) -> Values {
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
    values([("ms", ms)])
}

fn step(settings: &Settings, limit: usize) -> Values {
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
    values([("ms", ms)])
}

/// The mark of the page around `at`: not a constant, so that swapped pages show.
fn mark(at: usize) -> u8 {
    (at / PAGE % 251) as u8 + 1
}
