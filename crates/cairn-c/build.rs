//! Link flags of cargo's own shared library. Users get the one that link.sh makes.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Thread exit and fork handlers point into the library: it stays until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // A program linked with one build does not take the other: what it relies on may be missing there.
    let is_hardened = std::env::var_os("CARGO_FEATURE_HARDENED").is_some();
    let name = if is_hardened { "libcairn-hardened.so" } else { "libcairn.so" };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
    // Said here too: built together with programs that use std, the libc crate leaves it to std.
    println!("cargo:rustc-cdylib-link-arg=-lc");
}
