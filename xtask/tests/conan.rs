//! The recipe for Conan: a package is made from the clone, and programs are built with it by CMake.

mod common;

use common::{VERSION, lacks, output_of, scratch, workspace};
use std::process::Command;

#[test]
fn conan_gives_programs_what_is_installed() {
    let version = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version");
        command
    };
    if lacks(&mut version("conan"), "conan from PyPI")
        || lacks(&mut version("cmake"), "the package `cmake`")
        || lacks(&mut version("make"), "the package `make`")
    {
        return;
    }
    let (_folder, folder) = scratch();
    let conan = |words: &[&str]| {
        let mut conan = Command::new("conan");
        conan.current_dir(workspace()).env("CONAN_HOME", folder.join("conan")).args(words);
        conan
    };
    output_of(&mut conan(&["profile", "detect"]));
    // What it makes on the way goes there, not into the clone.
    output_of(conan(&["export-pkg", "packages/conan", "-of"]).arg(folder.join("made")));
    let create = conan(&["create", "--no-remote", "--build", "*", "packages/conan"]).output();
    let create = String::from_utf8(create.unwrap().stderr).unwrap();
    assert!(create.contains("use `conan export-pkg`"), "{create}");

    let (build, wanted) = (folder.join("build"), format!("--requires=cairn/{VERSION}"));
    let mut install = conan(&["install", "--no-remote", &wanted, "-g", "CMakeToolchain", "-of"]);
    output_of(install.arg(&build));
    let mut cmake = Command::new("cmake");
    cmake.args(["-G", "Unix Makefiles", "-S"]).arg(workspace().join("xtask/tests/samples"));
    cmake.arg("-DCMAKE_TOOLCHAIN_FILE=conan_toolchain.cmake").arg("-B").arg(&build);
    output_of(cmake.arg("-DCMAKE_BUILD_TYPE=Release"));
    output_of(Command::new("cmake").arg("--build").arg(&build));
    for name in ["shared", "static", "hardened", "hardened-static", "cxx"] {
        assert_eq!(output_of(&mut Command::new(build.join(name))), format!("{VERSION}\n"));
    }
}
