//! What a thread costs is the resident set beyond a second process whose threads do not allocate, which takes the
//! stacks out. Threads are made with pthread_create: those of std allocate on their own account.

use crate::case::{Results, Settings};
use crate::malloc::Block;
use crate::process::resident_kib;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Barrier;

const SIZES: [usize; 20] =
    [16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048];
/// Blocks of one thread at most.
const BLOCKS: usize = 60;

pub(crate) struct Shape {
    name: &'static str,
    threads: usize,
    /// Blocks of one thread, of which every second of a size is freed.
    blocks: usize,
    /// Number of sizes, evenly spread over [`SIZES`].
    sizes: usize,
}

pub(crate) const FEW: Shape = Shape { name: "idle-200", threads: 200, blocks: BLOCKS, sizes: 20 };
pub(crate) const MANY: Shape = Shape { name: "idle-10000", threads: 10_000, blocks: 8, sizes: 4 };

/// Where all threads wait: after their allocations, and before they free the rest.
struct Meeting {
    barrier: Barrier,
    allocate: bool,
    shape: &'static Shape,
}

pub(crate) fn run(settings: &Settings, shape: &'static Shape) -> Results {
    let threads = settings.threads.unwrap_or_else(|| settings.scaled(shape.threads));
    // The subject and its baseline must be alike to the page, so each runs in a process of
    // its own; this one only starts them.
    match std::env::var_os("CAIRN_IDLE_LEAF") {
        Some(_) => leaf(threads, shape, !settings.no_alloc),
        None => {
            let (subject, baseline) = (child(threads, shape, false), child(threads, shape, true));
            let each = |key| (subject[key] - baseline[key]) / threads as f64;
            Results::of([
                ("kib_per_thread", each("kib")),
                ("kib_per_thread_joined", each("joined")),
                ("stack_kib_per_thread", baseline["kib"] / threads as f64),
                ("peak_mib", subject["peak_mib"]),
            ])
        }
    }
}

/// Runs this executable again; its values.
fn child(threads: usize, shape: &Shape, no_alloc: bool) -> BTreeMap<String, f64> {
    let mut command = Command::new(std::env::current_exe().expect("a path to ourselves"));
    command.args([shape.name, "--threads", &threads.to_string()]).env("CAIRN_IDLE_LEAF", "1");
    if no_alloc {
        // The stacks alone: what an allocator has for a thread that does not allocate is the allocator's.
        command.arg("--no-alloc").env_remove("LD_PRELOAD");
    }
    let output = command.output().expect("starting ourselves");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line: crate::case::Line = serde_json::from_slice(&output.stdout).expect("one JSON line");
    line.results.values
}

/// RSS beyond the state before the threads: all of them waiting, and after their end.
fn leaf(threads: usize, shape: &'static Shape, allocate: bool) -> Results {
    let meeting = Meeting { barrier: Barrier::new(threads + 1), allocate, shape };
    // SAFETY: init fills the zeroed struct it is given before anything reads it; it holds
    // nothing that would have to be given back.
    let attributes = unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&mut attributes), 0, "pthread_attr_init");
        // The default is too much for thousands of threads.
        let failed = libc::pthread_attr_setstacksize(&mut attributes, 64 << 10);
        assert_eq!(failed, 0, "pthread_attr_setstacksize");
        attributes
    };
    let mut handles: Vec<libc::pthread_t> = vec![0; threads];
    let before = resident_kib();
    for handle in &mut handles {
        // SAFETY: `meeting` outlives the threads, which are joined below; the attributes are initialised.
        let failed = unsafe {
            let meeting = (&raw const meeting) as *mut c_void;
            libc::pthread_create(handle, &attributes, thread, meeting)
        };
        assert_eq!(failed, 0, "pthread_create");
    }
    meeting.barrier.wait();
    let idle = resident_kib() - before;
    meeting.barrier.wait();
    for handle in handles {
        // SAFETY: each handle is of a thread created above and joined once.
        unsafe { libc::pthread_join(handle, null_mut()) };
    }
    Results::of([("kib", idle), ("joined", resident_kib() - before)])
}

extern "C" fn thread(meeting: *mut c_void) -> *mut c_void {
    // SAFETY: the argument is the Meeting that `leaf` keeps until it has joined this thread; it is only read.
    let meeting = unsafe { &*meeting.cast::<Meeting>() };
    let mut blocks = [const { None::<Block> }; BLOCKS];
    let &Shape { blocks: count, sizes, .. } = meeting.shape;
    let used = if meeting.allocate { &mut blocks[..count] } else { &mut [] };
    for (at, slot) in used.iter_mut().enumerate() {
        *slot = Some(Block::written(SIZES[at % sizes * (SIZES.len() / sizes)]));
    }
    // Half of them, about as many of each size.
    for (at, slot) in used.iter_mut().enumerate() {
        if at / sizes % 2 == at % 2 {
            *slot = None;
        }
    }
    meeting.barrier.wait();
    meeting.barrier.wait();
    null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_allocate_wait_and_free() {
        for shape in [&FEW, &MANY] {
            for allocate in [true, false] {
                let values = leaf(4, shape, allocate).values;
                assert!(values["kib"].is_finite() && values["joined"].is_finite());
            }
        }
    }
}
