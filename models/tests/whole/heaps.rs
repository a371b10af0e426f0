//! What threads do with heaps of the program's: they make them, allocate from them, hand them on, delete and destroy them,
//! and a heap's soft limit has the program allocate in it, inside of its allocation. A forked child does all of that with
//! the heaps that it has come by.

use super::held::{Bag, Held, Random};
use super::threads::{self, as_another_thread};
use super::work::{KIB, mapping, run, small};
use crate::base::policy::HARDENED;
use crate::os::lock;
use crate::{HeapId, check, heap_of, purge};
use std::mem::take;
use std::sync::{Arc, Mutex};

/// An owned heap, and who has it what blocks of it.
struct Own {
    id: HeapId,
    held: Vec<Held>,
    /// Others have blocks of it, too: it cannot be destroyed.
    is_lent: bool,
}

/// A shared heap that the last of its users deletes, while others free.
pub(crate) struct Share {
    id: HeapId,
    heaps: Heaps,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.heaps.forget(self.id);
        // SAFETY: nobody uses it any more.
        unsafe { self.id.delete() };
    }
}

/// The heaps of an execution.
#[derive(Clone, Default)]
pub(crate) struct Heaps {
    /// Owned ones that no thread has attached.
    shelf: Arc<Mutex<Vec<Own>>>,
    /// Those whose threads have ended without another word.
    left: Arc<Mutex<Vec<Own>>>,
    /// All that no thread is making or ending.
    known: Arc<Mutex<Vec<HeapId>>>,
}

/// What the program has allocated when it was told of a limit.
static TOLD: Mutex<Vec<Held>> = Mutex::new(Vec::new());

/// Allocates in the heap inside of an allocation in it: a span of one size, or more.
fn told(heap: HeapId, _: [usize; 2]) {
    for (size, count) in [(40, 1), (1000, 2), (3800, 20)] {
        let held: Vec<_> = (0..count).filter_map(|_| Held::allocate_in(heap, size)).collect();
        lock(&TOLD).extend(held);
    }
}

/// A size of a block in a heap.
fn size(random: &mut Random) -> usize {
    match random.below(12) {
        0 => mapping(random),
        1 => run(random),
        2..6 => 1 + random.below(300),
        _ => small(random),
    }
}

/// Allocates a few blocks, zeroed ones among them.
fn some(heap: HeapId, random: &mut Random) -> Vec<Held> {
    let size = size(random);
    let is_zeroed = random.below(4) == 0;
    let count = if size < 4 * KIB { 1 + random.below(12) } else { 1 };
    let new =
        |_| if is_zeroed { Held::zeroed_in(heap, size) } else { Held::allocate_in(heap, size) };
    (0..count).filter_map(new).collect()
}

impl Heaps {
    fn forget(&self, heap: HeapId) {
        lock(&self.known).retain(|&known| known != heap);
    }

    /// Makes a shared heap of each kind that there is, one with a limit.
    pub(crate) fn shares(&self) -> Vec<Arc<Share>> {
        let concurrent = (!HARDENED).then(|| HeapId::new_concurrent(16));
        let made = [Some(HeapId::new_shared()), Some(HeapId::new_shared()), concurrent];
        let ids: Vec<_> =
            made.into_iter().flatten().map(|id| id.expect("there is memory")).collect();
        // SAFETY: made just now, and nobody's yet.
        assert!(unsafe { ids[0].set_limits(100 * KIB, 0, Some(told), [0; 2]) });
        lock(&self.known).extend(&ids);
        ids.into_iter().map(|id| Arc::new(Share { id, heaps: self.clone() })).collect()
    }

    fn make(&self, random: &mut Random) -> Own {
        let id = HeapId::new_owned().expect("there is memory");
        let is_limited = random.below(3) == 0;
        if is_limited {
            // SAFETY: this thread's.
            assert!(unsafe { id.set_limits(24 * KIB, 0, Some(told), [0; 2]) });
        }
        lock(&self.known).push(id);
        Own { id, held: Vec::new(), is_lent: is_limited }
    }

    /// Deletes a heap, or destroys it if nobody else has blocks of it.
    fn end(&self, mut own: Own, bag: &Bag, random: &mut Random) {
        self.forget(own.id);
        // SAFETY: attached to this thread, or to none.
        unsafe {
            if own.is_lent || random.below(2) == 0 {
                take(&mut own.held).into_iter().for_each(|held| bag.put(held));
                own.id.delete();
            } else {
                own.held.into_iter().for_each(|held| _ = held.forget());
                own.id.destroy();
            }
        }
    }

    /// Hands a heap on, takes one that others have handed on, or ends one.
    fn move_one(&self, mine: &mut Vec<Own>, bag: &Bag, random: &mut Random) {
        match random.below(3) {
            0 => {
                if let Some(own) = random.take(mine) {
                    // SAFETY: this thread's.
                    unsafe { own.id.detach() };
                    lock(&self.shelf).push(own);
                }
            }
            1 => {
                let own = lock(&self.shelf).pop();
                if let Some(own) = own {
                    // SAFETY: nobody's.
                    unsafe { own.id.attach() };
                    mine.push(own);
                }
            }
            _ => random.take(mine).into_iter().for_each(|own| self.end(own, bag, random)),
        }
    }

