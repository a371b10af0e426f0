//! Real programs and other people's test suites, in one place for the two that run them.
//!
//! ```text
//! suites       `cargo xtask programs`, `cargo xtask suites`: with and without the library, the same
//!   bench        the two sides of a unit
//!   readers      what an output tells of tests
//!   report       results from run to run, the tables of the documents
//! lab          `cargo lab`: what a program costs under an allocator
//!   replay       calls of programs, made again
//! given        `cargo lab --suite`: the same of programs that a user has
//!   measure      one command, from outside
//!   definitions  inputs, command lines
//!     variables  names, and what stands for them
//!     stage      a place to run: directories, environment, library
//!       process    one process: limits, outputs
//!       traces     where recorded calls are
//!       watch      who has the library mapped
//!     packages   executables and the Debian packages that bring them
//! stats        medians and means
//! tables       Markdown
//! ```
//!
//! To add a program: an entry in `programs.toml`, or in `lab.toml` to time it; a suite: one in `suites.toml`.

mod definitions;
pub mod given;
pub mod lab;
mod measure;
mod packages;
pub mod process;
mod replay;
mod stage;
pub mod stats;
pub mod suites;
pub mod tables;
pub mod traces;
mod variables;
mod watch;

pub use lab::packages;
pub use stage::Stage;
