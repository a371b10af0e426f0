//! Owns: memory that the program supplies: which regions there are, and which of their slices are in use.
//! Idea: bitmaps beside the memory, not in it: a region holds blocks and nothing else, and may be any kind of memory.
//! Never: knows spans, blocks or heaps; touches a byte of a region.
//! Threads: any; one lock, which is not held while the program's functions run. `holds` and `places` take none.
//! Checked: tests/region.rs
//! Story: docs/design/regions.md

mod growing;
mod piece;

pub(crate) use growing::{Grower, begin as begin_growing, end as end_growing, leave};
pub(crate) use piece::{Bit, Origin, Piece};

use crate::base::{AtomicUsize, Ordering, SLICE_SIZE, fence};
use crate::map::tuning::REGION_PIECES;
use crate::os::{self, Guard, Lock};
use core::ptr::null_mut;
use piece::Bits;

// Invariant: `PLACES` says of each piece where it is; 0 bytes where there is none. No two pieces share an address, or
// their metadata.

/// What a program does for memory of its own kind. Each function may be missing. They run on the thread that
/// allocates, frees or purges, and must not allocate from the region, free into it, or panic.
///
/// ```
/// use cairn::{RegionCalls, RegionId};
///
/// unsafe extern "C" fn more(bytes: *mut usize, _: *mut ()) -> *mut u8 {
///     // SAFETY: the caller's number. 16 KiB more than that: memory need not begin with a slice.
///     vec![0; unsafe { *bytes += 16384; *bytes }].leak().as_mut_ptr()
/// }
///
/// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
/// let calls = RegionCalls { reserve: Some(more), ..RegionCalls::default() };
/// // SAFETY: what `more` supplies stays, and is nobody else's.
/// let region = unsafe { RegionId::new(std::ptr::null_mut(), 0, calls) }.expect("memory");
/// let heap = cairn::Heap::in_region(region).expect("memory");
/// assert!(!heap.allocate(100, 16).is_null());
/// # heap.destroy();
/// # assert!(region.end());
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RegionCalls {
    /// Supplies more memory when the region is full: at least `*bytes`; it says there how many. Null if there is no
    /// more, or less: it is asked for an eighth of what the region has, then for as much as the allocation needs, in whole
    /// pages. One thread at a time asks for a region; others of a shared heap wait. All regions together have at most 64
    /// pieces of memory.
    pub reserve: Option<unsafe extern "C" fn(bytes: *mut usize, argument: *mut ()) -> *mut u8>,
    /// Makes memory usable that is about to be used; maybe a second time: where pages are larger than 16 KiB, another thread
    /// may have made it usable just before, and what is there stays. Not 0 if it cannot: the allocation fails. If it is missing,
    /// all memory is usable.
    pub commit: Option<unsafe extern "C" fn(*mut u8, usize, *mut ()) -> i32>,
    /// Takes memory that is in no use, at a purge. Not 0 if it has not.
    pub decommit: Option<unsafe extern "C" fn(*mut u8, usize, *mut ()) -> i32>,
    /// Takes memory back that `reserve` has supplied, when the region ends.
    pub release: Option<unsafe extern "C" fn(*mut u8, usize, *mut ())>,
    /// What each of them gets.
    pub argument: Option<core::ptr::NonNull<()>>,
}

// SAFETY: what the argument leads to, the program's functions know.
unsafe impl Send for RegionCalls {}

impl RegionCalls {
    pub(crate) fn argument(&self) -> *mut () {
        self.argument.map_or(null_mut(), |argument| argument.as_ptr())
    }
}

/// Why memory cannot be a region.
///
/// ```
/// # if cfg!(any(feature = "hardened", feature = "secure")) { return }
/// let mut small = [0; 100];
/// // SAFETY: it is refused.
/// let made = unsafe { cairn::RegionId::new(small.as_mut_ptr(), 100, Default::default()) };
/// assert_eq!(made, Err(cairn::RegionError::Invalid));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// It holds no whole slice of 16 KiB, runs over the end of the address space, or is memory that the allocator has.
    Invalid,
    /// The metadata of its addresses is in use: by other regions' or the allocator's own. Other addresses will do.
    PlaceInUse,
    /// There is no memory for its metadata, or there are 64 regions.
    NoMemory,
    /// The hardened build has no regions.
    Hardened,
}

/// The serial of a region that is being ended: no name.
const ENDING: usize = usize::MAX;

struct Region {
    calls: RegionCalls,
    /// The number of this region, which no other has had or will have; 0: there is none.
    serial: usize,
    /// Heaps that allocate from it.
    heaps: usize,
    /// The last run was there, and the program could not make it usable.
    is_refused: bool,
    /// The token of the thread that asks the program for more memory; 0: none does.
    grower: usize,
}

