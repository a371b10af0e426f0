//! Traffic that is known beforehand, and the project's own library.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use cairn_scaling::probe::{Order, Shape};
use cairn_scaling::simulation;
use nix::errno::Errno;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The counts; `None`, with the reason printed, where no child may be traced.
fn simulate(order: Order, operations: u64, library: Option<&Path>) -> Option<[f64; 6]> {
    let probe = Path::new(env!("CARGO_BIN_EXE_cairn-scaling"));
    match simulation::run(probe, order, operations, library) {
        Ok(account) => Some(account.figures()),
        Err(error) if error.downcast_ref() == Some(&Errno::EPERM) => {
            // Not `println!`, which the harness keeps to itself if the test passes.
            let line = format!("skipped: no process may be traced here: {error:#}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
        Err(error) => panic!("{error:#}"),
    }
}

/// Moves of each kind per operation, at least and at most: of the allocator's own lines, of lines of
/// blocks by the allocator, of lines by the program, and locked instructions.
type Bounds = [[f64; 2]; 4];

#[test]
fn traffic_is_as_known_beforehand() {
    const NONE: [f64; 2] = [0.0, 0.0];
    const ANY: [f64; 2] = [0.0, 1e9];
    let library = build();
    let table: [(Shape, usize, u64, Option<&Path>, Bounds); 3] = [
        (Shape::Local, 4, 100, None, [NONE, NONE, NONE, ANY]),
        (Shape::Local, 4, 150, Some(&library), [[0.0, 0.1], [0.0, 0.1], ANY, [0.0, 0.1]]),
        // Each consumer reads its blocks and links them, but hands several back at once. The producer reads
        // the link and clears it.
        (Shape::Pairs, 4, 1000, Some(&library), [ANY, [2.8, 3.2], [1.0, 1e9], [0.0, 0.99]]),
    ];
    for (shape, threads, operations, library, bounds) in table {
        let Some(figures) = simulate(Order { shape, threads }, operations, library) else { return };
        let [instructions, locked, own, _, blocks, program] = figures;
        for (figure, [least, most]) in [own, blocks, program, locked].into_iter().zip(bounds) {
            assert!((least..=most).contains(&figure), "{}: {figures:?}", shape.name());
        }
        assert!(instructions > 10.0, "{figures:?}");
    }
}

/// Builds the shared library beside this test, as users have it, and links to it from a path without a
/// space, which `LD_PRELOAD` cannot hold.
fn build() -> PathBuf {
    let profile = Path::new(env!("CARGO_BIN_EXE_cairn-scaling")).parent().expect("a folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "-p", "cairn-c", "--target-dir"]);
    let target = profile.parent().expect("a target folder");
    let status = cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(status.expect("cargo runs").success());
    let (archive, folder) = (target.join("release/libcairn_archive.a"), target.join("release/lib"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/cairn-c/link.sh");
    let mut link = Command::new("sh");
    link.arg(script).arg(archive).arg(&folder).args(["libcairn", env!("CARGO_PKG_VERSION")]);
    assert!(link.status().expect("a shell").success());
    let link = std::env::temp_dir().join("cairn-scaling-libcairn.so");
    // Of an earlier run, perhaps in another checkout.
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(folder.join("libcairn.so"), &link).expect("a writable folder");
    link
}
