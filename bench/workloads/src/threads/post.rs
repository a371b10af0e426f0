//! Mail between threads: every thread has one bounded inbox that all may send to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The inboxes. Their memory is reserved up front: sending allocates nothing.
pub(super) struct Post<T> {
    inboxes: Vec<Mutex<Vec<T>>>,
    limit: usize,
    closed: AtomicUsize,
}

impl<T> Post<T> {
    /// Empty inboxes with room for `limit` items each.
    pub(super) fn new(threads: usize, limit: usize) -> Post<T> {
        let inbox = |_| Mutex::new(Vec::with_capacity(limit));
        Post { inboxes: (0..threads).map(inbox).collect(), limit, closed: AtomicUsize::new(0) }
    }

    /// Moves `outgoing` into an inbox. While that has no room `meanwhile` is called, which
    /// must empty the sender's own inbox, so that nobody waits in a circle.
    pub(super) fn send(&self, to: usize, outgoing: &mut Vec<T>, mut meanwhile: impl FnMut()) {
        assert!(outgoing.len() <= self.limit);
        loop {
            {
                let mut inbox = self.inbox(to);
                if inbox.len() + outgoing.len() <= self.limit {
                    inbox.append(outgoing);
                    return;
                }
            }
            meanwhile();
            std::thread::yield_now();
        }
    }

    /// Moves everything out of one's own inbox.
    pub(super) fn receive(&self, me: usize, into: &mut Vec<T>) {
        into.append(&mut self.inbox(me));
    }

    /// For a thread that sends no more: calls `receive` until no thread sends any more.
    pub(super) fn close(&self, mut receive: impl FnMut()) {
        self.closed.fetch_add(1, Ordering::AcqRel);
        while self.closed.load(Ordering::Acquire) < self.inboxes.len() {
            receive();
            std::thread::yield_now();
        }
        receive();
    }

    fn inbox(&self, of: usize) -> MutexGuard<'_, Vec<T>> {
        self.inboxes[of].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Post;

    #[test]
    fn nothing_is_lost_between_threads_that_fill_each_other() {
        let post = Post::new(2, 4);
        let sums = std::thread::scope(|scope| {
            let post = &post;
            let lives = [0, 1].map(|me| {
                scope.spawn(move || {
                    let (mut arrived, mut sum) = (Vec::new(), 0);
                    let mut receive = || {
                        post.receive(me, &mut arrived);
                        sum += arrived.drain(..).sum::<u64>();
                    };
                    for item in 0..1000 {
                        post.send(1 - me, &mut vec![item, item], &mut receive);
                    }
                    post.close(&mut receive);
                    sum
                })
            });
            lives.map(|life| life.join().unwrap())
        });
        assert_eq!(sums, [999_000, 999_000]);
    }
}
