//! Owns: the header of a target, and every address that is computed from it.
//! Idea: what does not fit together is refused here, once; the rest need not ask whether a number is small.
//! Never: has a number that another one contradicts: sizes of tables are bounded, fields lie in what holds them.
//! Threads: one.
//! Checked: tests/hostile.rs of the command.
//! Story: docs/design/outside-view.md

use crate::Error;
use crate::memory::{ADDRESSES, Memory, u16_at, u32_at, u64_at};
use std::ops::Range;

pub(crate) const MAGIC: [u8; 8] = *b"CAIRNHDR";
/// The version of the library's header that is understood.
pub const VERSION: u32 = 8;
/// How long a header of it is that says all that is asked.
const BYTES: usize = 144;
/// Where a longer one says where the heap profile is.
const PROFILE: usize = 144;
/// Where one that is longer still says where large blocks and mappings name their owners.
const OWNERS: usize = 152;
/// Bytes of `struct cairn_map`.
const MAP_BYTES: usize = 72;
/// How often what changes meanwhile is read again.
pub(crate) const TRIES: usize = 4;

/// A size class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) slices: u64,
    pub(crate) slack: u64,
}

/// What a target's header says, and what it leads to.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) classes: Vec<Class>,
    pub(crate) slice_shift: u32,
    pub(crate) descriptor_bytes: u64,
    pub(crate) section_slices: u64,
    section_bytes: u64,
    slot_bytes: u64,
    words_offset: u64,
    pub(crate) heap_bytes: u64,
    pub(crate) until_event: u64,
    pub(crate) used_after_event: u64,
    pub(crate) carved: u64,
    pub(crate) start: u64,
    pub(crate) free: u64,
    pub(crate) hidden: u64,
    slots_offset: u64,
    chunk_bytes: u64,
    /// None in the hardened build.
    aside_offset: Option<u64>,
    aside_bytes: u64,
    /// The end of lists, and what links are combined with.
    pub(crate) end: u64,
    pub(crate) key: u64,
    pub(crate) mappings: u64,
    pub(crate) mapping_bytes: u64,
    descriptors: u64,
    mask: u64,
    pub(crate) base: u64,
    pub(crate) slices: u64,
    sections: u64,
    pub(crate) heaps: u64,
    pub(crate) heap_limit: u64,
    pub(crate) committed: u64,
    /// What leads to the heap profile; 0: nothing does.
    pub(crate) profile: u64,
    /// Where a large block's slot has a word that is not 0 if it is a heap's of the program, if that is known.
    pub(crate) large_owner: Option<u64>,
    /// The same of a mapping's entry.
    pub(crate) mapping_owner: Option<u64>,
}

impl Header {
    pub(crate) fn read(memory: &dyn Memory, at: u64) -> Result<Header, Error> {
        let mut bytes = [0; BYTES];
        if !memory.read(at, &mut bytes[..16]) || !bytes.starts_with(&MAGIC) {
            return Err(Error::Damaged("what is called cairn_header is none"));
        }
        let (version, length) = (u32_at(&bytes, 8), u32_at(&bytes, 12));
        if version != VERSION {
            return Err(Error::Version(version, VERSION));
        }
        if (length as usize) < BYTES {
            return Err(Error::Older(length));
        }
        let mut map = [0; MAP_BYTES];
        let mut key = [0; 8];
        let is_there = memory.read(at, &mut bytes)
            && memory.read(u64_at(&bytes, 16), &mut map)
            && memory.read(u64_at(&bytes, 96).wrapping_add(16), &mut key);
        if !is_there {
            return Err(Error::Damaged("its header leads nowhere"));
        }
        let mut header = Header::of(&bytes, &map, u64::from_ne_bytes(key));
        if header.base == 0 || header.committed == 0 {
            return Err(Error::Unused);
        }
        if length as usize >= PROFILE + 8 {
            header.profile = memory.number(at.wrapping_add(PROFILE as u64)).unwrap_or(0);
        }
        if length as usize >= OWNERS + 8 {
            let both = memory.number(at.wrapping_add(OWNERS as u64)).map(u64::to_ne_bytes);
            let offset = |nth| both.map(|both| u64::from(u32_at(&both, nth)));
            (header.large_owner, header.mapping_owner) = (offset(0), offset(4));
        }
        header.read_classes(memory, &bytes)?;
        header.check()?;
        Ok(header)
    }

