//! Owns: the reservation (metadata somewhere in front, slices behind), its descriptors, and
//!   every address computation from a pointer to metadata.
//! Idea: shift and mask lead from any pointer to a descriptor; whether it is a block is one multiplication (see `size_class`).
//! Never: knows heaps, lists or locks; decides what a slice is used for.
//! Threads: reading: any. `init` and `commit`: one at a time, the caller sees to it.
//! Checked: const assertions here; layout asserted in `init`.
//! Story: docs/design/layout.md

use crate::base::{
    Apart, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, Plain, holds,
};
use crate::base::{ClassLayout, HARDENED, SLICE_SHIFT, SLICE_SIZE, SizeClass, in_hardened};
use crate::map::marks::Marks;
use crate::map::region;
use crate::map::remote::RemoteWord;

// There is one reservation, at a random multiple of 2 MiB:
//
//     | nothing | metadata | nothing | slices ...                                    |
//     |<---------- an eighth ------->|<- a power of two: committed in growing steps ->|
//
// The metadata stands at a random multiple of 64 KiB, so that who knows a block's address knows no metadata's:
//
//     | descriptors 32 B/slice | sections 140,352 B/1,024 slices | heaps 4 KiB each |
//       read-only, then a        committed with                     committed
//       committed part           their slices                       one by one
//
// A descriptor's place is pointer bits, those of a slice modulo the reservation's size. The reservation begins
// anywhere, so its first slice's descriptor does, too: the table goes on at its start.
//
// Metadata is type-stable and never unmapped: a stale descriptor can be read at any time.

/// Slices in a chunk: what one bitmap word covers, 1 MiB.
pub(crate) const CHUNK_SLICES: usize = 64;
/// Slices whose metadata but for the descriptors stands together, 16 MiB: a large block touches the page of
/// its first slot, and one of bitmaps for each of these.
pub(crate) const SECTION_SLICES: usize = SECTION_CHUNKS * CHUNK_SLICES;
const SECTION_CHUNKS: usize = 16;
/// Bytes of a heap at most, without what is put behind it: hardened, rows of blocks.
pub(crate) const HEAP_BYTES: usize = 4096;
/// Bytes set aside for a heap; its address modulo 2^32 is its tag.
pub(crate) const HEAP_SIZE: usize = in_hardened(HEAP_BYTES, 8 * HEAP_BYTES);

pub(crate) const DESCRIPTOR_SHIFT: u32 = 5;

/// No block starts in this slice, or it belongs to no span.
pub(crate) const OWNER_NONE: u32 = 0;
/// A span that no heap owns.
pub(crate) const OWNER_ABANDONED: u32 = 1;
/// The first slice of a large block.
pub(crate) const OWNER_LARGE: u32 = 2;
/// A bit that the owner of a closed heap's spans has beside the heap's tag.
pub(crate) const OWNER_CLOSED: u32 = 1 << 3;
/// All tags of heaps are larger: heaps stand at multiples of `HEAP_SIZE`, but not of 2^32.
pub(crate) const OWNER_HEAP_MIN: u32 = 3;

/// What any thread may read about a slice.
#[repr(C, align(32))]
pub(crate) struct Descriptor {
    /// A heap's tag, or one of the `OWNER_` values. Only the owner of a span writes it, and
    /// only to its own tag or away from it: whoever reads its own tag holds the span.
    pub(crate) owner: AtomicU32,
    /// Size class of the span.
    pub(crate) class: AtomicU32,
    /// The slot of the span or large block that the slice belongs to.
    pub(crate) slot: AtomicPtr<Slot>,
    // Constant while the span exists, and all that a free needs to know of it. Here and not in the
    // slot, on whose line the owner writes:
    /// The span's first block.
    start: Plain<*mut u8>,
    /// The inverse of its class.
    inverse: Plain<u64>,
}

// SAFETY: see the fields.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// The class of the span, or the first one: of a large block, or where there has been nothing.
    #[inline(always)]
    pub(crate) fn class(&self) -> SizeClass {
        // SAFETY: only the numbers of classes are ever stored there.
        unsafe { SizeClass::from_number(self.class.load(Ordering::Relaxed)) }
    }

    /// The span's class, and a number that has no bit of the class's mask exactly if `p`, any value
    /// at all that leads here, is the start of one of the span's blocks.
    ///
    /// # Safety
    /// There is a span, and the caller holds it, or owns a block of it as far as anybody can tell.
    #[inline(always)]
    pub(crate) unsafe fn probe(&self, p: *const u8) -> (SizeClass, u64) {
        let offset = p.addr().wrapping_sub(self.start.get().addr()) as u64;
        (self.class(), offset.wrapping_mul(self.inverse.get()))
    }
}

