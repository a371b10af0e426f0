//! Link flags of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Thread exit and fork handlers point into the library: it stays until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcairn.so");
    // Said here too: built together with programs that use std, the libc crate leaves it to std.
    println!("cargo:rustc-cdylib-link-arg=-lc");
}
