//! Idle threads: 200 threads allocate 60 small blocks of 20 sizes, free half, and park.
//!
//! What a thread costs is the resident set beyond a second process whose threads do not
//! allocate, which takes the stacks out. Threads are made with pthread_create: those of std
//! allocate on their own account.

use super::values;
use crate::case::{Case, Row, Run, Settings, Values};
use crate::malloc::Block;
use crate::process::resident_kib;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Barrier;

const THREADS: usize = 200;
const BLOCKS: usize = 60;
const SIZES: [usize; 20] =
    [16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048];

/// The case.
pub const CASES: &[Case] = &[Case {
    name: "idle-200",
    about: "200 threads that allocated 60 small blocks, freed half, and wait",
    rows: &[
        Row::memory("", "kib_per_thread", "KiB/thread", 1.0),
        Row::memory(" joined", "kib_per_thread_joined", "KiB/thread", 1.0),
    ],
    quick_scale: 1.0,
    run: Run::Workload(run),
}];

/// Where all threads wait: after their allocations, and before they free the rest.
struct Meeting {
    settled: Barrier,
    leave: Barrier,
    allocate: bool,
}

fn run(settings: &Settings) -> Values {
    let threads = settings.threads.unwrap_or(THREADS);
    // The subject and its baseline must be alike to the page, so each runs in a process of
    // its own; this one only starts them.
    match std::env::var_os("CAIRN_IDLE_LEAF") {
        Some(_) => leaf(threads, !settings.no_alloc),
        None => {
            let (subject, baseline) = (child(threads, false), child(threads, true));
            let mut result = values([]);
            for (key, per) in [("kib", "kib_per_thread"), ("joined", "kib_per_thread_joined")] {
                result.insert(per.into(), (subject[key] - baseline[key]) / threads as f64);
            }
            result.insert("stack_kib_per_thread".into(), baseline["kib"] / threads as f64);
            result.insert("peak_mib".into(), subject["peak_mib"]);
            result
        }
    }
}

/// Runs this executable again; its values.
fn child(threads: usize, no_alloc: bool) -> Values {
    let mut command = Command::new(std::env::current_exe().expect("a path to ourselves"));
    command.args(["idle-200", "--threads", &threads.to_string()]).env("CAIRN_IDLE_LEAF", "1");
    if no_alloc {
        command.arg("--no-alloc");
    }
    let output = command.output().expect("starting ourselves");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line: crate::case::Line = serde_json::from_slice(&output.stdout).expect("one JSON line");
    line.values
}

/// RSS beyond the state before the threads: all of them waiting, and after their end.
fn leaf(threads: usize, allocate: bool) -> Values {
    let meeting =
        Meeting { settled: Barrier::new(threads + 1), leave: Barrier::new(threads + 1), allocate };
    let mut handles: Vec<libc::pthread_t> = vec![0; threads];
    let before = resident_kib();
    for handle in &mut handles {
        // SAFETY: `meeting` outlives the threads, which are joined below.
        let failed = unsafe {
            libc::pthread_create(handle, null_mut(), thread, (&raw const meeting) as *mut c_void)
        };
        assert_eq!(failed, 0, "pthread_create");
    }
    meeting.settled.wait();
    let idle = resident_kib() - before;
    meeting.leave.wait();
    for handle in handles {
        // SAFETY: each handle is of a thread created above and joined once.
        unsafe { libc::pthread_join(handle, null_mut()) };
    }
    values([("kib", idle), ("joined", resident_kib() - before)])
}

/// One thread's life.
extern "C" fn thread(meeting: *mut c_void) -> *mut c_void {
    // SAFETY: the argument is the Meeting that `leaf` keeps until it has joined this thread;
    // it is only read.
    let meeting = unsafe { &*meeting.cast::<Meeting>() };
    let mut blocks: [Option<Block>; BLOCKS] = [const { None }; BLOCKS];
    if meeting.allocate {
        for (at, slot) in blocks.iter_mut().enumerate() {
            *slot = Some(Block::filled(SIZES[at % SIZES.len()], at as u64));
        }
        // Half of them, one or two of each size.
        for (at, slot) in blocks.iter_mut().enumerate().filter(|(at, _)| at / 20 % 2 == at % 2) {
            slot.take().expect("allocated above").free(at as u64);
        }
    }
    meeting.settled.wait();
    meeting.leave.wait();
    for (at, slot) in blocks.iter_mut().enumerate() {
        if let Some(block) = slot.take() {
            block.free(at as u64);
        }
    }
    null_mut()
}
