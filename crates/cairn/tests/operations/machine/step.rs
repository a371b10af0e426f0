//! The steps of a program: each is a few bytes, and a few or many operations.

use super::bytes::Bytes;
use super::table::{Held, Table};
use super::world::world;
use super::{deferred, exchange, hand_over, heaps, region, watch};
use cairn::{Cairn, Stats};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

/// Who else is at work while a thread takes its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nobody: everything can be counted.
    Alone,
    /// Other threads, each on blocks of its own.
    Together,
}

/// The alignment of every block.
pub(super) const MIN_ALIGN: usize = 16;
/// A table with more gets no more blocks. Pages cost more time than anything else here.
const BLOCKS_MAX: usize = 6000;
const CROWDED_BYTES: usize = 4 << 20;
/// Resizing does not go beyond that.
const BYTES_MAX: usize = 48 << 20;
/// One step does not allocate more than that, but for a single block.
pub(super) const STEP_BYTES: usize = 128 << 10;
/// Many blocks at once are not aligned to more: beyond some point each is a mapping.
const MANY_ALIGN: usize = 64 << 10;
/// Blocks of batches under way, of a heap: they count as in use. A batch leaves at 16, hardened at eight.
pub(crate) const UNDER_WAY: usize = 16 * if cfg!(feature = "hardened") { 7 } else { 15 };

/// Takes all steps of `bytes`.
pub(crate) fn steps(table: &mut Table, bytes: &mut Bytes, company: Company) {
    while !bytes.is_empty() {
        step(table, bytes, company);
    }
}

fn step(table: &mut Table, bytes: &mut Bytes, company: Company) {
    watch::turn(table, company);
    let code = bytes.byte() % 32;
    if table.trace {
        eprintln!("step {code} of {} blocks, {} bytes", table.blocks.len(), table.bytes);
    }
    if code < 12 && (table.blocks.len() >= BLOCKS_MAX || table.bytes >= CROWDED_BYTES) {
        return free_many(table, bytes);
    }
    match code {
        0..=3 => allocate_many(table, bytes.size(), 1, How::Plain),
        4 => allocate_many(table, bytes.size(), 1, How::Zeroed),
        5 => allocate_many(table, bytes.size(), 1, How::Aligned(bytes.align())),
        6 => allocate_many(table, bytes.size(), 1, How::Layout(bytes.align(), false)),
        7 => allocate_many(table, bytes.size(), bytes.count(), How::Layout(32, true)),
        8 | 9 => allocate_many(table, bytes.size(), bytes.count(), How::Plain),
        10 => allocate_many(table, bytes.size(), bytes.count(), How::Zeroed),
        11 => {
            let (size, count) = (bytes.size(), bytes.count());
            let align = bytes.align().min(MANY_ALIGN);
            allocate_many(table, size, count, How::Aligned(align));
        }
        12..=14 => {
            if let Some(index) = pick(table, bytes) {
                let held = table.take(index);
                free(table, held);
            }
        }
        15..=18 => free_many(table, bytes),
        19 => replace_many(table, bytes),
        20 | 21 => {
            if let Some(index) = pick(table, bytes) {
                let size = bytes.size();
                reallocate(table, index, size);
            }
        }
        23 => grow(table, bytes),
        22 | 24 => resize_slightly(table, bytes),
        25 => probe(table, bytes),
        26 => demand_the_impossible(table, bytes),
        27 if bytes.number() < 16 => purge(table),
        27 => heaps::step(table, bytes, company),
        28 => match bytes.number() {
            128.. => hand_over::step(table, bytes, company),
            delay => cairn::set_purge_delay_ms(super::DELAYS_MS[delay % 8]),
        },
        29 => account(table, bytes, company),
        30 if company == Company::Together => exchange::give_or_receive(table, bytes),
        30 => batch(table, bytes),
        31 if company == Company::Together => exchange::trade(table, bytes),
        31 => expand(table, bytes),
        _ => {
            if let Some(index) = pick(table, bytes) {
                table.blocks[index].verify();
            }
        }
    }
}

/// By which call a block is allocated.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Plain,
    Zeroed,
    Aligned(usize),
    /// Through the global allocator's interface: alignment, and whether zeroed.
    Layout(usize, bool),
}

fn allocate_many(table: &mut Table, size: usize, count: usize, how: How) {
    let count = count.min(1 + STEP_BYTES / size.max(1));
    if table.trace {
        eprintln!("  allocate {count} of {size}, {how:?}");
    }
    for _ in 0..count {
        allocate(table, size, how);
    }
}

