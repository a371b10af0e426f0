//! The chosen peer as a library for `LD_PRELOAD`: the malloc family, and nothing else.
//!
//! A peer in C or C++ is linked in by `build.rs` and exports its own functions: there is no Rust
//! between a program and it.
#![cfg_attr(not(any(feature = "smalloc", feature = "ferroc")), no_std)]

#[cfg(feature = "jemalloc")]
extern crate tikv_jemalloc_sys as _;

// Exports the family itself.
#[cfg(feature = "ferroc")]
extern crate ferroc as _;

#[cfg(feature = "smalloc")]
mod smalloc;

/// There is no Rust here that could panic.
#[cfg(not(any(feature = "smalloc", feature = "ferroc")))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn abort() -> !;
    }
    abort()
}