/// Room for the owner's metadata of a span or large block, at the first slice's position.
#[repr(C, align(64))]
pub(crate) struct Slot([u8; 64]);

/// The allocation state of 64 slices; touched under the arena's lock only.
#[repr(C, align(32))]
pub(crate) struct ChunkBits {
    /// Slices that are in no use.
    pub(crate) free: u64,
    /// Free slices whose memory may be resident.
    pub(crate) dirty: u64,
    /// Dirty slices whose memory may be other than zero.
    pub(crate) written: u64,
    /// First slices of large blocks.
    pub(crate) heads: u64,
}

/// A chunk's bitmaps and remote words. Growth writes the bitmaps, so that a look at a word that nobody has
/// written finds a page that is there.
#[repr(C)]
struct Chunk {
    bits: ChunkBits,
    words: [RemoteWord; CHUNK_SLICES],
    marks: [Marks; in_hardened(0, 1)],
}

/// All metadata of `SECTION_SLICES` but their descriptors. What a small heap uses of the chunks stands in one page.
#[repr(C)]
struct Section {
    chunks: [Chunk; SECTION_CHUNKS],
    leaf: Leaf,
    slots: [Slot; SECTION_SLICES],
    aside: [[u64; SECTION_SLICES]; ASIDE_WORDS],
    waiting: [AtomicU64; SECTION_SLICES / WAITING_SLICES],
}

/// Words for each slice in which blocks of 32 bytes or more are set aside (see `spans::aside`). The first of all slices stand
/// together: most spans need no others. With all words of a slice together, bursts left 0.3 % more.
pub(crate) const ASIDE_WORDS: usize = SLICE_SIZE / 32 / u64::BITS as usize;

/// Slices whose waiting pages stand in one word (see `spans::waiting`).
pub(crate) const WAITING_SLICES: usize = 16;

/// What the arena's tree says of a section's chunks; the arena's.
#[repr(C, align(64))]
pub(crate) struct Leaf([u8; 64]);

/// Bytes of a section's metadata.
pub(crate) const SECTION_BYTES: usize = size_of::<Section>();
/// From a section's metadata to its remote words, and to its slots.
pub(crate) const WORDS_OFFSET: usize = core::mem::offset_of!(Chunk, words);
/// From a chunk's bitmaps to the next one's.
pub(crate) const CHUNK_BYTES: usize = size_of::<Chunk>();
pub(crate) const SLOTS_OFFSET: usize = core::mem::offset_of!(Section, slots);

const _: () = assert!(size_of::<Descriptor>() == 1 << DESCRIPTOR_SHIFT);
const _: () = assert!(SECTION_BYTES == in_hardened(140_352, 140_864));

/// The reservation. Tools read it from outside by way of `outside::HEADER`: fields stay in place.
#[repr(C)]
pub(crate) struct Map {
    // Read on the fast path, plainly: written once, by the first allocation, before there is a
    // block to free, or a second thread: to make one takes an allocation.
    descriptors: Plain<*const Descriptor>,
    mask: Plain<usize>,
    // Constant once the reservation exists.
    base: AtomicPtr<u8>,
    slices: AtomicUsize,
    /// The first slice, 0.
    first: AtomicUsize,
    sections: AtomicPtr<Section>,
    heaps: AtomicPtr<u8>,
    heap_limit: AtomicUsize,
    // Grows.
    pub(crate) committed: AtomicUsize,
    // Grows; not for tools.
    /// The end of the slices that have been described, which grows: a walk does not touch what is
    /// behind it. Acquire: what is before it is committed.
    described: AtomicUsize,
    /// `slices` - 1. Constant.
    index_mask: AtomicUsize,
}

/// Stands in for the table until the reservation exists: every pointer is foreign.
// SAFETY: numbers and a null pointer; the owner is `OWNER_NONE`, 0.
static NO_DESCRIPTOR: Descriptor = unsafe { core::mem::zeroed() };

// SAFETY: see the fields.
unsafe impl Sync for Map {}

/// Whether there is one.
static MADE: Apart<AtomicBool> = Apart(AtomicBool::new(false));

