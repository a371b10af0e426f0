//! Who is told that a heap is over its soft limit: allocates and frees in that heap and in others, inside the allocation
//! that it is told of. What comes and goes there is in the table as soon as that one returns.

use super::bytes::Bytes;
use super::heaps::{self, Hold, STEP_BYTES};
use super::step::{self, Company, MIN_ALIGN, note};
use super::table::{Held, Table};
use super::world::{HEAPS, world};
use cairn::HeapId;
use std::cell::Cell;
use std::ptr::null_mut;

/// The first of the words that come back.
pub(super) const WORD: usize = 0x701d;
/// Blocks that may be freed inside, and made there.
const LENT: usize = 4;
const MADE: usize = 24;
/// What is made there, in bytes.
const MADE_BYTES: usize = 1 << 20;

/// Bytes of a block of which a span has few, and of the memory of a few spans.
const FEW: usize = 20_000;
const DIRTY: usize = 600_000;

/// What an allocation lends to whoever is told meanwhile.
struct Lent {
    /// To be freed, or not.
    blocks: Vec<Held>,
    /// What was made instead, and what more may be.
    made: Vec<Held>,
    seeds: Vec<u64>,
    size: usize,
    company: Company,
}

thread_local! { static LENDER: Cell<*mut Lent> = const { Cell::new(null_mut()) } }

/// Calls `call`, which allocates blocks of `size` in `heap`. If that has a soft limit, some of the table's blocks may go
/// meanwhile, and others come.
pub(super) fn lending<R>(
    table: &mut Table,
    heap: HeapId,
    size: usize,
    company: Company,
    call: impl FnOnce() -> R,
) -> R {
    // SAFETY: the caller uses it.
    if unsafe { heap.stats() }.soft_limit == 0 {
        return call();
    }
    let mut lent = Lent {
        blocks: (0..LENT).map_while(|_| table.take_first()).collect(),
        made: Vec::with_capacity(MADE),
        seeds: (0..MADE).map(|_| table.seed()).collect(),
        size,
        company,
    };
    LENDER.set(&raw mut lent);
    let result = call();
    LENDER.set(null_mut());
    table.operations += lent.made.len() as u64;
    lent.blocks.into_iter().chain(lent.made).for_each(|held| table.put(held));
    result
}

/// A heap is over its soft limit: it is. What may be used meanwhile is.
pub(super) fn told(heap: HeapId, [word, _]: [usize; 2]) {
    let lender = LENDER.replace(null_mut());
    // SAFETY: null, or what `lending` has on the stack of this thread; it is nobody else's while it is taken out.
    let lent = unsafe { lender.as_mut() };
    let company = lent.as_ref().map_or(Company::Together, |lent| lent.company);
    // SAFETY: it allocates just now.
    let (stats, held) = unsafe { (heap.stats(), heaps::held_at_most(heap, company)) };
    assert!(word == WORD && held > stats.soft_limit, "{held} bytes are held: {stats:?}");
    if let Some(lent) = lent {
        use_meanwhile(heap, lent);
    }
    LENDER.set(lender);
}

/// Blocks of the size that is being allocated come in the heap itself and elsewhere, and some go.
fn use_meanwhile(heap: HeapId, lent: &mut Lent) {
    let most = 1 + MADE_BYTES / lent.size.max(1);
    let count = (lent.seeds.last().map_or(0, |&seed| seed as usize >> 8) % MADE).min(most);
    for _ in 0..count {
        let Some(seed) = lent.seeds.pop() else { return };
        let is_zeroed = seed & 16 != 0;
        let p = match seed % 8 {
            0 => cairn::allocate(lent.size),
            1 => allocate_in_shared(seed as usize >> 8, lent.size),
            // SAFETY: the heap in which the thread allocates just now.
            _ if is_zeroed => unsafe { heap.allocate_zeroed(lent.size, MIN_ALIGN) },
            // SAFETY: as above.
            _ => unsafe { heap.allocate(lent.size, MIN_ALIGN) },
        };
        if p.is_null() {
            continue;
        }
        let held = Held::new(p, lent.size, MIN_ALIGN, None, seed);
        if seed % 8 > 1 && is_zeroed {
            held.verify_zero();
        }
        held.fill();
        match seed & 32 {
            0 => held.free(),
            _ => lent.made.push(held),
        }
        if seed & 64 != 0 {
            lent.blocks.pop().into_iter().for_each(Held::free);
        }
    }
}

/// From a shared heap that is there and does not end just now; null if there is none.
fn allocate_in_shared(random: usize, size: usize) -> *mut u8 {
    // Nobody waits: who does so inside an allocation may wait for itself.
    let Ok(place) = world().heaps[(random | 1) % HEAPS].try_read() else { return null_mut() };
    // SAFETY: the heap is there while it is read.
    place.heap.map_or(null_mut(), |heap| unsafe { heap.allocate(size, MIN_ALIGN) })
}

/// What has been written to is what the next span is made of.
fn leave_dirty() {
    let blocks = [(); 3].map(|()| cairn::allocate(DIRTY));
    for block in blocks.into_iter().filter(|block| !block.is_null()) {
        // SAFETY: this thread's, and as long.
        unsafe {
            block.write_bytes(0xd1, DIRTY);
            cairn::deallocate(block);
        }
    }
}

/// Zeroed blocks come where freed ones were, while somebody is told again and again.
pub(super) fn provoke(table: &mut Table, bytes: &mut Bytes, company: Company) {
    let (number, random) = (bytes.number(), bytes.number());
    let (mut size, count) = (bytes.size(), bytes.count());
    if random & 8 != 0 {
        // Few blocks make a span full.
        size = FEW + size % (2 * FEW);
        leave_dirty();
    }
    let Some(hold) = Hold::take(number) else { return };
    if company == Company::Together && !hold.is_alone() {
        return hold.give(false);
    }
    let (heap, count) = (hold.heap, count.min(1 + 2 * STEP_BYTES / size.max(1)));
    // SAFETY: the heap is there, and this thread's.
    unsafe {
        for turn in 0..count {
            if turn % 4 == 0 {
                let stats = heap.stats();
                let soft = stats.spans + stats.large + 1 + random * turn * 64;
                let soft = if stats.hard_limit > 0 { soft.min(stats.hard_limit) } else { soft };
                assert!(heap.set_limits(soft, stats.hard_limit, Some(told), [WORD, number]));
            }
            let is_zeroed = turn & 1 << (random % 3) == 0;
            let p = lending(table, heap, size, company, || match is_zeroed {
                true => heap.allocate_zeroed(size, MIN_ALIGN),
                false => heap.allocate(size, MIN_ALIGN),
            });
            if p.is_null() {
                heaps::refuses(heap, size, MIN_ALIGN, company);
                continue;
            }
            let held = note(table, p, size, MIN_ALIGN, None);
            is_zeroed.then(|| held.verify_zero());
            held.fill();
            if random & 64 != 0 { table.put(held) } else { step::free(table, held) }
        }
    }
    hold.give(false);
}
