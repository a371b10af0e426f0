//! A Rust program with a purge thread: what it gives back while it is idle.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: cairn::Cairn = cairn::Cairn;

const MIB: usize = 1 << 20;
/// Generous: the test runs beside others.
const AT_MOST: Duration = Duration::from_secs(30);

/// Bytes resident. Allocates nothing: no time passes for the allocator by being asked.
fn resident() -> usize {
    let mut text = [0; 256];
    let len = File::open("/proc/self/statm").unwrap().read(&mut text).unwrap();
    let text = std::str::from_utf8(&text[..len]).unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    // SAFETY: has no preconditions.
    pages * usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
}

/// Idles until no more than this is resident.
fn idle_until(most: usize, what: &str) {
    let began = Instant::now();
    while resident() > most {
        assert!(began.elapsed() < AT_MOST, "{what}: {} KiB, not {}", resident() >> 10, most >> 10);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How many threads of this process have the name.
fn threads_called(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let named = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).is_ok_and(|n| n.trim() == name)
    };
    tasks.map(named).filter(|&is| is).count()
}

fn blocks(bytes: usize) -> Vec<Vec<u8>> {
    const SIZE: usize = 100 << 10;
    (0..bytes / SIZE).map(|_| vec![1; SIZE]).collect()
}

/// What is freed first is less than a quarter of what stays in use: no free gives it back.
#[test]
fn an_idle_program_gives_back() {
    let before = resident();
    let kept = blocks(80 * MIB);
    drop(blocks(20 * MIB));
    let full = resident();
    assert!(full > before + 95 * MIB, "{} KiB", (full - before) >> 10);

    assert!(cairn::start_purge_thread());
    idle_until(full - 10 * MIB, "a part");
    drop(kept);
    idle_until(before + 8 * MIB, "all");

    assert!(cairn::start_purge_thread(), "once more");
    assert_eq!(threads_called("cairn-purge"), 1);
}
