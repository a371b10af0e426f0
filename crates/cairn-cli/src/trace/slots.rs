//! Numbers for what comes and goes: threads, and blocks.
//!
//! Owns which are taken. The one idea: the one given back last is taken first, so that whoever sees the same steps has
//! the same numbers. It must never have more numbers than were taken at once, but for those that threads keep.

/// Which numbers are in no use.
#[derive(Default)]
pub(super) struct Slots {
    free: Vec<u32>,
    made: u32,
}

impl Slots {
    /// A number; none if there is no other.
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = self.made;
        self.made = self.made.checked_add(1)?;
        Some(slot)
    }

    /// The number that the next call of [`take`](Self::take) returns.
    pub(super) fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.made)
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }
}

/// A thread gets as many numbers of blocks at once.
const BATCH: u32 = 64;

/// Which numbers of blocks are in no use.
///
/// Each belongs to a thread for good: in a replay, threads wait for each other where they use the same number, and that
/// is to be where blocks go from one to another.
#[derive(Default)]
pub(super) struct BlockSlots {
    /// By thread.
    free: Vec<Vec<u32>>,
    /// Of each batch, the thread.
    owners: Vec<u32>,
}

impl BlockSlots {
    /// A number for a thread's block; none if there is no other.
    pub(super) fn take(&mut self, thread: u32) -> Option<u32> {
        if self.free.len() <= thread as usize {
            self.free.resize_with(thread as usize + 1, Vec::new);
        }
        let free = &mut self.free[thread as usize];
        if let Some(slot) = free.pop() {
            return Some(slot);
        }
        let first = u32::try_from(self.owners.len()).ok()?.checked_mul(BATCH)?;
        free.extend((first..first.checked_add(BATCH)?).rev());
        self.owners.push(thread);
        free.pop()
    }

    /// All numbers are below.
    pub(super) fn end(&self) -> usize {
        self.owners.len() * BATCH as usize
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        let owner = self.owners[(slot / BATCH) as usize];
        self.free[owner as usize].push(slot);
    }
}
