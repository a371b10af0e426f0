//! Owns: the limits of a process, and what it uses of them: its memory cgroups, and those of `ulimit`.
//! Idea: the kernel's own files; what cannot be read is no limit.
//! Never: fails.
//! Threads: one.
//! Checked: tests here
//! Story: docs/guide/inspect.md

use crate::process::{task_of, text};
use std::fs;
use std::path::Path;

/// A limit.
pub(crate) struct Limit {
    /// What is limited.
    pub(crate) name: &'static str,
    pub(crate) used: u64,
    pub(crate) most: u64,
}

/// The limits that a process has.
pub(crate) fn limits(pid: u32) -> Vec<Limit> {
    let task = task_of(pid);
    let read = |name| text(format!("/proc/{task}/{name}")).unwrap_or_default();
    let (limits, status) = (read("limits"), read("status"));
    let of_process = [
        ("address space (ulimit -v)", "Max address space", "VmSize:"),
        ("data (ulimit -d)", "Max data size", "VmData:"),
    ];
    let of_process = of_process.into_iter().filter_map(|(name, limit, used)| {
        Some(Limit { name, used: kib(&status, used)?, most: soft(&limits, limit)? })
    });
    of_process.chain(of_groups(&read("cgroup"), Path::new("/sys/fs/cgroup"))).collect()
}

/// The number of a line of `status`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The first number of a line of `limits`; None: unlimited.
fn soft(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Those of the process's memory cgroup and the ones around it.
fn of_groups(text: &str, mounted: &Path) -> Vec<Limit> {
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let group = mounted.join(path);
    let around = group.ancestors().take_while(|group| group.starts_with(mounted));
    let number = |group: &Path, name: &str| {
        fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok()
    };
    around
        .filter_map(|group| {
            let most = number(group, "memory.max")?;
            Some(Limit { name: "memory cgroup", used: number(group, "memory.current")?, most })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{kib, of_groups, soft};
    use std::path::Path;

    #[test]
    fn numbers_are_found() {
        assert_eq!(kib("VmPeak:\t 9 kB\nVmSize:\t    12 kB\n", "VmSize:"), Some(12 << 10));
        assert_eq!(kib("VmSize:\t99999999999999999999 kB\n", "VmSize:"), None);
        let limits = "Max data size             4096                 unlimited            bytes\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(soft(limits, "Max data size"), Some(4096));
        assert_eq!(soft(limits, "Max address space"), None);
    }

    #[test]
    fn what_is_not_there_is_no_limit() {
        assert!(of_groups("", Path::new("/nowhere")).is_empty());
        assert!(of_groups("0::/a/b\n", Path::new("/nowhere")).is_empty());
    }
}
