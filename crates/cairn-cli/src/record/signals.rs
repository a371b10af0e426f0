//! Signals while a program is recorded.
//!
//! Owns what this process does with those that it gets. The one idea: they are the program's, and none comes between the
//! start of that and the moment from which it is known here. It must never change what the program inherits.

use rustix::process::Pid;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

/// The process that signals are for.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// All signals wait, and which did so before.
pub(super) struct Held(libc::sigset_t);

impl Held {
    pub(super) fn all() -> Self {
        // SAFETY: both sets are filled before they are read.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }

    /// Those that wait come now.
    pub(super) fn release(&self) {
        // SAFETY: the set is one that was the mask.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// The ends of children are told here: where that is ignored, as whoever started this process may have it, nobody learns how
/// they have ended.
pub(super) struct EndsTold(libc::sighandler_t);

impl EndsTold {
    pub(super) fn begin() -> Self {
        // SAFETY: no handler is set.
        Self(unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) })
    }

    /// As it was: for the program.
    pub(super) fn put_back(&self) {
        // SAFETY: what a process has inherited is no handler.
        unsafe { libc::signal(libc::SIGCHLD, self.0) };
    }
}

/// Signals that somebody sends here are the program's. Those of the terminal it has already.
pub(super) fn pass_on_to(process: Pid) {
    extern "C" fn pass_on(signal: c_int) {
        // SAFETY: it has no preconditions, and may be called in a handler.
        unsafe { libc::kill(PROCESS.load(Ordering::Relaxed), signal) };
    }
    PROCESS.store(process.as_raw_nonzero().get(), Ordering::Relaxed);
    let handler: extern "C" fn(c_int) = pass_on;
    for (signals, action) in [
        ([libc::SIGINT, libc::SIGQUIT], libc::SIG_IGN),
        ([libc::SIGTERM, libc::SIGHUP], handler as libc::sighandler_t),
    ] {
        for signal in signals {
            // SAFETY: the handler calls what a handler may call.
            unsafe { libc::signal(signal, action) };
        }
    }
}
