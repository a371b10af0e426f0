//! Writes traces.
//!
//! Owns a file that is being made. The one idea: a step is a few bytes that repeat, and zstd does the rest. It must
//! never be taken for whole before its end is written.

use super::slots::{BlockSlots, Slots};
use super::{ALIGN_LOG2_MAX, Kind, MAGIC, NAME_MAX, tag};
use anyhow::{Context, Result};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Steps are handed on in such pieces.
const PIECE_BYTES: usize = 64 << 10;

/// Of zstd: it keeps up with programs that allocate all the time.
const LEVEL: i32 = 1;

/// A file that is being made.
pub(crate) struct Writer {
    file: zstd::Encoder<'static, Counted>,
    piece: Vec<u8>,
    blocks: BlockSlots,
    threads: Slots,
    /// The numbers of the program's threads in the file.
    numbers: FxHashMap<u32, u32>,
    /// The thread whose steps follow, and its number.
    current: Option<(u32, u32)>,
    calls: u64,
}

/// A file, and how much has been written.
struct Counted {
    file: File,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Writer {
    /// A new file in the place of another: the trace of a program, of which so many blocks come first that lived before.
    pub(crate) fn create(path: &Path, program: &str, alive: u64) -> Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(MAGIC)?;
        let counted = Counted { file, bytes: MAGIC.len() as u64 };
        let mut file = zstd::Encoder::new(counted, LEVEL)?;
        file.include_checksum(true)?;
        let mut writer = Self {
            file,
            piece: Vec::with_capacity(PIECE_BYTES + 64),
            blocks: BlockSlots::default(),
            threads: Slots::default(),
            numbers: FxHashMap::default(),
            current: None,
            calls: 0,
        };
        let name = &program.as_bytes()[..program.len().min(NAME_MAX)];
        writer.number(name.len() as u64);
        writer.piece.extend_from_slice(name);
        writer.number(alive);
        Ok(writer)
    }

    /// Bytes of the file so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.get_ref().bytes
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// A new block.
    pub(crate) fn made(&mut self, thread: u32, kind: Kind, size: u64) -> Result<u32> {
        let number = self.turn_to(thread)?;
        let slot =
            self.blocks.take(number).context("more blocks at once than a trace can number")?;
        let first = match kind {
            Kind::Malloc => tag::MALLOC,
            Kind::Calloc => tag::CALLOC,
            Kind::Aligned(log2) => tag::ALIGNED | log2.min(ALIGN_LOG2_MAX) << 3,
        };
        self.call(first, &[size])?;
        Ok(slot)
    }

    /// A block has another size.
    pub(crate) fn moved(&mut self, thread: u32, slot: u32, size: u64) -> Result<()> {
        self.turn_to(thread)?;
        self.call(tag::REALLOC, &[slot.into(), size])
    }

    /// A block is free.
    pub(crate) fn freed(&mut self, thread: u32, slot: u32) -> Result<()> {
        self.turn_to(thread)?;
        self.blocks.give_back(slot);
        self.call(tag::FREE, &[slot.into()])
    }

    /// A thread has ended.
    pub(crate) fn ended(&mut self, thread: u32) -> Result<()> {
        if !self.numbers.contains_key(&thread) {
            return Ok(());
        }
        self.turn_to(thread)?;
        self.current = None;
        if let Some(number) = self.numbers.remove(&thread) {
            self.threads.give_back(number);
        }
        self.step(tag::GONE, &[])
    }

    /// Writes the end, and returns how large the file is.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.step(tag::END, &[self.calls])?;
        self.file.write_all(&self.piece)?;
        let counted = self.file.finish()?;
        Ok(counted.bytes)
    }

    /// The next steps are this thread's, whose number is returned.
    fn turn_to(&mut self, thread: u32) -> Result<u32> {
        match self.current {
            Some((current, number)) if current == thread => return Ok(number),
            _ => {}
        }
        let number = match self.numbers.get(&thread) {
            Some(&number) => number,
            None => {
                let number = self.threads.take().context("more threads than a trace can number")?;
                self.numbers.insert(thread, number);
                number
            }
        };
        self.current = Some((thread, number));
        self.step(tag::THREAD, &[number.into()])?;
        Ok(number)
    }

    fn call(&mut self, first: u8, numbers: &[u64]) -> Result<()> {
        self.calls += 1;
        self.step(first, numbers)
    }

    fn step(&mut self, first: u8, numbers: &[u64]) -> Result<()> {
        self.piece.push(first);
        for &number in numbers {
            self.number(number);
        }
        if self.piece.len() >= PIECE_BYTES {
            self.file.write_all(&self.piece)?;
            self.piece.clear();
        }
        Ok(())
    }

    fn number(&mut self, mut number: u64) {
        while number >= 128 {
            self.piece.push(number as u8 | 128);
            number >>= 7;
        }
        self.piece.push(number as u8);
    }
}
