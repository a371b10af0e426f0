//! Owns: which of its threads stands for a process in `/proc`.
//! Idea: threads have memory, files and a root in common, which the kernel shows by each that lives. The one that the process
//!   has its number from may have ended before the others: then the first that lives stands for all.
//! Never: takes a thread of another process.
//! Threads: any.
//! Checked: tests/first_thread.rs of the command.
//! Story: docs/design/outside-view.md

use std::fs;

/// The number by which `/proc` shows what the threads of a process have in common: its own, unless its first thread has
/// ended. It is that, too, if none lives.
pub fn task_of(pid: u32) -> u32 {
    if has_memory(&format!("/proc/{pid}")) {
        return pid;
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let mut numbers = numbers.filter(|&number: &u32| number != pid);
    numbers.find(|number| has_memory(&format!("/proc/{pid}/task/{number}"))).unwrap_or(pid)
}

/// What has ended has none, and no thread of the kernel's has. `statm` is short, and anybody may read it.
fn has_memory(task: &str) -> bool {
    fs::read(format!("{task}/statm")).is_ok_and(|pages| !pages.starts_with(b"0 "))
}
