//! Which processes belong to a child, by `/proc`.

use rustix::param::page_size;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::fs;
use std::process::Child;
use std::time::Duration;

/// What `/proc/PID/stat` says of a process.
struct Process {
    id: u32,
    parent: u32,
    session: u32,
    has_ended: bool,
}

fn process(id: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Behind the name, which may have anything in it: state, parent, group, session.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').take(4).collect();
    let &[state, parent, _, session] = &fields[..] else { return None };
    let has_ended = matches!(state, "Z" | "X");
    Some(Process { id, parent: parent.parse().ok()?, session: session.parse().ok()?, has_ended })
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?))
}

/// Every process below `root`, parents before children.
pub fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process.id);
    }
    let mut found = Vec::new();
    let mut unvisited = vec![root];
    while let Some(id) = unvisited.pop() {
        let below = children.remove(&id).unwrap_or_default();
        found.extend(&below);
        unvisited.extend(below);
    }
    found
}

/// The resident set of a process and so many generations below it.
pub(crate) fn resident_mib(process: u32, generations: usize) -> f64 {
    let pages = fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    let own: f64 = pages * page_size() as f64 / 1048576.0;
    if generations == 0 {
        return own;
    }
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    own + children.map(|child| resident_mib(child, generations - 1)).sum::<f64>()
}

/// Kills a child, everything below it, and its session if it leads one.
pub(crate) fn end(child: &mut Child) -> std::io::Result<()> {
    let (leader, below) = (child.id(), descendants(child.id()));
    let is_meant = |process: &Process| {
        let is_of_it = process.session == leader || below.contains(&process.id);
        is_of_it && process.id != leader && !process.has_ended
    };
    // The child first: it goes on to nothing else. It is waited for last: until then its number is no other's.
    let _ = child.kill();
    // What is about to fork may need a second look.
    for _ in 0..50 {
        let found: Vec<u32> = processes().filter(is_meant).map(|process| process.id).collect();
        if found.is_empty() {
            break;
        }
        kill_all(&found);
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait().map(drop)
}

/// Kills processes that this one started.
pub fn kill_all(ids: &[u32]) {
    for id in ids.iter().filter_map(|&id| Pid::from_raw(id.try_into().ok()?)) {
        // It may have ended by itself meanwhile.
        let _ = kill_process(id, Signal::KILL);
    }
}
