//! Counts what allocators do to the caches of machines with many cores, without having one.
//!
//! ```text
//! main         the command line
//! probe        the traced program: N threads that allocate and hand blocks over
//!   shapes     what they do
//! coherence    which core holds which cache line
//! simulation   one core per thread, in turns: each step's accesses go to the directory
//! ```
//!
//! Threads are stopped and stepped by the crate `stepper`. The story is in `docs/results/scaling.md`.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod coherence;
pub mod probe;
pub mod simulation;
