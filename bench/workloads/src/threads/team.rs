//! Threads that start together, timed from the first start to the last end.

use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs `work` on every thread from the same moment on; says how long that took.
///
/// `prepare` makes a thread's state before, `finish` takes it apart once all have ended
/// their work; both run on the thread itself, untimed.
pub(super) fn timed<S, R: Send>(
    threads: usize,
    prepare: impl Fn(usize) -> S + Sync,
    work: impl Fn(usize, &mut S) + Sync,
    finish: impl Fn(usize, S) -> R + Sync,
) -> (Duration, Vec<R>) {
    let together = Barrier::new(threads);
    let member = |me| {
        let mut state = prepare(me);
        together.wait();
        let start = Instant::now();
        work(me, &mut state);
        let end = Instant::now();
        together.wait();
        (start, end, finish(me, state))
    };
    let lives: Vec<_> = std::thread::scope(|scope| {
        let member = &member;
        let handles: Vec<_> = (0..threads).map(|me| scope.spawn(move || member(me))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread panicked")).collect()
    });
    let start = lives.iter().map(|life| life.0).min().expect("at least one thread");
    let end = lives.iter().map(|life| life.1).max().expect("at least one thread");
    (end - start, lives.into_iter().map(|life| life.2).collect())
}

#[cfg(test)]
mod tests {
    use super::timed;

    #[test]
    fn every_thread_keeps_its_own_state() {
        let (_, sums) = timed(3, |me| me, |me, state| *state += me, |_, state| state);
        assert_eq!(sums, [0, 2, 4]);
    }
}
