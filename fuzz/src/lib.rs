//! What the fuzz targets share: the machine of the core's own test, and a count of what it did; what the steps of a
//! trace must be.

#[path = "../../crates/cairn/tests/operations/machine/mod.rs"]
mod machine;
mod steps;
#[path = "../../crates/cairn-cli/src/trace/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the command also writes traces")]
mod trace;
#[path = "../../crates/cairn-cli/src/units.rs"]
#[allow(dead_code, reason = "the reader needs one of them")]
mod units;

use machine::Kind;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
pub use steps::check_trace;

static LOCKSTEP: AtomicU64 = AtomicU64::new(0);
static PARALLEL: AtomicU64 = AtomicU64::new(0);

/// Runs a program of one thread.
pub fn single(program: &[u8]) {
    run(Kind::Single, program);
}

/// Runs a program of several threads.
pub fn threads(program: &[u8]) {
    run(Kind::Threads, program);
}

/// The same, while those who watch allocations come and go.
pub fn watched(program: &[u8]) {
    run(Kind::Watched, program);
}

fn run(kind: Kind, program: &[u8]) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: the function stays as long as the process.
        unsafe { libc::atexit(report) };
    });
    let counts = machine::run(kind, program, false);
    LOCKSTEP.fetch_add(counts.lockstep, Ordering::Relaxed);
    PARALLEL.fetch_add(counts.parallel, Ordering::Relaxed);
}

extern "C" fn report() {
    let (lockstep, parallel) = (LOCKSTEP.load(Ordering::Relaxed), PARALLEL.load(Ordering::Relaxed));
    eprintln!("operations: {lockstep} lock-step + {parallel} parallel");
}
