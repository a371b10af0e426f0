//! The lab's workloads, apart from what runs and reports them.
//!
//! ```text
//! command     the main function of `cairn-workload` and of every linked engine
//! cases       the one list of workloads; workloads.toml: what the tables know of them
//!   single/     one thread
//!   threads/    many, and blocks that one allocates and another frees
//!   footprint/  resident memory, at the peak and over time
//!   latency     the slowest single operations
//! case        what the tables have to know about a case: rows, plots, sources
//! aging       what half of them begin with: a heap with a past
//! malloc      the C functions under test; blocks that check their contents
//! words       the same for blocks that know their length: zeroed, aligned, large
//! team        threads that start together, and the queues between them
//! clock, process, curve, histogram: the instruments
//! ```
//!
//! To add a workload: its function, one line in [`cases`], one in workloads.toml, where its rows and
//! plots say what to show of it; nothing else changes.

mod aging;
pub mod case;
pub mod cases;
mod clock;
pub mod command;
mod curve;
mod footprint;
mod histogram;
mod latency;
mod malloc;
pub mod process;
mod single;
mod team;
mod threads;
mod words;
