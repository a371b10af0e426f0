//! Heaps of the program's: `cairn_heap_*`. What a handle is, the core says; here are arguments and errno.

use crate::family::{Errno, MALLOC_ALIGN, no_memory, set_errno};
use cairn::{HeapId, HeapStats};
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};

/// `cairn_heap *`: null where a call takes it for the heaps of threads.
pub(crate) type Handle = *mut c_void;

/// The heap behind a handle, which must not be null.
///
/// # Safety
/// It came from `cairn_heap_new` or its kind, and has not ended.
#[inline(always)]
unsafe fn heap(handle: Handle) -> HeapId {
    debug_assert!(!handle.is_null());
    // SAFETY: as above.
    unsafe { HeapId::from_raw(NonNull::new_unchecked(handle.cast())) }
}

fn handle(heap: Option<HeapId>) -> Handle {
    heap.map_or(null_mut(), |heap| heap.into_raw().as_ptr().cast())
}

/// What a call that has allocated answers: errno tells if there is nothing.
#[inline(always)]
fn answer(block: *mut u8) -> *mut c_void {
    if block.is_null() { no_memory() } else { block.cast() }
}

/// Makes an owned heap, attached to the calling thread. Null and ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_new() -> Handle {
    made(HeapId::new_owned())
}

/// Makes a shared heap. Null and ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_new_shared() -> Handle {
    made(HeapId::new_shared())
}

/// Makes a shared heap for threads that read without a lock. Null and EINVAL for a head over 256 bytes, ENOTSUP in the hardened
/// build, ENOMEM if there is no memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_new_concurrent(head: usize) -> Handle {
    if head > cairn::HEAD_MAX {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    if cfg!(feature = "hardened") {
        set_errno(libc::ENOTSUP);
        return null_mut();
    }
    made(HeapId::new_concurrent(head))
}

/// Says which epoch it is, and before which one nobody reads what was freed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_set_epoch(of: Handle, now: usize, safe: usize) {
    // SAFETY: the caller's contract.
    unsafe { heap(of).set_epoch(now, safe) };
}

pub(crate) fn made(heap: Option<HeapId>) -> Handle {
    if heap.is_none() {
        set_errno(libc::ENOMEM);
    }
    handle(heap)
}

/// Gives an owned heap to the calling thread.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_attach(of: Handle) {
    // SAFETY: the caller's contract.
    unsafe { heap(of).attach() }
}

/// Takes an owned heap from the calling thread.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_detach(of: Handle) {
    // SAFETY: the caller's contract.
    unsafe { heap(of).detach() }
}

/// malloc from a heap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_malloc(of: Handle, size: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { heap(of).allocate_or::<Errno>(size, MALLOC_ALIGN).cast() }
}

/// calloc from a heap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_calloc(
    of: Handle,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(bytes) => answer(unsafe { heap(of).allocate_zeroed(bytes, MALLOC_ALIGN) }),
        None => no_memory(),
    }
}

/// aligned_alloc from a heap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_aligned_alloc(
    of: Handle,
    align: usize,
    size: usize,
) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: the caller's contract.
    unsafe { heap(of).allocate_or::<Errno>(size, align.max(MALLOC_ALIGN)).cast() }
}

/// realloc to a heap. A size of 0 makes the block as small as can be.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_realloc(
    of: Handle,
    p: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    answer(unsafe { heap(of).reallocate(p.cast(), size, MALLOC_ALIGN) })
}

/// Allocates up to `count` blocks of `size` bytes: how many.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_malloc_batch(
    of: Handle,
    size: usize,
    count: usize,
    blocks: *mut *mut c_void,
) -> usize {
    // SAFETY: the caller's contract.
    let made = unsafe { heap(of).allocate_batch(size, MALLOC_ALIGN, count, blocks.cast()) };
    if made < count {
        set_errno(libc::ENOMEM);
    }
    made
}

/// Ends a heap; its blocks live on. Null is fine.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_delete(of: Handle) {
    if !of.is_null() {
        // SAFETY: the caller's contract.
        unsafe { heap(of).delete() }
    }
}

/// Ends a heap, and its blocks with it. Null is fine.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_destroy(of: Handle) {
    if !of.is_null() {
        // SAFETY: the caller's contract.
        unsafe { heap(of).destroy() }
    }
}

