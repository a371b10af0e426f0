//! Owns: the header through which tools read a heap from outside: a live process or a core file.
//! Idea: metadata is plain data at computed addresses; one exported symbol says where and how.
//! Never: is read by the allocator itself.
//! Threads: none; constant.
//! Checked: a C test walks its own heap by the header alone.
//! Story: docs/design/outside-view.md

use crate::base::{CLASS_COUNT, CLASSES, ClassLayout, SLICE_SHIFT, in_hardened};
use crate::large::{MAPPINGS_PLACE, Mapping, Mappings, OWNER_OFFSETS};
use crate::map::{HEAP_SIZE, LISTS, Lists, Slot, address_map};
use crate::samples::{Asked, guards, profile};
use crate::spans::Span;
use core::mem::offset_of;

/// Where everything is. Offsets are in bytes. The layout of this struct only ever grows at its
/// end; `version` changes when a field's meaning does.
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    version: u32,
    header_bytes: u32,
    /// The reservation's bounds and tables: see `address_map::Map`.
    map: *const address_map::Map,
    classes: *const ClassLayout,
    class_count: u32,
    class_bytes: u32,
    slice_shift: u32,
    descriptor_bytes: u32,
    section_slices: u32,
    section_bytes: u32,
    slot_bytes: u32,
    /// From a section's start to its first chunk's remote words.
    words_offset: u32,
    heap_bytes: u32,
    /// Fields of a span's slot: blocks in use = until_event + used_after_event.
    span_until_event_offset: u32,
    span_used_after_event_offset: u32,
    span_carved_offset: u32,
    span_start_offset: u32,
    /// From a section's start to its slices' slots.
    slots_offset: u32,
    /// From a chunk's remote words (64 slices') to the next one's.
    chunk_bytes: u32,
    /// The end of lists, and behind it, at 16, the key of their links. The caches of the hardened build are no lists:
    /// its `heap_bytes` are 32 KiB.
    lists: *const Lists,
    /// Two words: bytes from one guarded block to the next that a tool asks for, 0 for none; and those that the
    /// process has done. It follows at a slow tick; if it cannot, it takes the first word back.
    guards: *const Asked,
    /// Two tables of mappings, their room, and twice the number of entries plus which table is in use.
    mappings: *const Mappings,
    mapping_bytes: u32,
    /// Fields of a span's slot: the first block in its list, and how many are set aside.
    span_free_offset: u32,
    span_hidden_offset: u32,
    /// From a section's start to the bits of what is set aside, `aside_bytes` for each slice: the first words of all slices,
    /// then the second ones. Of a span those of its slices come one after the other. 0 in the hardened build.
    aside_offset: u32,
    aside_bytes: u32,
    _reserved: u32,
    /// Three words: bytes from one sample of the heap profile to the next that a tool asks for, 0 for none; those that the
    /// process has done, as for guards; samples for which there was no room. Then where the table of the profile is, or null,
    /// and 12 numbers that say how to read it: docs/design/outside-view.md.
    profile: *const profile::Control,
    /// A pointer in a large block's slot, and one in a mapping's entry: not null if it belongs to a heap of the program's.
    large_owner_offset: u32,
    mapping_owner_offset: u32,
}

// The command `cairn guards` finds it there.
const _: () = assert!(core::mem::offset_of!(Header, guards) == 104);
// And `cairn profile` there.
const _: () = assert!(core::mem::offset_of!(Header, profile) == 144);

// SAFETY: constant; the pointers are addresses for a reader outside.
unsafe impl Sync for Header {}

/// The header, under the name that tools look up. In a Rust program nothing names it: the attribute keeps it from the
/// linker.
#[used]
#[unsafe(export_name = "cairn_header")]
pub static HEADER: Header = Header {
    magic: *b"CAIRNHDR",
    version: 8,
    header_bytes: size_of::<Header>() as u32,
    map: &raw const address_map::MAP,
    classes: (&raw const CLASSES).cast(),
    class_count: CLASS_COUNT as u32,
    class_bytes: size_of::<ClassLayout>() as u32,
    slice_shift: SLICE_SHIFT,
    descriptor_bytes: size_of::<address_map::Descriptor>() as u32,
    section_slices: address_map::SECTION_SLICES as u32,
    section_bytes: address_map::SECTION_BYTES as u32,
    slot_bytes: size_of::<address_map::Slot>() as u32,
    words_offset: address_map::WORDS_OFFSET as u32,
    heap_bytes: HEAP_SIZE as u32,
    span_until_event_offset: offset_of!(Span, until_event) as u32,
    span_used_after_event_offset: offset_of!(Span, used_after_event) as u32,
    span_carved_offset: offset_of!(Span, carved) as u32,
    span_start_offset: offset_of!(Span, start) as u32,
    slots_offset: address_map::SLOTS_OFFSET as u32,
    chunk_bytes: address_map::CHUNK_BYTES as u32,
    lists: &raw const LISTS.0,
    guards: &raw const guards::ASKED,
    mappings: MAPPINGS_PLACE,
    mapping_bytes: size_of::<Mapping>() as u32,
    span_free_offset: offset_of!(Span, local_free) as u32,
    span_hidden_offset: offset_of!(Span, hidden) as u32,
    aside_offset: in_hardened(ASIDE_OFFSET, 0) as u32,
    aside_bytes: (address_map::ASIDE_WORDS * size_of::<u64>()) as u32,
    _reserved: 0,
    profile: &raw const profile::CONTROL,
    large_owner_offset: OWNER_OFFSETS[0] as u32,
    mapping_owner_offset: OWNER_OFFSETS[1] as u32,
};

/// They stand behind the slots.
const ASIDE_OFFSET: usize =
    address_map::SLOTS_OFFSET + address_map::SECTION_SLICES * size_of::<Slot>();
