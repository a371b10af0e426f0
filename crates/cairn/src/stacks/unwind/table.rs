//! Owns: how the tables of a file are read: the search in `.eh_frame_hdr`, an entry of `.eh_frame`, and its instructions.
//! Idea: of all registers two matter; what depends on others has no rule.
//! Never: reads beyond the file's addresses, or relies on it that the file stays loaded.
//! Threads: any.
//! Checked: tests/unwind.rs
//! Story: docs/guide/profile.md

use super::Rule;
use crate::os::{self, UnwindTable};
use core::cell::Cell;

// Formats: DWARF 5, section 6.4, and the System V ABI for x86-64, sections 3.7 and 4.2.4.

/// Registers by their numbers on x86-64.
const FRAME: u64 = 6;
const STACK: u64 = 7;
const BACK: u64 = 16;
const WORD: i64 = 8;

/// Offsets of 4 bytes from the place where they stand, and from the table's start.
const FROM_HERE: u8 = 0x1b;
const FROM_START: u8 = 0x3b;
const UNSIGNED_4: u8 = 0x03;

/// Bytes that are read at once: all that is taken as one, with what follows it, which most entries are.
const PIECE_BYTES: usize = 128;

/// A file, and what of it has been read last.
struct File {
    /// Its first address, and the one behind its last.
    range: (usize, usize),
    /// It is not unloaded while the process runs.
    stays: bool,
    /// Where the piece comes from, and how many bytes it has.
    from: Cell<usize>,
    count: Cell<usize>,
    piece: Cell<[u8; PIECE_BYTES]>,
}

impl File {
    /// The program's own file stays, and that which has cairn.
    fn new(range: (usize, usize)) -> File {
        let stays = [os::entry_point(), rule as *const () as usize];
        let stays = stays.iter().any(|place| (range.0..range.1).contains(place));
        let piece = Cell::new([0; PIECE_BYTES]);
        File { range, stays, from: Cell::new(0), count: Cell::new(0), piece }
    }

    /// Where `count` bytes are that stand at `at`: they can be read until more is asked for. Another file than those that stay
    /// may go meanwhile: the system reads it, and answers where a touch would fault.
    #[inline(never)]
    fn bytes(&self, at: usize, count: usize) -> Option<*const u8> {
        if self.stays {
            return Some(core::ptr::with_exposed_provenance(at));
        }
        let piece = self.piece.as_ptr();
        let mut into = at.wrapping_sub(self.from.get());
        if into.saturating_add(count) > self.count.get() {
            // SAFETY: nobody else has it.
            self.count.set(os::read_own(at, unsafe { &mut *piece }));
            self.from.set(at);
            into = 0;
        }
        (into + count <= self.count.get())
            .then(|| piece.cast::<u8>().wrapping_add(into).cast_const())
    }
}

/// Bytes that are read one after the other, up to an end. Beyond it, and below the file's first, there are none.
#[derive(Clone, Copy)]
struct Reader<'a> {
    file: &'a File,
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        if self.at < self.file.range.0 || self.end.checked_sub(self.at)? < N {
            return None;
        }
        let place = self.file.bytes(self.at, N)?.cast::<[u8; N]>();
        self.at += N;
        // SAFETY: there are as many bytes. Inside a file that stays loaded no linker's table leads into a gap between its
        // parts. Any bytes are an array.
        Some(unsafe { place.read_unaligned() })
    }

    // Not inlined, all three: there are many calls, and speed does not matter.
    #[inline(never)]
    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    #[inline(never)]
    fn half(&mut self) -> Option<u64> {
        Some(u16::from_le_bytes(self.take()?).into())
    }

    #[inline(never)]
    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take()?))
    }

    /// An offset of 4 bytes from where it stands.
    fn place_from_here(&mut self) -> Option<usize> {
        let here = self.at;
        Some(here.wrapping_add_signed(self.word()?.cast_signed() as isize))
    }

    #[inline(never)]
    fn unsigned(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
            if shift > 56 {
                return None;
            }
        }
    }

    fn signed(&mut self) -> Option<i64> {
        let before = self.at;
        let value = self.unsigned()?.cast_signed();
        let bits = 7 * (self.at - before) as u32;
        Some(value << (64 - bits) >> (64 - bits))
    }

    /// What follows, as long as the next number says: it is left out here.
    fn part(&mut self, length: u64) -> Option<Reader<'a>> {
        let end = self.at.checked_add(length as usize).filter(|&end| end <= self.end)?;
        let part = Reader { end, ..*self };
        self.at = end;
        Some(part)
    }
}

/// The rule for an address in the file.
#[cold]
#[inline(never)]
pub(super) fn rule(table: &UnwindTable, address: usize) -> Option<Rule> {
    let file = File::new(table.range);
    let start = Reader { file: &file, at: table.start, end: table.range.1 };
    let entry = Entry::read(Reader { at: find(start, address)?, ..start })?;
    let into = address.checked_sub(entry.from).filter(|&into| into < entry.length)?;
    let mut state = State::NEW;
    state.run(&entry.common, entry.common.instructions, usize::MAX)?;
    state.first = state.saved;
    state.run(&entry.common, entry.instructions, into)?;
    state.rule()
}

