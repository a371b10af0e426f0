//! The statistics as JSON. docs/guide/statistics.md explains the figures.

use cairn::{Amount, GroupMemory, MemoryUse, Stats};
use core::ffi::{c_char, c_void};
use core::fmt::{self, Write};

/// Who gets the text, in pieces.
pub(crate) type Writer = unsafe extern "C" fn(arg: *mut c_void, text: *const c_char, n: usize);

/// Text on its way there.
pub(crate) struct Pieces {
    writer: Writer,
    arg: *mut c_void,
    bytes: [u8; 1024],
    len: usize,
}

impl Pieces {
    /// None yet.
    pub(crate) fn new(writer: Writer, arg: *mut c_void) -> Self {
        Pieces { writer, arg, bytes: [0; 1024], len: 0 }
    }

    /// Adds a piece.
    #[inline(never)]
    pub(crate) fn add(&mut self, piece: &[u8]) {
        for &byte in piece {
            if self.len == self.bytes.len() {
                self.flush();
            }
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }

    /// Gives away what it has.
    pub(crate) fn flush(&mut self) {
        // SAFETY: the program's function, with what it asked to get.
        unsafe { (self.writer)(self.arg, self.bytes.as_ptr().cast(), self.len) };
        self.len = 0;
    }
}

impl Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

/// The statistics as a JSON object, given to `writer` piece by piece.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_stats_json(writer: Writer, arg: *mut c_void) {
    let stats = Stats::take();
    let mut out = Pieces::new(writer, arg);
    // Pieces do not fail.
    let _ = write_stats(&mut out, &stats);
    out.flush();
}

fn write_stats(out: &mut Pieces, stats: &Stats) -> fmt::Result {
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
fn write_memory(out: &mut Pieces) -> fmt::Result {
    let MemoryUse { counted, soft_limit, hard_limit, group } = MemoryUse::take();
    write!(out, "\"memory\":{{\"counted\":{counted},")?;
    write!(out, "\"soft_limit\":{soft_limit},\"hard_limit\":{hard_limit}")?;
    if let Some(GroupMemory { used, limit, files, hits, kills, pressure }) = group {
        write!(out, ",\"group\":{{\"used\":{used},\"limit\":{limit},\"files\":{files},")?;
        write!(out, "\"hits\":{hits},\"kills\":{kills},\"pressure\":{pressure}}}")?;
    }
    write!(out, "}}}}")
}
