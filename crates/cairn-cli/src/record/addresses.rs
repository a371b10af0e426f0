//! Which slot is at which address.
//!
//! Owns a number for each 16 bytes of the program's that have had a block. The one idea: addresses next to each other have
//! their numbers next to each other, so that the processor's caches serve this table as well as they serve the program;
//! a hash table took five times as long. It must never keep more regions than had blocks at once.

use rustc_hash::FxHashMap;

/// Blocks begin at multiples of it.
const ALIGN_LOG2: u32 = 4;
/// Of a region: its table takes a quarter of that, of which pages without a block are never touched.
const REGION_LOG2: u32 = 20;
const ENTRIES: usize = 1 << (REGION_LOG2 - ALIGN_LOG2);
/// Regions that are found without the index.
const RECENT: usize = 64;

/// The blocks of a part of the address space.
struct Region {
    /// A slot and one, or 0.
    slots: Box<[u32]>,
    live: u32,
}

/// The table.
pub(super) struct Addresses {
    regions: Vec<Region>,
    /// Regions without a block, which are nowhere.
    spare: Vec<u32>,
    index: FxHashMap<u64, u32>,
    recent: [(u64, u32); RECENT],
    live: u64,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            regions: Vec::new(),
            spare: Vec::new(),
            index: FxHashMap::default(),
            recent: [(u64::MAX, 0); RECENT],
            live: 0,
        }
    }
}

impl Addresses {
    /// How many blocks there are.
    pub(super) fn count(&self) -> u64 {
        self.live
    }

    /// Puts a block there, and returns the one that was.
    pub(super) fn insert(&mut self, address: u64, slot: u32) -> Option<u32> {
        let (number, at) = split(address);
        let region = match self.find(number) {
            Some(region) => region,
            None => self.add(number),
        };
        let region = &mut self.regions[region as usize];
        let old = std::mem::replace(&mut region.slots[at], slot + 1).checked_sub(1);
        if old.is_none() {
            region.live += 1;
            self.live += 1;
        }
        old
    }

    /// Takes the block away that is there.
    pub(super) fn remove(&mut self, address: u64) -> Option<u32> {
        let (number, at) = split(address);
        let found = self.find(number)?;
        let region = &mut self.regions[found as usize];
        let slot = std::mem::take(&mut region.slots[at]).checked_sub(1)?;
        self.live -= 1;
        region.live -= 1;
        if region.live == 0 {
            self.index.remove(&number);
            self.recent[place(number)].0 = u64::MAX;
            self.spare.push(found);
        }
        Some(slot)
    }

    /// All blocks' slots, for others in their places.
    pub(super) fn slots(&mut self) -> impl Iterator<Item = &mut u32> {
        let regions = self.regions.iter_mut().filter(|region| region.live > 0);
        regions.flat_map(|region| region.slots.iter_mut().filter(|slot| **slot != 0))
    }

    fn find(&mut self, number: u64) -> Option<u32> {
        let recent = &mut self.recent[place(number)];
        if recent.0 != number {
            *recent = (number, *self.index.get(&number)?);
        }
        Some(recent.1)
    }

    #[cold]
    fn add(&mut self, number: u64) -> u32 {
        let region = self.spare.pop().unwrap_or_else(|| {
            self.regions.push(Region { slots: vec![0; ENTRIES].into(), live: 0 });
            self.regions.len() as u32 - 1
        });
        self.index.insert(number, region);
        region
    }
}

fn split(address: u64) -> (u64, usize) {
    (address >> REGION_LOG2, (address >> ALIGN_LOG2) as usize % ENTRIES)
}

fn place(number: u64) -> usize {
    number as usize % RECENT
}
