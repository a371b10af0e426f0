//! The memory through which a replaying process gets its calls.
//!
//! Owns its layout. The one idea: everything that a replay needs besides the allocator is here and resident from the
//! start, so that what the process takes more is the allocator's. It must never be read by a process that this one has
//! not started.

use anyhow::{Context, Result};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Calls of a window at most. Two windows take 96 MiB.
const WINDOW_OPS: u64 = 2 << 20;
/// A path is cut off behind so many bytes.
const PATH_BYTES: usize = 1024;

/// What a thread does next.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Op {
    pub(super) size: u64,
    pub(super) slot: u32,
    /// How many calls of the slot's come before.
    pub(super) version: u32,
    /// Where it stands among all threads' calls of the window.
    pub(super) index: u32,
    pub(super) kind: u8,
    pub(super) align_log2: u8,
}

/// Kinds of it.
pub(super) mod kind {
    pub(in crate::replay) const MALLOC: u8 = 0;
    pub(in crate::replay) const CALLOC: u8 = 1;
    pub(in crate::replay) const ALIGNED: u8 = 2;
    pub(in crate::replay) const REALLOC: u8 = 3;
    pub(in crate::replay) const FREE: u8 = 4;
    /// The thread ends, and the next call is another one's.
    pub(in crate::replay) const END: u8 = 5;
}

/// A block of the program's.
#[repr(C)]
pub(super) struct Slot {
    pub(super) block: AtomicU64,
    pub(super) size: AtomicU64,
    /// How many calls there have been.
    pub(super) version: AtomicU32,
}

/// A thread of the program's. On a cache line of its own.
#[repr(C, align(64))]
pub(super) struct Lane {
    /// Which call of the window it is at.
    pub(super) position: AtomicU32,
    /// Whether a thread has it.
    pub(super) is_taken: AtomicU32,
    /// Its calls, in each of the two windows: the first, and how many.
    pub(super) calls: [(AtomicU32, AtomicU32); 2],
}

/// What the replaying process tells.
#[repr(C)]
pub(super) struct Told {
    pub(super) nanoseconds: AtomicU64,
    pub(super) processor_microseconds: AtomicU64,
    pub(super) faults: AtomicU64,
    /// Bytes: resident beyond what was before the first call, at most and at the end.
    pub(super) peak: AtomicU64,
    pub(super) end: AtomicU64,
    /// Calls that have got no memory.
    pub(super) failed: AtomicU64,
    /// The library that has malloc.
    pub(super) library: [AtomicU32; PATH_BYTES / 4],
}

/// How much of what there is.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Size {
    pub(super) lanes: u32,
    pub(super) slots: u32,
    pub(super) window: u32,
}

impl Size {
    /// For a trace with so many calls, and steps of threads that end.
    pub(super) fn of(lanes: u32, slots: u32, steps: u64) -> Self {
        Self { lanes: lanes.max(1), slots: slots.max(1), window: steps.clamp(1, WINDOW_OPS) as u32 }
    }

    fn lanes_at() -> usize {
        (size_of::<Self>() + size_of::<Told>()).next_multiple_of(64)
    }

    fn slots_at(self) -> usize {
        Self::lanes_at() + self.lanes as usize * size_of::<Lane>()
    }

    fn windows_at(self) -> usize {
        self.slots_at() + self.slots as usize * size_of::<Slot>()
    }

    fn bytes(self) -> usize {
        self.windows_at() + 2 * self.window as usize * size_of::<Op>()
    }
}

/// The memory.
pub(super) struct Memory {
    map: MmapRaw,
    pub(super) size: Size,
}

impl Memory {
    /// New memory, and what another process opens it by.
    pub(super) fn new(size: Size) -> Result<(Self, File)> {
        let make = || -> Result<_> {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = File::from(rustix::fs::memfd_create("cairn-replay", flags)?);
            file.set_len(size.bytes() as u64)?;
            let map = MmapOptions::new().populate().map_raw(&file)?;
            // SAFETY: the mapping is that large, and new: nobody else has it.
            unsafe { map.as_mut_ptr().cast::<Size>().write(size) };
            Ok((Self { map, size }, file))
        };
        make().context("no memory for the replay")
    }

    /// The memory of a process that has started this one.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let map = MmapOptions::new().populate().map_raw(&file)?;
        // SAFETY: whoever has started this process has written it there.
        let size = unsafe { map.as_mut_ptr().cast::<Size>().read() };
        anyhow::ensure!(size.bytes() == map.len(), "not the memory of a replay");
        Ok(Self { map, size })
    }

    pub(super) fn told(&self) -> &Told {
        // SAFETY: it is inside the mapping, aligned to 8, and all of it are atomics.
        unsafe { &*self.map.as_mut_ptr().add(size_of::<Size>().next_multiple_of(8)).cast() }
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        // SAFETY: the size tells where they are and how many; all of it are atomics.
        unsafe {
            let first = self.map.as_mut_ptr().add(Size::lanes_at()).cast();
            std::slice::from_raw_parts(first, self.size.lanes as usize)
        }
    }

    pub(super) fn slots(&self) -> &[Slot] {
        // SAFETY: as above.
        unsafe {
            let first = self.map.as_mut_ptr().add(self.size.slots_at()).cast();
            std::slice::from_raw_parts(first, self.size.slots as usize)
        }
    }

    /// The calls of a window.
    ///
    /// # Safety
    ///
    /// Nobody writes them meanwhile.
    pub(super) unsafe fn ops(&self, window: usize) -> &[Op] {
        // SAFETY: the size tells where they are and how many; every value is one, and the caller's promise.
        unsafe { std::slice::from_raw_parts(self.first_op(window), self.size.window as usize) }
    }

    /// Writes calls into a window.
    ///
    /// # Safety
    ///
    /// Nobody reads the window meanwhile.
    pub(super) unsafe fn write(&self, window: usize, at: usize, ops: &[Op]) {
        assert!(at + ops.len() <= self.size.window as usize);
        // SAFETY: inside the window, and the caller's promise.
        unsafe {
            self.first_op(window).add(at).copy_from_nonoverlapping(ops.as_ptr(), ops.len());
        }
    }

    fn first_op(&self, window: usize) -> *mut Op {
        assert!(window < 2);
        let at = self.size.windows_at() + window * self.size.window as usize * size_of::<Op>();
        // SAFETY: both windows are inside the mapping.
        unsafe { self.map.as_mut_ptr().add(at).cast() }
    }
}
