//! cairn beside its peers: the same workloads, the same binary, another malloc.
//!
//! ```text
//! cases        the one list: every workload and program
//!   workloads/   run inside `cairn-workload`, calling malloc and free themselves
//!   programs/    real programs, started by the driver
//! rounds       who runs when: interleaved, rotated, first round dropped
//!   child        one process, with a time limit and a memory limit
//!   peers        which allocators, where their libraries are
//! report       tables, ties, geometric means; JSON
//! ```
//!
//! To add a workload: write `workloads/NAME.rs` with a `CASES` list, and add one line to
//! [`cases::ALL`]. What to print is declared by the case's rows; nothing else changes.

pub mod case;
pub mod cases;
pub mod child;
pub mod clock;
pub mod machine;
pub mod malloc;
pub mod peers;
pub mod process;
pub mod programs;
pub mod report;
pub mod rounds;
pub mod stats;
pub mod workloads;
