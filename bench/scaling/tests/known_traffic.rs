//! Traffic that is known beforehand, and the project's own library.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use cairn_scaling::account::{Account, Cause, Traffic};
use cairn_scaling::places::Places;
use cairn_scaling::probe::Shape;
use cairn_scaling::simulation::{self, Plan};
use nix::errno::Errno;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn plan(shape: Shape, threads: usize, operations: u64) -> Plan {
    Plan {
        probe: PathBuf::from(env!("CARGO_BIN_EXE_cairn-scaling")),
        shape,
        threads,
        size: 64,
        settle: operations / 2,
        operations,
        limit: Duration::from_secs(120),
        seed: 7,
    }
}

/// The counts; `None`, with the reason printed, where no child may be traced.
fn simulate(plan: &Plan, library: Option<&Path>) -> Option<(Account, Places)> {
    match simulation::run(plan, library) {
        Ok(run) => Some(run),
        Err(error) if error.downcast_ref() == Some(&Errno::EPERM) => {
            // Not `println!`, which the harness keeps to itself if the test passes.
            let line = format!("skipped: no process may be traced here: {error:#}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
        Err(error) => panic!("{error:#}"),
    }
}

/// Each turn fetches the line with the other's write, and takes that copy away to write.
#[test]
fn two_alternate_writers() {
    let operations = 100;
    let plan = plan(Shape::PingPong, 2, operations);
    let Some((account, _)) = simulate(&plan, None) else { return };
    let program = account.traffic[&Cause::Program];
    let Traffic { read, write, invalidated } = program;
    for count in [read, write, invalidated] {
        // The count may begin and end inside a turn.
        assert!(count.abs_diff(account.operations()) <= 2, "{program:?}");
    }
    assert_eq!(account.figure("transfers"), 0.0, "the blocks are each thread's own");
}

#[test]
fn private_lines_do_not_move() {
    let Some((account, _)) = simulate(&plan(Shape::Local, 4, 100), None) else { return };
    assert!(account.traffic.is_empty(), "{:?}", account.traffic);
    assert!(account.figure("instr") > 10.0);
}

#[test]
fn the_library_hands_blocks_over() {
    let library = build();
    let Some((local, _)) = simulate(&plan(Shape::Local, 4, 150), Some(&library)) else { return };
    assert!(local.figure("transfers") < 0.1, "{:?}", local.traffic);
    let Some((pairs, mut places)) = simulate(&plan(Shape::Pairs, 4, 200), Some(&library)) else {
        return;
    };
    assert!(pairs.figure("program") >= 1.0, "each consumer reads its blocks");
    assert!(pairs.figure("block w") >= 0.9, "and links them: {:?}", pairs.traffic);
    assert!(pairs.figure("locked") < 1.0, "but hands several back at once");
    let (code, _, _) = pairs.sites()[0];
    let place = places.describe(code);
    assert!(place.contains(".rs:"), "code has a line: {place}");
}

/// Builds the shared library as this test was built. Its path without a space, which `LD_PRELOAD`
/// cannot hold: if need be, that of a link in the temporary directory.
fn build() -> PathBuf {
    let profile = Path::new(env!("CARGO_BIN_EXE_cairn-scaling")).parent().expect("a folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "-p", "cairn-c", "--target-dir"]);
    let target = profile.parent().expect("a target folder");
    let status = cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(status.expect("cargo runs").success());
    let library = target.join("release/libcairn.so");
    if !library.to_string_lossy().contains(' ') {
        return library;
    }
    let link = std::env::temp_dir().join("cairn-scaling-libcairn.so");
    // Of an earlier run, perhaps in another checkout.
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&library, &link).expect("the temporary directory is writable");
    link
}
