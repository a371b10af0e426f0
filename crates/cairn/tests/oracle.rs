//! Random operations over several threads against a model: contents, overlap, alignment and
//! usable sizes are checked at every step. `CAIRN_STRESS_SECONDS=60` makes it run that long.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// To compare with: byte by byte a test build takes long.
const ZEROS: [u8; 4096] = [0; 4096];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Mostly small, sometimes up to 20 MiB.
    fn size(&mut self) -> usize {
        let bits = match self.below(1000) {
            0..700 => self.below(9),
            700..960 => 8 + self.below(5),
            960..996 => 13 + self.below(5),
            _ => 18 + self.below(7),
        };
        self.below(1 << bits) as usize + self.below(2) as usize
    }
}

#[derive(Debug)]
struct Held {
    address: usize,
    size: usize,
    seed: u8,
}

impl Held {
    fn pointer(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Marks both ends and a few places between.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let (size, step) = (self.size, (self.size / 7).max(1));
        (0..size).step_by(step).chain(size.checked_sub(1))
    }

    fn fill(&self) {
        for i in self.places() {
            // SAFETY: inside the block.
            unsafe { self.pointer().add(i).write(self.seed ^ i as u8) };
        }
    }

    fn verify(&self, upto: usize) {
        for i in self.places().filter(|&i| i < upto) {
            // SAFETY: inside the block.
            let got = unsafe { self.pointer().add(i).read() };
            assert_eq!(got, self.seed ^ i as u8, "{self:?} at {i}");
        }
    }
}

/// Every live block by address: overlaps show at once.
type Live = Arc<Mutex<BTreeMap<usize, usize>>>;

fn enter(live: &Live, held: &Held) {
    // SAFETY: a live block.
    let usable = unsafe { cairn::usable_size(held.pointer()) };
    assert!(usable >= held.size, "{usable} {held:?}");
    let end = held.address + usable;
    let mut live = live.lock().unwrap();
    if let Some((&at, &len)) = live.range(..end).next_back() {
        assert!(at + len <= held.address, "{held:?} overlaps {at:#x}+{len}");
    }
    live.insert(held.address, usable);
}

fn exit(live: &Live, held: &Held) {
    assert!(live.lock().unwrap().remove(&held.address).is_some());
}

#[allow(clippy::too_many_lines, reason = "a list of operations")]
fn worker(seed: u64, until: Instant, live: Live, inbox: Receiver<Held>, peers: Vec<Sender<Held>>) {
    let mut random = Random(seed);
    let mut mine: Vec<Held> = Vec::new();
    let mut rounds = 0u64;
    while Instant::now() < until || rounds < 20_000 {
        rounds += 1;
        while let Ok(held) = inbox.try_recv() {
            mine.push(held);
        }
        let crowded = mine.iter().map(|h| h.size).sum::<usize>() > 64 << 20 || mine.len() > 3000;
        match random.below(if crowded { 40 } else { 100 }) {
            0..40 if !mine.is_empty() => {
                let held = mine.swap_remove(random.below(mine.len() as u64) as usize);
                held.verify(held.size);
                if random.below(3) == 0 {
                    let to = random.below(peers.len() as u64) as usize;
                    if let Err(back) = peers[to].send(held) {
                        mine.push(back.0);
                    }
                    continue;
                }
                exit(&live, &held);
                // SAFETY: live, and ours.
                unsafe { cairn::deallocate(held.pointer()) };
            }
            0..50 if !mine.is_empty() => {
                let at = random.below(mine.len() as u64) as usize;
                let size = random.size().max(1);
                exit(&live, &mine[at]);
                // SAFETY: live, and ours.
                let p = unsafe { cairn::reallocate(mine[at].pointer(), size) };
                assert!(!p.is_null());
                let held = &mut mine[at];
                held.address = p as usize;
                held.verify(held.size.min(size));
                held.size = size;
                held.fill();
                enter(&live, held);
            }
            kind => {
                let size = random.size();
                let seed = random.next() as u8;
                let align = 1usize << random.below(if kind < 95 { 5 } else { 22 });
                let zeroed = kind < 70;
                let p = match (zeroed, align > 16) {
                    (true, _) => cairn::allocate_zeroed(size),
                    (false, true) => cairn::allocate_aligned(size, align),
                    (false, false) => cairn::allocate(size),
                };
                assert!(!p.is_null());
                let held = Held { address: p as usize, size, seed };
                assert_eq!(held.address % if zeroed { 16 } else { align }, 0);
                if zeroed {
                    // SAFETY: a live block has that many bytes, and all of them are written.
                    let bytes = unsafe { std::slice::from_raw_parts(p, size) };
                    assert!(bytes.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()]));
                }
                let inside = p.wrapping_add(size.saturating_sub(1));
                assert_eq!(cairn::base(inside), Some(p));
                held.fill();
                enter(&live, &held);
                mine.push(held);
            }
        }
        if rounds.is_multiple_of(5000) {
            cairn::purge();
        }
    }
    for held in mine.drain(..).chain(inbox.try_iter()) {
        held.verify(held.size);
        exit(&live, &held);
        // SAFETY: live, and ours.
        unsafe { cairn::deallocate(held.pointer()) };
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    let seconds = std::env::var("CAIRN_STRESS_SECONDS").ok().and_then(|s| s.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    let live: Live = Arc::default();
    // Generations of threads: later ones meet what earlier ones left.
    for generation in 0.. {
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..4).map(|_| channel()).unzip();
        let slice = until.min(Instant::now() + Duration::from_secs(2));
        let threads: Vec<_> = inboxes
            .into_iter()
            .enumerate()
            .map(|(i, inbox)| {
                let (live, peers) = (live.clone(), senders.clone());
                let seed = 0x9e37_79b9 * (generation * 4 + i as u64 + 1);
                std::thread::spawn(move || worker(seed, slice, live, inbox, peers))
            })
            .collect();
        drop(senders);
        for t in threads {
            t.join().unwrap();
        }
        cairn::check();
        if Instant::now() >= until && generation >= 1 {
            break;
        }
    }
    // What crossed a channel whose reader had left is freed by nobody: it stays live.
    cairn::purge();
}
