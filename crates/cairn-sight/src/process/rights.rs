//! Owns: what to say to who may not read a process.
//! Idea: the kernel says no without a reason; who asks, and how the system is set, tell what may help.
//! Never: tells root to become root.
//! Threads: any.
//! Checked: tests here; tests/top.rs of the command.
//! Story: docs/guide/inspect.md

use crate::Error;
use std::fs;

/// Its bit among a thread's capabilities.
const SYS_PTRACE: u32 = 19;

impl Error {
    /// For a process that the user may not read.
    #[must_use]
    pub fn not_permitted(pid: u32) -> Error {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let scope = text("/proc/sys/kernel/yama/ptrace_scope");
        let status = text("/proc/thread-self/status");
        let is_root = rustix::process::geteuid().is_root();
        Error::NotPermitted(pid, remedy(is_root, may_trace(&status), scope.trim()))
    }
}

/// Whether a thread with this status may look into all processes that it sees.
fn may_trace(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> SYS_PTRACE & 1 == 1)
}

/// What the user can do to be permitted.
fn remedy(is_root: bool, may_trace: bool, scope: &str) -> String {
    let others = "root, or CAP_SYS_PTRACE (sudo setcap cap_sys_ptrace+ep CAIRN)";
    match (may_trace, is_root, scope) {
        (_, _, "3") => "/proc/sys/kernel/yama/ptrace_scope is 3: nobody may until the system starts anew".to_owned(),
        (true, ..) => "CAP_SYS_PTRACE is not enough here: look from outside of this container".to_owned(),
        (false, true, _) => "root has no CAP_SYS_PTRACE here: give it to the container (--cap-add SYS_PTRACE), or look from \
             outside of it"
            .to_owned(),
        (false, false, "" | "0") => format!("be the user whose process it is, {others}"),
        (false, false, scope) => format!(
            "/proc/sys/kernel/yama/ptrace_scope is {scope}; set it to 0 to read your own processes, or be {others}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{may_trace, remedy};

    #[test]
    fn root_is_not_told_to_become_root() {
        for scope in ["", "0", "1"] {
            assert!(!remedy(true, false, scope).contains("sudo"));
            assert!(remedy(true, false, scope).contains("--cap-add SYS_PTRACE"));
            assert!(remedy(false, false, scope).contains("sudo setcap"));
            assert!(remedy(true, true, scope).contains("from outside"));
        }
        assert!(remedy(false, false, "1").contains("ptrace_scope is 1"));
    }

    #[test]
    fn capabilities_are_read() {
        assert!(may_trace("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        // Those of a container.
        assert!(!may_trace("CapPrm:\t000001ffffffffff\nCapEff:\t00000000a80425fb\n"));
        assert!(!may_trace(""));
    }
}
