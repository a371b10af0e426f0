//! The oracle of the reader of traces.
//!
//! Owns: what whoever gets a step relies on: the reader's promises, asked of any bytes.
//! Idea: the first byte says how the others are read, and which blocks may live at once.
//! Never: follows a file for ever that unpacks to more than anybody needs.
//! Threads: one.
//! Checked: by running it.
//! Story: docs/guide/traces.md

use crate::trace::{Kind, Reader, What};
use std::collections::{HashMap, HashSet};
use std::io::Cursor;

/// Steps that are looked at: a short file may unpack to thousands of millions.
const STEPS_MAX: usize = 1 << 18;
/// Bytes that blocks may take: few, some, and any number.
const MOST: [u64; 4] = [1 << 12, 1 << 20, 1 << 40, u64::MAX];
/// What the reader says of them: bytes of a block at least and at most, threads at once, the largest alignment.
const BLOCK_BYTES_MIN: u64 = 32;
const SIZE_MAX: u64 = 1 << 47;
const THREADS_MAX: u32 = 4096;
const ALIGN_LOG2_MAX: u8 = 31;

/// Reads bytes as a trace, and checks each step.
///
/// # Panics
/// A step is not what the reader promises.
pub fn check_trace(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let most = MOST[usize::from(how >> 1) % MOST.len()];
    let file = Cursor::new(bytes.to_vec());
    let reader = if how & 1 == 0 {
        Reader::of_contents(Box::new(file), most)
    } else {
        Reader::of(file, most)
    };
    let Ok(mut reader) = reader else { return };
    let mut seen = Seen::default();
    for _ in 0..STEPS_MAX {
        match reader.step() {
            Ok(Some(step)) => seen.add(step.thread, step.what),
            // The end stays one.
            Ok(None) => return assert!(matches!(reader.step(), Ok(None))),
            Err(error) => return assert!(!format!("{error:#}").is_empty()),
        }
        assert_eq!(u128::from(reader.live()), seen.bytes, "what is live");
        assert!(seen.weight <= most.into() && seen.slots * BLOCK_BYTES_MIN <= most);
    }
}

/// What the steps so far have made.
#[derive(Default)]
struct Seen {
    /// Sizes by slot.
    live: HashMap<u32, u64>,
    threads: HashSet<u32>,
    /// Their sum, and that of what they take.
    bytes: u128,
    weight: u128,
    /// The highest slot and those below.
    slots: u64,
}

impl Seen {
    fn add(&mut self, thread: u32, what: What) {
        assert!(thread < THREADS_MAX);
        self.threads.insert(thread);
        match what {
            What::Made { slot, kind, size } => {
                assert!(size <= SIZE_MAX);
                assert!(!matches!(kind, Kind::Aligned(log2) if log2 > ALIGN_LOG2_MAX));
                assert_eq!(self.live.insert(slot, size), None, "a slot twice");
                self.slots = self.slots.max(u64::from(slot) + 1);
                self.count(size);
            }
            What::Moved { slot, size } => {
                assert!(size <= SIZE_MAX);
                let old = self.live.insert(slot, size).expect("a live block");
                self.uncount(old);
                self.count(size);
            }
            What::Freed { slot } => {
                let old = self.live.remove(&slot).expect("a live block");
                self.uncount(old);
            }
            What::Ended => assert!(self.threads.remove(&thread)),
        }
    }

    fn count(&mut self, size: u64) {
        self.bytes += u128::from(size);
        self.weight += u128::from(size.max(BLOCK_BYTES_MIN));
    }

    fn uncount(&mut self, size: u64) {
        self.bytes -= u128::from(size);
        self.weight -= u128::from(size.max(BLOCK_BYTES_MIN));
    }
}