    fn of(bytes: &[u8], map: &[u8], key: u64) -> Header {
        let number = |at| u64::from(u32_at(bytes, at));
        Header {
            classes: Vec::new(),
            slice_shift: u32_at(bytes, 40),
            descriptor_bytes: number(44),
            section_slices: number(48),
            section_bytes: number(52),
            slot_bytes: number(56),
            words_offset: number(60),
            heap_bytes: number(64),
            until_event: number(68),
            used_after_event: number(72),
            carved: number(76),
            start: number(80),
            slots_offset: number(84),
            chunk_bytes: number(88),
            end: u64_at(bytes, 96),
            key,
            mappings: u64_at(bytes, 112),
            mapping_bytes: number(120),
            free: number(124),
            hidden: number(128),
            aside_offset: Some(number(132)).filter(|&offset| offset != 0),
            aside_bytes: number(136),
            descriptors: u64_at(map, 0),
            mask: u64_at(map, 8),
            base: u64_at(map, 16),
            slices: u64_at(map, 24),
            sections: u64_at(map, 40),
            heaps: u64_at(map, 48),
            heap_limit: u64_at(map, 56),
            committed: u64_at(map, 64),
            profile: 0,
            large_owner: None,
            mapping_owner: None,
        }
    }

    fn read_classes(&mut self, memory: &dyn Memory, bytes: &[u8]) -> Result<(), Error> {
        let (count, each) = (u32_at(bytes, 32) as usize, u32_at(bytes, 36) as usize);
        let damaged = Error::Damaged("its size classes are none");
        if !(1..=256).contains(&count) || !(12..=256).contains(&each) {
            return Err(damaged);
        }
        let mut table = vec![0; count * each];
        if !memory.read(u64_at(bytes, 24), &mut table) {
            return Err(damaged);
        }
        self.classes.extend(table.chunks_exact(each).map(|class| Class {
            size: u32_at(class, 0).into(),
            blocks: u16_at(class, 4).into(),
            slices: u16_at(class, 6).into(),
            slack: u32_at(class, 8).into(),
        }));
        let fits = |class: &Class| {
            class.size >= 16
                && class.blocks > 0
                && class.slices.is_power_of_two()
                && class.slices <= 1024
                && self.slice_shift <= 24
                && class.slack + class.blocks * class.size <= class.slices << self.slice_shift
        };
        if self.classes.iter().all(fits) { Ok(()) } else { Err(damaged) }
    }

    /// Whether all fits together.
    fn check(&self) -> Result<(), Error> {
        let in_slot = |offset: u64, bytes: u64| offset + bytes <= self.slot_bytes;
        let chunks = self.section_slices.div_ceil(64);
        let tables = [
            self.words_offset + chunks * self.chunk_bytes,
            self.slots_offset + self.section_slices * self.slot_bytes,
            self.aside_offset.unwrap_or(0) + self.section_slices * self.aside_bytes,
        ];
        let sound = (12..=24).contains(&self.slice_shift)
            && (16..=256).contains(&self.descriptor_bytes)
            && self.descriptor_bytes.is_power_of_two()
            && (64..=1 << 16).contains(&self.section_slices)
            && self.section_slices.is_power_of_two()
            && self.section_bytes <= 1 << 26
            && (16..=256).contains(&self.slot_bytes)
            && (64 * 8..=1 << 16).contains(&self.chunk_bytes)
            && self.words_offset + 64 * 8 <= self.chunk_bytes
            && self.aside_bytes <= 4096
            && tables.iter().all(|&end| end <= self.section_bytes)
            && in_slot(self.until_event, 4)
            && in_slot(self.used_after_event, 2)
            && in_slot(self.carved, 2)
            && in_slot(self.hidden, 2)
            && in_slot(self.start, 8)
            && in_slot(self.free, 8)
            && self.large_owner.is_none_or(|offset| in_slot(offset, 8))
            && self.mapping_owner.is_none_or(|offset| offset + 8 <= self.mapping_bytes)
            && (24..=256).contains(&self.mapping_bytes)
            && (512..=1 << 20).contains(&self.heap_bytes)
            && self.heap_limit <= 1 << 20
            && self.classes.len() as u64 * 8 <= self.heap_bytes;
        if !sound {
            return Err(Error::Damaged("its header contradicts itself"));
        }
        self.check_map()
    }

