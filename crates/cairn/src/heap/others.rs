//! Owns: letting go of the spans of heaps whose threads wait.
//! Idea: such threads keep what others have emptied. Who needs a new span looks at a few heaps in turn first. Long spans of
//!   its class go after a turn of others on the processor: a new one costs more than to find it again.
//! Never: touches caches, which the fast paths use; does what follows from frees, such as upkeep, which is the thread's.
//! Threads: any; one at a time in each heap, by its `Presence`.
//! Checked: the model `presence`; tests/idle/presence.rs.
//! Story: docs/design/heap.md

use super::Heap;
use crate::base::{Apart, AtomicUsize, Ordering, SizeClass, shares};
use crate::heap::tuning::{LET_GO_SPANS, LOOK_HEAPS};
use crate::map::address_map;
use crate::os::{self, Presence, Round};
use crate::slices::arena;

/// How many heaps the pool has made. Release, and Acquire: who counts one finds it made.
pub(crate) static MADE: AtomicUsize = AtomicUsize::new(0);
/// Who is looked at next.
static ROUND: Apart<Round> = Apart(Round::new());

impl Heap {
    /// Looks at the next few heaps, up to the first whose thread has been away for long: its spans are anybody's from now on,
    /// perhaps those of a long class alone.
    /// False if there is none, or if this heap has an empty span in hand for `class`.
    #[inline(never)]
    pub(super) fn let_go_of_others(&self, class: SizeClass) -> bool {
        if !Presence::IS_ASKED || shares::in_use() < 2 || self.has_empty(class) || arena::keeps() {
            return false;
        }
        ROUND.0.any(MADE.load(Ordering::Acquire), LOOK_HEAPS, |nth| {
            let Some(heap) = address_map::heap_address(nth) else { return false };
            // SAFETY: one that has been made.
            let look = |of| unsafe { Heap::let_go_of(heap.cast(), Heap::epoch(self), of) };
            look(None) || class.is_long() && look(Some(class))
        })
    }

    /// Looks at a heap, and lets go of some of its spans if its thread has been away for long; of those of one class, if that is
    /// all that is wanted, after a turn of others. False if not, or if there are none. One of another epoch is dead, and believed
    /// in nothing.
    ///
    /// # Safety
    /// It has been made.
    pub(crate) unsafe fn let_go_of(heap: *mut Heap, epoch: u32, of: Option<SizeClass>) -> bool {
        // SAFETY: heaps are never unmapped; its spans are this thread's if `is_left` says so.
        unsafe {
            if Heap::epoch(heap) != epoch || !os::may_look() {
                return false;
            }
            let Some(date) = (*heap).presence.is_left(of.is_some()) else { return false };
            // By functions that take `&mut`: its thread may use the caches (`Heap::_read`).
            (*heap).flush_for_others();
            let (is_any, is_all) = match of {
                Some(class) => {
                    (*heap).deactivate(class);
                    ((*heap).abandon_partial(class, &mut { LET_GO_SPANS }), false)
                }
                None => (true, (*heap).abandon_spans(LET_GO_SPANS)),
            };
            (*heap).presence.let_go(date, is_all);
            is_any
        }
    }
}
