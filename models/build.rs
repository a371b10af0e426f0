//! Makes this crate, and no other, see the protocol's files as loom's.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=loom");
}
