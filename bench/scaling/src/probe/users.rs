//! Which thread used each line of a block last.
//!
//! The tracer sees nothing of the warming up, but a line that moves in the traced part was
//! often used last before it. So the program itself notes who allocates and frees what,
//! until it is traced.

use crate::coherence::Line;
use memmap2::{MmapMut, MmapOptions};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Entries; each line has one, and lines 256 GiB apart have the same.
const ENTRIES: u64 = 1 << 32;
const ENTRY: u64 = size_of::<AtomicU16>() as u64;

/// The table: of a thread its index plus 1, 0 for nobody. Untouched pages cost nothing.
///
/// Invariant 1: the mapping has `ENTRIES` entries and is never accessed but as those.
pub struct Users(MmapMut);

impl Users {
    /// An empty table.
    pub fn new() -> std::io::Result<Users> {
        let bytes = usize::try_from(ENTRIES * ENTRY).map_err(std::io::Error::other)?;
        Ok(Users(MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?))
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// Where the entry of `line` is, from the table's address.
    pub fn offset(line: Line) -> u64 {
        line.0 % ENTRIES * ENTRY
    }

    /// What an entry says.
    pub fn user(entry: [u8; 2]) -> Option<usize> {
        u16::from_ne_bytes(entry).checked_sub(1).map(usize::from)
    }

    /// Notes the user of `size` bytes at `address`.
    pub fn note(&self, address: u64, size: usize, user: usize) {
        for line in Line::spanning(address, size as u64) {
            let offset = Self::offset(line) as usize;
            // SAFETY: invariant 1; the offset is that of an entry, all entries are
            // initialised (zero), aligned, and accessed atomically only.
            let entry = unsafe { &*self.0.as_ptr().add(offset).cast::<AtomicU16>() };
            entry.store(user as u16 + 1, Relaxed);
        }
    }
}
