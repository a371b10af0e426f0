//! Keys with destructors, for loom's threads, which do not fork: what `thread` calls of libc.

use core::ffi::c_int;
pub(crate) use libc::c_void;
use std::cell::Cell;

type Destructor = unsafe extern "C" fn(*mut c_void);
type Handler = unsafe extern "C" fn();

thread_local! {
    /// One thread of the system's runs all of a model.
    static DESTRUCTOR: Cell<Option<Destructor>> = const { Cell::new(None) };
}

loom::thread_local! {
    static VALUE: Cell<*mut c_void> = Cell::new(core::ptr::null_mut());
}

/// # Safety
/// As in production.
pub(crate) unsafe fn pthread_key_create(key: &mut u32, leave: Option<Destructor>) -> c_int {
    DESTRUCTOR.set(leave);
    *key = 0;
    0
}

/// # Safety
/// As in production.
pub(crate) unsafe fn pthread_setspecific(_: u32, value: *mut c_void) -> c_int {
    VALUE.with(|place| place.set(value));
    0
}

/// # Safety
/// As in production.
pub(crate) unsafe fn pthread_getspecific(_: u32) -> *mut c_void {
    VALUE.with(Cell::get)
}

/// # Safety
/// As in production.
pub(crate) unsafe fn pthread_atfork(
    _: Option<Handler>,
    _: Option<Handler>,
    _: Option<Handler>,
) -> c_int {
    0
}

/// The calling thread ends.
pub(crate) fn exit() {
    let value = VALUE.with(|place| place.replace(core::ptr::null_mut()));
    if let Some(leave) = DESTRUCTOR.get()
        && !value.is_null()
    {
        // SAFETY: as registered, once, on the thread whose value it is.
        unsafe { leave(value) };
    }
}