    fn check_map(&self) -> Result<(), Error> {
        let most = ADDRESSES >> self.slice_shift;
        let has = |start: u64, count: u64, bytes: u64| {
            let end = count.checked_mul(bytes).and_then(|all| start.checked_add(all));
            start != 0 && end.is_some_and(|end| end <= ADDRESSES)
        };
        let sound = self.slices.is_power_of_two()
            && self.slices <= most
            && self.committed <= self.slices
            && self.mask == (self.slices - 1) * self.descriptor_bytes
            && self.base.is_multiple_of(1 << self.slice_shift)
            && has(self.base, self.slices, 1 << self.slice_shift)
            && has(self.descriptors, self.slices, self.descriptor_bytes)
            && has(self.sections, self.slices.div_ceil(self.section_slices), self.section_bytes)
            && has(self.heaps, self.heap_limit, self.heap_bytes);
        if sound { Ok(()) } else { Err(Error::Damaged("its map contradicts itself")) }
    }

    /// Whether it is the hardened build: free blocks are in no lists.
    pub(crate) fn is_hardened(&self) -> bool {
        self.aside_offset.is_none()
    }

    /// Bytes of a slice.
    pub(crate) fn slice(&self) -> u64 {
        1 << self.slice_shift
    }

    /// The first byte of a slice.
    pub(crate) fn address(&self, index: u64) -> u64 {
        self.base + (index << self.slice_shift)
    }

    /// What is committed of the slices.
    pub(crate) fn window(&self) -> Range<u64> {
        self.base..self.address(self.committed)
    }

    /// All slices there can be.
    pub(crate) fn reservation(&self) -> Range<u64> {
        self.base..self.address(self.slices)
    }

    /// The slice that an address is in, if that is committed.
    pub(crate) fn slice_of(&self, at: u64) -> Option<u64> {
        let index = at.checked_sub(self.base)? >> self.slice_shift;
        (index < self.committed).then_some(index)
    }

    /// All metadata.
    pub(crate) fn metadata(&self) -> Range<u64> {
        let live = if self.is_hardened() { self.slices * self.live_bytes() } else { 0 };
        let end = self.heaps + self.heap_limit * self.heap_bytes + live;
        self.descriptors.min(self.sections).min(self.heaps)..end.max(self.sections)
    }

    /// Where the descriptor of a slice is, and those of how many slices stand in a row from there.
    pub(crate) fn descriptor(&self, index: u64) -> (u64, u64) {
        let place = ((self.address(index) >> self.slice_shift) * self.descriptor_bytes) & self.mask;
        (self.descriptors + place, (self.mask - place) / self.descriptor_bytes + 1)
    }

    /// The metadata of a section.
    pub(crate) fn section(&self, section: u64) -> Range<u64> {
        let start = self.sections + section * self.section_bytes;
        start..start + self.section_bytes
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Where a slice's slot is behind its section's start, and its address.
    pub(crate) fn slot(&self, index: u64) -> (usize, u64) {
        let offset = self.slots_offset + index % self.section_slices * self.slot_bytes;
        (offset as usize, self.section(index / self.section_slices).start + offset)
    }

    /// Where a slice's remote word is behind its section's start.
    pub(crate) fn word(&self, index: u64) -> usize {
        let nth = index % self.section_slices;
        let place = nth / 64 * self.chunk_bytes + (nth % 8 * 8 + nth % 64 / 8) * 8;
        (self.words_offset + place) as usize
    }

    /// Where a word of the bits of what is set aside in a span of so many slices is behind its section's start; none, if there
    /// is no such word.
    pub(crate) fn aside(&self, index: u64, slices: u64, nth: u64) -> Option<usize> {
        let row = nth / slices;
        let word = row * self.section_slices + index % self.section_slices + nth % slices;
        let place = self.aside_offset.filter(|_| row < self.aside_bytes / 8)? + 8 * word;
        (place + 8 <= self.section_bytes).then_some(place as usize)
    }

    /// The number of the heap that starts there.
    pub(crate) fn heap_at(&self, at: u64) -> Option<u64> {
        let offset = at.checked_sub(self.heaps)?;
        let nth = offset / self.heap_bytes;
        (offset.is_multiple_of(self.heap_bytes) && nth < self.heap_limit).then_some(nth)
    }

    /// Bytes of a slice's part of the hardened build's table: a bit for each 16 bytes.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.slice() / 128
    }

    /// The part of that table for some slices.
    pub(crate) fn live(&self, slices: Range<u64>) -> Range<u64> {
        let table = self.heaps + self.heap_limit * self.heap_bytes;
        table + slices.start * self.live_bytes()..table + slices.end * self.live_bytes()
    }
}
