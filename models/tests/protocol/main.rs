//! Models of the protocols between threads, on the production code: the allocator's own files,
//! compiled against loom's atomics and cells (build.rs says how). Loom runs every interleaving,
//! up to a bound of preemptions where a model names one, and every value that the orderings
//! allow. A cell that two threads touch without a happens-before between them is an error; so
//! is a thread that sleeps for ever. docs/results/verification.md tells more.
#![allow(dead_code, unused_imports, unreachable_pub)] // The core's: not every call has a model.

include!(concat!(env!("OUT_DIR"), "/loom/lib.rs"));

mod harness;

mod bays;
mod frees;
mod graces;
mod growers;
mod locks;
mod notices;
mod nurseries;
mod parts;
mod pools;
mod presence;
mod reservations;
mod sweeps;
mod threads;
mod turns;
mod words;
