//! Heaps among the steps: each is made when it is first named, serves any thread, and ends with its blocks or without
//! them. An owned one is attached for each call, under its lock, and may be left attached; a shared one is named under a lock
//! that threads have at the same time. Some lie in a region, some have limits: those may say no, if there is a reason.

use super::bytes::Bytes;
use super::step::{Company, MIN_ALIGN, note, pick};
use super::table::Table;
use super::world::{self, HEAPS, Place, lock, place, publish, world};
use super::{deferred, region, told};
use cairn::HeapId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

// The even heaps are owned; the last one has readers.

/// Bytes of each block that stay for readers.
const HEAD: usize = 64;

static EPOCH: AtomicUsize = AtomicUsize::new(1);

/// What a heap with limits may hold, in bytes: before it says so, and at most.
const LIMITS: (usize, usize) = (256 << 10, 2 << 20);
/// What a heap may need at once for a small block: a span.
const SPAN_BYTES: usize = 512 << 10;
/// What a large block may need besides its bytes: where it begins in a slice of 16 KiB, and where it ends in one.
const EDGES_BYTES: usize = 32 << 10;

/// One step allocates no more than that.
pub(super) const STEP_BYTES: usize = 128 << 10;

/// A heap that does not end meanwhile, and that the calling thread may use.
pub(super) struct Hold {
    pub(super) heap: HeapId,
    guard: Guard,
}

enum Guard {
    Owned(RwLockWriteGuard<'static, Place>),
    /// Others may have it at the same time.
    Shared {
        _guard: RwLockReadGuard<'static, Place>,
    },
}

impl Hold {
    /// Takes a heap, made if need be; None if another thread has left it attached.
    pub(super) fn take(number: usize) -> Option<Hold> {
        loop {
            if !number.is_multiple_of(2) {
                let guard = world().heaps[number % HEAPS].read().expect("a panic ends the process");
                if let Some(heap) = guard.heap {
                    return Some(Hold { heap, guard: Guard::Shared { _guard: guard } });
                }
            }
            let mut place = place(number);
            let heap = *place.heap.get_or_insert_with(|| {
                let heap = make(number).expect("memory");
                publish(number, Some(heap));
                heap
            });
            if number.is_multiple_of(2) {
                if place.kept_by.is_some_and(|thread| thread != world::me()) {
                    return None;
                }
                // SAFETY: the heap is there, and nobody's: who keeps one says so.
                unsafe { heap.attach() };
                return Some(Hold { heap, guard: Guard::Owned(place) });
            }
        }
    }

    /// Others may use it; an owned one stays attached, or not.
    pub(super) fn give(self, attached: bool) {
        if let Guard::Owned(mut place) = self.guard {
            place.kept_by = attached.then(world::me);
            if !attached {
                // SAFETY: attached when it was taken.
                unsafe { self.heap.detach() };
            }
        }
    }

    /// Whether nobody else uses it.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.guard, Guard::Owned(_))
    }
}

/// A step with a heap.
pub(super) fn step(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let (number, action) = (bytes.number(), bytes.number());
    if table.trace {
        eprintln!("  heap {number}, action {action}");
    }
    let Some(hold) = Hold::take(number) else { return };
    let heap = hold.heap;
    let is_alone = company == Company::Alone;
    // SAFETY: the heap is there, and this thread's if it is an owned one: see `Hold`.
    unsafe {
        match action % 16 {
            0..=9 => allocate_many(table, bytes, heap, action, company),
            10 => move_to(table, bytes, heap, company),
            12 => deferred::put_off(table, bytes),
            11 => {
                begin_epoch(heap);
                table.operations += u64::from(heap.purge() < usize::MAX);
            }
            13 if is_alone => walk(table, heap),
            14 | 15 if is_alone => {
                hold.give(false);
                return end(table, number, action % 2 == 0);
            }
            // Others free blocks of it meanwhile.
            13 | 14 if action < 128 => {
                hold.give(false);
                return end(table, number, false);
            }
            _ => {}
        }
    }
    hold.give(action / 16 == 15);
}

/// A heap of the kind that a number stands for, which nobody has attached.
fn make(number: usize) -> Option<HeapId> {
    let kind = number % HEAPS;
    let is_owned = kind.is_multiple_of(2);
    let heap = match region::region().filter(|_| number & 4 != 0) {
        Some(region) if is_owned => region.new_owned(),
        Some(region) => region.new_shared(),
        None if is_owned => HeapId::new_owned(),
        // The hardened build has none with readers.
        None if kind == 3 => HeapId::new_concurrent(HEAD).or_else(HeapId::new_shared),
        None => HeapId::new_shared(),
    }?;
    // SAFETY: made just now.
    unsafe {
        if number & 8 != 0 {
            assert!(heap.set_limits(LIMITS.0, LIMITS.1, Some(told::told), [told::WORD, number]));
        }
        heap.detach();
    }
    Some(heap)
}

