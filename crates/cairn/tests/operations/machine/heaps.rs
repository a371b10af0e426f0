//! Heaps among the steps: each is made when it is first named, serves any thread, and ends with its blocks or without
//! them. An owned one is attached for each call, under its lock; a shared one needs none. Some lie in a region, some have
//! limits: those may say no, if there is a reason.

use super::bytes::Bytes;
use super::deferred;
use super::step::{Company, MIN_ALIGN, note, pick};
use super::table::Table;
use cairn::{HeapId, RegionCalls, RegionId};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The even ones are owned; the last one has readers.
static HEAPS: [Mutex<Option<HeapId>>; 4] = [const { Mutex::new(None) }; 4];

/// Bytes of each block that stay for readers.
const HEAD: usize = 64;

static EPOCH: AtomicUsize = AtomicUsize::new(1);

/// The region of some heaps, while one has been named. It has as many bytes, and what is around them stays as it is.
static REGION: Mutex<Option<RegionId>> = Mutex::new(None);
const REGION_BYTES: usize = 4 << 20;
const FENCE: usize = 64 << 10;
const FENCED: u8 = 0xa5;

/// What a heap with limits may hold, in bytes: before it says so, and at most.
const LIMITS: (usize, usize) = (256 << 10, 2 << 20);
/// What a heap may need at once for a small block: a span.
const SPAN_BYTES: usize = 512 << 10;
/// What a large block may need besides its bytes: where it begins in a slice of 16 KiB, and where it ends in one.
const EDGES_BYTES: usize = 32 << 10;

/// One step allocates no more than that.
const STEP_BYTES: usize = 128 << 10;

fn place(number: usize) -> MutexGuard<'static, Option<HeapId>> {
    HEAPS[number % HEAPS.len()].lock().expect("a panic ends the process")
}

/// A step with a heap.
pub(super) fn step(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let (number, action) = (bytes.number(), bytes.number());
    let is_owned = number.is_multiple_of(2);
    let mut place = place(number);
    let heap = *place.get_or_insert_with(|| {
        let heap = make(number).expect("memory");
        // SAFETY: made just now.
        unsafe {
            if number & 8 != 0 {
                assert!(heap.set_limits(LIMITS.0, LIMITS.1, Some(told), [number, 0]));
            }
            heap.detach();
        }
        heap
    });
    // Who has an owned heap holds its lock; a shared one does without, so that threads meet in it.
    let held = is_owned.then_some(place);
    if table.trace {
        eprintln!("  heap {number}, action {action}");
    }
    // SAFETY: the heap is there, and this thread's if it is an owned one: they end only while a thread is alone.
    unsafe {
        heap.attach();
        match action % 16 {
            0..=9 => allocate_many(table, bytes, heap, action),
            10 => move_to(table, bytes, heap),
            12 => deferred::put_off(table, bytes),
            11 => {
                begin_epoch(heap);
                table.operations += u64::from(heap.purge() < usize::MAX);
            }
            13 if company == Company::Alone => walk(table, heap),
            14 | 15 if company == Company::Alone => {
                drop(held);
                return end(table, number, heap, action % 2 == 0);
            }
            _ => {}
        }
        heap.detach();
    }
    drop(held);
}

/// A heap of the kind that a number stands for.
fn make(number: usize) -> Option<HeapId> {
    let kind = number % HEAPS.len();
    if let Some(region) = region().filter(|_| number & 4 != 0) {
        return if kind.is_multiple_of(2) { region.new_owned() } else { region.new_shared() };
    }
    match kind {
        0 | 2 => HeapId::new_owned(),
        // The hardened build has none with readers.
        3 => HeapId::new_concurrent(HEAD).or_else(HeapId::new_shared),
        _ => HeapId::new_shared(),
    }
}

/// The region, made if there is none; None in the hardened build, or if its place is in use.
fn region() -> Option<RegionId> {
    let mut region = REGION.lock().expect("a panic ends the process");
    if region.is_none() {
        let start = memory().wrapping_add(FENCE);
        // SAFETY: nobody else uses it, until the region ends.
        *region = unsafe { RegionId::new(start, REGION_BYTES, RegionCalls::default()) }.ok();
    }
    *region
}

/// The region's memory between its fences, which is there for good.
fn memory() -> *mut u8 {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    let make = || vec![FENCED; REGION_BYTES + 2 * FENCE].leak().as_mut_ptr().expose_provenance();
    std::ptr::with_exposed_provenance_mut(*MEMORY.get_or_init(make))
}

/// Whether a block is in the region's memory.
pub(super) fn is_in_region(p: *const u8) -> bool {
    p.addr().wrapping_sub(memory().addr()) < REGION_BYTES + 2 * FENCE
}

/// Ends the region, in which nothing is any more. Its fences stand.
fn end_region() {
    if let Some(region) = REGION.lock().expect("a panic ends the process").take() {
        cairn::purge();
        assert!(region.end(), "something is in the region: {:?}", region.stats());
        for at in [memory(), memory().wrapping_add(FENCE + REGION_BYTES)] {
            // SAFETY: the fences are nobody's.
            let fence = unsafe { std::slice::from_raw_parts(at, FENCE) };
            assert!(fence.iter().all(|&byte| byte == FENCED), "a fence is broken");
        }
    }
}

/// A heap is over its soft limit: it is.
fn told(heap: HeapId, [number, _]: [usize; 2]) {
    // SAFETY: it allocates just now.
    let stats = unsafe { heap.stats() };
    assert!(number & 8 != 0 && stats.spans + stats.large > LIMITS.0, "{stats:?}");
}

