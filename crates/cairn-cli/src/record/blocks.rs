//! From addresses to slots.
//!
//! Owns which blocks the program has. The one idea: an address is one block's from the note that makes it to the one
//! that gives it up, and in that order the notes come. It must never be sure of an address: programs have blocks that
//! were made before the recorder was there, or past it.

use super::addresses::Addresses;
use super::shared::{CALLOC, MALLOC, Note};
use crate::trace::{Kind, SIZE_MAX, Writer};
use anyhow::Result;
use rustc_hash::FxHashMap;

/// How a block was asked for.
#[derive(Clone, Copy)]
struct Block {
    kind: Kind,
    size: u64,
}

const NO_BLOCK: Block = Block { kind: Kind::Malloc, size: 0 };

/// The blocks of a program.
#[derive(Default)]
pub(super) struct Blocks {
    addresses: Addresses,
    /// By slot.
    blocks: Vec<Block>,
    /// By thread: the address of what is being resized, and its slot.
    moving: FxHashMap<u32, (u64, Option<u32>)>,
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
                let old = self.addresses.remove(block);
                self.moving.insert(thread, (block, old));
                Ok(())
            }
            Note::Moved { block, size } => self.moved(thread, block, size, writer),
            Note::Freed { block } => match self.addresses.remove(block) {
                Some(old) => writer.freed(thread, old),
                None => {
                    self.unknown += 1;
                    Ok(())
                }
            },
            Note::Ended => writer.ended(thread),
            // A file that is made anew.
            Note::Begun => Ok(()),
        }
    }

    /// Blocks that live.
    pub(super) fn count(&self) -> u64 {
        let moving = self.moving.values().filter(|(_, old)| old.is_some()).count();
        self.addresses.count() + moving as u64
    }

    /// Begins a trace with what lives, as a thread's blocks, in the order of their slots.
    pub(super) fn begin(&mut self, thread: u32, writer: &mut Writer) -> Result<()> {
        let mut live = vec![false; self.blocks.len()];
        self.addresses.slots().for_each(|slot| live[*slot as usize - 1] = true);
        let moving = self.moving.values_mut().filter_map(|(_, old)| old.as_mut());
        moving.for_each(|slot| live[*slot as usize] = true);

        let mut blocks = Vec::new();
        let mut new_slots = vec![0; self.blocks.len()];
        for (old, block) in self.blocks.iter().enumerate().filter(|(old, _)| live[*old]) {
            let slot = writer.made(thread, block.kind, block.size)?;
            new_slots[old] = slot;
            put(&mut blocks, slot, *block);
        }
        self.blocks = blocks;
        self.addresses.slots().for_each(|slot| *slot = new_slots[*slot as usize - 1] + 1);
        let moving = self.moving.values_mut().filter_map(|(_, old)| old.as_mut());
        moving.for_each(|slot| *slot = new_slots[*slot as usize]);
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
        let size = size.min(SIZE_MAX);
        let slot = writer.made(thread, kind, size)?;
        put(&mut self.blocks, slot, Block { kind, size });
        self.place(thread, address, slot, writer)
    }

    fn moved(&mut self, thread: u32, block: u64, size: u64, writer: &mut Writer) -> Result<()> {
        let Some((before, old)) = self.moving.remove(&thread) else { return Ok(()) };
        match old {
            Some(old) if block == 0 => self.place(thread, before, old, writer),
            // It is known from here on.
            None if block != 0 => self.make(thread, block, Kind::Malloc, size, writer),
            None => Ok(()),
            Some(old) => {
                let size = size.min(SIZE_MAX);
                writer.moved(thread, old, size)?;
                // What realloc has made has no alignment of its own.
                put(&mut self.blocks, old, Block { kind: Kind::Malloc, size });
                self.place(thread, block, old, writer)
            }
        }
    }

    /// A block is there; another one that was there has been given back past the recorder.
    fn place(&mut self, thread: u32, address: u64, slot: u32, writer: &mut Writer) -> Result<()> {
        match self.addresses.insert(address, slot) {
            Some(lost) => writer.freed(thread, lost),
            None => Ok(()),
        }
    }
}

fn put(blocks: &mut Vec<Block>, slot: u32, block: Block) {
    let slot = slot as usize;
    if blocks.len() <= slot {
        blocks.resize(slot + 1, NO_BLOCK);
    }
    blocks[slot] = block;
}
