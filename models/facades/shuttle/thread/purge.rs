//! Owns: the purge thread's place in the model of the whole core: there is none.
//! Idea: what the thread calls (upkeep by the clock, trimming) the models call where they want it.
//! Never: starts a thread of the system's, which shuttle would not schedule.
//! Threads: any.
//! Checked: nothing to check.
//! Story: docs/results/verification.md

/// False: there is none.
pub fn start_purge_thread() -> bool {
    false
}
