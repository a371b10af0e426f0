//! Owns: a free in the hardened build of a block of an own span.
//! Idea: what the program has is written where it cannot write.
//! Never: knows C types or errno.
//! Threads: any, at any time in a thread's life; holds nothing.
//! Checked: tests/quarantine.rs; the attacks of the C layer.
//! Story: docs/design/policy.md

use super::{bad_pointer, deallocate_marked};
use crate::block::Block;
use crate::caches::Caches;
use crate::heap::Heap;
use crate::live;
use crate::size_class::SizeClass;

/// Frees a block of a span of the calling thread's.
///
/// # Safety
/// A block of `class` starts at `p`, the caller's to free if it is in use; the heap owns its span.
#[inline(always)]
pub(super) unsafe fn deallocate_own(heap: *mut Heap, class: SizeClass, p: *mut u8, call: &str) {
    // SAFETY: as above. Nothing of the block is read unless the program has it: a guard may stand there.
    unsafe {
        if !live::is_live(p) {
            bad_pointer(call, p);
        }
        // Another thread has freed it, and its owner does not know yet.
        if Block::is_marked(p.cast()) {
            return deallocate_marked(p, call);
        }
        live::take_back(p);
        let home = Caches::push(&raw mut (*heap).caches, class, p.cast());
        if !home.is_null() {
            (*heap).take_home(class, home);
        }
    }
}
