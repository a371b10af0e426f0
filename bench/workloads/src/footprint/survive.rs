//! A heap is filled with small blocks, then most or all of them are freed in random order:
//! how much of the memory goes back to the system, and when.
//!
//! Stands for a server after a peak: a cache that was dropped, the end of a large job. In
//! `survive-10` a random tenth stays: where every page keeps a live block or two, only the
//! pages without one can be given back, so the floor is what the blocks' own places leave
//! possible. After the frees the process does next to nothing, or nothing at all.

use super::steps::{AFTER, Held, MIB, bytes_of, light_activity, mib, scaled_time, touched, watch};
use crate::case::{Case, Group, Plot, Results, Row, Settings, Table, Workload};
use crate::clock::ms_since;
use crate::malloc::SMALL;
use crate::process::page_size;
use std::time::Instant;

const FILL: usize = 256 * MIB;
/// Between the sizes of [`SMALL`].
const MEAN_SIZE: usize = 520;
const FREE_TIME: Row = Row::new(" free", Table::Time, "free_ms", "ms");

pub(crate) const WORKLOADS: &[Workload] = &[
    Case::new(
        "survive-10",
        Group::Footprint,
        "256 MiB of small blocks, of which a random tenth survives; then light activity for a \
         second. A server after a peak: what stays resident though it is free.",
        const { &[Row::new(" fill", Table::Time, "fill_ms", "ms"), FREE_TIME, Row::PEAK, AFTER] },
    )
    .plots(&[Plot::RSS])
    .quick(0.1)
    .c(|settings| run(settings, 10, true)),
    Case::new(
        "free-all",
        Group::Footprint,
        "256 MiB of small blocks, all freed in random order; then light activity for a second. \
         The best case for giving memory back.",
        const { &[FREE_TIME, AFTER] },
    )
    .plots(&[Plot::RSS])
    .quick(0.1)
    .c(|settings| run(settings, 0, true)),
    Case::new(
        "free-all-idle",
        Group::Footprint,
        "The same, but the process sleeps for the second and calls the allocator no more: \
         what is given back without being asked again.",
        const { &[AFTER] },
    )
    .plots(&[Plot::RSS])
    .quick(0.1)
    .c(|settings| run(settings, 0, false)),
];

fn run(settings: &Settings, survivors_percent: usize, active: bool) -> Results {
    let blocks = settings.scaled(FILL / MEAN_SIZE);
    let mut rng = fastrand::Rng::with_seed(11);
    let mut held: Vec<Held> = touched(blocks);
    let sampler = watch();

    let start = Instant::now();
    held.extend((0..blocks).map(|_| Held::new(rng.usize(SMALL))));
    let fill_ms = ms_since(start);
    let filled = bytes_of(&held);
    rng.shuffle(&mut held);
    let start = Instant::now();
    held.truncate(blocks * survivors_percent / 100);
    let free_ms = ms_since(start);

    let pause = scaled_time(settings, 1.0);
    if active {
        light_activity(pause)
    } else {
        std::thread::sleep(pause)
    }
    let mut results = sampler.report(Results::of([
        ("fill_ms", fill_ms),
        ("free_ms", free_ms),
        ("filled_mib", mib(filled)),
        ("live_mib", mib(bytes_of(&held))),
    ]));
    let floor = occupied_pages(&held) * page_size();
    results.values.insert("floor_mib".to_owned(), mib(floor));
    results
}

/// Pages of the system's that hold at least one byte of these blocks. It depends on where
/// the allocator put them, so it is told beside the row and does not divide it.
fn occupied_pages(held: &[Held]) -> usize {
    let page = page_size();
    let mut pages: Vec<usize> = held
        .iter()
        .flat_map(|held| held.span().start / page..held.span().end.div_ceil(page))
        .collect();
    pages.sort_unstable();
    pages.dedup();
    pages.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::TINY;

    #[test]
    fn as_many_survive_as_said() {
        let values = run(&TINY, 10, true).values;
        let share = values["live_mib"] / values["filled_mib"];
        assert!((0.08..0.12).contains(&share), "{share}");
        // Even the worst placement has a page or two per survivor.
        assert!((1.0..20.0).contains(&(values["floor_mib"] / values["live_mib"])));
        let values = run(&TINY, 0, false).values;
        assert_eq!((values["live_mib"], values["floor_mib"]), (0.0, 0.0));
    }

    #[test]
    fn pages_are_counted_once() {
        let pages = occupied_pages(&[Held::new(3 * page_size())]);
        assert!((3..=4).contains(&pages), "{pages}");
    }
}
