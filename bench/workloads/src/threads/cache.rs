//! False sharing. An allocator that hands out parts of one cache line to several threads slows all of them down.
//!
//! Active (thrash): each thread allocates its objects itself. Passive (scratch): the main thread allocated the first
//! objects of all; a thread frees its share before it allocates its own, and may get back parts of lines that others
//! still hold. A thread holds its last eight objects and writes to the newest: with a single one it would hang on luck
//! whether two threads meet in a line.

use crate::case::{Results, Settings};
use crate::malloc::Block;
use crate::team;
use std::time::Duration;

const SIZE: usize = 8;
/// Objects that a thread holds at once.
const HELD: usize = 8;
const OBJECTS: usize = 6000;
const WRITES: u64 = 100_000;

pub(crate) fn run(settings: &Settings, threads: usize, passive: bool) -> Results {
    let objects = settings.scaled(OBJECTS).div_ceil(threads);
    write(threads, objects.div_ceil(50), passive);
    Results::ms(write(threads, objects, passive))
}

/// How long every thread takes to write to so many objects.
fn write(threads: usize, objects: usize, passive: bool) -> Duration {
    let mut given: Vec<Vec<Block>> = (0..threads).map(|_| Vec::with_capacity(HELD)).collect();
    // In turn: the objects of different threads are neighbours in most allocators.
    for _ in 0..if passive { HELD } else { 0 } {
        given.iter_mut().for_each(|blocks| blocks.push(Block::new(SIZE)));
    }
    let work = |given: &mut Vec<Block>| {
        given.clear();
        let mut held = [const { None::<Block> }; HELD];
        for object in 0..objects {
            let place = &mut held[object % HELD];
            *place = None;
            let block = place.insert(Block::new(SIZE));
            for _ in 0..WRITES {
                block.add(1);
            }
            // The block finds out at its end whether a write was lost, or a stranger's.
            block.add(WRITES.wrapping_neg());
        }
    };
    team::timed(given, |given| given, work, drop).0
}
