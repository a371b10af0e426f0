//! Owns: closed heaps: their blocks never enter another heap's cache, are never left to strangers, and
//!   never come from the shared heap.
//! Idea: a heap like any other, and a value: whoever has it allocates, anybody frees, and with it goes what
//!   it holds. The owner in its descriptors has a bit more than a thread's tag, so that each free comes here.
//! Never: holds back a free: when it returns, the block has reached its span, and destroying the heap
//!   leaves nothing under way.
//! Threads: see each call.
//! Checked: tests/closed.rs; the models destroy a heap while others free.
//! Story: docs/design/closed-heaps.md

mod end;
pub(crate) mod free;
mod loan;
mod parts;
pub(crate) mod regions;

pub(crate) use end::{Blocks, end};
pub(crate) use free::{deallocate, head_at};
pub(crate) use loan::allocate_on_loan;
pub(crate) use parts::of_thread;

use crate::base::{NOBODY, Ordering, SLICE_SIZE, SizeClass, size_class};
use crate::heap::{EMPTY, Handle, Heap, OWNED, Role, SHARED, Spares, handle};
use crate::map::{Block, region};
use crate::samples::Reason;
use crate::slices::{arena, limit};
use crate::store::{Behind, Caches, Canary, Store};
use crate::thread::pool::{self, User, salvage};
use crate::{large, os, thread};
use core::ptr::null_mut;
use loan::{attach_to_nobody, is_nobodys, on_loan};

// A heap of the program's is owned: one thread at a time has it, its `user`; or shared: each thread that uses it
// has a part of it. An owned heap begins with nurseries. When they are used up it has a closed heap, as each part is one.
//
// make_room            another nursery, or the same again
// own_heap             the closed heap; is the heap the thread's?
// allocate_on_loan     no thread's: its thread has no heap, and is lent one
//   refill             as for any heap
//     give_back        no memory, or the limit: what is free goes, and once more
//     tell             over the soft limit: what is free goes, then the program is told

/// What a heap is called in messages.
const HEAP: &str = "cairn_heap";

/// Who is told that a heap holds more than its soft limit, and two words of the program's.
pub(crate) type Told = fn(*mut Handle, [usize; 2]);

/// What the calling thread keeps for heaps of the program's, or null.
fn mine() -> *mut Spares {
    let heap = thread::heap();
    // SAFETY: the calling thread's heap, or a stand-in, which is in no use.
    unsafe { if (*heap).role != Role::Free { &raw mut (*heap).spares } else { null_mut() } }
}

/// Makes a heap, `OWNED` or `SHARED`, which no thread has attached, in a region if one is given, which counts it already; null
/// if there is no memory for it.
pub(crate) fn create(kind: u8, region: Option<usize>) -> *mut Handle {
    os::notice_fork();
    // SAFETY: the calling thread's.
    let made = thread::start().then(|| unsafe { Handle::create(mine(), kind, region) });
    let name = made.unwrap_or(null_mut());
    if name.is_null() {
        region.into_iter().for_each(region::heap_ends);
    }
    name
}

/// Whether it is a shared heap; ends the process if it is no heap of the program's, as far as can be told.
pub(crate) fn is_shared(name: *mut Handle) -> bool {
    // SAFETY: handles are never unmapped.
    match unsafe { handle::is_made(name).then(|| (*name).kind.load(Ordering::Relaxed)) } {
        Some(SHARED) => true,
        Some(OWNED) => false,
        _ => os::fatal(HEAP, name.cast(), "no heap is here: destroyed already, or never made"),
    }
}

/// Gives an owned heap to the calling thread.
///
/// # Safety
/// No thread uses it.
#[inline]
pub(crate) unsafe fn attach(name: *mut Handle) {
    expect_free(name);
    // SAFETY: as above.
    unsafe {
        match thread::number_of_user() {
            Some(user) => set_user(name, user),
            None => attach_to_nobody(name),
        }
    }
}

