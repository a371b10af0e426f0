//! What the system says about a process: resident set, faults, CPU time.

use rustix::param::page_size;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Resident set now, in KiB, exact (the kernel walks the page tables).
///
/// `statm` is not used: since Linux 6.2 its counters lag by up to 32 pages per CPU,
/// which is a large part of a small process. Allocates nothing.
pub(crate) fn resident_kib() -> f64 {
    field_kib("/proc/self/smaps_rollup", "Rss:").unwrap_or(0.0)
}

/// Resident set now, in KiB, from the kernel's counters: microseconds, where the exact
/// [`resident_kib`] takes milliseconds on a big heap and holds up mmap meanwhile.
///
/// Linux 6.2 to 6.16 let these counters lag by some dozens of pages per CPU. Allocates nothing.
pub(crate) fn resident_about_kib() -> f64 {
    let mut buffer = [0; 256];
    let text = read("/proc/self/statm", &mut buffer).unwrap_or("");
    let pages: f64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    pages * page_size() as f64 / 1024.0
}

/// Peak resident set, in KiB. Not `ru_maxrss`: that survives exec, so it can be the parent's peak.
pub(crate) fn peak_kib() -> f64 {
    field_kib("/proc/self/status", "VmHWM:").unwrap_or(0.0)
}

/// Reads `NAME  123 kB` from one of the kernel's tables.
pub fn field_kib(path: impl AsRef<Path>, name: &str) -> Option<f64> {
    parse_kib(read(path, &mut [0; 4096])?, name)
}

/// A text of the kernel's that fits the buffer, so that measuring does not allocate.
fn read(path: impl AsRef<Path>, buffer: &mut [u8]) -> Option<&str> {
    let mut length = 0;
    let mut file = File::open(path).ok()?;
    while let Ok(n @ 1..) = file.read(&mut buffer[length..]) {
        length += n;
    }
    std::str::from_utf8(&buffer[..length]).ok()
}

/// The same, in a text already read.
pub fn parse_kib(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").trim().parse().ok()
}

/// Adds what is reported for every workload: peak and final RSS, faults, CPU time.
pub(crate) fn add_facts(values: &mut BTreeMap<String, f64>) {
    let resident = resident_kib();
    let peak = peak_kib().max(resident);
    // SAFETY: getrusage fills the zeroed struct it is given.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let ms = |t: libc::timeval| t.tv_sec as f64 * 1e3 + t.tv_usec as f64 / 1e3;
    for (key, value) in [
        ("peak_mib", peak / 1024.0),
        ("final_mib", resident / 1024.0),
        ("minor_faults", usage.ru_minflt as f64),
        ("user_ms", ms(usage.ru_utime)),
        ("system_ms", ms(usage.ru_stime)),
    ] {
        values.entry(key.to_owned()).or_insert(value);
    }
}

/// Makes this process the first to go when memory runs out, and end with its parent.
pub(crate) fn be_expendable() {
    // Without the file (other systems, sandboxes) the run is merely less polite.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}
