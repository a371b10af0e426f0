//! Owns: the account of every byte: what is allocated, what is not and why, what is resident.
//! Idea: nothing is counted while the program runs; the metadata is walked when someone asks. What is
//!   resident is asked of the system in long stretches, and only for those who want to know.
//! Never: takes a lock for long, or trusts what another thread may be changing.
//! Threads: any. Other threads' lists are read as they change: figures of a running program
//!   are close, those of a program at rest exact.
//! Checked: the reconciliation test compares with the kernel's account.
//! Story: docs/guide/statistics.md

use crate::base::{CLASS_COUNT, Ordering, SLICE_SIZE, SizeClass};
use crate::heap::{Heap, Member};
use crate::map::{OWNER_LARGE, address_map, heads_from};
use crate::report::tuning::EYES_PAGES;
use crate::samples::{guards, profile};
use crate::slices::{arena, reservation};
use crate::spans::{Span, waiting};
use crate::store::{Caches, Store};
use crate::thread::{pool, search};
use crate::{large, os};

/// Bytes, and those of them that have memory behind them.
///
/// ```
/// let cairn::Amount { bytes, resident } = cairn::Stats::take().spans;
/// assert!(resident <= bytes);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Amount {
    /// Address space in that use.
    pub bytes: usize,
    /// Resident part.
    pub resident: usize,
}

/// What the system says of pages that are asked about in ascending order: one call for many.
struct Eyes {
    /// What is known: from here on, and up to there.
    from: usize,
    end: usize,
    pages: [u8; EYES_PAGES],
    /// Nobody wants to know: nothing is asked.
    closed: bool,
}

impl Eyes {
    /// Adds `bytes` at `at`, part of what is mapped up to `limit`, to `amount`.
    fn add(&mut self, amount: &mut Amount, at: *mut u8, bytes: usize, limit: usize) {
        amount.bytes += bytes;
        if self.closed {
            return;
        }
        let page = os::page_size();
        let mut place = at.addr() & !(page - 1);
        while place < at.addr() + bytes {
            if !(self.from..self.end).contains(&place) {
                let count = (limit.saturating_sub(place)).div_ceil(page).min(EYES_PAGES);
                let known = match self.pages.get_mut(..count) {
                    Some(pages) => os::look(at.with_addr(place), pages),
                    None => false,
                };
                if !known {
                    return;
                }
                (self.from, self.end) = (place, place + count * page);
            }
            let seen = self.pages.get((place - self.from) / page).is_some_and(|seen| seen & 1 != 0);
            let [first, end] = [place.max(at.addr()), (place + page).min(at.addr() + bytes)];
            amount.resident += if seen { end - first } else { 0 };
            place += page;
        }
    }
}

/// One size class.
///
/// ```
/// let block = cairn::allocate(100);
/// let stats = cairn::Stats::count();
/// let row: &cairn::ClassRow = stats.classes.iter().find(|row| row.size >= 100).unwrap();
/// assert!(row.in_use >= 1);
/// # unsafe { cairn::deallocate(block) };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassRow {
    /// Bytes in a block.
    pub size: usize,
    /// Spans of the class.
    pub spans: usize,
    /// Blocks that the program holds.
    pub in_use: usize,
    /// Blocks in threads' caches.
    pub cached: usize,
    /// Blocks freed into their spans.
    pub free: usize,
    /// Blocks never handed out.
    pub untouched: usize,
}

/// The account. All figures are in bytes unless they say otherwise. In `bytes`,
/// spans = in_use + cached + free + untouched of all classes + what is cut off in front, and
/// spans + large + nurseries + dirty + mappings + metadata = total; the same in `resident`.
///
/// ```
/// let block = cairn::allocate(1 << 20);
/// assert!(cairn::Stats::take().large.bytes >= 1 << 20);
/// # unsafe { cairn::deallocate(block) };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// By size class.
    pub classes: [ClassRow; CLASS_COUNT],
    /// All spans.
    pub spans: Amount,
    /// Blocks that are runs of slices.
    pub large: Amount,
    /// Their number.
    pub large_blocks: usize,
    /// Where the first blocks of the program's heaps are.
    pub nurseries: Amount,
    /// Their number.
    pub nursery_blocks: usize,
    /// Their bytes.
    pub nursery_used: usize,
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