/// Where the entry is that may have the address.
fn find(mut head: Reader<'_>, address: usize) -> Option<usize> {
    let start = head.at;
    let [version, to_frames, count, entries] = head.take()?;
    if (version, to_frames, count, entries) != (1, FROM_HERE, UNSIGNED_4, FROM_START) {
        return None;
    }
    head.word()?;
    let (mut low, mut high) = (0, head.word()? as usize);
    let first = head.at;
    let pair = |nth: usize| {
        let mut at = Reader { at: first.checked_add(8 * nth)?, ..head };
        let [from, entry] = [at.word()?, at.word()?];
        let place = |offset: u32| start.wrapping_add_signed(offset.cast_signed() as isize);
        Some((place(from), place(entry)))
    };
    // The last one that begins at the address or before it.
    while low < high {
        let middle = low + (high - low) / 2;
        if pair(middle)?.0 <= address { low = middle + 1 } else { high = middle }
    }
    Some(pair(low.checked_sub(1)?)?.1)
}

/// What entries have in common.
struct Common<'a> {
    code_unit: u64,
    data_unit: i64,
    instructions: Reader<'a>,
}

impl<'a> Common<'a> {
    fn read(mut all: Reader<'a>) -> Option<Common<'a>> {
        let length = all.word()?;
        let mut all = all.part(length.into())?;
        let (id, version) = (all.word()?, all.byte()?);
        if id != 0 || length == u32::MAX || !matches!(version, 1 | 3) {
            return None;
        }
        let mut names = all;
        while all.byte()? != 0 {}
        let (code_unit, data_unit) = (all.unsigned()?, all.signed()?);
        let back = if version == 1 { all.byte()?.into() } else { all.unsigned()? };
        if back != BACK {
            return None;
        }
        if names.byte()? != b'z' {
            return None;
        }
        let length = all.unsigned()?;
        Common::check(names, all.part(length)?)?;
        Some(Common { code_unit, data_unit, instructions: all })
    }

    /// An offset in bytes that is said in units.
    fn bytes(&self, units: u64) -> i64 {
        self.signed_bytes(units.cast_signed())
    }

    fn signed_bytes(&self, units: i64) -> i64 {
        units.wrapping_mul(self.data_unit)
    }

    /// What is said of each letter; places must be offsets of 4 bytes, and frames of signals are no calls.
    fn check(mut names: Reader<'_>, mut said: Reader<'_>) -> Option<()> {
        let mut is_from_here = false;
        loop {
            match names.byte()? {
                0 => return is_from_here.then_some(()),
                b'R' => is_from_here = said.byte()? == FROM_HERE,
                b'L' => _ = said.byte()?,
                b'P' => {
                    // Its low bits are its size: 0 is a word, 2 to 4 are 2, 4 and 8 bytes.
                    let bytes = match said.byte()? & 7 {
                        0 | 4 => 8,
                        2 => 2,
                        3 => 4,
                        _ => return None,
                    };
                    said.part(bytes)?;
                }
                _ => return None,
            }
        }
    }
}

/// What is said of a function.
struct Entry<'a> {
    from: usize,
    length: usize,
    common: Common<'a>,
    instructions: Reader<'a>,
}

impl<'a> Entry<'a> {
    fn read(mut all: Reader<'a>) -> Option<Entry<'a>> {
        let length = all.word()?;
        if length == u32::MAX {
            return None;
        }
        let mut all = all.part(length.into())?;
        let here = all.at;
        let at = here.checked_sub(all.word()? as usize).filter(|&at| at != here)?;
        let common = Common::read(Reader { at, ..all })?;
        let (from, length) = (all.place_from_here()?, all.word()? as usize);
        let said = all.unsigned()?;
        all.part(said)?;
        Some(Entry { from, length, common, instructions: all })
    }
}

/// From which register the caller's stack pointer is counted, and how far; none: by other means.
type Up = Option<(u64, i64)>;

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    InRegister,
    /// So far above the caller's stack pointer.
    At(i64),
    Unknown,
}

/// What has been said up to an instruction.
#[derive(Clone, Copy)]
struct State {
    up: Up,
    saved: Saved,
    /// The return address is right below the caller's stack pointer.
    has_back: bool,
    /// There is none.
    is_outermost: bool,
    remembered: [(Up, Saved); REMEMBERED],
    depth: usize,
    /// Where the frame pointer is that all entries begin with.
    first: Saved,
}

/// Compilers remember one state, around an early return.
const REMEMBERED: usize = 4;

