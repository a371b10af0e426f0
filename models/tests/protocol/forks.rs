//! A fork while other threads are inside the allocator, as the parent sees it.

use crate::harness::{ALL, HINTS, Model, Size, check, spawn};
use crate::size_class::CLASS_COUNT;
use crate::sync::Quiet;
use crate::{address_map, api, orphans, pthread, thread};

/// As `HINTS`, but for the first of them, who is forking.
const QUIET: Quiet = HINTS.split_at(1).1;

/// Handlers of others allocate before and after the fork, while the forking thread holds every
/// lock; another thread arrives, allocates from the commons, frees and ends meanwhile. Each goes
/// through all of the locks in their order: nobody waits for ever, and what the locks guard is
/// one thread's at a time. In full two other threads.
#[test]
fn a_fork_while_another_thread_comes_and_goes() {
    check(Model { preemptions: [Some(2), Some(2)], quiet: QUIET, ..ALL }, |size| {
        assert!(thread::start());
        let use_some = |bytes: usize| {
            let p = api::allocate(bytes);
            assert!(!p.is_null());
            // SAFETY: allocated just now.
            unsafe { api::deallocate(p) };
        };
        // What the threads may be the first to use.
        pthread::fork(|| use_some(1024));
        (0..CLASS_COUNT).for_each(|class| assert!(orphans::adopt(class).is_none()));
        let first = address_map::first_slice();
        assert!((first..first + 8).all(|slice| address_map::remote_word(slice).is_held()));
        let others = if size == Size::Full { 2 } else { 1 };
        let threads: Vec<_> = (0..others).map(|_| spawn(move || use_some(256))).collect();
        pthread::fork(|| use_some(512));
        use_some(128);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}
