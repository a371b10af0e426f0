//! Compiles the workload in C++ to a library of its own, which the crate carries as bytes.

use std::path::PathBuf;

const SOURCE: &str = "src/single/containers/containers.cpp";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    let directory = std::env::var_os("OUT_DIR").expect("Cargo sets it");
    let library = PathBuf::from(directory).join("containers.so");
    // Not by the profile: the program is the same in all of them.
    let mut compiler = cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(2)
        .debug(false)
        .pic(true)
        .cargo_metadata(false)
        .get_compiler()
        .to_command();
    compiler.args(["-Wall", "-Wextra", "-shared", SOURCE, "-o"]).arg(&library);
    let status = compiler.status().expect("a C++ compiler can be started");
    assert!(status.success(), "{compiler:?}: {status}");
}
