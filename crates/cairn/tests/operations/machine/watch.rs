//! Who watches allocations, and how much memory there is, changes among the steps of a watched program: the heap profile and
//! guards come and go at all rates, limits are set and lifted, the program is told that memory runs short and allocates
//! inside that. Whatever else a step does has to come out as ever.

use super::step::{self, Company, MIN_ALIGN, note};
use super::table::{Held, Table};
use super::world;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// On average, so many steps pass from one change to the next.
const EACH: u64 = 16;
/// Bytes from one sample or guard to the next; 0: none.
const RATES: [usize; 8] = [0, 1, 64, 1000, 4 << 10, 64 << 10, 1 << 20, 512 << 10];
/// Blocks that are asked for while there is little memory.
const ASKED: usize = 24;

/// Whether anything changes.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Relaxed: two threads may draw the same number.
static RANDOM: AtomicU64 = AtomicU64::new(1);

thread_local! { static IS_TOLD: Cell<bool> = const { Cell::new(false) } }

/// xorshift64*.
fn random() -> u64 {
    let mut state = RANDOM.load(Ordering::Relaxed);
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    RANDOM.store(state, Ordering::Relaxed);
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

fn below(n: usize) -> usize {
    random() as usize % n
}

/// From now on it does.
pub(super) fn begin(seed: u8) {
    RANDOM.store(0x9e37_79b9 * (u64::from(seed) + 1), Ordering::Relaxed);
    IS_ON.store(true, Ordering::Relaxed);
    cairn::on_low_memory(Some(told), [WORD, 0]);
}

/// Nobody watches, and nothing is limited.
pub(super) fn end() {
    if IS_ON.swap(false, Ordering::Relaxed) {
        cairn::profile_every(0);
        cairn::guard_every(0);
        cairn::sample_every(0, |_, _| {});
        cairn::on_low_memory(None, [0; 2]);
        assert!(cairn::set_memory_limits(0, 0));
    }
}

/// Whether a block may be a guarded one, which the statistics do not count as a block.
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A step is about to be taken.
pub(super) fn turn(table: &mut Table, company: Company) {
    if !is_on() || !random().is_multiple_of(EACH) {
        return;
    }
    table.operations += 1;
    let (what, rate) = (random() % 16, RATES[below(RATES.len())]);
    if table.trace {
        eprintln!("watch {what}, {rate}");
    }
    match what {
        0..=4 => assert!(cairn::profile_every(rate)),
        5..=7 => assert!(cairn::guard_every(rate)),
        8 => cairn::sample_every(rate, |_, _| {}),
        9 | 10 => limit_softly(),
        11 | 12 if company == Company::Alone && !world::is_child() => squeeze(table),
        13 => cairn::thread_idle(),
        14 => _ = cairn::purge(),
        _ => cairn::write_profile(|piece| _ = std::hint::black_box(piece.len())),
    }
}

/// The process is to stay within something: nothing at all, about what it has, or much.
fn limit_softly() {
    let has = cairn::Stats::take().allocated();
    let soft = [0, 1, 1 + has / 2, has + (1 << 16), has * 8 / 7, 1 << 40][below(6)];
    assert!(cairn::set_memory_limits(soft, 0));
}

/// For a moment there is little memory: what is refused leaves everything as it was.
fn squeeze(table: &mut Table) {
    let has = cairn::Stats::take().allocated();
    let hard = 1 + has + [0, 16 << 10, 256 << 10, 4 << 20][below(4)];
    assert!(cairn::set_memory_limits(0, hard));
    for _ in 0..ASKED {
        let size = below(1 << below(22));
        let any = below(table.blocks.len().max(1));
        if random().is_multiple_of(3) && !table.blocks.is_empty() {
            let held = table.take(any);
            if held.layout.is_none() && resize(table, &held, size) {
                continue;
            }
            table.put(held);
            continue;
        }
        let is_zeroed = random().is_multiple_of(2);
        let p = if is_zeroed { cairn::allocate_zeroed(size) } else { cairn::allocate(size) };
        if !p.is_null() {
            keep(table, p, size, is_zeroed);
        }
    }
    assert!(cairn::set_memory_limits(0, 0));
}

/// Resizes a block that is in no table; false, and it is as it was, if there is no memory.
fn resize(table: &mut Table, held: &Held, size: usize) -> bool {
    held.verify();
    let kept = held.usable.min(size);
    held.mark_kept(kept);
    // SAFETY: live, and nobody else's.
    let p = unsafe { cairn::reallocate(held.p, size) };
    if p.is_null() {
        held.fill();
        return false;
    }
    let new = note(table, p, size, MIN_ALIGN, None);
    new.verify_kept(held, kept);
    new.fill();
    table.put(new);
    true
}

fn keep(table: &mut Table, p: *mut u8, size: usize, is_zeroed: bool) {
    let held = note(table, p, size, MIN_ALIGN, None);
    if is_zeroed {
        held.verify_zero();
    }
    held.fill();
    if random().is_multiple_of(2) { table.put(held) } else { step::free(table, held) }
}

/// What comes with each call.
const WORD: usize = 0x10e;

/// Memory runs short: blocks come and go meanwhile, dirty and zeroed ones.
fn told(_size: usize, [word, _]: [usize; 2]) {
    assert_eq!(word, WORD);
    if IS_TOLD.replace(true) {
        return;
    }
    for seed in 0..random() % 32 {
        let size = below(1 << (1 + below(13)));
        let is_zeroed = seed % 2 == 0;
        let p = if is_zeroed { cairn::allocate_zeroed(size) } else { cairn::allocate(size) };
        if !p.is_null() {
            let held = Held::new(p, size, MIN_ALIGN, None, seed);
            if is_zeroed {
                held.verify_zero();
            }
            held.fill();
            held.free();
        }
    }
    IS_TOLD.set(false);
}
