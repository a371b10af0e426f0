//! Reads traces.
//!
//! Owns what a file may say. The one idea: whoever gets a step need not check it: sizes are bounded, a slot that is freed
//! is live, and a thread is one that runs. It must never hold more than the live blocks of the file ask for, which are
//! bounded.

use super::slots::{BlockSlots, Slots};
use super::{Kind, MAGIC, NAME_MAX, SIZE_MAX, tag};
use crate::units::human;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, ErrorKind, Read};

/// The window of zstd at most, as a power of two: what level 1 makes is far below.
const WINDOW_LOG2_MAX: u32 = 23;
/// What a block takes at least, so that many small ones are bounded, too.
const BLOCK_BYTES_MIN: u64 = 32;
/// Threads at once.
const THREADS_MAX: u32 = 4096;
/// Bytes that may live at once, at most: with one more block they can still be counted.
const MOST_MAX: u64 = 1 << 62;

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) thread: u32,
    pub(crate) what: What,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    Made { slot: u32, kind: Kind, size: u64 },
    Moved { slot: u32, size: u64 },
    Freed { slot: u32 },
    Ended,
}

/// Reads how a trace begins.
pub(crate) fn check_magic(file: &mut impl Read) -> Result<()> {
    let mut magic = [0; MAGIC.len()];
    let is_trace = file.read_exact(&mut magic).is_ok() && magic == *MAGIC;
    ensure!(is_trace, "no trace that `cairn record` of this version has made");
    Ok(())
}

/// A file that is being read.
pub(crate) struct Reader {
    input: BufReader<Box<dyn Read>>,
    /// What the program was called.
    pub(crate) program: String,
    /// How many blocks it had before the first call.
    pub(crate) alive: u64,
    /// Sizes by slot.
    sizes: Vec<Option<u64>>,
    blocks: BlockSlots,
    running: Vec<bool>,
    threads: Slots,
    current: Option<u32>,
    calls: u64,
    /// The bytes of all live blocks, and those with what small ones take.
    live: u64,
    weight: u64,
    most: u64,
    is_over: bool,
}

impl Reader {
    /// Reads a trace from its start, of which at most so many bytes may be live at once.
    pub(crate) fn of(file: impl Read + 'static, most: u64) -> Result<Self> {
        let mut file = BufReader::new(file);
        check_magic(&mut file)?;
        let mut input = zstd::Decoder::with_buffer(file)?;
        input.window_log_max(WINDOW_LOG2_MAX)?;
        Self::of_contents(Box::new(input), most)
    }

    /// The same of what is in the frame.
    pub(crate) fn of_contents(contents: Box<dyn Read>, most: u64) -> Result<Self> {
        let mut reader = Self {
            input: BufReader::with_capacity(64 << 10, contents),
            program: String::new(),
            alive: 0,
            sizes: Vec::new(),
            blocks: BlockSlots::default(),
            running: Vec::new(),
            threads: Slots::default(),
            current: None,
            calls: 0,
            live: 0,
            weight: 0,
            most: most.min(MOST_MAX),
            is_over: false,
        };
        let length = reader.number()?;
        ensure!(length <= NAME_MAX as u64, "damaged: a name of {length} bytes");
        let name = (0..length).map(|_| reader.byte()).collect::<Result<Vec<_>>>()?;
        reader.program = String::from_utf8_lossy(&name).into_owned();
        reader.alive = reader.number()?;
        Ok(reader)
    }

    /// Bytes that the program has at this place.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// The next step; none at the end.
    pub(crate) fn step(&mut self) -> Result<Option<Step>> {
        if self.is_over {
            return Ok(None);
        }
        let calls = self.calls;
        self.checked_step().with_context(|| format!("after {calls} calls"))
    }

    fn checked_step(&mut self) -> Result<Option<Step>> {
        loop {
            let first = self.byte()?;
            match first & 7 {
                tag::THREAD => self.turn()?,
                tag::END => return self.end(),
                kind => {
                    let thread = self.current.context("damaged: a step of no thread")?;
                    let what = self.what(kind, first >> 3, thread)?;
                    return Ok(Some(Step { thread, what }));
                }
            }
        }
    }

