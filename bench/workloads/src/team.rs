//! Threads that start together and send blocks to one another.

use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs `work` on a thread for each member from the same moment on; says how long that took,
/// from the first start to the last end.
///
/// `prepare` makes a thread's state before, `finish` takes it apart once all have ended
/// their work; both run on the thread itself, untimed.
pub(crate) fn timed<M: Send, S, R: Send>(
    members: impl IntoIterator<Item = M>,
    prepare: impl Fn(M) -> S + Sync,
    work: impl Fn(&mut S) + Sync,
    finish: impl Fn(S) -> R + Sync,
) -> (Duration, Vec<R>) {
    let members: Vec<M> = members.into_iter().collect();
    let together = Barrier::new(members.len());
    let live = |member| {
        let mut state = prepare(member);
        together.wait();
        let start = Instant::now();
        work(&mut state);
        let end = Instant::now();
        together.wait();
        (start, end, finish(state))
    };
    let lives: Vec<_> = std::thread::scope(|scope| {
        let live = &live;
        let start = |member| scope.spawn(move || live(member));
        let handles: Vec<_> = members.into_iter().map(start).collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread panicked")).collect()
    });
    let start = lives.iter().map(|life| life.0).min().expect("at least one thread");
    let end = lives.iter().map(|life| life.1).max().expect("at least one thread");
    (end - start, lives.into_iter().map(|life| life.2).collect())
}

/// One thread's ends of bounded queues between threads. Sending allocates nothing.
pub(crate) struct Mail<T> {
    /// To the thread after this one, the one after that, and so on.
    to: Vec<Producer<T>>,
    from: Vec<Consumer<T>>,
}

impl<T> Mail<T> {
    /// For each of the threads, who stand in a ring: a queue to each of the `reach` after it.
    pub(crate) fn ring(threads: usize, reach: usize, capacity: usize) -> Vec<Mail<T>> {
        let empty = |_| Mail { to: Vec::new(), from: Vec::new() };
        let mut ring: Vec<_> = (0..threads).map(empty).collect();
        for me in 0..threads {
            for ahead in 1..=reach {
                let (producer, consumer) = RingBuffer::new(capacity);
                ring[me].to.push(producer);
                ring[(me + ahead) % threads].from.push(consumer);
            }
        }
        ring
    }

    /// Sends to the thread that `others` threads stand before; if there is no room, the item comes back.
    #[inline]
    pub(crate) fn send(&mut self, others: usize, item: T) -> Result<(), T> {
        self.to[others].push(item).map_err(|PushError::Full(item)| item)
    }

    /// The same, but waits for room. What arrives meanwhile goes to `each`, so that nobody waits in a circle.
    pub(crate) fn deliver(&mut self, others: usize, mut item: T, mut each: impl FnMut(T)) {
        while let Err(back) = self.send(others, item) {
            item = back;
            self.receive(&mut each);
            std::thread::yield_now();
        }
    }

    /// Takes what has arrived.
    #[inline]
    pub(crate) fn receive(&mut self, mut each: impl FnMut(T)) {
        for queue in &mut self.from {
            while let Ok(item) = queue.pop() {
                each(item);
            }
        }
    }

    /// Sends no more, and takes what arrives until nobody else does either.
    pub(crate) fn close(&mut self, mut each: impl FnMut(T)) {
        self.to.clear();
        loop {
            let last = self.from.iter().all(Consumer::is_abandoned);
            self.receive(&mut each);
            if last {
                return;
            }
            std::thread::yield_now();
        }
    }
}
