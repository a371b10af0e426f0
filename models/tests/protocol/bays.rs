//! Bays of guarded blocks: whoever changes the word to a passing state has the bay.

use crate::harness::{ALL, Model, check, spawn};
use crate::map::address_map;
use crate::samples::guards::bay::{Bay, State};
use crate::slices::reservation;
use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// Three threads.
const FEW: Model = Model { preemptions: [Some(2), Some(4)], ..ALL };

/// What whoever has the bay may touch.
struct Held(UnsafeCell<u32>);

// SAFETY: loom checks each access.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    fn touch(&self) {
        // SAFETY: loom checks it.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }
}

/// Two threads free one block, while a third one wants the bay for another: one of the two frees it, and nobody
/// the other block.
#[test]
fn a_block_is_freed_once_while_its_bay_is_wanted() {
    check(FEW, |_| {
        assert!(reservation::init() && reservation::commit(address_map::CHUNK_SLICES));
        // SAFETY: committed memory of zeros, which nobody else uses.
        let bay: &'static Bay = unsafe { &*address_map::slice_address(0).cast() };
        let held = Arc::new(Held(UnsafeCell::new(0)));
        assert_eq!(bay.take(0), Some(State::Unused));
        held.touch();
        bay.describe(16, 8);
        bay.settle(State::Live, 1);
        let free = |held: Arc<Held>| {
            spawn(move || {
                let is_mine = bay.begin_to_free(16);
                if is_mine {
                    held.touch();
                    bay.settle(State::Freed, 2);
                }
                is_mine
            })
        };
        let frees = [free(held.clone()), free(held.clone())];
        let taken = bay.free_since().is_some_and(|since| bay.take(since).is_some());
        if taken {
            held.touch();
            bay.describe(32, 8);
            bay.settle(State::Live, 3);
        }
        let freed = frees.map(|thread| thread.join().expect("a thread"));
        assert_eq!(freed.iter().filter(|&&is_mine| is_mine).count(), 1);
        assert_eq!(bay.state(), if taken { State::Live } else { State::Freed });
        assert_eq!(bay.block().0, if taken { 32 } else { 16 });
    });
}