pub(super) fn allocate(table: &mut Table, size: usize, how: How) {
    let mut layout = None;
    let p = match how {
        How::Plain => cairn::allocate(size),
        How::Zeroed => cairn::allocate_zeroed(size),
        How::Aligned(align) => cairn::allocate_aligned(size, align),
        How::Layout(align, zeroed) => {
            let l = Layout::from_size_align(size.max(1), align).expect("sizes are moderate");
            layout = Some(l);
            // SAFETY: the size is not 0.
            unsafe { if zeroed { Cairn.alloc_zeroed(l) } else { Cairn.alloc(l) } }
        }
    };
    let align = match how {
        How::Plain | How::Zeroed => MIN_ALIGN,
        How::Aligned(align) | How::Layout(align, _) => align.max(MIN_ALIGN),
    };
    let held = note(table, p, size, align, layout);
    if matches!(how, How::Zeroed | How::Layout(_, true)) {
        held.verify_zero();
    }
    held.fill();
    table.put(held);
}

/// What is known of a block that was just handed out.
pub(super) fn note(
    table: &mut Table,
    p: *mut u8,
    size: usize,
    align: usize,
    layout: Option<Layout>,
) -> Held {
    table.operations += 1;
    Held::new(p, size, align, layout, table.seed())
}

/// The last block, the first one, any, or the largest: there are few large ones.
pub(super) fn pick(table: &Table, bytes: &mut Bytes) -> Option<usize> {
    let (order, any) = (bytes.byte(), bytes.pair());
    let last = table.blocks.len().checked_sub(1)?;
    Some(match order % 8 {
        0..=2 => last,
        3 => 0,
        4..=6 => any % (last + 1),
        _ => (0..=last).max_by_key(|&at| table.blocks[at].usable)?,
    })
}

pub(super) fn free(table: &mut Table, held: Held) {
    table.operations += 1;
    held.free();
}

/// Frees the latest, the oldest, every second of the latest, or any.
fn free_some(table: &mut Table, count: usize, order: u8, mut random: usize) {
    for turn in 0..count {
        let len = table.blocks.len();
        let held = match order % 4 {
            _ if len == 0 => return,
            0 => table.take(len - 1),
            1 => table.take_first().expect("there are some"),
            2 => table.take(len.saturating_sub(2 + turn)),
            _ => {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                table.take((random >> 33) % len)
            }
        };
        free(table, held);
    }
}

fn free_many(table: &mut Table, bytes: &mut Bytes) {
    let (count, order, random) = (bytes.count(), bytes.byte(), bytes.number());
    if table.trace {
        eprintln!("  free {count} in order {}", order % 4);
    }
    free_some(table, count, order, random);
}

/// Frees everything that is left.
pub(crate) fn free_all(table: &mut Table, order: u8) {
    free_some(table, table.blocks.len(), order, 1);
}

/// Blocks of some sizes come and go, none stays long.
fn replace_many(table: &mut Table, bytes: &mut Bytes) {
    let (count, order, random, size) = (bytes.count(), bytes.byte(), bytes.number(), bytes.size());
    for turn in 0..count.min(1 + STEP_BYTES / size.max(1)) {
        free_some(table, 1, order, random + turn);
        allocate(table, size.saturating_sub(turn % 32), How::Plain);
    }
}

/// Resizes a block, which becomes the last one.
fn reallocate(table: &mut Table, index: usize, size: usize) {
    let before = table.take(index);
    if table.trace {
        eprintln!("  reallocate {before:x?} to {size}");
    }
    before.verify();
    // What a block can hold is kept, for who knows how much of it is used; but the global
    // allocator's interface knows the size.
    let kept = before.layout.map_or(before.usable, |layout| layout.size()).min(size);
    before.mark_kept(kept);
    let (p, align, layout) = match before.layout {
        // SAFETY: live, and nobody else's.
        None => (unsafe { cairn::reallocate(before.p, size) }, MIN_ALIGN, None),
        Some(old) => {
            let size = size.max(1);
            let new = Layout::from_size_align(size, old.align()).expect("sizes are moderate");
            // SAFETY: live, nobody else's, and of that layout; the size is not 0.
            (unsafe { Cairn.realloc(before.p, old, size) }, old.align().max(MIN_ALIGN), Some(new))
        }
    };
    let held = note(table, p, size, align, layout);
    held.verify_kept(&before, kept);
    held.fill();
    table.put(held);
}

