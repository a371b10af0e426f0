//! Owns: how threads of the library's own are started: for purging, and the C layer's for signals.
//! Idea: a small stack, and all signals blocked: they are the program's.
//! Never: is called on the way of an allocation.
//! Threads: any; the C library may allocate in it.
//! Checked: tests/purge_thread.rs and tests/account.rs of the C layer.
//! Story: docs/design/purging.md

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};

/// Starts a thread that runs `body`, with all signals blocked and a stack of `stack_size` bytes, or of the
/// default size where that does not do. Its `pthread_t`; None if it cannot.
pub fn start_small_thread(
    stack_size: usize,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
) -> Option<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: every pointer is to a local of the right type, and what is read from one has been
    // written by the call before it.
    unsafe {
        if libc::pthread_attr_init(attributes) != 0 {
            return None;
        }
        // Refused where pages are large: then it is the default.
        libc::pthread_attr_setstacksize(attributes, stack_size);
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut create = |attributes| {
            libc::pthread_create(thread.as_mut_ptr(), attributes, body, null_mut()) == 0
        };
        // The program's thread storage may not fit into so small a stack.
        let started = create(attributes.cast_const()) || create(null());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attributes);
        started.then(|| thread.assume_init() as usize)
    }
}
