//! Owns: what all others stand on: atomics, size classes, what the hardened build does otherwise.
//! Idea: it is known when the program is compiled, or is one number.
//! Never: calls the system, or touches memory of the program's.
//! Threads: see each file.
//! Checked: const assertions; property tests.
//! Story: docs/design/spans.md

pub(crate) mod bits;
mod list;
pub(crate) mod nearness;
pub(crate) mod policy;
pub(crate) mod random;
pub(crate) mod shares;
pub(crate) mod size_class;
pub(crate) mod sync;
pub(crate) mod tuning;
pub mod values;

pub(crate) use list::{Linked, Stack};
pub(crate) use policy::{
    CANARY_BYTES, HARDENED, InHardened, PARTITIONS, in_hardened, salt, signature,
};
pub(crate) use shares::{LEFT_BEHIND, NOBODY};
pub(crate) use size_class::{
    BLOCK_MAX, CLASS_COUNT, CLASSES, ClassLayout, MASKS, MEDIUM_MAX, MIN_ALIGN, SLICE_SHIFT,
    SLICE_SIZE, SMALL_MAX, SizeClass,
};
pub(crate) use sync::{
    Apart, AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, Plain,
    UnsafeCell, add_at, fence, holds, holds_at, in_loom, in_shuttle, is_zero_at, late_fence,
    owners_fence, point, touched,
};
pub(crate) use tuning::{
    CACHE_UNITS, FULL_FIRST, FULL_MOST, FULL_SLICES, FULL_STEP, SHARED_REFILLS,
};