/// Whether a heap has a reason to refuse so many bytes; ends the process if not.
unsafe fn refuses(heap: HeapId, size: usize, align: usize) {
    // SAFETY: the heap is there.
    let stats = unsafe { heap.stats() };
    let in_region = REGION.lock().expect("a panic ends the process").is_some();
    let wanted = (size + align + EDGES_BYTES).max(SPAN_BYTES);
    let is_over = stats.hard_limit > 0 && stats.spans + stats.large + wanted > stats.hard_limit;
    assert!(is_over || in_region, "no memory for {size} bytes, aligned to {align}: {stats:?}");
}

/// Nobody reads: each epoch is over when the next one begins.
unsafe fn begin_epoch(heap: HeapId) {
    let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the heap is there.
    unsafe { heap.set_epoch(epoch, epoch) };
}

/// Large blocks that have waited are gone after this.
pub(super) fn end_epochs() {
    if let Some(heap) = *place(HEAPS.len() - 1) {
        // SAFETY: the heap is there.
        (0..2).for_each(|_| unsafe { begin_epoch(heap) });
    }
}

unsafe fn allocate_many(table: &mut Table, bytes: &mut Bytes, heap: HeapId, action: usize) {
    let (size, align) = (bytes.size(), if action % 16 == 9 { bytes.align() } else { 1 });
    let count = bytes.count().min(1 + STEP_BYTES / size.max(1));
    let is_zeroed = action % 4 == 3;
    // All at once, or one after the other.
    let mut blocks = vec![std::ptr::null_mut(); count];
    // SAFETY: the heap is there, and the calling thread's.
    unsafe {
        if action % 4 == 2 {
            let made = heap.allocate_batch(size, align, count, blocks.as_mut_ptr());
            assert!(made == count || blocks[made].is_null());
        } else if is_zeroed {
            blocks.iter_mut().for_each(|block| *block = heap.allocate_zeroed(size, align));
        } else {
            blocks.iter_mut().for_each(|block| *block = heap.allocate(size, align));
        }
    }
    for block in blocks {
        if block.is_null() {
            // SAFETY: the heap is there.
            unsafe { refuses(heap, size, align) };
            continue;
        }
        let held = note(table, block, size, align.max(MIN_ALIGN), None);
        assert_eq!(cairn::heap_of(block), Some(heap), "{held:x?}");
        if is_zeroed {
            held.verify_zero();
        }
        held.fill();
        table.put(held);
    }
}

/// Resizes a block of any heap; if it moves, to this one.
unsafe fn move_to(table: &mut Table, bytes: &mut Bytes, heap: HeapId) {
    let (Some(index), size) = (pick(table, bytes), bytes.size()) else { return };
    if table.blocks[index].layout.is_some() || table.bytes + size > 8 << 20 {
        return;
    }
    let before = table.take(index);
    before.verify();
    let kept = before.usable.min(size);
    before.mark_kept(kept);
    // SAFETY: the heap is there, and the calling thread's; the block is live, and nobody else's.
    let p = unsafe { heap.reallocate(before.p, size, MIN_ALIGN) };
    if p.is_null() {
        // SAFETY: the heap is there.
        unsafe { refuses(heap, size, MIN_ALIGN) };
        before.verify_kept(&before, kept);
        before.fill();
        return table.put(before);
    }
    let held = note(table, p, size, MIN_ALIGN, None);
    assert!(p == before.p || heap.contains(p), "{held:x?}");
    held.verify_kept(&before, kept);
    held.fill();
    table.put(held);
}

fn is_of(table: &Table, heap: HeapId) -> impl Iterator<Item = usize> + '_ {
    (0..table.blocks.len()).filter(move |&at| cairn::heap_of(table.blocks[at].p) == Some(heap))
}

/// The walk finds each of the heap's blocks, and no other.
unsafe fn walk(table: &mut Table, heap: HeapId) {
    table.operations += 1;
    deferred::free_all();
    let mut live: Vec<usize> = is_of(table, heap).map(|at| table.blocks[at].p.addr()).collect();
    let mut seen = Vec::with_capacity(live.len() + 1);
    // SAFETY: all other threads rest; the vector has room.
    let is_whole = unsafe {
        cairn::visit(Some(heap), true, |area, block| {
            assert!(area.used <= area.blocks && area.heap == Some(heap));
            block.into_iter().for_each(|block| seen.push(block.addr()));
            seen.len() < seen.capacity()
        })
    };
    live.sort_unstable();
    seen.sort_unstable();
    assert!(is_whole && live == seen, "{} blocks are live, {} found", live.len(), seen.len());
}

/// Ends a heap: with its blocks, or they live on.
unsafe fn end(table: &mut Table, number: usize, heap: HeapId, with_blocks: bool) {
    table.operations += 1;
    deferred::free_all();
    *place(number) = None;
    let mut gone: Vec<usize> = is_of(table, heap).collect();
    // SAFETY: nobody uses the heap any more, nor the blocks that go with it.
    unsafe {
        if !with_blocks {
            heap.delete();
            assert!(gone.iter().all(|&at| cairn::heap_of(table.blocks[at].p).is_none()));
            return;
        }
        while let Some(at) = gone.pop() {
            table.take(at).verify();
        }
        heap.destroy();
    }
}

/// Ends all heaps; their blocks live on.
pub(super) fn end_all() {
    for number in 0..HEAPS.len() {
        if let Some(heap) = place(number).take() {
            // SAFETY: nobody uses it any more.
            unsafe { heap.delete() };
        }
    }
    end_region();
}