/// Grows a block again and again, as a vector does.
fn grow(table: &mut Table, bytes: &mut Bytes) {
    let (Some(mut index), count, pace) = (pick(table, bytes), bytes.count(), bytes.number()) else {
        return;
    };
    // Once in a while into a mapping and on.
    let bound = [20 << 20, 2 << 20, STEP_BYTES][pace.min(32) / 16];
    for _ in 0..count.min(40) {
        let size = table.blocks[index].size;
        let size = size + size / (1 + pace % 9) + 1;
        if size > bound || table.bytes + size > BYTES_MAX {
            return;
        }
        reallocate(table, index, size);
        index = table.blocks.len() - 1;
    }
}

/// Resizes a block to what it has, its half, its double, or one more or less.
fn resize_slightly(table: &mut Table, bytes: &mut Bytes) {
    let Some(index) = pick(table, bytes) else { return };
    let (Held { size, usable, .. }, how) = (&table.blocks[index], bytes.byte());
    let size = match how % 8 {
        0 => *usable,
        1 => usable + 1,
        2 => usable.saturating_sub(1),
        3 => usable / 2,
        4 => (usable / 2).saturating_sub(1),
        5 => 2 * usable,
        6 => size + usable / 8,
        _ => size - size / 8,
    };
    if table.bytes + size <= BYTES_MAX {
        reallocate(table, index, size);
    }
}

/// Makes a block longer or shorter where it stands.
fn expand(table: &mut Table, bytes: &mut Bytes) {
    let Some(index) = pick(table, bytes) else { return };
    let (usable, how) = (table.blocks[index].usable, bytes.number());
    let size = match how % 8 {
        0 => bytes.size(),
        1 => usable,
        2 => usable + 1,
        3 => usable / 2,
        4 => 2 * usable,
        _ => usable + usable / 8,
    };
    if table.bytes + size > BYTES_MAX || table.blocks[index].layout.is_some() {
        return;
    }
    let before = table.take(index);
    before.verify();
    let kept = before.usable.min(size);
    before.mark_kept(kept);
    // SAFETY: live, and nobody else's.
    let done = unsafe { cairn::try_expand(before.p, size) };
    assert!(done || size > before.usable, "{size} bytes fit into {before:x?}");
    let held = note(table, before.p, if done { size } else { before.size }, 1, None);
    assert!(done || held.usable == before.usable, "{before:x?} has not grown");
    held.verify_kept(&before, if done { kept } else { before.usable });
    held.fill();
    table.put(held);
}

/// Blocks come and go by the calls for many.
fn batch(table: &mut Table, bytes: &mut Bytes) {
    let (count, size, random) = (bytes.count(), bytes.size(), bytes.number());
    let count = count.min(1 + STEP_BYTES / size.max(1));
    if random % 2 == 0 && table.blocks.len() < BLOCKS_MAX && table.bytes < CROWDED_BYTES {
        let mut places = vec![null_mut(); count];
        assert_eq!(cairn::allocate_batch(size, &mut places), count);
        for p in places {
            let held = note(table, p, size, MIN_ALIGN, None);
            held.fill();
            table.put(held);
        }
        return;
    }
    let mut places = vec![null_mut(); 1 + random % 3];
    for turn in 0..count.min(table.blocks.len()) {
        let held = table.take((random * 31 + turn * 7) % table.blocks.len());
        held.verify();
        table.operations += 1;
        places.push(held.p);
    }
    // SAFETY: live, and nobody else's.
    unsafe { cairn::deallocate_batch(&places) };
}

/// Asks the metadata about a block, its inside, and what follows it.
fn probe(table: &mut Table, bytes: &mut Bytes) {
    let Some(index) = pick(table, bytes) else { return };
    let held = &table.blocks[index];
    let inside = bytes.pair() * held.usable / (1 << 16);
    for at in [0, inside, held.size.saturating_sub(1), held.usable.saturating_sub(1)] {
        let base = cairn::base(held.p.wrapping_add(at));
        assert_eq!(base, Some(held.p), "the block around byte {at} of {held:x?}");
    }
    // Hardened, blocks have more than the program may use. A guarded one may have nothing.
    if !cfg!(feature = "hardened") && held.usable > 0 {
        let behind = cairn::base(held.p.wrapping_add(held.usable));
        assert_ne!(behind, Some(held.p), "the block behind {held:x?}");
    }
    // SAFETY: a live block.
    assert_eq!(unsafe { cairn::usable_size(held.p) }, held.usable, "{held:x?}");
    // The system's own heap, the stack, the program, nothing, and no address at all.
    let (boxed, local) = (Box::new(0u8), 0u8);
    let foreign =
        [&raw const *boxed, &raw const local, std::ptr::from_ref(world()).cast(), null_mut()];
    for p in foreign.into_iter().chain([std::ptr::without_provenance(usize::MAX)]) {
        assert_eq!(cairn::base(p), None, "{p:p} is none of the allocator's");
    }
}

