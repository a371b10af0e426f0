//! Owns: the account of every byte: what is allocated, what is not and why, what is resident.
//! Idea: nothing is counted while the program runs; the metadata is walked when someone asks.
//! Never: takes a lock for long, or trusts what another thread may be changing.
//! Threads: any. Other threads' lists are read as they change: figures of a running program
//!   are close, those of a program at rest exact.
//! Checked: the reconciliation test compares with the kernel's account.
//! Story: docs/ledger.md

use crate::address_map::{self, OWNER_LARGE};
use crate::heap::{Heap, pool};
use crate::size_class::{CLASS_COUNT, CLASSES, SLICE_SIZE};
use crate::span::Span;
use crate::{arena, large, os};

/// Bytes, and those of them that have memory behind them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amount {
    /// Address space in that use.
    pub bytes: usize,
    /// Resident part, by whole pages.
    pub resident: usize,
}

impl Amount {
    fn add(&mut self, at: *mut u8, bytes: usize) {
        self.bytes += bytes;
        self.resident += os::resident(at, bytes);
    }
}

/// One size class.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassRow {
    /// Bytes in a block.
    pub size: usize,
    /// Spans of the class.
    pub spans: usize,
    /// Blocks that the program holds.
    pub in_use: usize,
    /// Blocks in threads' allocation lists.
    pub cached: usize,
    /// Blocks freed into their spans.
    pub free: usize,
    /// Blocks never handed out.
    pub untouched: usize,
}

/// The account. All figures are in bytes unless they say otherwise. In `bytes`,
/// spans = in_use + cached + free + untouched of all classes + what is cut off in front, and
/// spans + large + dirty + mappings + metadata = total; the same in `resident`.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    /// By size class.
    pub classes: [ClassRow; CLASS_COUNT],
    /// All spans.
    pub spans: Amount,
    /// Blocks that are runs of slices.
    pub large: Amount,
    /// Their number.
    pub large_blocks: usize,
    /// Blocks that are mappings.
    pub mappings: Amount,
    /// Their number.
    pub mapping_blocks: usize,
    /// Free slices that have not been given back.
    pub dirty: Amount,
    /// Descriptors, bitmaps, heaps.
    pub metadata: Amount,
    /// Free slices without memory behind them; not in the total.
    pub clean: usize,
    /// Given back to the system since the start.
    pub given_back: u64,
    /// Heaps that threads use now, and heaps there are.
    pub heaps: (usize, usize),
}

impl Ledger {
    /// Draws up the account.
    pub fn take() -> Ledger {
        // SAFETY: numbers, for all of which zero is one.
        let mut ledger: Ledger = unsafe { core::mem::zeroed() };
        for (row, class) in ledger.classes.iter_mut().zip(&CLASSES) {
            row.size = class.size as usize;
        }
        ledger.heaps = pool::counts();
        ledger.walk_slices();
        ledger.walk_heaps();
        arena::for_each_dirty(|index, slices| {
            ledger.dirty.add(address_map::slice_address(index), slices * SLICE_SIZE);
        });
        large::for_each_mapping(|mapping| {
            ledger.mappings.add(mapping.address, mapping.bytes);
            ledger.mapping_blocks += 1;
        });
        for (at, bytes) in address_map::metadata_extents() {
            ledger.metadata.add(at, bytes);
        }
        ledger.metadata.bytes = ledger.metadata.resident;
        let (clean, purged) = arena::clean_and_purged();
        ledger.clean = clean * SLICE_SIZE;
        ledger.given_back = purged * SLICE_SIZE as u64;
        ledger
    }

    fn walk_slices(&mut self) {
        for (index, owner, class) in address_map::heads() {
            if owner != OWNER_LARGE {
                self.add_span(class, address_map::slot(index).cast(), index);
            } else if let Some((at, bytes)) = large::run_at(index) {
                self.large.add(at, bytes);
                self.large_blocks += 1;
            }
        }
    }

    fn add_span(&mut self, class: usize, span: *const Span, index: usize) {
        // SAFETY: metadata is never unmapped; the fields may be changing.
        let (used, carved) = unsafe { Span::peek(span) };
        let blocks = usize::from(CLASSES[class].blocks);
        let carved = carved.min(blocks);
        let used = used.min(carved);
        let pending = (address_map::remote_word(index).pending() as usize).min(used);
        let row = &mut self.classes[class];
        row.spans += 1;
        row.in_use += used - pending;
        row.free += carved - used + pending;
        row.untouched += blocks - carved;
        let bytes = CLASSES[class].slices as usize * SLICE_SIZE;
        self.spans.add(address_map::slice_address(index), bytes);
    }

    /// Blocks in allocation lists count as used in their spans: moves them over.
    fn walk_heaps(&mut self) {
        for at in (0..self.heaps.1).filter_map(address_map::heap_address) {
            let heap: *const Heap = at.cast();
            // SAFETY: a heap that has been made.
            if let Some((at, bytes)) = large::kept_run(unsafe { &raw const (*heap).kept }) {
                self.dirty.add(at, bytes);
            }
            for (class, row) in self.classes.iter_mut().enumerate() {
                // SAFETY: heaps are never unmapped; the lists may be changing.
                let cached = unsafe { Heap::peek(heap, class) }.min(row.in_use);
                row.cached += cached;
                row.in_use -= cached;
            }
        }
    }

    /// Sums a figure over the classes, in bytes.
    pub fn sum(&self, blocks: impl Fn(&ClassRow) -> usize) -> usize {
        self.classes.iter().map(|row| blocks(row) * row.size).sum()
    }

    /// Everything that cairn has mapped for use.
    pub fn total(&self) -> Amount {
        let parts = [self.spans, self.large, self.mappings, self.dirty, self.metadata];
        parts.iter().fold(Amount::default(), |sum, part| Amount {
            bytes: sum.bytes + part.bytes,
            resident: sum.resident + part.resident,
        })
    }

    /// Blocks that the program holds, as far as their sizes are known: usable bytes.
    pub fn allocated(&self) -> usize {
        self.sum(|row| row.in_use) + self.large.bytes + self.mappings.bytes
    }
}
