//! Counts the machine instructions of the fast paths, one by one.
//!
//! A small C program calls the allocator between two marks; the crate `stepper` steps it through
//! each call, and every instruction that lies inside the library under test counts.
//! Unlike a timing, the result is the same on a busy machine, so it can be asserted.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod table;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trace;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod table {
    /// It counts x86-64 instructions on Linux.
    pub(crate) fn run(_: &super::Args) -> anyhow::Result<()> {
        println!("fast-path: not applicable here");
        Ok(())
    }
}

pub(crate) use table::run;

/// Options.
#[derive(clap::Args)]
#[cfg_attr(not(all(target_os = "linux", target_arch = "x86_64")), expect(dead_code))]
pub(crate) struct Args {
    /// Write docs/results/fast-path-golden.toml instead of comparing with it.
    #[arg(long)]
    update: bool,
    /// Count this library too, in a further column; `glibc` is the C library itself.
    #[arg(long, value_name = "PATH")]
    library: Vec<std::path::PathBuf>,
}