impl State {
    const NEW: State = State {
        up: None,
        saved: Saved::InRegister,
        has_back: false,
        is_outermost: false,
        remembered: [(None, Saved::InRegister); REMEMBERED],
        depth: 0,
        first: Saved::InRegister,
    };

    fn rule(&self) -> Option<Rule> {
        if self.is_outermost {
            return Some(Rule::OUTERMOST);
        }
        let (register, bytes) = self.up?;
        let up = usize::try_from(bytes).ok()?;
        let saved = match self.saved {
            Saved::InRegister => 0,
            Saved::At(bytes) => usize::try_from(bytes.checked_neg()?).ok().filter(|&at| at > 0)?,
            Saved::Unknown => return None,
        };
        let is_known = matches!(register, FRAME | STACK) && self.has_back;
        let is_whole = up.is_multiple_of(8) && saved.is_multiple_of(8);
        let by_frame = register == FRAME;
        (is_known && is_whole).then_some(Rule { by_frame, up: up / 8, saved: saved / 8 })
    }

    /// A register has been stored so far above the caller's stack pointer.
    fn store(&mut self, register: u64, bytes: i64) {
        match register {
            FRAME => self.saved = Saved::At(bytes),
            BACK => self.has_back = bytes == -WORD,
            _ => {}
        }
    }

    /// It cannot be found by what is known here.
    fn lose(&mut self, register: u64) {
        match register {
            FRAME => self.saved = Saved::Unknown,
            BACK => self.has_back = false,
            _ => {}
        }
    }

    fn remember(&mut self) -> Option<()> {
        *self.remembered.get_mut(self.depth)? = (self.up, self.saved);
        self.depth += 1;
        Some(())
    }

    fn recall(&mut self) -> Option<()> {
        self.depth = self.depth.checked_sub(1)?;
        (self.up, self.saved) = *self.remembered.get(self.depth)?;
        Some(())
    }

    /// Follows instructions up to `into` bytes behind the function's start; none where one is not known.
    fn run(&mut self, common: &Common<'_>, mut at: Reader<'_>, into: usize) -> Option<()> {
        let mut place = 0u64;
        while at.at < at.end {
            let code = at.byte()?;
            let low = u64::from(code & 0x3f);
            let mut steps = 0;
            match (code >> 6, code) {
                (1, _) => steps = low,
                (2, _) => self.store(low, common.bytes(at.unsigned()?)),
                (3, _) => self.restore(low),
                (_, 0x02) => steps = at.byte()?.into(),
                (_, 0x03) => steps = at.half()?,
                (_, 0x04) => steps = at.word()?.into(),
                _ => self.follow(code, &mut at, common)?,
            }
            place = place.checked_add(steps.checked_mul(common.code_unit)?)?;
            if place > into as u64 {
                break;
            }
        }
        Some(())
    }

    /// Back to what all entries begin with.
    fn restore(&mut self, register: u64) {
        if register == FRAME {
            self.saved = self.first;
        }
    }

    /// An instruction that has a byte for itself and is no step.
    fn follow(&mut self, code: u8, at: &mut Reader<'_>, common: &Common<'_>) -> Option<()> {
        match code {
            // Nothing; bytes of arguments on the stack.
            0x00 => {}
            0x2e => _ = at.unsigned()?,
            // Stored at, in units; signed.
            0x05 => {
                let register = at.unsigned()?;
                self.store(register, common.bytes(at.unsigned()?));
            }
            0x11 => {
                let register = at.unsigned()?;
                self.store(register, common.signed_bytes(at.signed()?));
            }
            0x06 => self.restore(at.unsigned()?),
            // Undefined; the same as ever.
            0x07 => {
                let register = at.unsigned()?;
                self.is_outermost |= register == BACK;
                self.lose(register);
            }
            0x08 => {
                if at.unsigned()? == FRAME {
                    self.saved = Saved::InRegister;
                }
            }
            // In another register; a value, not a place; the same, signed.
            0x09 | 0x14 | 0x15 => {
                self.lose(at.unsigned()?);
                at.unsigned()?;
            }
            0x0a => self.remember()?,
            0x0b => self.recall()?,
            // The caller's stack pointer: register and offset, each alone; signed, in units.
            0x0c => self.up = Some((at.unsigned()?, at.unsigned()?.cast_signed())),
            0x0d => self.up = Some((at.unsigned()?, self.up?.1)),
            0x0e => self.up = Some((self.up?.0, at.unsigned()?.cast_signed())),
            0x12 => self.up = Some((at.unsigned()?, common.signed_bytes(at.signed()?))),
            0x13 => self.up = Some((self.up?.0, common.signed_bytes(at.signed()?))),
            // By an expression: that of the caller's stack pointer; of a register's place or value.
            0x0f => {
                let length = at.unsigned()?;
                at.part(length)?;
                self.up = None;
            }
            0x10 | 0x16 => {
                self.lose(at.unsigned()?);
                let length = at.unsigned()?;
                at.part(length)?;
            }
            _ => return None,
        }
        Some(())
    }
}
