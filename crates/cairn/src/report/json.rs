//! Owns: the statistics as JSON.
//! Idea: one object of whole numbers, whose fields only ever become more.
//! Never: allocates, or holds a lock while it calls.
//! Threads: any.
//! Checked: the C layer's beyond.rs reads it back.
//! Story: docs/guide/statistics.md

use crate::report::memory::{GroupMemory, MemoryUse};
use crate::report::stats::{Amount, Stats};
use crate::report::text::Text;
use core::fmt::{self, Write};

/// Gives the statistics to `out`, piece by piece, as one JSON object in ASCII: docs/guide/statistics.md has its fields.
/// `out` may do anything.
///
/// ```
/// let mut text = Vec::new();
/// cairn::write_json(|piece| text.extend_from_slice(piece));
/// assert!(text.starts_with(b"{\"version\":") && text.ends_with(b"}"));
/// ```
pub fn write_json(mut out: impl FnMut(&[u8])) {
    // It does not fail.
    let _ = write(&mut Text(&mut out), &Stats::take());
}

#[inline(never)]
fn write(out: &mut Text<'_>, stats: &Stats) -> fmt::Result {
    write!(out, "{{\"version\":\"{}\",\"classes\":[", env!("CARGO_PKG_VERSION"))?;
    for (number, row) in stats.classes.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        write!(out, "{comma}{{\"size\":{},\"spans\":{},", row.size, row.spans)?;
        write!(out, "\"in_use\":{},\"cached\":{},", row.in_use, row.cached)?;
        write!(out, "\"free\":{},\"untouched\":{}}}", row.free, row.untouched)?;
    }
    write!(out, "],")?;
    let amounts = [
        ("spans", stats.spans),
        ("large", stats.large),
        ("nurseries", stats.nurseries),
        ("mappings", stats.mappings),
        ("dirty", stats.dirty),
        ("metadata", stats.metadata),
        ("total", stats.total()),
    ];
    for (name, Amount { bytes, resident }) in amounts {
        write!(out, "\"{name}\":{{\"bytes\":{bytes},\"resident\":{resident}}},")?;
    }
    let (in_use, made) = stats.heaps;
    write!(out, "\"large_blocks\":{},", stats.large_blocks)?;
    write!(out, "\"nursery_blocks\":{},", stats.nursery_blocks)?;
    write!(out, "\"nursery_used\":{},", stats.nursery_used)?;
    write!(out, "\"mapping_blocks\":{},", stats.mapping_blocks)?;
    write!(out, "\"allocated\":{},\"clean\":{},", stats.allocated(), stats.clean)?;
    write!(out, "\"given_back\":{},", stats.given_back)?;
    write!(out, "\"heaps\":{{\"in_use\":{in_use},\"made\":{made}}},")?;
    write_memory(out)
}

/// What counts, and the limits; the group's figures if there is one.
fn write_memory(out: &mut Text<'_>) -> fmt::Result {
    let MemoryUse { counted, soft_limit, hard_limit, group } = MemoryUse::take();
    write!(out, "\"memory\":{{\"counted\":{counted},")?;
    // Neither that nor anything else: as much as a signed number holds.
    let [soft_limit, hard_limit] =
        [soft_limit, hard_limit].map(|limit| limit.min(isize::MAX as usize));
    write!(out, "\"soft_limit\":{soft_limit},\"hard_limit\":{hard_limit}")?;
    if let Some(GroupMemory { used, limit, files, hits, kills, pressure }) = group {
        write!(out, ",\"group\":{{\"used\":{used},\"limit\":{limit},\"files\":{files},")?;
        write!(out, "\"hits\":{hits},\"kills\":{kills},\"pressure\":{pressure}}}")?;
    }
    write!(out, "}}}}")
}
