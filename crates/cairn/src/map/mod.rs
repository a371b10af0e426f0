//! Owns: what an address says: its descriptor, its metadata, the remote word, a link.
//! Idea: everything is computed from the pointer.
//! Never: knows heaps or lists.
//! Threads: see each file.
//! Checked: const assertions; the models.
//! Story: docs/design/layout.md

pub(crate) mod address_map;
pub(crate) mod block;
mod marks;
pub(crate) mod region;
pub(crate) mod remote;
mod tuning;
mod walk;

pub(crate) use address_map::{
    CHUNK_SLICES, ChunkBits, DESCRIPTOR_SHIFT, Descriptor, HEAP_BYTES, HEAP_SIZE, OWNER_ABANDONED,
    OWNER_CLOSED, OWNER_HEAP_MIN, OWNER_LARGE, OWNER_NONE, SECTION_BYTES, SECTION_SLICES, Slot,
    Tables, WAITING_SLICES,
};
pub(crate) use block::{
    Block, Chain, END, FreeList, LISTS, Lists, combined, overwritten, set_key, without_mark,
};
pub(crate) use region::{Bit, MAKING, Origin, Piece};
pub use region::{RegionCalls, RegionError};
pub(crate) use remote::{Generation, Pushed, RemoteWord};
pub(crate) use walk::{all_heads, heads_from, heads_in_regions};
