//! The memory that a recorded process shares with this one.
//!
//! Owns its layout, which is library/recorder.c's. The one idea: who has a chunk is one word, so that each side knows
//! what it may touch. It must never trust what it reads: the process may write anywhere.
//!
//! | state | who may touch the chunk | and does what next |
//! | --- | --- | --- |
//! | `FREE` | nobody | a thread of the process takes it |
//! | `TAKEN` | that thread | it fills in the head |
//! | `FILLING` | that thread adds, this process reads what is there | the thread ends it |
//! | `FULL` | this process | it reads the rest, and makes it free |

use anyhow::{Context, Result};
use memmap2::MmapRaw;
use rustix::fs::MemfdFlags;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = 0x6361_6972_6563_6f72;
/// As many threads can be recorded at once.
const CHUNKS: u32 = 4096;
const CHUNK_BYTES: usize = 16 << 10;
const STATES_AT: usize = 4096;
const CHUNKS_AT: usize = STATES_AT + CHUNKS as usize * 4;
const CHUNK_HEAD_WORDS: usize = 8;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8 - CHUNK_HEAD_WORDS;
const BYTES: usize = CHUNKS_AT + CHUNKS as usize * CHUNK_BYTES;

/// Where the words of the head are.
const COUNT_AT: usize = 8;
const WRITER_AT: usize = 12;
const PROCESS_AT: usize = 16;
const CLOSED_AT: usize = 192;
const PROGRAM_AT: usize = 256;
const PROGRAM_BYTES: usize = 2048;

const FREE: u32 = 0;
const FILLING: u32 = 2;
const FULL: u32 = 3;

/// What a thread has written down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Note {
    Made {
        kind: u8,
        align_log2: u8,
        block: u64,
        size: u64,
    },
    /// A reallocation begins,
    GivenUp {
        block: u64,
    },
    /// and ends; if it has failed, the block is null.
    Moved {
        block: u64,
        size: u64,
    },
    Freed {
        block: u64,
    },
    /// The process is another program from here on, or its first one.
    Begun,
    /// The thread ends.
    Ended,
}

/// Kinds of blocks, as the process numbers them.
pub(super) const MALLOC: u8 = 0;
pub(super) const CALLOC: u8 = 1;
const ALIGNED: u8 = 2;
const GIVEN_UP: u8 = 3;
const MOVED: u8 = 4;
const FREED: u8 = 5;
const BEGUN: u8 = 6;
const ENDED: u8 = 7;

/// What a chunk's head says.
pub(super) struct Head {
    pub(super) thread: u32,
    /// The kernel's number of it.
    pub(super) tid: u32,
    /// Which of its chunks this is.
    pub(super) number: u64,
}

/// What there is at a place in a chunk.
pub(super) enum Found {
    /// A note, its ticket, and the place of the next.
    Note(u64, Note, usize),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing comes.
    End,
    /// What no recorder writes.
    Damage,
}

/// The memory.
pub(super) struct Shared {
    file: File,
    map: MmapRaw,
}

impl Shared {
    pub(super) fn new() -> Result<Self> {
        let make = || -> Result<Self> {
            let file = File::from(rustix::fs::memfd_create("cairn-record", MemfdFlags::CLOEXEC)?);
            file.set_len(BYTES as u64)?;
            let map = MmapRaw::map_raw(&file)?;
            Ok(Self { file, map })
        };
        let shared = make().context("no memory to share with the program")?;
        shared.long(0).store(MAGIC, Ordering::Relaxed);
        shared.word(COUNT_AT).store(CHUNKS, Ordering::Relaxed);
        shared.word(WRITER_AT).store(std::process::id(), Ordering::Relaxed);
        Ok(shared)
    }

    /// The calling process is the one that is recorded, whatever it becomes by exec.
    pub(super) fn is_of_this_process(&self) {
        self.word(PROCESS_AT).store(std::process::id(), Ordering::Relaxed);
    }

    /// Where the process finds it.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    pub(super) fn chunks(&self) -> u32 {
        CHUNKS
    }

    /// Has threads write nothing down from their next chunk on.
    pub(super) fn close(&self) {
        self.word(CLOSED_AT).store(1, Ordering::Relaxed);
    }

    /// The path of the program that the process has begun last.
    pub(super) fn program(&self) -> PathBuf {
        let words = (0..PROGRAM_BYTES).step_by(4);
        let words = words.map(|at| self.word(PROGRAM_AT + at).load(Ordering::Relaxed));
        let bytes = words.flat_map(u32::to_ne_bytes).take_while(|&byte| byte != 0);
        OsString::from_vec(bytes.collect()).into()
    }

    /// What a chunk's head says, if a thread has it or has had it.
    pub(super) fn head(&self, chunk: u32) -> Option<Head> {
        let state = self.state(chunk).load(Ordering::Acquire);
        (state == FILLING || state == FULL).then(|| {
            let at = Self::chunk_at(chunk);
            Head {
                thread: self.word(at).load(Ordering::Relaxed),
                tid: self.word(at + 4).load(Ordering::Relaxed),
                number: self.long(at + 8).load(Ordering::Relaxed),
            }
        })
    }

    /// What is at a place in a chunk.
    pub(super) fn found(&self, chunk: u32, at: usize) -> Found {
        // Before the other: what has been filled in a full chunk is all.
        let state = self.state(chunk).load(Ordering::Acquire);
        let base = Self::chunk_at(chunk);
        let filled = self.long(base + 16).load(Ordering::Acquire) as usize;
        if filled > CHUNK_WORDS || at > filled {
            return Found::Damage;
        }
        if at == filled {
            return if state == FULL { Found::End } else { Found::Nothing };
        }
        let word = |behind: usize| {
            let words = base + (CHUNK_HEAD_WORDS + at + behind) * 8;
            if at + behind < filled { self.long(words).load(Ordering::Relaxed) } else { 0 }
        };
        let (first, block, size) = (word(0), word(1), word(2));
        let (kind, align_log2) = (first as u8, (first >> 8) as u8);
        let (note, words) = match kind {
            MALLOC | CALLOC | ALIGNED => (Note::Made { kind, align_log2, block, size }, 3),
            GIVEN_UP => (Note::GivenUp { block }, 2),
            MOVED => (Note::Moved { block, size }, 3),
            FREED => (Note::Freed { block }, 2),
            BEGUN => (Note::Begun, 2),
            ENDED => (Note::Ended, 2),
            _ => return Found::Damage,
        };
        if at + words > filled {
            return Found::Damage;
        }
        Found::Note(first >> 16, note, at + words)
    }

    /// Gives a chunk back whose thread has ended, or is done with it.
    pub(super) fn give_back(&self, chunk: u32) {
        self.state(chunk).store(FREE, Ordering::Release);
    }

    fn chunk_at(chunk: u32) -> usize {
        CHUNKS_AT + chunk as usize * CHUNK_BYTES
    }

    fn state(&self, chunk: u32) -> &AtomicU32 {
        self.word(STATES_AT + chunk as usize * 4)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at <= BYTES - 4 && at.is_multiple_of(4));
        // SAFETY: inside the mapping, which lives as long as `self` and has whole pages, and aligned.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at <= BYTES - 8 && at.is_multiple_of(8));
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }
}
