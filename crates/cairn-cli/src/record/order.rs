//! All threads' notes, in one order.
//!
//! Owns how far each thread's chunks have been read. The one idea: every ticket is some thread's, so the next note is the
//! one with the next ticket, wherever it is. It must never wait for a ticket for good: a thread may have ended with it.

use super::shared::{Found, Note, Shared};
use anyhow::{Result, bail};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// How long a ticket that nobody has is waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// How often threads without notes are looked at, whether they are there.
const LOOK: Duration = Duration::from_millis(20);
/// Notes in one pass at most, so that whoever asks can look at other things.
const PASS: usize = 1 << 20;

/// What has been said by a thread.
pub(super) enum Said {
    Note(Note),
    Ended,
}

/// A thread.
struct Stream {
    tid: u32,
    /// Its chunks, and which of them is read.
    chunks: BTreeMap<u64, u32>,
    number: u64,
    /// The place in that.
    at: usize,
    /// What is there.
    next: Option<Note>,
    has_ended: bool,
}

/// The threads, and where each is.
pub(super) struct Order {
    process: u32,
    threads: Vec<Stream>,
    by_tid: FxHashMap<u32, u32>,
    /// Which chunks belong to a stream.
    known: Vec<bool>,
    /// Streams with a note, by its ticket.
    heads: BinaryHeap<Reverse<(u64, u32)>>,
    /// Streams without one.
    dry: Vec<u32>,
    ticket: u64,
    moved: Instant,
    looked: Instant,
}

impl Order {
    pub(super) fn new(process: u32, shared: &Shared) -> Self {
        let now = Instant::now();
        Self {
            process,
            threads: Vec::new(),
            by_tid: FxHashMap::default(),
            known: vec![false; shared.chunks() as usize],
            heads: BinaryHeap::new(),
            dry: Vec::new(),
            ticket: 0,
            moved: now,
            looked: now,
        }
    }

    /// How many threads there have been.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Hands on what is there, and says how many notes that were. Of a process that has ended, all.
    pub(super) fn pass(
        &mut self,
        shared: &Shared,
        has_ended: bool,
        mut take: impl FnMut(u32, Said) -> Result<()>,
    ) -> Result<usize> {
        let mut count = 0;
        self.look(shared)?;
        while count < PASS || has_ended {
            let Some(&Reverse((ticket, thread))) = self.heads.peek() else {
                if self.look(shared)? {
                    continue;
                }
                break;
            };
            if ticket != self.ticket {
                if self.look(shared)? {
                    continue;
                }
                if !has_ended && self.moved.elapsed() < PATIENCE {
                    break;
                }
            }
            self.heads.pop();
            count += self.follow(thread, ticket, shared, &mut take)?;
        }
        if count > 0 {
            self.moved = Instant::now();
        }
        if !has_ended && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.bury(shared, &mut take)?;
        }
        Ok(count)
    }

    /// Whether each chunk has a thread that writes nothing: those that have none wait for good.
    pub(super) fn is_stuck(&self) -> bool {
        self.moved.elapsed() >= PATIENCE && self.known.iter().all(|&known| known)
    }

    /// Hands on the notes of a thread from this ticket on, as long as the tickets follow each other.
    fn follow(
        &mut self,
        thread: u32,
        first: u64,
        shared: &Shared,
        take: &mut impl FnMut(u32, Said) -> Result<()>,
    ) -> Result<usize> {
        let mut count = 0;
        let mut ticket = first;
        while let Some(note) = self.threads[thread as usize].next.take() {
            take(thread, Said::Note(note))?;
            count += 1;
            self.ticket = ticket + 1;
            match self.advance(thread, shared)? {
                Some(next) if next == self.ticket => ticket = next,
                Some(next) => {
                    self.heads.push(Reverse((next, thread)));
                    break;
                }
                None => self.dry.push(thread),
            }
        }
        Ok(count)
    }

    /// Looks for what is new: chunks, threads, notes of those that had none. Whether there were notes.
    fn look(&mut self, shared: &Shared) -> Result<bool> {
        for chunk in 0..shared.chunks() {
            if !self.known[chunk as usize] {
                self.meet(chunk, shared)?;
            }
        }
        let mut found = false;
        for thread in std::mem::take(&mut self.dry) {
            match self.advance(thread, shared)? {
                Some(ticket) => {
                    self.heads.push(Reverse((ticket, thread)));
                    found = true;
                }
                None => self.dry.push(thread),
            }
        }
        Ok(found)
    }

    /// A chunk that may have got a thread.
    fn meet(&mut self, chunk: u32, shared: &Shared) -> Result<()> {
        let Some(head) = shared.head(chunk) else { return Ok(()) };
        let (thread, tid) = (head.thread as usize, head.tid);
        if thread >= self.threads.len() + shared.chunks() as usize {
            bail!("the program has written over the memory of the recorder");
        }
        while self.threads.len() <= thread {
            let chunks = BTreeMap::new();
            self.dry.push(self.threads.len() as u32);
            self.threads.push(Stream {
                tid: 0,
                chunks,
                number: 0,
                at: 0,
                next: None,
                has_ended: false,
            });
        }
        self.known[chunk as usize] = true;
        let stream = &mut self.threads[thread];
        stream.chunks.insert(head.number, chunk);
        stream.tid = tid;
        // The kernel's number was another thread's: that one has ended.
        if let Some(former) = self.by_tid.insert(tid, head.thread)
            && former != head.thread
        {
            self.threads[former as usize].has_ended = true;
        }
        Ok(())
    }

    /// The ticket of a thread's next note, if there is one.
    fn advance(&mut self, thread: u32, shared: &Shared) -> Result<Option<u64>> {
        let stream = &mut self.threads[thread as usize];
        while let Some(&chunk) = stream.chunks.get(&stream.number) {
            match shared.found(chunk, stream.at) {
                Found::Note(ticket, note, next) => {
                    (stream.next, stream.at) = (Some(note), next);
                    return Ok(Some(ticket));
                }
                Found::Nothing => break,
                Found::End => {
                    stream.chunks.remove(&stream.number);
                    (stream.number, stream.at) = (stream.number + 1, 0);
                    self.known[chunk as usize] = false;
                    shared.give_back(chunk);
                }
                Found::Damage => bail!("the program has written over the memory of the recorder"),
            }
        }
        Ok(None)
    }

    /// Threads that are no more: their chunks are free again.
    fn bury(
        &mut self,
        shared: &Shared,
        take: &mut impl FnMut(u32, Said) -> Result<()>,
    ) -> Result<()> {
        let is_gone = |thread: &u32| {
            let stream = &self.threads[*thread as usize];
            stream.tid != 0 && (stream.has_ended || !lives(self.process, stream.tid))
        };
        let gone: Vec<u32> = self.dry.iter().copied().filter(is_gone).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // What they have left is there by now.
        self.look(shared)?;
        for thread in gone {
            let Some(at) = self.dry.iter().position(|&dry| dry == thread) else { continue };
            self.dry.swap_remove(at);
            let stream = &mut self.threads[thread as usize];
            for (_, chunk) in std::mem::take(&mut stream.chunks) {
                self.known[chunk as usize] = false;
                shared.give_back(chunk);
            }
            if self.by_tid.get(&stream.tid) == Some(&thread) {
                self.by_tid.remove(&stream.tid);
            }
            take(thread, Said::Ended)?;
        }
        Ok(())
    }
}

/// Whether a process has such a thread.
fn lives(process: u32, tid: u32) -> bool {
    // SAFETY: the signal 0 is none: the call only looks.
    unsafe { libc::syscall(libc::SYS_tgkill, process, tid, 0) == 0 }
}