/// The heap of the block at `p` or around it; null if there is none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_of(p: *const c_void) -> Handle {
    handle(cairn::heap_of(p.cast()))
}

/// Whether the block at `p` or around it belongs to a heap.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_heap_contains(of: Handle, p: *const c_void) -> c_int {
    c_int::from(!of.is_null() && cairn_heap_of(p) == of)
}

/// The tag of a heap; 0 until it has one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_tag(of: Handle) -> usize {
    // SAFETY: the caller's contract.
    unsafe { heap(of).tag() }
}

/// Gives a heap a tag.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_set_tag(of: Handle, tag: usize) {
    // SAFETY: the caller's contract.
    unsafe { heap(of).set_tag(tag) }
}

/// What a heap holds, as far as there is room for it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_get_stats(of: Handle, out: *mut usize, bytes: usize) {
    // SAFETY: the caller's contract.
    let HeapStats { spans, large, large_blocks, peak, soft_limit, hard_limit } =
        unsafe { heap(of).stats() };
    let figures = [spans, large, large_blocks, peak, soft_limit, hard_limit];
    let known = bytes.min(size_of_val(&figures));
    // SAFETY: the caller's contract: that many bytes. What this version does not know is 0.
    unsafe {
        out.cast::<u8>().write_bytes(0, bytes);
        out.cast::<u8>().copy_from_nonoverlapping(figures.as_ptr().cast(), known);
    }
}

/// Who is told of a soft limit.
type OnSoft = unsafe extern "C" fn(Handle, *mut c_void);

fn on_soft(of: HeapId, [told, argument]: [usize; 2]) {
    // SAFETY: `cairn_heap_set_limits` has put a function there, and what it is to be given.
    unsafe {
        let told: OnSoft = core::mem::transmute(core::ptr::with_exposed_provenance::<()>(told));
        told(handle(Some(of)), core::ptr::with_exposed_provenance_mut(argument));
    }
}

/// Limits what a heap may hold. 0 and EINVAL if that cannot be.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_set_limits(
    of: Handle,
    soft: usize,
    hard: usize,
    told: Option<OnSoft>,
    argument: *mut c_void,
) -> c_int {
    let words = [told.map_or(0, |told| told as usize), argument.expose_provenance()];
    let on_soft: Option<fn(HeapId, [usize; 2])> = told.map(|_| on_soft as _);
    // SAFETY: the caller's contract.
    let done = unsafe { heap(of).set_limits(soft, hard, on_soft, words) };
    if !done {
        set_errno(libc::EINVAL);
    }
    c_int::from(done)
}

/// Gives what is free in a heap back to the system.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_heap_purge(of: Handle) {
    // SAFETY: the caller's contract.
    unsafe { heap(of).purge() };
}

/// `struct cairn_area`.
#[repr(C)]
pub(crate) struct CArea {
    start: *mut c_void,
    bytes: usize,
    block_size: usize,
    blocks: usize,
    used: usize,
    heap: Handle,
    thread: usize,
}

/// Walks over the areas and blocks of a heap, or of all if it is null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_visit(
    of: Handle,
    blocks: c_int,
    visitor: unsafe extern "C" fn(*const CArea, *mut c_void, *mut c_void) -> c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    let only = (!of.is_null()).then(|| unsafe { heap(of) });
    // SAFETY: the caller's contract: nobody allocates or frees meanwhile.
    let whole = unsafe {
        cairn::visit(only, blocks != 0, |area, block| {
            let seen = CArea {
                start: area.start.cast(),
                bytes: area.bytes,
                block_size: area.block_size,
                blocks: area.blocks,
                used: area.used,
                heap: handle(area.heap),
                thread: area.thread,
            };
            visitor(&raw const seen, block.map_or(null_mut(), |block| block.cast()), argument) != 0
        })
    };
    c_int::from(whole)
}

/// The number of the thread that owns the block's memory; 0 if none does.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_owner_thread(p: *const c_void) -> usize {
    cairn::owner_thread(p.cast())
}

/// The calling thread's number; 0 if it can have none.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cairn_thread_number() -> usize {
    cairn::thread_number()
}
