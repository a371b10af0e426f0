//! The heap map: what each slice is, in the order of addresses.
//!
//! Owns: the tiles of a map, and how they are packed.
//! Idea: a span is a tile, and so is each piece of a large block or of free slices: resident as a whole, in part, or not at
//!   all. Columns of numbers, compressed together: millions of tiles are a few megabytes.
//! Never: has more than `TILES_MAX` tiles: what is behind is counted, and left out.
//! Threads: one.
//! Checked: tests here; tests/pages.rs of the command.
//! Story: docs/guide/inspect.md

mod samples;

use crate::memory::Pages;
use crate::sums::Found;
use crate::walk::Large;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, write::ZlibEncoder};
use samples::Samples;
use serde::{Serialize, Serializer};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// 64 GiB of one slice each.
const TILES_MAX: usize = 1 << 22;
/// Slices that are looked at together, as most of an empty stretch can be.
const TOGETHER: u64 = 1024;
/// Slices of a mapping that are looked at one by one.
const PIECES_MAX: u64 = 1 << 22;

// Kinds of tiles; size classes follow.
const FREE: u16 = 0;
const LARGE: u16 = 1;
const NURSERY: u16 = 2;
const MAPPING: u16 = 3;
const CLASSES: u16 = 4;
/// The holder of a piece that is not the first one of what it is of.
const GOES_ON: u16 = 1;

/// A map of a heap.
#[derive(Debug, Default, Serialize)]
pub struct HeapMap {
    /// Bytes of a slice, and of a page; of a slice, if that is smaller.
    slice: u64,
    page: u64,
    /// The first address, in hexadecimal.
    base: String,
    /// Of each size class: the size, and blocks in a span.
    classes: Vec<[u64; 2]>,
    /// Numbers of heaps; nobody's is null.
    holders: Vec<Option<u64>>,
    /// Of blocks with a mapping each, whose tiles are the last: where they start.
    mappings: Vec<String>,
    /// How many tiles there are.
    count: usize,
    /// Tiles beyond those.
    left_out: usize,
    /// The columns, one behind the other, compressed (zlib), as base64.
    #[serde(serialize_with = "packed")]
    tiles: Vec<Tile>,
    /// What the heap profile knows of blocks; none: there is no profile.
    samples: Option<Samples>,
}

/// A stretch of slices, or a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tile {
    slices: u32,
    /// Resident bytes, by the map's `page`.
    resident: u32,
    kind: u16,
    /// Of a span: a place in `holders`, and one. Of others: whether it goes on from the tile before.
    holder: u16,
    used: u16,
    cached: u16,
}

fn packed<S: Serializer>(tiles: &[Tile], to: S) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::with_capacity(16 * tiles.len());
    let long: [fn(&Tile) -> u32; 2] = [|tile| tile.slices, |tile| tile.resident];
    for column in long {
        tiles.iter().for_each(|tile| bytes.extend(column(tile).to_le_bytes()));
    }
    let short: [fn(&Tile) -> u16; 4] =
        [|tile| tile.kind, |tile| tile.holder, |tile| tile.used, |tile| tile.cached];
    for column in short {
        tiles.iter().for_each(|tile| bytes.extend(column(tile).to_le_bytes()));
    }
    compressed(&bytes, to)
}

fn compressed<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    to.serialize_str(&STANDARD.encode(packed.map_err(serde::ser::Error::custom)?))
}

/// As many as can be told.
fn short(number: u64) -> u16 {
    number.try_into().unwrap_or(u16::MAX)
}

fn long(number: u64) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

impl HeapMap {
    /// The map of what has been found.
    pub(crate) fn of(found: &Found<'_>) -> HeapMap {
        let header = found.header;
        let mut map = HeapMap {
            slice: header.slice(),
            page: found.memory.page().min(header.slice()),
            base: format!("{:x}", header.base),
            classes: header.classes.iter().map(|class| [class.size, class.blocks]).collect(),
            ..HeapMap::default()
        };
        let mut next = header.base;
        for (run, tile) in map.held(found) {
            map.add_pieces(FREE, next..run.start, found.pages);
            match tile.kind {
                LARGE => map.add_pieces(LARGE, run.clone(), found.pages),
                _ => map.push(tile),
            }
            next = run.end;
        }
        map.add_pieces(FREE, next..header.window().end, found.pages);
        let mapped = map.add_mappings(found);
        map.count = map.tiles.len();
        map.samples = Samples::of(found, &mapped);
        map
    }

    /// Adds all mappings: the number of the first slice of each that has tiles, by address.
    fn add_mappings(&mut self, found: &Found<'_>) -> Vec<(Range<u64>, u64)> {
        let sum = |tiles: &[Tile]| tiles.iter().map(|tile| u64::from(tile.slices)).sum::<u64>();
        let (mut mapped, mut next) = (Vec::new(), sum(&self.tiles));
        for block in &found.census.mappings {
            let before = self.tiles.len();
            self.add_mapping(found, block);
            if self.tiles.len() > before {
                self.mappings.push(format!("{:x}", block.start));
                mapped.push((block.run.clone(), next));
                next += sum(&self.tiles[before..]);
            }
        }
        mapped.sort_by_key(|(run, _)| run.start);
        mapped
    }

