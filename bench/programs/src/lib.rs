//! Real programs and other people's test suites, in one place for the two that run them.
//!
//! ```text
//! proof        `cargo xtask programs`: with and without the library, everything the same
//! suites       `cargo xtask suites`: other people's tests, with and without the library
//! lab          `cargo lab`: what a program costs under an allocator
//!   definitions  programs.toml: inputs, scripts, what is compared and timed
//!     stage      a place to run: directories, environment, library
//!       server     wait, load, measure, stop
//!       process    one process: limits, outputs
//!       watch      who has the library mapped
//!     packages   executables and the Debian packages that bring them
//!     generate   inputs from templates
//! tables       Markdown
//! ```
//!
//! To add a program: an entry in `programs.toml`; a suite: one in `suites.toml`.

mod definitions;
mod generate;
pub mod lab;
mod packages;
pub mod process;
pub mod proof;
mod server;
mod stage;
pub mod suites;
mod tables;
mod watch;

pub use definitions::packages;
pub use stage::Stage;
