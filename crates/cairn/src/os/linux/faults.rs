//! Owns: what happens at a touch of memory that is not accessible; reads of memory that may not be there.
//! Idea: the action that SIGSEGV had before is kept, and gets every signal after us.
//! Never: allocates, takes a lock, or ends a program that would have gone on.
//! Threads: any; a handler may call all of it but `see_faults`.
//! Checked: tests/guards.rs of the C layer.
//! Story: docs/guide/guards.md

use super::{keeping_errno, system_call};
use crate::base::{AtomicPtr, Ordering, UnsafeCell};
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};

/// What looks at a fault first: at its address, and what the system says of the thread.
pub(crate) type Seen = fn(usize, *const c_void);

/// A `Seen`, or null.
static SEEN: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// The action before ours.
static PREVIOUS: Previous = Previous(UnsafeCell::new(None));

struct Previous(UnsafeCell<Option<libc::sigaction>>);

// SAFETY: written before our handler is installed, and by handlers that take back what they find.
unsafe impl Sync for Previous {}

/// Has `seen` look at each fault from now on; to be called once. False if the system refuses.
pub(crate) fn see_faults(seen: Seen) -> bool {
    SEEN.store(seen as *mut (), Ordering::Release);
    // SAFETY: zero is a value of the struct; both are valid for reading and writing; the handler
    // stays loaded as long as the process.
    keeping_errno(|| unsafe {
        let mut before: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(libc::SIGSEGV, null(), &mut before) != 0 {
            return false;
        }
        *PREVIOUS.0.get() = Some(before);
        let mut ours = before;
        ours.sa_sigaction = at_fault as *const () as usize;
        // As the program's would run, but on a stack of its own where there is one.
        let kept = before.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
        ours.sa_flags = kept | libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &ours, null_mut()) == 0
    })
}

extern "C" fn at_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system's.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    let is_sent = code <= 0;
    let seen = SEEN.load(Ordering::Acquire);
    if !is_sent && !seen.is_null() {
        // SAFETY: stored by `see_faults` out of such a function.
        let seen: Seen = unsafe { core::mem::transmute(seen) };
        keeping_errno(|| seen(address.addr(), context));
    }
    // SAFETY: written before this handler was installed.
    let Some(before) = (unsafe { *PREVIOUS.0.get() }) else { return };
    match before.sa_sigaction {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            take_back();
            // A fault comes again at once, at its place. What somebody has sent does not.
            if is_sent {
                // SAFETY: has no preconditions.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                take_back();
            }
            // SAFETY: the program's handler, called as it wants to be called.
            unsafe {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        core::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(c_int) = core::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// From now on the signal ends the process.
fn take_back() {
    // SAFETY: zero is a value of the struct: the default action.
    keeping_errno(|| unsafe {
        let action: libc::sigaction = core::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, &action, null_mut());
    });
}

/// Reads what stands at an address, any at all, of at most two pages; how many bytes of it could be read.
#[inline(never)]
pub(crate) fn read_own(at: usize, bytes: &mut [u8]) -> usize {
    let page = super::page_size();
    let first = (page - at % page).min(bytes.len());
    let place = core::ptr::without_provenance_mut::<c_void>;
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = [
        libc::iovec { iov_base: place(at), iov_len: first },
        libc::iovec { iov_base: place(at.wrapping_add(first)), iov_len: bytes.len() - first },
    ];
    // By the process's number it fails when its first thread has ended before others.
    let thread = thread_id();
    let (to, from) = ((&raw const local).expose_provenance(), remote.as_ptr().expose_provenance());
    // SAFETY: `bytes` is valid for writing; the system looks whether the rest can be read.
    let count = unsafe { system_call(libc::SYS_process_vm_readv, [thread, to, 1, from, 2, 0]) };
    usize::try_from(count).unwrap_or(0)
}

/// The number of the calling thread, as debuggers show it.
pub(crate) fn thread_id() -> usize {
    // SAFETY: has no preconditions.
    unsafe { system_call(libc::SYS_gettid, [0; 6]) }.cast_unsigned()
}