/// Ends the process if another thread that is at work has attached an owned heap. What a fork has left behind of one is made
/// whole, and is no thread's then.
fn expect_free(name: *mut Handle) {
    os::notice_fork();
    // SAFETY: handles are never unmapped.
    unsafe {
        // Acquire: in a forked child others make it whole, and say then that it is nobody's.
        let user = (*name).user.load(Ordering::Acquire);
        if user == NOBODY || Some(user) == thread::number() {
            return;
        }
        match pool::find_user((*name).user_heap, user) {
            User::Gone => (),
            User::AtWork => os::fatal(HEAP, name.cast(), "the heap is attached to another thread"),
            User::LeftBehind => salvage::all(),
        }
    }
}

/// Takes it from its thread: it may be attached by any.
///
/// # Safety
/// The calling thread has attached it, or nobody uses it.
pub(crate) unsafe fn detach(name: *mut Handle) {
    // SAFETY: as above.
    unsafe { set_user(name, NOBODY) };
}

/// # Safety
/// No other thread uses it.
unsafe fn set_user(name: *mut Handle, thread: usize) {
    let mine = thread::own().unwrap_or(null_mut());
    // SAFETY: as above. In this order: a fork in between finds a user that has ended, or none. Relaxed: who finds its own
    // number has written it. A stand-in is never written.
    unsafe {
        (*name).user_heap = mine;
        (*name).user.store(thread, Ordering::Relaxed);
        if (*name).heap != EMPTY.heap() {
            (*(*name).heap).member.set_user(thread, mine);
        }
    }
}

/// The heap of its own that an owned heap allocates from, made if need be; null if there is no memory for one, or if the heap
/// is no thread's. Ends the process if it is another thread's.
///
/// # Safety
/// It is an owned heap.
pub(crate) unsafe fn own_heap(name: *mut Handle) -> *mut Heap {
    // SAFETY: handles are never unmapped.
    unsafe {
        if !expect_mine(name) {
            return null_mut();
        }
        if (*name).heap != EMPTY.heap() {
            return (*name).heap;
        }
        os::notice_fork();
        let heap = pool::take_closed(name);
        if !heap.is_null() {
            (*name).heap = heap;
            set_user(name, (*name).user.load(Ordering::Relaxed));
        }
        heap
    }
}

/// Ends the process if an owned heap is none, or another thread's; false if it is no thread's.
unsafe fn expect_mine(name: *mut Handle) -> bool {
    // SAFETY: handles are never unmapped.
    unsafe {
        if (*name).kind.load(Ordering::Relaxed) != OWNED {
            is_shared(name);
        }
        let (user, mine) = ((*name).user.load(Ordering::Relaxed), thread::number());
        if user == NOBODY || Some(user) == mine {
            return user != NOBODY;
        }
        os::notice_fork();
        // In a late destructor the thread that has attached it has another number, or none.
        if mine.is_some() || pool::find_user((*name).user_heap, user) != User::Gone {
            os::fatal(HEAP, name.cast(), "the heap is not attached to the thread that uses it");
        }
        attach_to_nobody(name);
        false
    }
}

/// Takes the next nursery if the calling thread keeps one ready and there is nothing to decide; false if not.
///
/// # Safety
/// It is a heap of the program's.
#[inline(always)]
pub(crate) unsafe fn make_room_at_once(name: *mut Handle) -> bool {
    let mine = thread::heap();
    // SAFETY: handles are never unmapped. A stand-in is the heap of thread 0, which uses none; nobody uses a shared one.
    unsafe {
        (*name).user.load(Ordering::Relaxed) == (*mine).thread
            && !(*mine).sampling.defers()
            && Handle::make_room_at_once(name, &raw mut (*mine).spares)
    }
}

/// Makes room for a block in the nursery of an owned heap; false if a class shall serve it.
///
/// # Safety
/// It is an owned heap.
pub(crate) unsafe fn make_room(name: *mut Handle, size: usize) -> bool {
    // SAFETY: as above, and the calling thread's, as is seen here.
    unsafe {
        if !expect_mine(name) {
            return false;
        }
        os::notice_fork();
        thread::defer(Reason::Turn);
        let has_room = Handle::make_room(name, mine(), size);
        tell(name);
        has_room
    }
}

/// Whether the calling thread is the one that uses the heap of a handle.
pub(crate) fn is_mine(name: *mut ()) -> bool {
    // SAFETY: handles are never unmapped. A stand-in is the heap of thread 0, which uses none.
    unsafe { (*name.cast::<Handle>()).user.load(Ordering::Relaxed) == (*thread::heap()).thread }
}

