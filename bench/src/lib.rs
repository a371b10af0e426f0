//! The lab: cairn beside every other allocator, in time, memory and tail latency.
//!
//! ```text
//! plan         every case there is, and which of them run
//!   cairn_workloads   workloads, preloaded or linked (a crate of its own)
//!   programs          real programs and a user's, preloaded (a crate of its own, and the processes' limits)
//! allocators   which allocators there are; built, found or missing
//!   named        one that is given, with its settings
//! attacks      what becomes of attacks on the heap under each of them
//! rounds       who runs when: interleaved, in drawn order, first round dropped
//!   journal      every run on disk as it ends: stop and resume
//!   progress     how far a run is
//! result       the file with everything measured
//!   core_hash    which core a result measured, and which one the tree has
//! evaluate     rows, ratios, ties, means
//!   table        as Markdown, for the terminal too
//!   report/      the HTML page, its charts, and these as pictures
//!   compare      two results
//!   documents    the generated parts of the project's pages
//! ```
//!
//! To add a workload, see `cairn_workloads`; a program: `programs/lab.toml`; an allocator: `peers/peers.toml`.

pub mod allocators;
pub mod attacks;
pub mod compare;
pub mod core_hash;
pub mod documents;
pub mod evaluate;
pub mod journal;
pub mod machine;
pub mod named;
pub mod plan;
pub mod progress;
pub mod report;
pub mod result;
pub mod rounds;
pub mod table;
