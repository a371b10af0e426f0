//! Heaps among the steps: each is made when it is first named, serves any thread, and ends with its blocks or without
//! them. An owned one is attached for each call, under its lock; a shared one needs none.

use super::bytes::Bytes;
use super::step::{Company, MIN_ALIGN, note, pick};
use super::table::Table;
use cairn::HeapId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The even ones are owned; the last one has readers.
static HEAPS: [Mutex<Option<HeapId>>; 4] = [const { Mutex::new(None) }; 4];

/// Bytes of each block that stay for readers.
const HEAD: usize = 64;

static EPOCH: AtomicUsize = AtomicUsize::new(1);

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
    let make = || match number % HEAPS.len() {
        0 | 2 => HeapId::new_owned(),
        // The hardened build has none with readers.
        3 => HeapId::new_concurrent(HEAD).or_else(HeapId::new_shared),
        _ => HeapId::new_shared(),
    };
    let heap = *place.get_or_insert_with(|| {
        let heap = make().expect("memory");
        // SAFETY: made just now.
        unsafe { heap.detach() };
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
            11 | 12 => {
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
            assert_eq!(heap.allocate_batch(size, align, count, blocks.as_mut_ptr()), count);
        } else if is_zeroed {
            blocks.iter_mut().for_each(|block| *block = heap.allocate_zeroed(size, align));
        } else {
            blocks.iter_mut().for_each(|block| *block = heap.allocate(size, align));
        }
    }
    for block in blocks {
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
}
