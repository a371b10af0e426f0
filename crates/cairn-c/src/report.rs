//! Text for people and programs: the ledger in words, and glibc's XML.

use cairn::{Amount, Ledger};
use core::ffi::c_int;
use core::fmt::{self, Write};

/// Writes to standard error, in pieces of a buffer's length.
pub(crate) struct Stderr {
    bytes: [u8; 512],
    len: usize,
}

impl Stderr {
    /// With nothing written.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 512], len: 0 }
    }

    fn flush(&mut self) {
        line(self.bytes.get(..self.len).unwrap_or(&[]));
        self.len = 0;
    }
}

impl Write for Stderr {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len == self.bytes.len() {
                self.flush();
            }
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
        }
        Ok(())
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Writes bytes to standard error.
pub(crate) fn line(text: &[u8]) {
    // SAFETY: the slice is valid for reading; errno's location is the thread's. There is nobody
    // to tell about a failure, and errno is the program's.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::write(2, text.as_ptr().cast(), text.len());
        *errno = saved;
    }
}

/// Writes a warning of one line.
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    let _ = writeln!(Stderr::new(), "cairn: {message}");
}

const KIB: usize = 1024;

/// The ledger as a table.
pub(crate) fn print_ledger() {
    let ledger = Ledger::take();
    let mut out = Stderr::new();
    // Stderr's writes do not fail.
    let _ = write_ledger(&mut out, &ledger);
}

fn write_ledger(out: &mut Stderr, ledger: &Ledger) -> fmt::Result {
    let total = ledger.total();
    writeln!(out, "cairn ledger, process {}, in KiB", process_id())?;
    writeln!(out, "{:34}{:>12}{:>12}", "", "bytes", "resident")?;
    row(out, "spans", ledger.spans)?;
    let parts = [
        ("  blocks in use", ledger.sum(|c| c.in_use)),
        ("  cached by threads", ledger.sum(|c| c.cached)),
        ("  freed into their spans", ledger.sum(|c| c.free)),
        ("  never handed out", ledger.sum(|c| c.untouched)),
    ];
    let parts_sum: usize = parts.iter().map(|p| p.1).sum();
    for (name, bytes) in parts {
        writeln!(out, "{name:34}{:>12}", bytes.div_ceil(KIB))?;
    }
    let slack = ledger.spans.bytes - parts_sum;
    writeln!(out, "{:34}{:>12}", "  cut off in front of blocks", slack.div_ceil(KIB))?;
    row(out, "large blocks in use", ledger.large)?;
    row(out, "mappings in use", ledger.mappings)?;
    row(out, "dirty slices (free, not yet back)", ledger.dirty)?;
    row(out, "metadata", ledger.metadata)?;
    row(out, "total", total)?;
    writeln!(out, "{:34}{:>12}", "free and given back", ledger.clean.div_ceil(KIB))?;
    writeln!(out, "{:34}{:>12}", "given back since the start", ledger.given_back / 1024)?;
    writeln!(
        out,
        "blocks: {} in spans, {} large, {} mappings; heaps: {} in use of {}",
        ledger.classes.iter().map(|c| c.in_use).sum::<usize>(),
        ledger.large_blocks,
        ledger.mapping_blocks,
        ledger.heaps.0,
        ledger.heaps.1,
    )?;
    writeln!(out, "requested sizes are not kept: blocks count with their usable size")
}

fn row(out: &mut Stderr, name: &str, amount: Amount) -> fmt::Result {
    let (bytes, resident) = (amount.bytes.div_ceil(KIB), amount.resident.div_ceil(KIB));
    writeln!(out, "{name:34}{bytes:>12}{resident:>12}")
}

fn process_id() -> c_int {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// Writes to a C stream.
pub(crate) struct Stream(pub(crate) *mut libc::FILE);

impl Write for Stream {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the caller of malloc_info vouches for the stream.
        let n = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.0) };
        if n == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// malloc_info's document.
pub(crate) fn write_xml(out: &mut Stream) -> fmt::Result {
    let ledger = Ledger::take();
    let total = ledger.total();
    writeln!(out, "<malloc version=\"cairn-1\">")?;
    writeln!(out, "<sizes>")?;
    for c in ledger.classes.iter().filter(|c| c.spans > 0) {
        writeln!(
            out,
            "  <class size=\"{}\" spans=\"{}\" in_use=\"{}\" cached=\"{}\" free=\"{}\" \
             untouched=\"{}\"/>",
            c.size, c.spans, c.in_use, c.cached, c.free, c.untouched
        )?;
    }
    writeln!(out, "</sizes>")?;
    let amounts = [
        ("spans", ledger.spans),
        ("large", ledger.large),
        ("mappings", ledger.mappings),
        ("dirty", ledger.dirty),
        ("metadata", ledger.metadata),
        ("total", total),
    ];
    for (name, amount) in amounts {
        writeln!(
            out,
            "<amount type=\"{name}\" size=\"{}\" resident=\"{}\"/>",
            amount.bytes, amount.resident
        )?;
    }
    writeln!(out, "<allocated size=\"{}\"/>", ledger.allocated())?;
    writeln!(out, "<returned size=\"{}\"/>", ledger.given_back)?;
    writeln!(out, "<heaps in_use=\"{}\" count=\"{}\"/>", ledger.heaps.0, ledger.heaps.1)?;
    writeln!(out, "</malloc>")
}
