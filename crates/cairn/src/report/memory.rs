//! Owns: what of the process's memory counts, and what limits it, for whoever asks.
//! Idea: the allocator's own figures, and beside them those of the memory cgroup, which has other things too.
//! Never: changes a limit.
//! Threads: any; the arena's lock for a few loads.
//! Checked: tests/limits/process.rs; the C layer's limits in cgroups.
//! Story: docs/guide/memory.md

use crate::os;
use crate::slices::{arena, limit};

/// The memory of the process and its limits, in bytes: see `set_memory_limits`.
///
/// ```
/// let memory = cairn::MemoryUse::take();
/// if let Some(group) = memory.group {
///     println!("{} of {} in the cgroup", group.used, group.limit);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// What counts: spans, large blocks, and what is free and has not gone back.
    pub counted: usize,
    /// The soft limit that has been set; 0: none, what the group says; `usize::MAX`: none at all.
    pub soft_limit: usize,
    /// The hard limit; 0: none.
    pub hard_limit: usize,
    /// The memory cgroup with the lowest limit, if the process is in one that has any, and if that may be asked.
    pub group: Option<GroupMemory>,
}

/// What a memory cgroup says of itself.
///
/// ```
/// let is_short = |group: cairn::GroupMemory| group.used - group.files > group.limit / 8 * 7;
/// println!("{:?}", cairn::MemoryUse::take().group.map(is_short));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// Bytes in use, files in memory included.
    pub used: u64,
    /// The lower of its limits in bytes, `memory.max` and `memory.high`.
    pub limit: u64,
    /// Bytes of files in memory, which go when it is short.
    pub files: u64,
    /// How often it has come to a limit.
    pub hits: u64,
    /// How many of its processes have been ended for that.
    pub kills: u64,
    /// The part of the last 10 seconds, in hundredths of a percent, in which some process waited for memory.
    pub pressure: u64,
}

impl MemoryUse {
    /// The figures of this moment. It reads files of the group.
    ///
    /// ```
    /// assert!(cairn::MemoryUse::take().counted < 1 << 40);
    /// ```
    #[must_use]
    pub fn take() -> MemoryUse {
        let [soft_limit, hard_limit] = limit::get();
        let group = limit::with_group(|group| {
            let os::GroupUse { used, limit } = group.usage()?;
            let [hits, kills] = group.events();
            let (files, pressure) = (group.files().unwrap_or(0), group.pressure());
            Some(GroupMemory { used, limit, files, hits, kills, pressure })
        });
        let counted = arena::counted();
        MemoryUse { counted, soft_limit, hard_limit, group: group.flatten() }
    }
}
