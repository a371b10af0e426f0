//! The model of the whole core: who is in it, and how it is run.
//!
//! | file | has |
//! | --- | --- |
//! | `memory` | the simulated system's pages, and what may be done to each |
//! | `threads` | its threads, forks, clock and failures |
//! | `held` | blocks with contents, and the list of all that are live |
//! | `work` | what the threads do |
//! | `runs` | how they are run: many times, each time in a process; under Miri once, as they are |
//!
//! A run is a process: `CAIRN_MODEL=random:7:100` says that shuttle's random scheduler, seeded
//! with 7, runs 100 executions in it; `pct` is its other scheduler; `alone` is one thread that no
//! scheduler interrupts, and 100 operations. What the allocator has stays from one execution to
//! the next, and so a failure is repeated by repeating its run: the message says how.
//! `CAIRN_MODEL_SECONDS=60` makes each model run that long, with one seed after the other.

pub(crate) mod held;
pub(crate) mod memory;
pub(crate) mod threads;
pub(crate) mod work;

#[cfg(not(miri))]
pub(crate) mod runs;
#[cfg(miri)]
#[path = "real_threads.rs"]
pub(crate) mod runs;
