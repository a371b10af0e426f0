//! What the models' two systems have in common: what a thread has of its own, last words, and
//! stand-ins for what neither has: threads of the library's own, which no model would schedule,
//! memory groups.

use super::{now_ms, purged_is_committed, with_own};
use crate::heap::Heap;
use core::ffi::c_void;
use core::ptr::{from_ref, null_mut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// What a thread has of its own.
pub(crate) struct Own {
    /// Its heap; null until it has one.
    heap: AtomicPtr<Heap>,
    /// What it has stored under the key.
    value: AtomicPtr<c_void>,
}

impl Own {
    pub(crate) const fn new() -> Own {
        Own { heap: AtomicPtr::new(null_mut()), value: AtomicPtr::new(null_mut()) }
    }

    /// As a new thread has it.
    pub(crate) fn clear(&self) {
        self.heap.store(null_mut(), Relaxed);
        self.value.store(null_mut(), Relaxed);
    }
}

/// The calling thread's heap, or null.
pub(crate) fn own_heap() -> *mut Heap {
    with_own(|own| own.heap.load(Relaxed))
}

pub(crate) fn set_own_heap(heap: *mut Heap) {
    with_own(|own| own.heap.store(heap, Relaxed));
}

/// A number that tells the calling thread from all others, and not 0.
pub(crate) fn thread_token() -> usize {
    with_own(|own| from_ref(own).addr())
}

pub(crate) const STATIC_KEYS: u32 = 32;

/// What the one key does at a thread's end.
static END: OnceLock<extern "C" fn(*mut c_void)> = OnceLock::new();

pub(crate) fn thread_key(end: extern "C" fn(*mut c_void)) -> Option<u32> {
    END.get_or_init(|| end);
    Some(0)
}

/// Every caller gets the same one.
pub(crate) fn drop_thread_key(_: u32) {}

pub(crate) fn thread_value(_: u32) -> *mut c_void {
    with_own(|own| own.value.load(Relaxed))
}

pub(crate) fn set_thread_value(_: u32, value: *const c_void) -> bool {
    with_own(|own| own.value.store(value.cast_mut(), Relaxed));
    true
}

/// The calling thread ends, as far as the allocator hears of it.
pub(crate) fn end_thread() {
    let value = with_own(|own| own.value.swap(null_mut(), Relaxed));
    if let Some(end) = END.get()
        && !value.is_null()
    {
        end(value);
    }
}

/// What the allocator wants to be called at a fork.
#[derive(Clone, Copy)]
pub(crate) struct ForkHandlers {
    pub(crate) prepare: Option<unsafe extern "C" fn()>,
    pub(crate) parent: Option<unsafe extern "C" fn()>,
    pub(crate) child: Option<unsafe extern "C" fn()>,
}

/// For the C layer, which is in no model: there is no such call.
///
/// # Safety
/// It does nothing.
pub unsafe fn system_call(_: core::ffi::c_long, _: [usize; 6]) -> isize {
    -1
}

/// For the C layer as well.
pub fn write_all(_: core::ffi::c_int, _: &[u8]) -> bool {
    false
}

/// The same.
pub fn first_defined(_: &[u8]) -> Option<usize> {
    None
}

/// There are no threads of the library's own: what they do the models do where they want it.
pub fn start_small_thread(
    _stack_size: usize,
    _body: extern "C" fn(*mut c_void) -> *mut c_void,
) -> Option<usize> {
    None
}

pub(crate) fn join_thread(_: usize) {}

pub(crate) fn name_thread(_: &core::ffi::CStr) {}

/// There is no group.
pub(crate) struct Group;

#[derive(Clone, Copy)]
pub(crate) struct GroupUse {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

static GROUP: crate::os::Lock<Option<Option<Group>>> = crate::os::Lock::new(None);

impl Group {
    pub(crate) fn known() -> crate::os::Guard<'static, Option<Option<Group>>> {
        let mut group = GROUP.lock();
        group.get_or_insert(None);
        group
    }

    pub(crate) fn hold() -> crate::os::Guard<'static, Option<Option<Group>>> {
        GROUP.lock()
    }

    pub(crate) fn find_again(_: &mut Option<Option<Group>>) {}

    pub(crate) fn is_hidden() -> bool {
        false
    }

    pub(crate) fn forget_in_child() {
        GROUP.settle_in_child();
    }

    pub(crate) fn usage(&self) -> Option<GroupUse> {
        None
    }

    pub(crate) fn files(&self) -> Option<u64> {
        None
    }

    pub(crate) fn events(&self) -> [u64; 2] {
        [0; 2]
    }

    pub(crate) fn pressure(&self) -> u64 {
        0
    }
}

/// Nobody asks for guards.
pub(crate) fn see_faults(_: fn(usize, *const c_void)) -> bool {
    false
}

pub(crate) fn read_own(_: usize, _: &mut [u8]) -> usize {
    0
}

/// The tables of a file.
pub(crate) struct UnwindTable {
    pub(crate) range: (usize, usize),
    pub(crate) start: usize,
}

pub(crate) fn find_unwind_tables() {}

pub(crate) fn unwind_table(_: usize) -> Option<UnwindTable> {
    None
}

pub(crate) fn thread_id() -> usize {
    thread_token()
}

pub(crate) fn first_stack_end() -> usize {
    0
}

pub(crate) fn entry_point() -> usize {
    0
}

/// What is mapped somewhere.
pub(crate) struct Mapped<'a> {
    pub(crate) range: (usize, usize),
    pub(crate) base: usize,
    pub(crate) path: &'a [u8],
}

pub(crate) fn mappings(_: impl FnMut(&[u8])) {}

pub(crate) fn builds(_: impl FnMut(&[u8], &[u8])) {}

pub(crate) fn perf_map(_: impl FnMut(&[u8])) {}

pub(crate) fn mapped_around<T>(_: usize, _: impl FnOnce(Mapped<'_>) -> T) -> Option<T> {
    None
}

pub(crate) unsafe fn withdraw(_: *mut u8, _: usize) -> bool {
    false
}

pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// There is nothing to switch off.
pub static HUGE_PAGES: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

pub(crate) fn keep_small_pages(_: *mut u8, _: usize) {}

pub(crate) unsafe fn guard(_: *mut u8, _: usize) -> bool {
    false
}

pub(crate) fn unguard(_: *mut u8, _: usize) -> bool {
    true
}

pub(crate) fn seal(_: *mut u8, _: usize) {}

/// No model has settings.
pub(crate) fn variable(_: &core::ffi::CStr) -> Option<&'static core::ffi::CStr> {
    None
}

/// The same in each run: addresses are, then.
pub(crate) fn seed() -> usize {
    0
}

/// A system that decommits has none.
pub(crate) fn wants_huge_pages() -> bool {
    purged_is_committed()
}

pub(crate) fn now_ns() -> u64 {
    now_ms() * 1_000_000
}

/// One clock is enough.
pub(crate) fn cpu_ns() -> u64 {
    now_ns()
}

/// Miri has no forks.
pub(crate) fn process_id() -> u32 {
    if cfg!(miri) { 1 } else { std::process::id() }
}

/// Locks what the models share; a panic elsewhere does not matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static SAID: Mutex<String> = Mutex::new(String::new());

/// The last words become a panic's, in `abort`.
pub(crate) fn write_stderr(bytes: &[u8]) {
    *lock(&SAID) = String::from_utf8_lossy(bytes).into_owned();
}

pub(crate) fn abort() -> ! {
    let said = lock(&SAID).clone();
    panic!("{}", said.trim_end());
}

/// There is no C layer.
pub(crate) fn early_address_space() -> usize {
    0
}