/// The one reservation.
pub(crate) static MAP: Map = Map {
    descriptors: Plain::new(&raw const NO_DESCRIPTOR),
    // SAFETY: numbers and null pointers are what the rest starts with.
    ..unsafe { core::mem::zeroed() }
};

/// Where the reservation and its metadata are. Constant once they are made.
pub(crate) struct Tables {
    /// The first slice.
    pub(crate) base: *mut u8,
    /// Slices there can ever be, a power of two.
    pub(crate) slices: usize,
    pub(crate) descriptors: *mut u8,
    pub(crate) sections: *mut u8,
    pub(crate) heaps: *mut u8,
    /// Heaps there can ever be.
    pub(crate) heap_limit: usize,
}

/// Makes the reservation known; once, by the thread that has made it.
pub(crate) fn install(tables: &Tables) {
    MAP.base.store(tables.base, Ordering::Relaxed);
    MAP.slices.store(tables.slices, Ordering::Relaxed);
    MAP.index_mask.store(tables.slices - 1, Ordering::Relaxed);
    MAP.sections.store(tables.sections.cast(), Ordering::Relaxed);
    MAP.heaps.store(tables.heaps, Ordering::Relaxed);
    MAP.heap_limit.store(tables.heap_limit, Ordering::Relaxed);
    MAP.descriptors.set(tables.descriptors.cast());
    MAP.mask.set((tables.slices - 1) << DESCRIPTOR_SHIFT);
    // Release: who finds that it exists finds all of the above.
    MADE.0.store(true, Ordering::Release);
}

/// Where everything is.
pub(crate) fn tables() -> Tables {
    Tables {
        base: slice_address(0),
        slices: slice_limit(),
        descriptors: MAP.descriptors.get().cast_mut().cast(),
        sections: MAP.sections.load(Ordering::Relaxed).cast(),
        heaps: MAP.heaps.load(Ordering::Relaxed),
        heap_limit: MAP.heap_limit.load(Ordering::Relaxed),
    }
}

/// Makes `count` slices known as committed, their metadata included.
pub(crate) fn set_committed(count: usize) {
    // Release: whoever walks up to here finds the metadata accessible.
    MAP.committed.store(count, Ordering::Release);
}

// Relaxed throughout: a thread has a valid pointer, or a heap, only after the reservation's maker
// handed it over (the init lock, or the program's own synchronisation).

/// The descriptor that `p` would have if it pointed into the reservation. Any value of `p` is fine:
/// the whole table can be read.
#[inline(always)]
pub(crate) fn descriptor(p: *const u8) -> &'static Descriptor {
    let at = (p.addr() >> (SLICE_SHIFT - DESCRIPTOR_SHIFT)) & MAP.mask.get();
    let table = MAP.descriptors.get();
    // SAFETY: the mask keeps the offset inside the readable, never unmapped table.
    unsafe { &*table.byte_add(at) }
}

/// A pointer into a span that a heap owns.
#[derive(Clone, Copy)]
pub(crate) struct OwnedBlock {
    /// The span's class.
    pub(crate) class: SizeClass,
    /// It has no bit of the class's mask exactly if the pointer is the start of a block.
    pub(crate) number: u64,
    descriptor: &'static Descriptor,
}

impl OwnedBlock {
    /// The metadata of its span.
    #[inline(always)]
    pub(crate) fn slot(self) -> *mut Slot {
        self.descriptor.slot.load(Ordering::Relaxed)
    }
}

/// What `p`, any value at all, points into, if that is a span whose owner has that tag. A descriptor
/// that names the caller's own tag says that the caller owns the span.
#[inline(always)]
pub(crate) fn owned_block(p: *const u8, tag: u32) -> Option<OwnedBlock> {
    let descriptor = descriptor(p);
    if !holds(&descriptor.owner, tag) {
        return None;
    }
    // SAFETY: what has an owner has a span, and `probe` is exact for what its descriptor covers.
    let (class, number) = unsafe { descriptor.probe(p) };
    Some(OwnedBlock { class, number, descriptor })
}

/// The class of the span block that starts at `p`, any value at all, and its span's owner; None if no block does.
#[inline(always)]
pub(crate) fn span_block(p: *const u8) -> Option<(SizeClass, u32)> {
    block_of(p, |owner| owner != OWNER_NONE && owner != OWNER_LARGE)
}