/// Allocates `size` bytes at a multiple of `align`, a power of two, from a closed heap; null if there is no memory, or if no
/// class serves them.
///
/// # Safety
/// The heap is the calling thread's: what it has attached allocates from it, or it is its part, or its partition.
#[inline]
pub(crate) unsafe fn allocate(heap: *mut Heap, size: usize, align: usize) -> *mut u8 {
    debug_assert!(align.is_power_of_two());
    // SAFETY: as above.
    size_class::class_of_aligned(size, align)
        .map_or(null_mut(), |class| unsafe { allocate_class(heap, class, size).0.cast() })
}

/// Allocates a block of a class, of which the program gets `size` bytes; whether these are known to be zero.
///
/// # Safety
/// As for `allocate`.
#[inline(always)]
pub(crate) unsafe fn allocate_class(
    heap: *mut Heap,
    class: SizeClass,
    size: usize,
) -> (*mut Block, bool) {
    // SAFETY: the heap is the calling thread's.
    unsafe {
        let mut got = pop(heap, class);
        if got.0.is_null() {
            got = refill(heap, class);
        }
        if !got.0.is_null() {
            got.0 = got.0.wrapping_byte_sub((*heap).head.into());
            Canary::write(got.0.cast(), class, size);
        }
        got
    }
}

/// Pops a block, or null; whether it is known to be zero. That is asked at once: whoever is called next may refill the cache.
///
/// # Safety
/// As for `allocate`.
#[inline(always)]
unsafe fn pop(heap: *mut Heap, class: SizeClass) -> (*mut Block, bool) {
    // SAFETY: the heap is the calling thread's.
    unsafe {
        let block = Caches::pop(&raw mut (*heap).caches, class);
        (block, (*heap).caches.is_zeroed(class))
    }
}

/// Refills the cache, and pops; null if there is no memory.
///
/// # Safety
/// As for `allocate`.
unsafe fn refilled(heap: *mut Heap, class: SizeClass) -> (*mut Block, bool) {
    // SAFETY: the heap is the calling thread's.
    unsafe {
        let mut got = pop(heap, class);
        if got.0.is_null() {
            got.0 = (*heap).refill(class);
            got.1 = (*heap).caches.is_zeroed(class);
        }
        got
    }
}

/// Calls the program for what it has put off, and tells it that a limit is near. Nothing of the thread's heaps is under way.
#[inline(never)]
fn call_program() {
    thread::defer(Reason::Turn);
    if limit::is_pending() {
        thread::tell_of_shortage();
    }
}

/// Refills the cache of a class and takes a block; whether it is known to be zero.
///
/// The program is called in between, and may allocate from the heap: whatever was so of the cache is looked at again.
///
/// # Safety
/// As for `allocate`.
#[cold]
#[inline(never)]
unsafe fn refill(heap: *mut Heap, class: SizeClass) -> (*mut Block, bool) {
    // SAFETY: the heap is the calling thread's.
    unsafe {
        call_program();
        let mut got = refilled(heap, class);
        if got.0.is_null() {
            thread::defer_in_need();
            match (*heap).member.of {
                of if of.is_null() => (*heap).give_back(),
                of => trim(of, heap),
            }
            got = refilled(heap, class);
        }
        let region = (*heap).member.region();
        let may_take = || (*heap).member.may_take(class.span_slices() * SLICE_SIZE);
        // What a region has does not count for the process.
        if got.0.is_null() && region.is_none() && may_take() {
            let attempt = || Some(refilled(heap, class)).filter(|got| !got.0.is_null());
            got = thread::retry_in_shortage(class.block_size(), attempt).unwrap_or(got);
        }
        if let Some(region) = region {
            while got.0.is_null() && may_take() && regions::make_room(region, class.span_slices()) {
                got = refilled(heap, class);
            }
        }
        tell((*heap).member.of);
        got
    }
}