/// Says so instead of answering null.
struct Sentinel;

impl cairn::NoMemory for Sentinel {
    fn answer(size: usize, align: usize) -> *mut u8 {
        std::ptr::without_provenance_mut(size ^ align)
    }
}

/// Sizes and alignments that no memory has; and null, which is no block.
fn demand_the_impossible(table: &mut Table, bytes: &mut Bytes) {
    const SIZES: [usize; 6] =
        [1 << 48, 1 << 62, isize::MAX as usize, 1 << 63, usize::MAX - 4095, usize::MAX];
    let (which, align) = (bytes.number(), bytes.align());
    let size = SIZES[which % SIZES.len()];
    table.operations += 1;
    let got = match which / 8 % 8 {
        0 => cairn::allocate(size),
        1 => cairn::allocate_zeroed(size),
        2 => cairn::allocate_aligned(size, align),
        3 => cairn::allocate_aligned(1 + which, 1 << (48 + which % 16)),
        4 => {
            let got = cairn::allocate_or::<Sentinel>(size);
            assert_eq!(got, Sentinel::answer_for(size, MIN_ALIGN));
            let got = cairn::allocate_zeroed_or::<Sentinel>(size);
            assert_eq!(got, Sentinel::answer_for(size, MIN_ALIGN));
            let align = align.max(MIN_ALIGN);
            let got = cairn::allocate_aligned_or::<Sentinel>(size, align);
            assert_eq!(got, Sentinel::answer_for(size, align));
            null_mut()
        }
        5 => {
            let Some(index) = pick(table, bytes) else { return };
            let held = &table.blocks[index];
            // SAFETY: live; it stays as it is, for nothing is that large.
            let got = unsafe { cairn::reallocate(held.p, size) };
            held.verify();
            got
        }
        6 => {
            // SAFETY: null is no block.
            unsafe {
                cairn::deallocate(null_mut());
                cairn::deallocate_named(null_mut(), "operations");
                assert_eq!(cairn::usable_size(null_mut()), 0);
            }
            null_mut()
        }
        _ => {
            let size = bytes.size();
            // SAFETY: null is no block: one is allocated.
            let p = unsafe { cairn::reallocate(null_mut(), size) };
            let held = note(table, p, size, MIN_ALIGN, None);
            held.fill();
            return table.put(held);
        }
    };
    assert!(got.is_null(), "{got:p} for {size} bytes, aligned to {align}, way {}", which / 8 % 8);
}

impl Sentinel {
    fn answer_for(size: usize, align: usize) -> *mut u8 {
        <Sentinel as cairn::NoMemory>::answer(size, align)
    }
}

fn purge(table: &mut Table) {
    table.operations += 1;
    cairn::purge();
}

/// Checks the invariants and the account; while others work, only that it can be drawn up.
fn account(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let which = bytes.number();
    if which < 64 && company == Company::Alone {
        table.operations += 1;
        cairn::check();
    }
    if which >= 16 {
        return;
    }
    table.operations += 1;
    if company == Company::Alone {
        heaps::end_epochs();
        deferred::free_all();
    }
    let stats = Stats::take();
    if company == Company::Together {
        return;
    }
    // What is in a region is not in the account.
    let counted = || table.blocks.iter().filter(|held| !region::is_in_region(held.p));
    let (live, (_, heaps)) = (counted().count(), stats.heaps);
    let in_spans: usize = stats.classes.iter().map(|class| class.in_use).sum();
    let known = in_spans + stats.large_blocks + stats.mapping_blocks + stats.nursery_blocks;
    assert!(known >= live || watch::is_on(), "the statistics know {known} blocks of {live}");
    assert!(known <= live + heaps * UNDER_WAY, "the statistics have {known} blocks for {live}");
    let bytes: usize = counted().map(|held| held.usable).sum();
    assert!(stats.allocated() >= bytes, "{} bytes of {bytes}", stats.allocated());
    let cut = stats.sum(|row| row.in_use + row.cached + row.free + row.untouched);
    assert!(cut <= stats.spans.bytes, "{cut} bytes in spans of {}", stats.spans.bytes);
}
