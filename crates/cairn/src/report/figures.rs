//! Owns: single figures by name, and all of them as Prometheus reads them.
//! Idea: one table; a figure takes only what it needs of the account.
//! Never: allocates, or holds a lock while it calls.
//! Threads: any.
//! Checked: the C layer's beyond.rs compares them with the JSON.
//! Story: docs/guide/statistics.md

use crate::report::memory::MemoryUse;
use crate::report::stats::Stats;
use crate::report::text::Text;
use core::fmt::{self, Write};

/// What has a name.
#[derive(Clone, Copy)]
enum What {
    Allocated,
    Active,
    Cached,
    Dirty,
    Retained,
    Mapped,
    Metadata,
    Resident,
    GivenBack,
    Blocks,
    Heaps,
}

impl What {
    /// Whether the system is asked for it what is resident.
    fn looks(self) -> bool {
        matches!(self, What::Mapped | What::Metadata | What::Resident)
    }

    fn of(self, stats: &Stats) -> usize {
        match self {
            What::Allocated => stats.allocated(),
            What::Active => {
                let large = stats.large.bytes + stats.mappings.bytes;
                stats.spans.bytes + stats.nurseries.bytes + large
            }
            What::Cached => stats.sum(|row| row.cached),
            What::Dirty => stats.dirty.bytes,
            What::Retained => stats.clean,
            What::Mapped => stats.total().bytes,
            What::Metadata => stats.metadata.bytes,
            What::Resident => stats.total().resident,
            What::GivenBack => usize::try_from(stats.given_back).unwrap_or(usize::MAX),
            What::Blocks => stats.blocks(),
            What::Heaps => stats.heaps.0,
        }
    }
}

/// What a number is.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    /// The same since the start.
    BytesEver,
    /// A number of things.
    Things,
}

/// A name, which is jemalloc's where it has the figure; behind it what it is, for readers of dashboards.
static FIGURES: [(What, Unit, &str); 11] = [
    (What::Allocated, Unit::Bytes, "allocated Blocks in use"),
    (What::Active, Unit::Bytes, "active Spans and large blocks in use"),
    (What::Cached, Unit::Bytes, "cached Free blocks at hand for threads"),
    (What::Dirty, Unit::Bytes, "dirty Free and not given back"),
    (What::Retained, Unit::Bytes, "retained Free addresses without memory"),
    (What::Mapped, Unit::Bytes, "mapped All but what is retained"),
    (What::Metadata, Unit::Bytes, "metadata Own tables"),
    (What::Resident, Unit::Bytes, "resident Memory behind what is mapped"),
    (What::GivenBack, Unit::BytesEver, "given_back Given back since the start"),
    (What::Blocks, Unit::Things, "blocks Blocks in use"),
    (What::Heaps, Unit::Things, "heaps Heaps that threads use"),
];

/// The name, and what follows from the space on.
fn parts(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|byte| byte == b' ').unwrap_or(text.len()))
}

/// A single figure of the statistics as it is now, by its name, such as `allocated` or `resident`: docs/guide/statistics.md
/// has them. None if there is none of that name. Cheap enough for each second: a walk over the metadata; for `mapped`,
/// `metadata` and `resident` the system is asked, too.
///
/// ```
/// let block = cairn::allocate(1 << 20);
/// assert!(cairn::figure("allocated").is_some_and(|bytes| bytes >= 1 << 20));
/// assert_eq!(cairn::figure("alocated"), None);
/// # unsafe { cairn::deallocate(block) };
/// ```
#[must_use]
pub fn figure(name: &str) -> Option<usize> {
    let (what, ..) = FIGURES.iter().find(|(.., text)| parts(text).0 == name)?;
    Some(what.of(&if what.looks() { Stats::take() } else { Stats::count() }))
}

/// Gives all these figures of one moment to `out`, piece by piece, in Prometheus's text format: `cairn_allocated_bytes` and so
/// on; also what counts for limits, and those that are set. `out` may do anything.
///
/// ```
/// let mut text = Vec::new();
/// cairn::write_prometheus(|piece| text.extend_from_slice(piece));
/// assert!(String::from_utf8(text).unwrap().contains("\ncairn_resident_bytes "));
/// ```
pub fn write_prometheus(mut out: impl FnMut(&[u8])) {
    // It does not fail.
    let _ = write(&mut Text(&mut out));
}

#[inline(never)]
fn write(out: &mut Text<'_>) -> fmt::Result {
    let stats = Stats::take();
    for (what, unit, text) in &FIGURES {
        write_figure(out, *unit, text, what.of(&stats))?;
    }
    let MemoryUse { counted, soft_limit, hard_limit, .. } = MemoryUse::take();
    write_figure(out, Unit::Bytes, "counted What counts for limits", counted)?;
    if soft_limit > 0 && soft_limit < usize::MAX {
        write_figure(out, Unit::Bytes, "soft_limit Soft limit", soft_limit)?;
    }
    if hard_limit > 0 {
        write_figure(out, Unit::Bytes, "hard_limit Hard limit", hard_limit)?;
    }
    Ok(())
}

#[inline(never)]
fn write_figure(out: &mut Text<'_>, unit: Unit, text: &'static str, value: usize) -> fmt::Result {
    let (name, help) = parts(text);
    let (end, kind) = match unit {
        Unit::Bytes => ("_bytes", "gauge"),
        Unit::BytesEver => ("_bytes_total", "counter"),
        Unit::Things => ("", "gauge"),
    };
    let words = ["# HELP cairn_", name, end, help, ".\n# TYPE cairn_", name, end, " ", kind];
    for word in words {
        out.write_str(word)?;
    }
    writeln!(out, "\ncairn_{name}{end} {value}")
}