/// What a heap holds; together with others, who may give back meanwhile, the most that it has held.
pub(super) unsafe fn held_at_most(heap: HeapId, company: Company) -> usize {
    // SAFETY: the heap is there.
    let stats = unsafe { heap.stats() };
    if company == Company::Alone { stats.spans + stats.large } else { stats.peak }
}

/// Whether a heap has a reason to refuse so many bytes; ends the process if not.
pub(super) unsafe fn refuses(heap: HeapId, size: usize, align: usize, company: Company) {
    // SAFETY: the heap is there.
    let (stats, held) = unsafe { (heap.stats(), held_at_most(heap, company)) };
    let in_region = lock(&world().region).is_some();
    let wanted = (size + align + EDGES_BYTES).max(SPAN_BYTES);
    let is_over = stats.hard_limit > 0 && held + wanted > stats.hard_limit;
    assert!(is_over || in_region, "no memory for {size} bytes, aligned to {align}: {stats:?}");
}

/// What a thread allocates from is its own: its part of a shared heap, an owned heap that it has attached. Large blocks are
/// nobody's, and a thread that has given up its heap has no number.
pub(super) fn expect_mine(block: *const u8) {
    let (owner, me) = (cairn::owner_thread(block), cairn::thread_number());
    assert!(owner == me || owner == 0 || me == 0, "thread {me} allocates from that of {owner}");
}

/// Nobody reads: each epoch is over when the next one begins.
pub(super) unsafe fn begin_epoch(heap: HeapId) {
    let _one_at_a_time = lock(&world().epochs);
    let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the heap is there.
    unsafe { heap.set_epoch(epoch, epoch) };
}

/// Large blocks that have waited are gone after this.
pub(super) fn end_epochs() {
    if let Some(heap) = place(HEAPS - 1).heap {
        // SAFETY: the heap is there.
        (0..2).for_each(|_| unsafe { begin_epoch(heap) });
    }
}

unsafe fn allocate_many(
    table: &mut Table,
    bytes: &mut Bytes,
    heap: HeapId,
    action: usize,
    company: Company,
) {
    let (size, align) = (bytes.size(), if action % 16 == 9 { bytes.align() } else { 1 });
    let count = bytes.count().min(1 + STEP_BYTES / size.max(1));
    let is_zeroed = action % 4 == 3;
    // All at once, or one after the other.
    let mut blocks = vec![std::ptr::null_mut(); count];
    // SAFETY: the heap is there, and the calling thread's.
    told::lending(table, heap, size, company, || unsafe {
        if action % 4 == 2 {
            let made = heap.allocate_batch(size, align, count, blocks.as_mut_ptr());
            assert!(made == count || blocks[made].is_null());
        } else if is_zeroed {
            blocks.iter_mut().for_each(|block| *block = heap.allocate_zeroed(size, align));
        } else {
            blocks.iter_mut().for_each(|block| *block = heap.allocate(size, align));
        }
    });
    for block in blocks {
        if block.is_null() {
            // SAFETY: the heap is there.
            unsafe { refuses(heap, size, align, company) };
            continue;
        }
        let held = note(table, block, size, align.max(MIN_ALIGN), None);
        assert_eq!(cairn::heap_of(block), Some(heap), "{held:x?}");
        expect_mine(block);
        if is_zeroed {
            held.verify_zero();
        }
        held.fill();
        table.put(held);
    }
}

/// Resizes a block of any heap; if it moves, to this one.
unsafe fn move_to(table: &mut Table, bytes: &mut Bytes, heap: HeapId, company: Company) {
    let (Some(index), size) = (pick(table, bytes), bytes.size()) else { return };
    if table.blocks[index].layout.is_some() || table.bytes + size > 8 << 20 {
        return;
    }
    let before = table.take(index);
    before.verify();
    let kept = before.usable.min(size);
    before.mark_kept(kept);
    // SAFETY: the heap is there, and the calling thread's; the block is live, and nobody else's.
    let p = told::lending(table, heap, size, company, || unsafe {
        heap.reallocate(before.p, size, MIN_ALIGN)
    });
    if p.is_null() {
        // SAFETY: the heap is there.
        unsafe { refuses(heap, size, MIN_ALIGN, company) };
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

/// Ends a heap, if it is there and nobody else has left it attached: with its blocks, or they live on. With them only while
/// all other threads rest.
pub(super) unsafe fn end(table: &mut Table, number: usize, with_blocks: bool) {
    table.operations += 1;
    let mut place = place(number);
    if place.kept_by.is_some_and(|thread| thread != world::me()) {
        return;
    }
    // Whoever has used it has given it up, and the next one makes another.
    publish(number, None);
    let Some(heap) = place.heap.take() else { return };
    place.kept_by = None;
    drop(place);
    if with_blocks {
        deferred::free_all();
    }
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
    for number in 0..HEAPS {
        let mut place = place(number);
        publish(number, None);
        place.kept_by = None;
        if let Some(heap) = place.heap.take() {
            // SAFETY: nobody uses it any more.
            unsafe { heap.delete() };
        }
    }
    region::end();
}
