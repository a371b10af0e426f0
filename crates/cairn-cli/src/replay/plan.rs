//! What there is in a trace, and its calls by thread.
//!
//! Owns the way from a file to windows. The one idea: a look through the file tells how much memory a replay needs, so
//! that the second one fills windows of a fixed size. It must never hand on a call that could wait for good: each waits
//! only for those before it.

use super::window::{Lane, Memory, Op, Size, kind};
use crate::trace::{self, Kind, Reader, What};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

/// What a trace has.
#[derive(Default, Serialize)]
pub(super) struct Extent {
    pub(super) program: String,
    pub(super) calls: u64,
    pub(super) mallocs: u64,
    pub(super) callocs: u64,
    pub(super) aligned: u64,
    pub(super) reallocs: u64,
    pub(super) frees: u64,
    /// Of the mallocs and the like: blocks that lived when the trace began.
    pub(super) alive_before: u64,
    pub(super) threads: u64,
    pub(super) threads_at_once: u32,
    pub(super) peak_live: u64,
    pub(super) end_live: u64,
    #[serde(skip)]
    slots: u32,
    #[serde(skip)]
    ends: u64,
}

/// A trace that has been looked through.
pub(super) struct Plan {
    /// Where it is, or a copy of what came through a pipe.
    file: File,
    memory: u64,
    pub(super) extent: Extent,
}

impl Plan {
    /// Looks through a trace, whose blocks may take so many bytes.
    pub(super) fn of(path: &Path, memory: u64) -> Result<Self> {
        let file = rewindable(path)?;
        let mut reader = Reader::of(file.try_clone()?, memory)?;
        let mut extent = Extent {
            program: reader.program.clone(),
            alive_before: reader.alive,
            ..Extent::default()
        };
        let mut running = Vec::new();
        while let Some(step) = reader.step()? {
            let lane = step.thread as usize;
            if running.len() <= lane {
                running.resize(lane + 1, false);
            }
            extent.threads += u64::from(!running[lane]);
            running[lane] = step.what != What::Ended;
            extent.count(step.what);
            extent.peak_live = extent.peak_live.max(reader.live());
        }
        extent.threads_at_once = running.len() as u32;
        extent.end_live = reader.live();
        Ok(Self { file, memory, extent })
    }

    /// What a replay needs.
    pub(super) fn size(&self) -> Size {
        let extent = &self.extent;
        Size::of(extent.threads_at_once, extent.slots, extent.calls + extent.ends)
    }

    /// Its calls from the first on.
    pub(super) fn calls(&self) -> Result<Calls> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        Ok(Calls {
            reader: Reader::of(file, self.memory)?,
            versions: vec![0; self.size().slots as usize],
            lanes: vec![Vec::new(); self.size().lanes as usize],
        })
    }
}

/// A file that can be read from its start again. What is a pipe is copied, if it begins as a trace does.
fn rewindable(path: &Path) -> Result<File> {
    let mut file = File::open(path)?;
    if file.rewind().is_ok() {
        return Ok(file);
    }
    trace::check_magic(&mut file)?;
    let mut copy = tempfile::tempfile().context("a copy of what the pipe has")?;
    copy.write_all(trace::MAGIC)?;
    io::copy(&mut file, &mut copy).context("a copy of what the pipe has")?;
    copy.rewind()?;
    Ok(copy)
}

impl Extent {
    fn count(&mut self, what: What) {
        match what {
            What::Made { slot, kind, .. } => {
                self.slots = self.slots.max(slot + 1);
                match kind {
                    Kind::Malloc => self.mallocs += 1,
                    Kind::Calloc => self.callocs += 1,
                    Kind::Aligned(_) => self.aligned += 1,
                }
            }
            What::Moved { .. } => self.reallocs += 1,
            What::Freed { .. } => self.frees += 1,
            What::Ended => self.ends += 1,
        }
        self.calls += u64::from(what != What::Ended);
    }
}

/// A trace that is being replayed.
pub(super) struct Calls {
    reader: Reader,
    /// How many calls each slot has had.
    versions: Vec<u32>,
    /// What each thread does in the window.
    lanes: Vec<Vec<Op>>,
}

impl Calls {
    /// Fills a window; false if there was nothing more.
    ///
    /// # Safety
    ///
    /// Nobody reads the window meanwhile.
    pub(super) unsafe fn fill(&mut self, memory: &Memory, window: usize) -> Result<bool> {
        let mut index = 0;
        while index < memory.size.window {
            let Some(step) = self.reader.step()? else { break };
            let op = self.op(step.what, index)?;
            let lane = self.lanes.get_mut(step.thread as usize);
            lane.context("the trace has changed")?.push(op);
            index += 1;
        }
        let mut at = 0;
        for (lane, ops) in memory.lanes().iter().zip(&mut self.lanes) {
            // SAFETY: the caller's promise.
            unsafe { memory.write(window, at, ops) };
            set(lane, window, at, ops.len());
            at += ops.len();
            ops.clear();
        }
        Ok(index > 0)
    }

    fn op(&mut self, what: What, index: u32) -> Result<Op> {
        let (slot, size, kind, align_log2) = match what {
            What::Made { slot, kind: Kind::Malloc, size } => (slot, size, kind::MALLOC, 0),
            What::Made { slot, kind: Kind::Calloc, size } => (slot, size, kind::CALLOC, 0),
            What::Made { slot, kind: Kind::Aligned(log2), size } => {
                (slot, size, kind::ALIGNED, log2)
            }
            What::Moved { slot, size } => (slot, size, kind::REALLOC, 0),
            What::Freed { slot } => (slot, 0, kind::FREE, 0),
            What::Ended => {
                return Ok(Op {
                    size: 0,
                    slot: 0,
                    version: 0,
                    index,
                    kind: kind::END,
                    align_log2: 0,
                });
            }
        };
        let version = self.versions.get_mut(slot as usize).context("the trace has changed")?;
        let op = Op { size, slot, version: *version, index, kind, align_log2 };
        *version = version.wrapping_add(1);
        Ok(op)
    }
}

fn set(lane: &Lane, window: usize, at: usize, count: usize) {
    let (first, calls) = &lane.calls[window];
    first.store(at as u32, Ordering::Relaxed);
    calls.store(count as u32, Ordering::Relaxed);
}
