//! Counts what allocators do to the caches of machines with many cores, without having one.
//!
//! ```text
//! command      the command line
//! probe/       the traced program: N threads that allocate and hand blocks over
//! tracee       its threads under ptrace, one instruction at a time
//! decode       what an instruction does to memory
//! interpret    integer instructions, executed without the processor
//! coherence    which core holds which cache line
//! simulation   one core per thread, in turns; joins the four above
//! account      counts by cause, by code address and by line
//! places       addresses as functions and source lines
//! report       tables and JSON
//! ```
//!
//! The story is in `docs/results/scaling.md`.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod account;
pub mod coherence;
pub mod command;
pub mod decode;
pub mod interpret;
pub mod places;
pub mod probe;
pub mod report;
pub mod simulation;
pub mod tracee;
