//! From addresses to slots.
//!
//! Owns which blocks the program has. The one idea: an address is one block's from the note that makes it to the one
//! that gives it up, and in that order the notes come. It must never be sure of an address: programs have blocks that
//! were made before the recorder was there, or past it.

use super::shared::{CALLOC, MALLOC, Note};
use crate::trace::{Kind, SIZE_MAX, Writer};
use anyhow::Result;
use rustc_hash::FxHashMap;

/// A block that lives.
#[derive(Clone, Copy)]
struct Block {
    slot: u32,
    kind: Kind,
    size: u64,
}

/// The blocks of a program.
#[derive(Default)]
pub(super) struct Blocks {
    by_address: FxHashMap<u64, Block>,
    /// By thread: what is being resized.
    moving: FxHashMap<u32, (u64, Option<Block>)>,
    /// Blocks that were given back, and nobody had seen.
    pub(super) unknown: u64,
}

impl Blocks {
    /// Writes a thread's note into a trace.
    pub(super) fn take(&mut self, thread: u32, note: Note, writer: &mut Writer) -> Result<()> {
        match note {
            Note::Made { kind, align_log2, block, size } => {
                let kind = match kind {
                    MALLOC => Kind::Malloc,
                    CALLOC => Kind::Calloc,
                    _ => Kind::Aligned(align_log2),
                };
                self.make(thread, block, kind, size, writer)
            }
            Note::GivenUp { block } => {
                let old = self.by_address.remove(&block);
                self.moving.insert(thread, (block, old));
                Ok(())
            }
            Note::Moved { block, size } => self.moved(thread, block, size, writer),
            Note::Freed { block } => match self.by_address.remove(&block) {
                Some(old) => writer.freed(thread, old.slot),
                None => {
                    self.unknown += 1;
                    Ok(())
                }
            },
            // A file that is made anew.
            Note::Begun => Ok(()),
        }
    }

    /// Blocks that live.
    pub(super) fn count(&self) -> u64 {
        let moving = self.moving.values().filter(|(_, old)| old.is_some()).count();
        (self.by_address.len() + moving) as u64
    }

    /// Begins a trace with what lives, as the first thread's blocks, in the order of their slots.
    pub(super) fn begin(&mut self, thread: u32, writer: &mut Writer) -> Result<()> {
        let moving = self.moving.values_mut().filter_map(|(_, old)| old.as_mut());
        let mut blocks: Vec<&mut Block> = self.by_address.values_mut().chain(moving).collect();
        blocks.sort_unstable_by_key(|block| block.slot);
        for block in blocks {
            block.slot = writer.made(thread, block.kind, block.size)?;
        }
        Ok(())
    }

    fn make(
        &mut self,
        thread: u32,
        address: u64,
        kind: Kind,
        size: u64,
        writer: &mut Writer,
    ) -> Result<()> {
        // Given back past the recorder.
        if let Some(old) = self.by_address.remove(&address) {
            writer.freed(thread, old.slot)?;
        }
        let size = size.min(SIZE_MAX);
        let slot = writer.made(thread, kind, size)?;
        self.by_address.insert(address, Block { slot, kind, size });
        Ok(())
    }

    fn moved(&mut self, thread: u32, block: u64, size: u64, writer: &mut Writer) -> Result<()> {
        let Some((before, old)) = self.moving.remove(&thread) else { return Ok(()) };
        match old {
            Some(old) if block == 0 => {
                self.by_address.insert(before, old);
            }
            // It is known from here on.
            None if block != 0 => self.make(thread, block, Kind::Malloc, size, writer)?,
            None => {}
            Some(old) => {
                if let Some(lost) = self.by_address.remove(&block) {
                    writer.freed(thread, lost.slot)?;
                }
                let size = size.min(SIZE_MAX);
                writer.moved(thread, old.slot, size)?;
                // What realloc has made has no alignment of its own.
                self.by_address.insert(block, Block { slot: old.slot, kind: Kind::Malloc, size });
            }
        }
        Ok(())
    }
}