/// The same of a span whose owner is one of those meant: owners that have spans.
#[inline(always)]
pub(crate) fn block_of(p: *const u8, meant: impl Fn(u32) -> bool) -> Option<(SizeClass, u32)> {
    let d = descriptor(p);
    // Acquire: pairs with `describe`. A live block came here by the program's own synchronisation,
    // a wrong pointer may not have: it, too, finds a span behind an owner.
    let owner = d.owner.load(Ordering::Acquire);
    if !meant(owner) {
        return None;
    }
    // SAFETY: what had an owner had a span. What is read of it does not change while the block is
    // in use; any address is taken, and `p` is in the reservation if there is an answer.
    let (class, offset) = unsafe { d.probe(p) };
    let is_start =
        offset & class.layout().mask == 0 && (!HARDENED || offset < class.layout().end());
    is_start.then_some((class, owner))
}

/// The first slice of the span of `class` that `p` points into: spans are aligned to their size.
#[inline(always)]
pub(crate) fn span_index(p: *const u8, class: SizeClass) -> usize {
    slice_of(p) & !(class.span_slices() - 1)
}

/// Whether `p` points into the reservation, or into a region of the program's.
#[inline(always)]
pub(crate) fn contains(p: *const u8) -> bool {
    !is_supplied(slice_of(p)) || region::holds(p)
}

/// The index of the slice under `p`.
#[inline(always)]
pub(crate) fn slice_of(p: *const u8) -> usize {
    p.addr().wrapping_sub(MAP.base.load(Ordering::Relaxed).addr()) >> SLICE_SHIFT
}

/// Whether a slice is not of the reservation, but of a region of the program's. Its metadata stands where that of
/// the slice stands that has the same number modulo the reservation's slices: that one is in no use.
#[inline(always)]
pub(crate) fn is_supplied(index: usize) -> bool {
    index >= slice_limit()
}

/// The first byte of a slice.
#[inline(always)]
pub(crate) fn slice_address(index: usize) -> *mut u8 {
    MAP.base.load(Ordering::Relaxed).wrapping_add(index << SLICE_SHIFT)
}

/// The descriptor of a slice.
#[inline(always)]
pub(crate) fn descriptor_at(index: usize) -> &'static Descriptor {
    descriptor(slice_address(index))
}

/// The metadata of the section that a committed slice belongs to.
#[inline(always)]
fn section_of(index: usize) -> *mut Section {
    debug_assert!(index < committed() || is_supplied(index));
    let index = index & MAP.index_mask.load(Ordering::Relaxed);
    MAP.sections.load(Ordering::Relaxed).wrapping_add(index / SECTION_SLICES)
}

/// The metadata slot of a committed slice.
#[inline(always)]
pub(crate) fn slot(index: usize) -> *mut Slot {
    let section = section_of(index);
    // SAFETY: only an address is computed, inside the section.
    unsafe { (&raw mut (*section).slots).cast::<Slot>().add(index % SECTION_SLICES) }
}

/// The `nth` word of a span of so many committed slices, a power of two: the first words of all of them come first.
#[inline]
pub(crate) fn aside(index: usize, slices: usize, nth: usize) -> *mut u64 {
    debug_assert!(slices.is_power_of_two() && index.is_multiple_of(slices));
    let place = index % SECTION_SLICES + (nth >> slices.ilog2()) * SECTION_SLICES + nth % slices;
    // SAFETY: only an address is computed, inside the section: a span lies in one.
    unsafe { (&raw mut (*section_of(index)).aside).cast::<u64>().add(place) }
}

/// Which pages wait of a slice, and of its neighbours, whose numbers differ from its by less than `WAITING_SLICES`. One
/// slice at least of its section is committed.
pub(crate) fn waiting(index: usize) -> &'static AtomicU64 {
    // Sections are committed as a whole.
    let (section, nth) = (section_of(index - index % SECTION_SLICES), index % SECTION_SLICES);
    // SAFETY: only an address is computed, inside the section; committed metadata stays.
    unsafe { &*(&raw const (*section).waiting).cast::<AtomicU64>().add(nth / WAITING_SLICES) }
}

/// The remote word of a slice.
///
/// # Safety
/// The slice is committed.
#[inline(always)]
pub(crate) unsafe fn remote_word(index: usize) -> &'static RemoteWord {
    let section = section_of(index);
    let chunk = index / CHUNK_SLICES % SECTION_CHUNKS;
    // SAFETY: only an address is computed, inside the section.
    let chunk = unsafe { (&raw const (*section).chunks).cast::<Chunk>().add(chunk) };
    // Neighbours are often spans of different threads: their words stand on different lines.
    let place = index % 8 * 8 + index / 8 % 8;
    // SAFETY: a committed slice has committed metadata, which stays. Words are atomics.
    unsafe { &*(&raw const (*chunk).words).cast::<RemoteWord>().add(place) }
}