    fn what(&mut self, kind: u8, bits: u8, thread: u32) -> Result<What> {
        if kind == tag::GONE {
            self.running[thread as usize] = false;
            self.threads.give_back(thread);
            self.current = None;
            return Ok(What::Ended);
        }
        self.calls += 1;
        Ok(match kind {
            tag::REALLOC => {
                let slot = self.slot()?;
                let size = self.size()?;
                self.set(slot, Some(size))?;
                What::Moved { slot, size }
            }
            tag::FREE => {
                let slot = self.slot()?;
                self.set(slot, None)?;
                self.blocks.give_back(slot);
                What::Freed { slot }
            }
            _ => {
                let size = self.size()?;
                let slot = self.blocks.take(thread).context("damaged: too many blocks")?;
                if slot as usize >= self.sizes.len() {
                    self.add_slots()?;
                }
                self.set(slot, Some(size))?;
                let kind = match kind {
                    tag::MALLOC => Kind::Malloc,
                    tag::CALLOC => Kind::Calloc,
                    _ => Kind::Aligned(bits),
                };
                What::Made { slot, kind, size }
            }
        })
    }

    /// A thread that runs, or a new one.
    fn turn(&mut self) -> Result<()> {
        let number = self.number()?;
        let thread = u32::try_from(number).context("damaged: a thread's number")?;
        match self.running.get(thread as usize) {
            Some(true) => {}
            _ if thread != self.threads.next() => bail!("damaged: a thread's number"),
            _ => {
                ensure!(thread < THREADS_MAX, "more than {THREADS_MAX} threads at once");
                self.threads.take();
                self.running.resize(self.running.len().max(thread as usize + 1), false);
                self.running[thread as usize] = true;
            }
        }
        self.current = Some(thread);
        Ok(())
    }

    fn end(&mut self) -> Result<Option<Step>> {
        let said = self.number()?;
        ensure!(said == self.calls, "damaged: its end tells of {said} calls");
        let rest = self.input.fill_buf().context("damaged")?;
        ensure!(rest.is_empty(), "damaged: something follows its end");
        self.is_over = true;
        Ok(None)
    }

    /// A live block's.
    fn slot(&mut self) -> Result<u32> {
        let number = self.number()?;
        let is_live = |at: &u64| matches!(self.sizes.get(*at as usize), Some(Some(_)));
        let slot = Some(number).filter(is_live).context("damaged: a block that is not there")?;
        Ok(slot as u32)
    }

    fn size(&mut self) -> Result<u64> {
        let size = self.number()?;
        ensure!(size <= SIZE_MAX, "damaged: a block of {size} bytes");
        Ok(size)
    }

    fn add_slots(&mut self) -> Result<()> {
        let end = self.blocks.end();
        self.bound(end as u64 * BLOCK_BYTES_MIN)?;
        self.sizes.resize(end, None);
        Ok(())
    }

    fn bound(&self, bytes: u64) -> Result<()> {
        ensure!(
            bytes <= self.most,
            "its blocks take {}, more than the {} that --memory allows",
            human(bytes),
            human(self.most)
        );
        Ok(())
    }

    fn set(&mut self, slot: u32, size: Option<u64>) -> Result<()> {
        let place = &mut self.sizes[slot as usize];
        let weight = |size: Option<u64>| size.map_or(0, |size| size.max(BLOCK_BYTES_MIN));
        self.live = self.live - place.unwrap_or(0) + size.unwrap_or(0);
        self.weight = self.weight - weight(*place) + weight(size);
        *place = size;
        self.bound(self.weight)
    }

    fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(number);
            }
        }
        bail!("damaged: a number without an end")
    }

    fn byte(&mut self) -> Result<u8> {
        let there = match self.input.fill_buf() {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => &[],
            Err(error) => return Err(error).context("damaged"),
        };
        let byte = *there.first().context("it ends early: it is not whole")?;
        self.input.consume(1);
        Ok(byte)
    }
}
