//! Owns: what time it is for a process: on the clock by which it dates what it keeps, and since its start.
//! Idea: its clock is this one, but in a container that has a time of its own: the kernel tells by how much they differ.
//! Never: asks the process.
//! Threads: any.
//! Checked: tests here; tests/page_samples.rs of the command.
//! Story: docs/guide/inspect.md

use crate::process::task_of;
use crate::watch;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::time::Duration;

const NS: u64 = 1_000_000_000;

/// Nanoseconds on the clock of a process that counts on whatever is set.
pub(crate) fn now_ns(pid: u32) -> u64 {
    let read = |who: &str| fs::read_to_string(format!("/proc/{who}/timens_offsets")).ok();
    let offset = |who: &str| read(who).and_then(|text| offset_ns(&text)).unwrap_or(0);
    let ahead = offset(&task_of(pid).to_string()).saturating_sub(offset("self"));
    since_ns(ClockId::Monotonic).saturating_add_signed(ahead)
}

/// How long a process has run, if it is there.
pub(crate) fn life(pid: u32) -> Option<Duration> {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let started = u128::from(watch::started(pid)?) * u128::from(NS) / u128::from(ticks);
    let now = since_ns(ClockId::Boottime);
    Some(Duration::from_nanos(now.saturating_sub(u64::try_from(started).ok()?)))
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
    use super::{life, now_ns, offset_ns};
    use std::time::Duration;

    #[test]
    fn offsets_are_read() {
        let text = "monotonic           -5         700\nboottime            1         0\n";
        assert_eq!(offset_ns(text), Some(-5_000_000_000 + 700));
        for text in ["", "boottime 1 2\n", "monotonic 1\n", "monotonic 99999999999999 0\n"] {
            assert_eq!(offset_ns(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_has_run_for_a_while() {
        let own = std::process::id();
        assert!(life(own).is_some_and(|life| life < Duration::from_secs(86_400)));
        assert_eq!(life(0), None);
        let before = now_ns(own);
        assert!((before..before + 60_000_000_000).contains(&now_ns(own)));
    }
}