/// The bitmaps of a committed chunk.
#[inline(always)]
pub(crate) fn chunk_bits(chunk: usize) -> *mut ChunkBits {
    let chunk = chunk_of(chunk);
    // SAFETY: only an address is computed.
    unsafe { &raw mut (*chunk).bits }
}

/// The marks of a committed chunk, in the hardened build.
pub(crate) fn marks(chunk: usize) -> &'static Marks {
    let chunk = chunk_of(chunk);
    // SAFETY: committed metadata, which stays; atomics, which are there in that build.
    unsafe { &*(&raw const (*chunk).marks).cast::<Marks>() }
}

#[inline(always)]
fn chunk_of(chunk: usize) -> *mut Chunk {
    let section = section_of(chunk * CHUNK_SLICES);
    // SAFETY: only an address is computed, inside the section.
    unsafe { (&raw mut (*section).chunks).cast::<Chunk>().add(chunk % SECTION_CHUNKS) }
}

/// The leaves of the arena's tree: the first one, and how far they are from each other.
pub(crate) fn leaves() -> (*mut Leaf, usize) {
    let section = MAP.sections.load(Ordering::Relaxed);
    // SAFETY: only an address is computed, inside the section.
    (unsafe { &raw mut (*section).leaf }, SECTION_BYTES)
}

/// Points `count` descriptors from `first` on to `slot`, that of a span of `class` or, with class 0, of a large block.
///
/// # Safety
/// The slices are committed and the caller's, and nothing in them has an address that anybody frees.
pub(crate) unsafe fn describe(
    first: usize,
    count: usize,
    slot: *mut Slot,
    owner: u32,
    class: SizeClass,
) {
    let &ClassLayout { slack, inverse, .. } = class.layout();
    if first + count > MAP.described.load(Ordering::Relaxed) && !is_supplied(first) {
        MAP.described.fetch_max(first + count, Ordering::Release);
    }
    for i in first..first + count {
        let d = descriptor_at(i);
        d.slot.store(slot, Ordering::Relaxed);
        d.start.set(slice_address(first).wrapping_add(slack as usize));
        d.inverse.set(inverse);
        d.class.store(class.number(), Ordering::Relaxed);
        // Release: a forked child may come upon it, and then finds the slot written. Blocks
        // reach other threads only through the program's synchronisation.
        d.owner.store(owner, Ordering::Release);
    }
}

/// Writes the owner of `count` slices from `first` on. Release: a forked child finds those before it written.
#[inline(never)]
pub(crate) fn set_owner(first: usize, count: usize, owner: u32) {
    for i in first..first + count {
        descriptor_at(i).owner.store(owner, Ordering::Release);
    }
}

/// The end of the slices that have been described.
#[inline]
pub(crate) fn described() -> usize {
    MAP.described.load(Ordering::Acquire)
}

/// Slices with memory and metadata behind them, counted from the reservation's base.
#[inline]
pub(crate) fn committed() -> usize {
    MAP.committed.load(Ordering::Acquire)
}

/// All slices that there can ever be in the reservation.
#[inline(always)]
pub(crate) fn slice_limit() -> usize {
    MAP.slices.load(Ordering::Relaxed)
}

/// The place of heap number `index`; None beyond the last.
pub(crate) fn heap_address(index: usize) -> Option<*mut u8> {
    (index < MAP.heap_limit.load(Ordering::Relaxed))
        .then(|| MAP.heaps.load(Ordering::Relaxed).wrapping_add(index * HEAP_SIZE))
}

/// The number of the heap that a descriptor names as owner, made or not; None if it is no heap's.
pub(crate) fn heap_of_owner(owner: u32) -> Option<usize> {
    let heaps = MAP.heaps.load(Ordering::Relaxed).addr() as u32;
    let offset = (owner & !OWNER_CLOSED).wrapping_sub(heaps) as usize;
    let index = offset / HEAP_SIZE;
    (offset.is_multiple_of(HEAP_SIZE) && heap_address(index).is_some()).then_some(index)
}

/// Whether the reservation has been made.
#[inline]
pub(crate) fn exists() -> bool {
    // Acquire: pairs with `install`.
    MADE.0.load(Ordering::Acquire)
}