/// Allocates a block that no span serves.
///
/// # Safety
/// As for `allocate`, or it is a heap that has none of its own.
#[cold]
#[inline(never)]
pub(crate) unsafe fn allocate_large(
    name: *mut Handle,
    heap: *mut Heap,
    size: usize,
    align: usize,
) -> large::Allocated {
    os::notice_fork();
    if size > isize::MAX as usize || align > isize::MAX as usize || !align.is_power_of_two() {
        return large::Allocated::NONE;
    }
    // SAFETY: the heap is the calling thread's.
    unsafe {
        call_program();
        let owned = &(*name).owned;
        let mut got = large::allocate_owned(owned, size, align);
        if got.block.is_null() {
            thread::defer_in_need();
            trim(name, heap);
            got = large::allocate_owned(owned, size, align);
        }
        let region = owned.region.checked_sub(1);
        // It takes whole slices, but for a mapping.
        let may_take = || owned.budget.may_take(size.max(1).next_multiple_of(SLICE_SIZE));
        if got.block.is_null() && region.is_none() && may_take() {
            let attempt = || {
                let got = large::allocate_owned(owned, size, align);
                Some(got).filter(|got| !got.block.is_null())
            };
            got = thread::retry_in_shortage(size, attempt).unwrap_or(got);
        }
        if let Some(region) = region {
            let slices = size.max(align).div_ceil(SLICE_SIZE);
            while got.block.is_null() && may_take() && regions::make_room(region, slices) {
                got = large::allocate_owned(owned, size, align);
            }
        }
        tell(name);
        got
    }
}

/// Resizes a large block where it is; if its heap must not have so many more bytes, or nobody (null), once more when what is free
/// there has gone.
///
/// # Safety
/// As for `allocate`.
#[inline(always)]
pub(crate) unsafe fn resize(
    name: *mut Handle,
    more: usize,
    attempt: impl Fn() -> Option<*mut u8>,
) -> Option<*mut u8> {
    let mut is_last = false;
    // SAFETY: the calling thread's.
    unsafe {
        loop {
            let resized = attempt();
            let may_help = match resized {
                Some(new) => new.is_null(),
                None => !(*name).owned.budget.may_take(more.next_multiple_of(SLICE_SIZE)),
            };
            if is_last || !may_help {
                tell(name);
                return resized;
            }
            thread::defer_in_need();
            trim_mine(name);
            is_last = true;
        }
    }
}

/// Gives back what is free in a heap; in a shared one, in the calling thread's part.
///
/// # Safety
/// As for `allocate`.
#[inline(never)]
pub(crate) unsafe fn trim_mine(name: *mut Handle) {
    // SAFETY: the calling thread's.
    unsafe {
        match is_shared(name) {
            true => of_thread(name, |part| trim(name, part)),
            false => trim(name, (*name).heap),
        }
    }
}

/// Gives back what is free in a heap, or in a part of one; that one may be a stand-in, or null.
///
/// # Safety
/// As for `allocate`.
pub(crate) unsafe fn trim(name: *mut Handle, heap: *mut Heap) {
    // SAFETY: the calling thread's.
    unsafe {
        if is_nobodys(name) {
            return on_loan(name, &mut || trim(name, heap));
        }
        if !heap.is_null() && heap != EMPTY.heap() {
            (*heap).give_back();
        }
        large::free_due(&(*name).owned);
        match is_shared(name) {
            true => parts::give_back_left(name),
            false => Handle::trim(name),
        }
    }
}

/// Tells the program that the heap holds more than its soft limit, if it does after all that is free has gone. Null is
/// fine.
///
/// # Safety
/// The heap is the calling thread's, or shared.
#[inline(never)]
unsafe fn tell(name: *mut Handle) {
    // SAFETY: null, or a handle.
    let Some(budget) = (unsafe { name.as_ref() }).map(|name| &name.owned.budget) else { return };
    if !budget.is_due() {
        return;
    }
    // SAFETY: as above.
    unsafe { trim_mine(name) };
    arena::purge_all();
    if let Some((told, words)) = budget.told().filter(|_| budget.is_over()) {
        // SAFETY: stored by `set_limits` out of such a function.
        let told = unsafe { core::mem::transmute::<*mut (), Told>(told) };
        // Nothing of the heap is under way: it may be used.
        os::without_panic(|| told(name, words));
    }
}