/// Whether the system is asked what is resident.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Residence {
    Asked,
    LeftOut,
}

impl Stats {
    /// Draws up the account.
    ///
    /// ```
    /// let total = cairn::Stats::take().total();
    /// assert!(total.resident <= total.bytes);
    /// ```
    pub fn take() -> Stats {
        Stats::draw_up(Residence::Asked)
    }

    /// The same without what is resident, which stays 0: no system calls, about 30 ns for each span.
    ///
    /// ```
    /// assert_eq!(cairn::Stats::count().total().resident, 0);
    /// ```
    pub fn count() -> Stats {
        Stats::draw_up(Residence::LeftOut)
    }

    fn draw_up(residence: Residence) -> Stats {
        let resident = residence == Residence::Asked;
        os::notice_fork();
        // SAFETY: numbers, for all of which zero is one.
        let mut stats: Stats = unsafe { core::mem::zeroed() };
        let mut eyes = Eyes { from: 0, end: 0, pages: [0; EYES_PAGES], closed: !resident };
        for (row, class) in stats.classes.iter_mut().zip(SizeClass::all()) {
            row.size = class.block_size();
        }
        stats.heaps = pool::counts();
        let end = address_map::slice_address(address_map::committed()).addr();
        stats.walk_slices(&mut eyes, end);
        stats.walk_heaps(&mut eyes, end);
        if resident {
            arena::for_each_dirty(|index, slices| {
                let at = address_map::slice_address(index);
                eyes.add(&mut stats.dirty, at, slices * SLICE_SIZE, end);
            });
            // What partitions keep of theirs is nobody's, too.
            let [_, kept] = arena::kept_slices();
            stats.dirty.bytes += kept * SLICE_SIZE;
            stats.dirty.resident += kept * SLICE_SIZE;
        }
        let mut last = core::ptr::null();
        while let Some(mapping) = large::mapping_behind(last) {
            let limit = mapping.address.addr() + mapping.bytes;
            eyes.add(&mut stats.mappings, mapping.address, mapping.bytes, limit);
            stats.mapping_blocks += 1;
            last = mapping.address;
        }
        stats.add_guarded(&mut eyes);
        let [_, _, sections, live, heaps] = reservation::metadata_extents();
        for (at, bytes) in [sections, live, heaps, guards::metadata(), profile::metadata()] {
            eyes.add(&mut stats.metadata, at, bytes, at.addr() + bytes);
        }
        if resident {
            stats.metadata.resident += written_descriptors();
        }
        stats.metadata.bytes = stats.metadata.resident;
        let counts = arena::counts();
        if !resident {
            stats.dirty.bytes += counts.dirty * SLICE_SIZE;
        }
        stats.clean = counts.clean * SLICE_SIZE;
        stats.given_back = waiting::given_back();
        stats
    }

    /// Guarded blocks are mappings, too.
    #[inline(never)]
    fn add_guarded(&mut self, eyes: &mut Eyes) {
        for (at, bytes) in guards::live() {
            eyes.add(&mut self.mappings, at, bytes, at.addr() + bytes);
            self.mapping_blocks += 1;
        }
    }

    fn walk_slices(&mut self, eyes: &mut Eyes, end: usize) {
        for (index, owner, class) in heads_from(0) {
            if owner != OWNER_LARGE {
                self.add_span(class, address_map::slot(index).cast(), index);
                let bytes = class.span_slices() * SLICE_SIZE;
                eyes.add(&mut self.spans, address_map::slice_address(index), bytes, end);
            } else if let Some((at, bytes)) = large::run_at(index) {
                eyes.add(&mut self.large, at, bytes, end);
                self.large_blocks += 1;
            } else if let Some((blocks, used)) = large::nursery_account(index) {
                eyes.add(&mut self.nurseries, address_map::slice_address(index), SLICE_SIZE, end);
                self.nursery_blocks += blocks;
                self.nursery_used += used;
            }
        }
    }

    fn add_span(&mut self, class: SizeClass, span: *const Span, index: usize) {
        // SAFETY: metadata is never unmapped; the fields may be changing.
        let (used, carved) = unsafe { search::peek_span(span) };
        // SAFETY: what has been described is committed.
        let pending = unsafe { address_map::remote_word(index) }.pending() as usize;
        let blocks = usize::from(class.layout().blocks);
        let carved = carved.min(blocks);
        let used = used.min(carved);
        let pending = pending.min(used);
        let row = &mut self.classes[class.index()];
        row.spans += 1;
        row.in_use += used - pending;
        row.free += carved - used + pending;
        row.untouched += blocks - carved;
    }

