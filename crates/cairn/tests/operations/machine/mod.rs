//! Runs programs of allocator operations, written as bytes, against an oracle.
//!
//! Every byte string is a program, so that fuzzers and plain random numbers can write them. The
//! oracle knows every live block: its contents, where it lies, what it must hold. A block that
//! overlaps another, loses a byte, is not zero where it should be, or is still there when all are
//! freed, ends the process with a message.
//!
//! ```text
//! single    header, steps ...
//! threads   header, sections ...; watched ones, too
//!   a run      steps of one thread, all others at rest     lock-step: the same each time
//!   a burst    steps of two to four threads at once
//!   an end     a thread ends; the next run that names it is a new one's
//!   a will     a thread ends, and takes steps when its heap is gone already
//! ```
//!
//! Among the steps, wherever they are taken, a thread begins and ends, with destructors that take steps, too, and a child is
//! forked, which does so on its own.
//!
//! The steps are in `step`, `exchange`, `heaps`, `told`, `watch`, `deferred`, `hand_over`, `contest` and `fork`, the decoding in
//! `bytes`, the oracle in `table`, what threads share in `world`.

mod bytes;
mod contest;
mod crew;
mod deferred;
mod exchange;
mod fork;
mod hand_over;
mod heaps;
mod region;
mod step;
mod table;
mod told;
mod watch;
mod world;

use bytes::Bytes;
use crew::Crew;
use step::{Company, steps};
use table::Table;

/// How a program is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Steps of one thread.
    Single,
    /// Sections: runs and bursts of several.
    Threads,
    /// The same, while those who watch allocations come and go, and limits of memory.
    Watched,
}

/// Operations done: calls that allocate, resize, free, purge, check or draw up the statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// While all other threads were at rest.
    pub(crate) lockstep: u64,
    /// While others were at work.
    pub(crate) parallel: u64,
}

/// As is usual, never, soon, at once.
const DELAYS_MS: [usize; 8] = [250, 250, 250, 1 << 40, 1 << 40, 1 << 40, 1, 0];

/// Runs a program and checks what it leaves: nothing. Panics at the first thing that is wrong.
/// `trace` prints each step. One program at a time in a process.
pub(crate) fn run(kind: Kind, program: &[u8], trace: bool) -> Counts {
    prepare();
    let mut bytes = Bytes::new(program);
    let header = bytes.byte();
    cairn::set_purge_delay_ms(DELAYS_MS[usize::from(header % 8)]);
    let mut crew = Crew::new();
    let mut table = Table::new(trace);
    let mut counts = Counts::default();
    match kind {
        Kind::Single => steps(&mut table, &mut bytes, Company::Alone),
        Kind::Threads => table = crew.sections(table, &mut bytes, &mut counts),
        Kind::Watched => {
            watch::begin(header);
            table = crew.sections(table, &mut bytes, &mut counts);
        }
    }
    // Blocks are freed into spans of threads that have gone, or of threads that rest.
    if header & 8 == 0 {
        crew.end();
    }
    step::free_all(&mut table, header >> 4);
    crew.end();
    deferred::end();
    heaps::end_all();
    watch::end();
    settle(&mut table, header >> 6 == 0);
    counts.lockstep += table.operations;
    counts
}

/// Makes what is made once: a forked child does not wait for a thread that was making it.
fn prepare() {
    hand_over::prepare();
    region::is_in_region(std::ptr::null());
    bytes::prepare();
    fork::begin();
}

/// Checks what is left when all is freed and all other threads are gone: nothing, if `purge`d. If
/// not, the next program meets what this one has left of free memory.
fn settle(table: &mut Table, purge: bool) {
    table.operations += 2 + u64::from(purge);
    if purge {
        cairn::purge();
    }
    cairn::check();
    let left = cairn::Stats::take();
    let in_use: usize = left.classes.iter().map(|class| class.in_use).sum();
    let cached: usize = left.classes.iter().map(|class| class.cached).sum();
    assert!(in_use <= step::UNDER_WAY, "{in_use} blocks of spans are lost: {}", lost(&left));
    assert_eq!((left.large_blocks, left.large.bytes), (0, 0), "large blocks are lost");
    assert_eq!((left.mapping_blocks, left.mappings.bytes), (0, 0), "mappings are lost");
    if purge {
        assert_eq!(in_use + cached, 0, "blocks of spans are lost");
        assert_eq!(left.spans.bytes, 0, "spans without blocks in use are kept");
        assert_eq!(left.dirty.bytes, 0, "slices are dirty after a purge");
    }
}

/// Which blocks are in use that should not be, by class, and how many a purge does not find either.
fn lost(left: &cairn::Stats) -> String {
    let rows = left.classes.iter().enumerate().filter(|(_, row)| row.in_use > 0);
    let rows: Vec<_> = rows.map(|(class, row)| (class, row.in_use)).collect();
    cairn::purge();
    let still: usize = cairn::Stats::take().classes.iter().map(|class| class.in_use).sum();
    format!("class and blocks {rows:?}, {still} after a purge")
}