    /// The tiles of spans, large blocks and nurseries, with what they take, by address.
    fn held(&mut self, found: &Found<'_>) -> Vec<(Range<u64>, Tile)> {
        let tile = |run: &Range<u64>, kind| Tile {
            slices: long((run.end - run.start) / found.header.slice()),
            resident: long(found.pages.bytes(run.clone()) / self.page),
            kind,
            ..Tile::default()
        };
        let (mut tiles, mut holders) = (Vec::new(), HashMap::new());
        for (span, free) in found.census.spans.iter().zip(&found.blocks.free) {
            let (run, cached) = (found.run(span), free.cached.min(span.used - span.pending));
            let owner = found.number_of(span.owner);
            let holder = *holders.entry(owner).or_insert_with(|| {
                self.holders.push(owner);
                short(self.holders.len() as u64)
            });
            let (used, cached) = (short(span.used - span.pending - cached), short(cached));
            let known = tile(&run, CLASSES + short(span.class as u64));
            tiles.push((run, Tile { holder, used, cached, ..known }));
        }
        let large = found.census.large.iter().map(|block| (&block.run, LARGE));
        let nurseries = found.census.nurseries.iter().map(|run| (run, NURSERY));
        tiles.extend(large.chain(nurseries).map(|(run, kind)| (run.clone(), tile(run, kind))));
        tiles.sort_by_key(|(run, _)| run.start);
        tiles
    }

    /// Tiles of a run: slices that are resident as a whole, in part, and not at all stand apart.
    fn add_pieces(&mut self, kind: u16, run: Range<u64>, pages: &Pages) {
        let mut tile = Tile { kind, ..Tile::default() };
        let (mut last, mut at) = (None, run.start);
        while at < run.end {
            let end = self.piece_end(at, &run, pages);
            let (slices, resident) = ((end - at).div_ceil(self.slice), pages.bytes(at..end));
            let much = (resident > 0, resident < self.slice);
            if last.is_some_and(|last| last != much) {
                self.push(tile);
                tile = Tile { kind, holder: GOES_ON, ..Tile::default() };
            }
            tile.slices = tile.slices.saturating_add(long(slices));
            tile.resident = tile.resident.saturating_add(long(resident / self.page));
            (last, at) = (Some(much), end);
        }
        if last.is_some() {
            self.push(tile);
        }
    }

    /// The end of a slice, or of many together of which none is resident.
    fn piece_end(&self, at: u64, run: &Range<u64>, pages: &Pages) -> u64 {
        let (one, many) = (at + self.slice, at + self.slice * TOGETHER);
        let is_first = ((at - run.start) / self.slice).is_multiple_of(TOGETHER);
        let is_empty = is_first && many <= run.end && pages.bytes(at..many) == 0;
        if is_empty { many } else { one.min(run.end) }
    }

    fn add_mapping(&mut self, found: &Found<'_>, block: &Large) {
        let run = block.run.clone();
        let slices = (run.end - run.start).div_ceil(self.slice);
        match Pages::of(found.memory, run.clone()) {
            Ok(pages) if slices <= PIECES_MAX => self.add_pieces(MAPPING, run, &pages),
            pages => {
                let resident = pages.map_or(0, |pages| pages.bytes(run) / self.page);
                let (slices, resident) = (long(slices), long(resident));
                self.push(Tile { slices, resident, kind: MAPPING, ..Tile::default() });
            }
        }
    }

    fn push(&mut self, tile: Tile) {
        if self.tiles.len() < TILES_MAX { self.tiles.push(tile) } else { self.left_out += 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::{HeapMap, Tile};
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use flate2::read::ZlibDecoder;
    use std::io::Read;

    #[test]
    fn columns_stand_one_behind_the_other() {
        let tile = |nth: u32| Tile {
            slices: nth,
            resident: 10 * nth,
            kind: nth as u16,
            holder: 3,
            used: 4,
            cached: 5,
        };
        let map = HeapMap { tiles: vec![tile(1), tile(1 << 20)], count: 2, ..HeapMap::default() };
        let json = serde_json::to_value(&map).unwrap();
        let packed = STANDARD.decode(json["tiles"].as_str().unwrap()).unwrap();
        let mut bytes = Vec::new();
        ZlibDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
        let expected = [1_u32, 1 << 20, 10, 10 << 20].into_iter().flat_map(u32::to_le_bytes);
        let shorts = [1_u16, 0, 3, 3, 4, 4, 5, 5].into_iter().flat_map(u16::to_le_bytes);
        assert_eq!(bytes, expected.chain(shorts).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let mut map =
            HeapMap { tiles: vec![Tile::default(); super::TILES_MAX], ..HeapMap::default() };
        map.push(Tile::default());
        assert_eq!((map.tiles.len(), map.left_out), (super::TILES_MAX, 1));
    }
}