    /// Blocks in caches count as used in their spans: moves them over.
    fn walk_heaps(&mut self, eyes: &mut Eyes, end: usize) {
        for at in (0..self.heaps.1).filter_map(address_map::heap_address) {
            let heap: *const Heap = at.cast();
            // SAFETY: a heap that has been made.
            if let Some((at, bytes)) = large::cached_run(unsafe { &(*heap).large_cache }) {
                eyes.add(&mut self.dirty, at, bytes, end);
            }
            // Spans in regions are not in the account, nor is what heaps there have ready.
            // SAFETY: as above.
            if unsafe { Member::peek_region(&raw const (*heap).member) } {
                continue;
            }
            for (class, row) in SizeClass::all().zip(&mut self.classes) {
                // SAFETY: heaps are never unmapped; the lists may be changing.
                let cached = unsafe { peek_cache(heap, class) }.min(row.in_use);
                row.cached += cached;
                row.in_use -= cached;
            }
        }
    }

    /// Sums a figure over the classes, in bytes.
    ///
    /// ```
    /// let stats = cairn::Stats::count();
    /// assert!(stats.sum(|row| row.in_use) <= stats.spans.bytes);
    /// ```
    pub fn sum(&self, blocks: impl Fn(&ClassRow) -> usize) -> usize {
        self.classes.iter().map(|row| blocks(row) * row.size).sum()
    }

    /// Everything that cairn has mapped for use.
    ///
    /// ```
    /// let block = cairn::allocate(1 << 20);
    /// assert!(cairn::Stats::count().total().bytes >= 1 << 20);
    /// # unsafe { cairn::deallocate(block) };
    /// ```
    pub fn total(&self) -> Amount {
        let parts =
            [self.spans, self.large, self.nurseries, self.mappings, self.dirty, self.metadata];
        parts.iter().fold(Amount::default(), |sum, part| Amount {
            bytes: sum.bytes + part.bytes,
            resident: sum.resident + part.resident,
        })
    }

    /// How many blocks the program holds.
    ///
    /// ```
    /// let block = cairn::allocate(100);
    /// assert!(cairn::Stats::count().blocks() > 0);
    /// # unsafe { cairn::deallocate(block) };
    /// ```
    #[inline(never)]
    pub fn blocks(&self) -> usize {
        let small: usize = self.classes.iter().map(|row| row.in_use).sum();
        small + self.large_blocks + self.nursery_blocks + self.mapping_blocks
    }

    /// Blocks that the program holds, as far as their sizes are known: usable bytes.
    ///
    /// ```
    /// let block = cairn::allocate(1 << 20);
    /// assert!(cairn::Stats::count().allocated() >= 1 << 20);
    /// # unsafe { cairn::deallocate(block) };
    /// ```
    pub fn allocated(&self) -> usize {
        self.sum(|row| row.in_use) + self.large.bytes + self.nursery_used + self.mappings.bytes
    }
}

/// How many blocks the cache of `class` holds, read from outside while its thread may be
/// at work.
///
/// # Safety
/// `this` is a heap that has been made.
pub(crate) unsafe fn peek_cache(this: *const Heap, class: SizeClass) -> usize {
    // SAFETY: heaps are never unmapped.
    let caches = unsafe { &raw const (*this).caches };
    // SAFETY: as above.
    let (list, others) = unsafe { (Caches::peek(caches, class), Caches::peek_len(caches, class)) };
    search::each(class, list).count() + others
}

/// Bytes of the pages of descriptors that have been written; a look at others finds the one page of zeros.
fn written_descriptors() -> usize {
    let page = os::page_size();
    let (mut count, mut last) = (0, 0);
    for index in 0..address_map::described() {
        let d = address_map::descriptor_at(index);
        let at = core::ptr::from_ref(d).addr() & !(page - 1);
        if at != last && !d.slot.load(Ordering::Relaxed).is_null() {
            (count, last) = (count + 1, at);
        }
    }
    count * page
}
