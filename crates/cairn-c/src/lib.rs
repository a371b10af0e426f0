//! cairn as a C library: the whole malloc family of glibc, C23's additions, the C++ operators,
//! and the `cairn_*` calls of `include/cairn.h`. Argument rules and errno live here; every
//! allocation is one call into the core.
// Without unwinding nothing of std is needed, and nothing of it gets into the library. (Test
// builds unwind; they never load what they build of this crate.)
#![cfg_attr(panic = "abort", no_std)]
#![allow(clippy::missing_safety_doc)] // The contracts are those of the C standard and malloc(3).

mod account;
mod at_signal;
mod beyond;
mod config;
mod cxx;
mod cxx_catch;
mod cxx_runtime;
mod cxx_sized;
mod deferred;
mod destination;
mod environment;
mod family;
mod heaps;
mod introspection;
mod json;
mod memory;
mod profile;
mod regions;
mod report;
mod settings;
mod stats;
mod tokens;

use cairn::values;

/// A broken invariant: the core does not panic on anything a program does.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    report::line(b"cairn: internal error\n");
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}
