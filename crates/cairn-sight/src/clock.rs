//! Owns: what time it is for a process, on the clock by which it dates what it keeps.
//! Idea: its clock is this one, but in a container that has a time of its own: the kernel tells by how much they differ.
//! Never: asks the process.
//! Threads: any.
//! Checked: tests here; tests/page_samples.rs of the command.
//! Story: docs/guide/inspect.md

use rustix::time::{ClockId, clock_gettime};
use std::fs;

const NS: u64 = 1_000_000_000;

/// Nanoseconds on the clock of a process that counts on whatever is set.
pub(crate) fn now_ns(pid: u32) -> u64 {
    let read = |who: &str| fs::read_to_string(format!("/proc/{who}/timens_offsets")).ok();
    let offset = |who: &str| read(who).and_then(|text| offset_ns(&text)).unwrap_or(0);
    let ahead = offset(&pid.to_string()).saturating_sub(offset("self"));
    since_ns(ClockId::Monotonic).saturating_add_signed(ahead)
}

fn since_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(time.tv_sec).saturating_mul(NS).saturating_add(part(time.tv_nsec))
}

/// By how much the clock is ahead of the machine's, of lines like `monotonic -5 0`: seconds and nanoseconds.
fn offset_ns(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut words = line.split_ascii_whitespace();
    let mut number = || words.next()?.parse::<i64>().ok();
    number()?.checked_mul(NS as i64)?.checked_add(number()?)
}

#[cfg(test)]
mod tests {
    use super::{now_ns, offset_ns};

    #[test]
    fn offsets_are_read() {
        let text = "monotonic           -5         700\nboottime            1         0\n";
        assert_eq!(offset_ns(text), Some(-5_000_000_000 + 700));
        for text in ["", "boottime 1 2\n", "monotonic 1\n", "monotonic 99999999999999 0\n"] {
            assert_eq!(offset_ns(text), None, "{text}");
        }
    }

    #[test]
    fn time_goes_on() {
        let before = now_ns(std::process::id());
        assert!((before..before + 60_000_000_000).contains(&now_ns(std::process::id())));
    }
}