    /// Works with owned heaps, and with shared ones until it lets go of them. The blocks of the latter, and what is lent of
    /// the others, anybody frees.
    pub(crate) fn work(
        &self,
        bag: &Bag,
        mut shares: Vec<Arc<Share>>,
        random: &mut Random,
        rounds: usize,
    ) {
        let mut mine: Vec<Own> = Vec::new();
        // Out of its own parts of shared heaps. It goes on freeing there when it has let go of the heaps.
        let mut parts: Vec<Held> = Vec::new();
        for round in 0..rounds {
            match random.below(14) {
                0 | 1 if mine.len() < 3 => mine.push(self.make(random)),
                2..5 if !mine.is_empty() => {
                    let at = random.below(mine.len());
                    let new = some(mine[at].id, random);
                    if random.below(3) == 0 {
                        mine[at].is_lent = true;
                        new.into_iter().for_each(|held| bag.put(held));
                    } else {
                        mine[at].held.extend(new);
                    }
                }
                5..8 if !shares.is_empty() => {
                    let share = &shares[random.below(shares.len())];
                    let new = some(share.id, random);
                    for held in new {
                        match random.below(3) {
                            0 => bag.put(held),
                            _ => parts.push(held),
                        }
                    }
                }
                8..11 => self.move_one(&mut mine, bag, random),
                11 => {
                    for own in &mut mine {
                        // A mapping stays in its heap, wherever it moves.
                        if let Some(held) = own.held.iter_mut().find(|held| held.is_mapping()) {
                            held.resize(mapping(random));
                        } else {
                            random.take(&mut own.held).into_iter().for_each(Held::free);
                        }
                    }
                }
                _ => {
                    (0..3).for_each(|_| bag.free_one(random));
                    (0..3).for_each(|_| random.take(&mut parts).into_iter().for_each(Held::free));
                }
            }
            if round > rounds / 2 && random.below(4) == 0 {
                // Others may be the last, and delete it, while this one frees on.
                random.take(&mut shares);
            }
            take(&mut *lock(&TOLD)).into_iter().for_each(|held| bag.put(held));
        }
        drop(shares);
        parts.into_iter().for_each(Held::free);
        for own in mine {
            match random.below(2) {
                0 => self.end(own, bag, random),
                _ => lock(&self.left).push(own),
            }
        }
    }

    /// Says that time has gone by, for readers that there are not. One thread calls.
    pub(crate) fn next_epoch(&self, shares: &[Arc<Share>], epoch: usize) {
        for share in shares {
            // SAFETY: it is there, and nobody reads what is free.
            unsafe { share.id.set_epoch(epoch, epoch - 1) };
        }
    }

    /// Ends all owned heaps that nobody has any more.
    pub(crate) fn empty(&self, bag: &Bag, random: &mut Random) {
        let all = [&self.shelf, &self.left].map(|list| take(&mut *lock(list)));
        for own in all.into_iter().flatten() {
            // SAFETY: its thread has detached it, or has ended.
            unsafe { own.id.attach() };
            self.end(own, bag, random);
        }
        bag.empty();
    }

    /// In a forked child: uses each heap that there is, on more than one thread, and ends them all.
    pub(crate) fn take_over(&self, bag: &Bag, random: &mut Random) {
        let all = lock(&self.known).clone();
        let mut held = Vec::new();
        for &id in &all {
            // SAFETY: no thread is there but this one.
            unsafe { id.attach() };
            held.extend(some(id, random));
            held.extend(Held::allocate_in(id, 1 + random.below(1000)));
        }
        check();
        as_another_thread(|| {
            for &id in &all {
                // SAFETY: as above.
                if unsafe { id.is_shared() } {
                    some(id, random).into_iter().for_each(Held::free);
                }
            }
            bag.free_one(random);
            drop(self.make(random));
        });
        bag.all().iter().chain(&held).for_each(Held::verify);
        bag.empty();
        take(&mut *lock(&TOLD)).into_iter().for_each(Held::free);
        for id in all {
            // SAFETY: no thread is there but this one. What dead threads had is nobody's.
            unsafe {
                if random.below(2) == 0 {
                    id.delete();
                    continue;
                }
                let (gone, others) = take(&mut held).into_iter().partition(|held| held.is_of(id));
                held = others;
                Vec::into_iter(gone).for_each(|held: Held| _ = held.forget());
                Held::forget_all_of(id);
                id.destroy();
            }
        }
        held.into_iter().for_each(Held::free);
        check();
        purge();
        check();
        // New ones are whole.
        let own = self.make(random);
        some(own.id, random).into_iter().for_each(Held::free);
        self.end(own, bag, random);
    }
}
