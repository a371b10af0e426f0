//! What all threads are to notice, and the program's function that one thread at a time is in.

use crate::base::sync::Plain;
use crate::harness::{ALL, FORKER, Model, check, spawn};
use crate::os;
use crate::samples::deferred_frees::{self, Deferred};
use crate::slices::limit;
use crate::thread::low_memory;

/// Who takes note of a notice does as is said before it; not seen then, it would never be looked at again.
#[test]
fn a_notice_is_not_seen_before_what_it_is_about() {
    check(ALL, |_| {
        let before = os::settled_notices();
        let says = spawn(|| {
            deferred_frees::set(Some(|_, _, _| ()), [0; 2]);
            os::notify_all();
        });
        // SAFETY: of zeros: nothing is registered.
        let mut deferred: Deferred = unsafe { core::mem::zeroed() };
        if os::settled_notices() != before {
            assert!(deferred.follow() && deferred.is_on());
        }
        says.join().unwrap();
    });
}

static CALLS: Plain<usize> = Plain::new(0);

/// The function of one thread sees what it has done in another one.
#[test]
fn one_thread_is_told_after_the_other() {
    check(Model { preemptions: [Some(3), None], quiet: &[FORKER], ..ALL }, |_| {
        low_memory::set(Some(|_, _| CALLS.set(CALLS.get() + 1)), [0; 2]);
        assert!(low_memory::call(1, || true));
        let other = spawn(|| low_memory::call(1, || true));
        let mine = low_memory::call(1, || true);
        assert!(other.join().unwrap() || mine);
    });
}

/// That a limit is near is told, or stays to be told: while another thread is inside, too.
#[test]
fn a_warning_is_told_or_stays() {
    check(ALL, |_| {
        low_memory::set(Some(|_, _| ()), [0; 2]);
        limit::note_far();
        assert!(limit::note_near());
        let other = spawn(|| low_memory::call(1, || true));
        let is_told = low_memory::call(0, limit::take_pending);
        assert_ne!(limit::is_pending(), is_told);
        other.join().unwrap();
    });
}