/// What the lock guards.
pub(crate) struct Regions {
    regions: [Region; REGION_PIECES],
    pieces: [Piece; REGION_PIECES],
    /// The last serial.
    serials: usize,
}

// SAFETY: what the pointers lead to is used under the lock alone.
unsafe impl Send for Regions {}

/// Taken to make a region or a piece of one, or to end it.
pub(crate) static MAKING: Lock<()> = Lock::new(());
// SAFETY: numbers and null pointers: there is none.
pub(crate) static REGIONS: Lock<Regions> = Lock::new(unsafe { core::mem::zeroed() });

/// What there is. One copy of it for all who ask: 1 KiB less of code.
#[inline(never)]
fn regions() -> Guard<'static, Regions> {
    REGIONS.lock()
}

/// Where a piece is. Relaxed, but for `bytes`: who has a pointer into a region has it from whoever has made it.
struct Place {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static PLACES: [Place; REGION_PIECES] =
    [const { Place { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; REGION_PIECES];
/// Pieces there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether `p`, any value at all, points into a region.
pub(crate) fn holds(p: *const u8) -> bool {
    COUNT.load(Ordering::Relaxed) > 0
        && places().any(|(start, bytes)| p.addr().wrapping_sub(start.addr()) < bytes)
}

/// All pieces: the first whole slice, and the bytes of the whole slices.
pub(crate) fn places() -> impl Iterator<Item = (*mut u8, usize)> {
    let mut next = 0;
    core::iter::from_fn(move || {
        let (nth, start, bytes) = place_from(next)?;
        next = nth + 1;
        Some((start, bytes))
    })
}

/// The first of them whose number, as long as it is there, is at least `nth`: with its number.
#[inline(never)]
pub(crate) fn place_from(nth: usize) -> Option<(usize, *mut u8, usize)> {
    let there = COUNT.load(Ordering::Relaxed) > 0;
    let all = PLACES.iter().enumerate().take(if there { REGION_PIECES } else { 0 });
    all.skip(nth).find_map(|(nth, place)| {
        // Acquire: pairs with `insert`.
        let bytes = place.bytes.load(Ordering::Acquire);
        let start = core::ptr::with_exposed_provenance_mut(place.start.load(Ordering::Relaxed));
        (bytes > 0).then_some((nth, start, bytes))
    })
}

impl Regions {
    fn region(&mut self, number: usize) -> &mut Region {
        self.regions.get_mut(number).unwrap_or_else(|| os::broken("there is no such region"))
    }

    /// The number of the region of that name; None if there is none any more.
    #[inline(never)]
    fn named(&mut self, name: usize) -> Option<usize> {
        let (serial, number) = (name / REGION_PIECES, name % REGION_PIECES);
        (serial > 0 && self.region(number).serial == serial).then_some(number)
    }

    fn pieces(&mut self, region: usize) -> impl Iterator<Item = &mut Piece> {
        self.pieces.iter_mut().filter(move |piece| piece.region == region + 1)
    }

    #[inline(never)]
    fn piece_of(&mut self, p: *const u8) -> Option<(&mut Piece, usize)> {
        self.pieces.iter_mut().find_map(|piece| piece.slice_of(p).map(|at| (piece, at)))
    }
}

/// Makes a region without memory: its number, and a name for it that is never 0; None if there are too many.
pub(crate) fn create(calls: RegionCalls) -> Option<(usize, usize)> {
    let mut all = regions();
    let number = all.regions.iter().position(|region| region.serial == 0)?;
    all.serials += 1;
    let serial = all.serials;
    *all.region(number) = Region { calls, serial, heaps: 0, is_refused: false, grower: 0 };
    Some((number, serial * REGION_PIECES + number))
}

/// The number of the region of that name, from which so many heaps more begin to allocate; None if there is none.
pub(crate) fn number(name: usize, heaps: usize) -> Option<usize> {
    let mut all = regions();
    let number = all.named(name)?;
    all.region(number).heaps += heaps;
    Some(number)
}

/// Whether there is room for one more piece.
pub(crate) fn has_room() -> bool {
    places().count() < REGION_PIECES
}

/// Makes a piece that has been prepared one of its region's. There is room, and one thread does this at a time.
pub(crate) fn insert(mut piece: Piece) {
    let mut all = regions();
    let mut places = all.pieces.iter_mut().zip(&PLACES);
    let is_free = |place: &Place| place.bytes.load(Ordering::Relaxed) == 0;
    let found = places.find(|(piece, place)| piece.region == 0 && is_free(place));
    let Some((free, place)) = found else { os::broken("there is no room for a region") };
    place.start.store(piece.start.expose_provenance(), Ordering::Relaxed);
    // Release: who finds the length finds the start.
    place.bytes.store(piece.slices * SLICE_SIZE, Ordering::Release);
    COUNT.fetch_add(1, Ordering::Relaxed);
    let region = core::mem::take(&mut piece.region);
    *free = piece;
    // Then: a child that is forked in between does without.
    fence(Ordering::Release);
    free.region = region;
}

/// Ends the region of that name if nothing is in use there: `gone` is called with each piece, and has to forget its place.
/// False, and nothing is done, if something is, or if there is no such region any more.
pub(crate) fn end(name: usize, mut gone: impl FnMut(*mut u8, usize)) -> bool {
    let mut all = regions();
    let Some(region) = all.named(name) else { return false };
    if all.region(region).heaps > 0 || all.pieces(region).any(|piece| piece.free < piece.slices) {
        return false;
    }
    let calls = all.region(region).calls;
    // Under the same lock: no heap begins there any more.
    all.region(region).serial = ENDING;
    drop(all);
    while let Some(mut piece) = take_piece(region) {
        gone(piece.start, piece.slices);
        piece.drop_bits();
        let (start, bytes) = piece.supplied;
        if let Some(release) = calls.release.filter(|_| piece.origin == Origin::Reserved) {
            // SAFETY: the program's, for what its `reserve` has supplied.
            unsafe { release(start, bytes, calls.argument()) };
        }
    }
    regions().region(region).serial = 0;
    true
}

/// Takes a piece from a region; its place says still where it is.
fn take_piece(region: usize) -> Option<Piece> {
    let mut all = regions();
    let piece = all.pieces(region).next()?;
    let number = core::mem::take(&mut piece.region);
    // First: a child that is forked in between finds none.
    fence(Ordering::Release);
    // SAFETY: zeros are no piece.
    let mut piece = core::mem::replace(piece, unsafe { core::mem::zeroed() });
    piece.region = number;
    Some(piece)
}

/// Forgets where a piece has been that is no more.
pub(crate) fn forget_place(start: *mut u8) {
    let is_there = |place: &&Place| {
        place.start.load(Ordering::Relaxed) == start.addr()
            && place.bytes.load(Ordering::Relaxed) > 0
    };
    if let Some(place) = PLACES.iter().find(is_there) {
        place.bytes.store(0, Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A heap ends that has allocated from it.
#[inline(never)]
pub(crate) fn heap_ends(region: usize) {
    regions().region(region).heaps -= 1;
}

/// There are not more places.
pub(crate) const PLACES_MOST: usize = REGION_PIECES;

/// Takes a run of slices that begins at a multiple of `align` slices; None if there is none, or if the program cannot make it
/// usable.
pub(crate) fn take(region: usize, slices: usize, align: usize) -> Option<*mut u8> {
    let mut all = regions();
    let calls = all.region(region).calls;
    let found = all.pieces(region).find_map(|piece| {
        let at = piece.find(slices, align).filter(|_| piece.free >= slices)?;
        piece.take(at, slices);
        let is_ready = piece.next(Bits::Ready, at, Bit::Zero).is_none_or(|not| not >= at + slices);
        Some((piece.address(at), is_ready))
    });
    all.region(region).is_refused = false;
    drop(all);
    let (at, is_ready) = found?;
    (is_ready || make_ready(&calls, at, slices)).then_some(at)
}

/// Takes the run at `at` if it is free; false if not.
pub(crate) fn take_exactly(at: *mut u8, slices: usize) -> bool {
    let mut all = regions();
    // What begins a piece has another one's memory before it, if any: no block reaches from one into the next.
    let Some((piece, first)) = all.piece_of(at).filter(|&(_, first)| first > 0) else {
        return false;
    };
    let end = piece.next(Bits::Used, first, Bit::One).unwrap_or(piece.slices).min(piece.slices);
    if end - first < slices {
        return false;
    }
    piece.take(first, slices);
    let region = piece.region - 1;
    let calls = all.region(region).calls;
    drop(all);
    make_ready(&calls, at, slices)
}

/// Has the program make a run usable that has been taken, by whole pages; false, and it is free again, if it cannot.
fn make_ready(calls: &RegionCalls, at: *mut u8, slices: usize) -> bool {
    if calls.commit.is_none() && calls.decommit.is_none() {
        return true;
    }
    let page_slices = (os::page_size() / SLICE_SIZE).max(1);
    loop {
        let mut all = regions();
        let Some((piece, first)) = all.piece_of(at) else { return true };
        let end = first + slices;
        // Pages that are ready may hold what others have: only what lies between them.
        let Some(from) = piece.next(Bits::Ready, first, Bit::Zero).filter(|&not| not < end) else {
            let region = piece.region - 1;
            all.region(region).is_refused = false;
            return true;
        };
        let to = piece.next(Bits::Ready, from, Bit::One).map_or(end, |ready| ready.min(end));
        // Pieces begin with a page.
        let from = from - from % page_slices;
        let count = to.next_multiple_of(page_slices) - from;
        let start = piece.address(from);
        drop(all);
        // SAFETY: the program's, for memory that it has supplied, and that nobody else has.
        let is_refused = calls.commit.is_some_and(|commit| unsafe {
            commit(start, count * SLICE_SIZE, calls.argument()) != 0
        });
        let mut all = regions();
        let Some((piece, first)) = all.piece_of(at) else { return true };
        if is_refused {
            piece.put(first, slices);
            let region = piece.region - 1;
            all.region(region).is_refused = true;
            return false;
        }
        piece.set(Bits::Ready, from, count, Bit::One);
    }
}

/// Gives a run back.
pub(crate) fn release(at: *mut u8, slices: usize) {
    if let Some((piece, first)) = regions().piece_of(at) {
        piece.put(first, slices);
    }
}

/// Marks the first slice of a large block, or takes the mark away.
pub(crate) fn mark_head(at: *mut u8, to: Bit) {
    if let Some((piece, slice)) = regions().piece_of(at) {
        piece.set(Bits::Heads, slice, 1, to);
    }
}

/// The first slice of the nearest large block that begins at or below `p`.
pub(crate) fn head_below(p: *const u8) -> Option<*mut u8> {
    let mut all = regions();
    let (piece, slice) = all.piece_of(p)?;
    let head = (0..=slice / 64).rev().find_map(|nth| {
        let below = if nth == slice / 64 { !0 >> (63 - slice % 64) } else { !0 };
        let heads = piece.words_of(Bits::Heads).get(nth)? & below;
        Some(nth * 64 + heads.checked_ilog2()? as usize)
    })?;
    Some(piece.address(head))
}

/// Bytes that hold a run of so many slices wherever they begin, at its alignment if it is a span's.
pub(crate) fn bytes_for(slices: usize) -> usize {
    let rest = if os::page_size() > SLICE_SIZE { 2 * os::page_size() } else { 0 };
    slices.saturating_mul(2 * SLICE_SIZE).saturating_add(rest)
}

/// Slices of a region: in use, and all.
pub(crate) fn counts(region: usize) -> (usize, usize) {
    let mut all = regions();
    all.pieces(region).fold((0, 0), |(used, slices), piece| {
        (used + piece.slices - piece.free, slices + piece.slices)
    })
}

/// Has the program take the memory of all free slices of a region, which does not end meanwhile: how many bytes it has.
pub(crate) fn purge(region: usize) -> usize {
    let calls = regions().region(region).calls;
    let Some(decommit) = calls.decommit else { return 0 };
    let (mut bytes, mut from) = (0, [0; REGION_PIECES]);
    loop {
        let mut all = regions();
        let next = all.pieces.iter_mut().zip(&mut from).find_map(|(piece, from)| {
            let (at, slices) =
                (piece.region == region + 1).then(|| piece.free_and_ready(*from))??;
            *from = at + slices;
            // In use meanwhile: nobody else shall have it.
            piece.take(at, slices);
            Some((piece.address(at), slices))
        });
        drop(all);
        let Some((at, slices)) = next else { return bytes };
        // SAFETY: the program's, for memory that it has supplied, and that is in no use.
        let is_done = unsafe { decommit(at, slices * SLICE_SIZE, calls.argument()) } == 0;
        if let Some((piece, first)) = regions().piece_of(at) {
            let to = if is_done { Bit::Zero } else { Bit::One };
            piece.set(Bits::Ready, first, slices, to);
            piece.put(first, slices);
        }
        bytes += if is_done { slices * SLICE_SIZE } else { 0 };
    }
}

/// In a forked child, before it has a second thread: if another thread was changing the bitmaps, they are made anew.
/// `runs` are those in use (address, slices), and whether a large block begins there. True if they have been.
pub(crate) fn settle_in_child<I: Iterator<Item = (*mut u8, usize, bool)>>(
    runs: impl Fn() -> I,
) -> bool {
    MAKING.settle_in_child();
    let is_torn = REGIONS.settle_in_child();
    growing::settle_in_child(is_torn);
    if !is_torn {
        return false;
    }
    let mut all = regions();
    for piece in all.pieces.iter_mut().filter(|piece| piece.region > 0) {
        piece.clear();
    }
    for (at, slices, is_large) in runs() {
        if let Some((piece, first)) = all.piece_of(at) {
            piece.take(first, slices.min(piece.slices - first));
            let to = if is_large { Bit::One } else { Bit::Zero };
            piece.set(Bits::Heads, first, 1, to);
        }
    }
    true
}

/// The pieces' invariants.
pub(crate) fn check() {
    regions().pieces.iter().filter(|piece| piece.region > 0).for_each(Piece::check);
}
