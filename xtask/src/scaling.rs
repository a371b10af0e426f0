//! Counts what allocators do to the caches of a machine with many cores, without one.
//!
//! A small C program allocates and hands blocks over in up to 256 threads. The crate `stepper` executes it one
//! instruction at a time, as if each thread had a core of its own, and every access to memory goes to a directory of
//! which core holds which line. The story is in `docs/results/scaling.md`.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod directory;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod simulation;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod table;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod table {
    /// It steps x86-64 instructions on Linux.
    pub(crate) fn run(_: &super::Args) -> anyhow::Result<()> {
        println!("scaling: not applicable here");
        Ok(())
    }
}

pub(crate) use table::run;

/// Options.
#[derive(clap::Args)]
#[cfg_attr(not(all(target_os = "linux", target_arch = "x86_64")), expect(dead_code))]
pub(crate) struct Args {
    /// Count another library in place of cairn, and judge nothing; `glibc` is the C library itself.
    #[arg(long, value_name = "PATH")]
    library: Option<std::path::PathBuf>,
    /// Only 2 and 16 threads.
    #[arg(long)]
    quick: bool,
}
