//! Heaps in memory that the program supplies.

use super::alone::{Random, alone, shares_its_address_space};
use super::forks::child_does;
use super::hand_over::heirs::tear;
use super::heaps::{Other, free};
use crate::base::size_class::class_of;
use crate::base::{HARDENED, SLICE_SIZE, Stack};
use crate::closed::regions;
use crate::map::region::{self, Grower};
use crate::map::{Block, END, address_map};
use crate::slices::arena;
use crate::thread::pool::left::LEFT;
use crate::thread::search;
use crate::{
    Heap, RegionCalls, RegionError, RegionId, Stats, allocate, base, check, heap_of,
    on_deferred_free, on_low_memory, purge, reallocate, set_address_space, set_memory_limits,
    set_purge_delay_ms, try_expand, usable_size, visit,
};
use core::ffi::c_int;
use core::num::NonZeroUsize;
use core::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::vec::Vec;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Memory with inaccessible pages in front of it and behind.
struct Fenced {
    start: *mut u8,
    bytes: usize,
}

impl Fenced {
    fn new(bytes: usize) -> Fenced {
        let fence = map(null_mut(), bytes + 2 * PAGE, libc::PROT_NONE);
        let start = fence.wrapping_add(PAGE);
        // SAFETY: inside of what has just been mapped.
        assert_eq!(unsafe { libc::mprotect(start.cast(), bytes, 3) }, 0);
        Fenced { start, bytes }
    }

    fn has(&self, p: *mut u8, bytes: usize) -> bool {
        p.addr() >= self.start.addr() && p.addr() + bytes <= self.start.addr() + self.bytes
    }

    fn region(&self) -> RegionId {
        self.try_region().expect("room")
    }

    fn try_region(&self) -> Result<RegionId, RegionError> {
        // SAFETY: it is nobody else's, and stays.
        unsafe { RegionId::new(self.start, self.bytes, RegionCalls::default()) }
    }

    /// With a region there. By chance the heap may have what the metadata of a place needs: then it is another one.
    fn with_region(bytes: usize) -> (Fenced, RegionId) {
        for _ in 0..8 {
            let memory = Fenced::new(bytes);
            let made = memory.try_region();
            if made != Err(RegionError::PlaceInUse) {
                return (memory, made.expect("room"));
            }
        }
        panic!("eight places are in use");
    }
}

// SAFETY: an address.
unsafe impl Sync for Fenced {}

/// Maps 8 MiB exactly there, if there is nothing.
fn try_map(at: *mut u8) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: new memory.
    let got: *mut u8 = unsafe { libc::mmap(at.cast(), 8 * MIB, 3, flags, -1, 0) }.cast();
    (got == at).then_some(got)
}

/// Maps memory, exactly there if a place is given.
fn map(at: *mut u8, bytes: usize, rights: c_int) -> *mut u8 {
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if !at.is_null() {
        flags |= libc::MAP_FIXED_NOREPLACE;
    }
    // SAFETY: new memory.
    let got: *mut u8 = unsafe { libc::mmap(at.cast(), bytes, rights, flags, -1, 0) }.cast();
    assert!(got != libc::MAP_FAILED.cast() && (at.is_null() || got == at));
    got
}

fn number_of(region: RegionId) -> usize {
    region::number(region.into_raw().get(), 0).expect("it is there")
}

/// Runs a test where there are regions.
fn with_regions(body: impl FnOnce()) {
    if !HARDENED {
        body();
    }
}

#[test]
fn the_hardened_build_has_none() {
    let memory = Fenced::new(MIB);
    // SAFETY: nobody else's.
    let made = unsafe { RegionId::new(memory.start, memory.bytes, RegionCalls::default()) };
    assert_eq!(made.err(), HARDENED.then_some(RegionError::Hardened));
}

/// Random calls; the fences see each byte that is touched beyond the region.
fn works_within<Kind>(memory: &Fenced, heap: &Heap<Kind>, random: &mut Random) {
    let mut blocks: Vec<(*mut u8, usize, u8)> = Vec::new();
    let mut refused = 0;
    for turn in 0..20_000 {
        let size = match random.below(20) {
            0 => random.below(600_000),
            1..4 => random.below(60_000),
            _ => random.below(2000),
        };
        let byte = turn as u8;
        if random.below(100) < 55 || blocks.is_empty() {
            let align = if random.below(50) == 0 { 1 << random.below(21) } else { 16 };
            let block = match random.below(2) {
                0 => heap.allocate(size, align),
                _ => heap.allocate_zeroed(size, align),
            };
            if block.is_null() {
                refused += 1;
                continue;
            }
            assert!(memory.has(block, size) && block.addr().is_multiple_of(align.max(16)));
            // SAFETY: the block has so many bytes.
            unsafe { block.write_bytes(byte, size) };
            blocks.push((block, size, byte));
            continue;
        }
        let (block, old, was) = blocks.swap_remove(random.below(blocks.len()));
        let is_whole = |p: *mut u8, bytes: usize| {
            // SAFETY: a live block of so many bytes.
            unsafe { core::slice::from_raw_parts(p, bytes) }.iter().all(|&byte| byte == was)
        };
        assert!(is_whole(block, old));
        if random.below(4) == 0 {
            // SAFETY: a live block.
            let new = unsafe { heap.reallocate(block, size, 16) };
            if new.is_null() {
                blocks.push((block, old, was));
                continue;
            }
            assert!(memory.has(new, size) && is_whole(new, old.min(size)));
            // SAFETY: the block has so many bytes.
            unsafe { new.write_bytes(was, size) };
            blocks.push((new, size, was));
        } else {
            free(block);
        }
    }
    assert!(refused > 0, "the region has been full");
    blocks.into_iter().for_each(|(block, ..)| free(block));
}

#[test]
fn a_heap_stays_in_its_region() {
    alone(|| {
        with_regions(|| {
            let mut random = Random(11);
            for bytes in [3 * MIB, 2 * MIB + 5 * PAGE, 9 * MIB] {
                let (memory, region) = Fenced::with_region(bytes);
                let heap = Heap::in_region(region).expect("memory");
                works_within(&memory, &heap, &mut random);
                check();
                heap.purge();
                assert_eq!(region.stats().used, 0);
                let stays = heap.allocate(100, 16);
                assert!(!region.end() && memory.has(stays, 100));
                heap.destroy();
                let shared = Heap::shared_in_region(region).expect("memory");
                works_within(&memory, &shared, &mut random);
                shared.destroy();
                check();
                assert!(region.end());
                assert!(!region::holds(memory.start));
            }
        });
    });
}

/// Spans there say nothing of the reservation, which has huge pages or not.
#[test]
fn spans_of_regions_do_not_count_as_thin() {
    with_regions(|| {
        alone(|| {
            let (memory, region) = Fenced::with_region(16 * MIB);
            let thin = || arena::THIN.0.load(Ordering::Relaxed);
            free(allocate(100));
            let before = thin();
            let heap = Heap::in_region(region).expect("memory");
            for size in [100, 2000, 20_000] {
                assert!(memory.has(heap.allocate(size, 16), size));
            }
            assert_eq!(thin(), before);
            heap.destroy();
            assert_eq!(thin(), before);
            assert!(region.end());
        });
    });
}

#[test]
fn several_heaps_share_a_region_and_leave_it() {
    alone(|| {
        with_regions(|| {
            let (memory, region) = Fenced::with_region(8 * MIB);
            for _ in 0..50 {
                let heaps: Vec<_> =
                    (0..8).map(|_| Heap::in_region(region).expect("memory")).collect();
                for heap in &heaps {
                    for size in [16, 100, 1000, 10_000, 100_000] {
                        let block = heap.allocate(size, 16);
                        assert!(memory.has(block, size) && heap_of(block) == Some(heap.id()));
                    }
                }
                heaps.into_iter().for_each(Heap::destroy);
                assert_eq!(region.stats().used, 0);
            }
            assert!(region.end());
        });
    });
}

#[test]
fn a_large_block_may_have_all_of_it() {
    alone(|| {
        with_regions(|| {
            let at = map(null_mut(), 16 * MIB, 3);
            let start = at.wrapping_add(at.align_offset(8 * MIB));
            let memory = Fenced { start, bytes: 8 * MIB };
            let region = memory.region();
            let heap = Heap::in_region(region).expect("memory");
            let whole = heap.allocate(8 * MIB, 8 * MIB);
            assert_eq!(whole, start);
            assert!(heap.allocate(1, 16).is_null() && heap.allocate(8 * MIB + 1, 16).is_null());
            assert_eq!(base(start.wrapping_add(5 * MIB)), Some(start));
            // SAFETY: live blocks.
            unsafe {
                assert_eq!(usable_size(whole), 8 * MIB);
                let kept = reallocate(whole, 100_000);
                assert_eq!(kept, start);
                let small = heap.allocate(1000, 16);
                assert!(memory.has(small, 1000));
                free(small);
                heap.purge();
                assert_eq!(heap.reallocate(kept, 8 * MIB, 16), start, "it grows where it is");
            }
            // A block that plain realloc must move leaves the region.
            // SAFETY: a live block.
            let outside = unsafe { reallocate(whole, 9 * MIB) };
            assert!(!memory.has(outside, 1) && region.stats().used == 0);
            free(outside);
            heap.destroy();
            assert!(region.end());
        });
    });
}

#[test]
fn others_free_and_leave() {
    alone(|| {
        with_regions(|| {
            let (memory, region) = Fenced::with_region(8 * MIB);
            let heap = Heap::shared_in_region(region).expect("memory");
            for _ in 0..20 {
                let (blocks, memory) = (Mutex::new(Vec::new()), &memory);
                let work = || {
                    for nth in 0..500 {
                        let block = heap.allocate(16 + nth % 5 * 100, 16);
                        assert!(memory.has(block, 16 + nth % 5 * 100));
                        blocks.lock().expect("whole").push(block.addr());
                        if nth % 3 == 0 {
                            let some = blocks.lock().expect("whole").swap_remove(0);
                            free(memory.start.with_addr(some));
                        }
                    }
                };
                std::thread::scope(|scope| {
                    // A scope does not wait for destructors; who is joined has no heap any more.
                    let threads = [(); 3].map(|()| scope.spawn(work));
                    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
                });
                let blocks = blocks.into_inner().expect("whole");
                blocks.into_iter().for_each(|at| free(memory.start.with_addr(at)));
            }
            assert!(region.stats().used < 2 * MIB, "{:?}", region.stats());
            check();
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// A deleted heap's memory goes to no stranger, but back to the region as its blocks are freed.
#[test]
fn what_a_deleted_heap_leaves_stays_in_the_region() {
    alone(|| {
        with_regions(|| {
            let (memory, region) = Fenced::with_region(MIB);
            let heap = Heap::in_region(region).expect("memory");
            let blocks: Vec<_> = std::iter::repeat_with(|| heap.allocate(1000, 16))
                .take_while(|block| !block.is_null())
                .collect();
            let large_one = blocks.len() * 1000 > MIB / 2;
            assert!(large_one);
            drop(heap);
            assert_eq!(heap_of(blocks[0]), None);
            let (kept, gone) = blocks.split_at(10);
            let gone = gone.to_vec();
            Other::once(move || gone.into_iter().for_each(free));
            let strangers: Vec<_> = (0..3000).map(|_| allocate(1000)).collect();
            assert!(strangers.iter().all(|&block| !memory.has(block, 1)));
            strangers.into_iter().for_each(free);
            assert!(!region.end(), "ten blocks are in use");
            let heap = Heap::in_region(region).expect("memory");
            let again = heap.allocate(MIB / 2, 16);
            assert!(memory.has(again, MIB / 2), "what the others have left has been collected");
            drop(heap);
            kept.iter().for_each(|&block| free(block));
            assert!(!region.end(), "a large block is in use");
            free(again);
            purge();
            assert!(region.end());
            check();
        });
    });
}

/// Who needs memory there collects it, and no more is promised than there is.
#[test]
fn what_a_deleted_heap_leaves_is_collected() {
    alone(|| {
        with_regions(|| {
            let (memory, region) = Fenced::with_region(MIB);
            let heap = Heap::in_region(region).expect("memory");
            let stays = heap.allocate(20_000, 16);
            let blocks: Vec<_> = std::iter::repeat_with(|| heap.allocate(1000, 16))
                .take_while(|block| !block.is_null())
                .collect();
            drop(heap);
            blocks.into_iter().for_each(free);
            let heap = Heap::in_region(region).expect("memory");
            let again = heap.allocate(MIB / 4, 16);
            assert!(memory.has(again, MIB / 4));
            assert!(heap.allocate(MIB, 16).is_null() && heap.allocate(100, 16) != stays);
            heap.destroy();
            assert!(!region.end() && !LEFT.lock().all.is_empty());
            free(stays);
            assert!(region.end() && LEFT.lock().all.is_empty());
            check();
        });
    });
}

/// What the program's functions have been called with.
#[derive(Default)]
struct Calls {
    supplied: Vec<(usize, usize)>,
    committed: Vec<(usize, usize)>,
    decommitted: Vec<(usize, usize)>,
    released: Vec<(usize, usize)>,
    refuse_commit: bool,
    most: usize,
}

unsafe extern "C" fn reserve(bytes: *mut usize, argument: *mut ()) -> *mut u8 {
    // SAFETY: a test's calls, and its number.
    let (calls, bytes) = unsafe { (&mut *argument.cast::<Calls>(), &mut *bytes) };
    if calls.supplied.len() == calls.most {
        return null_mut();
    }
    *bytes = (*bytes).max(MIB);
    let at = map(null_mut(), *bytes, libc::PROT_NONE);
    calls.supplied.push((at.addr(), *bytes));
    at
}

unsafe extern "C" fn commit(at: *mut u8, bytes: usize, argument: *mut ()) -> i32 {
    // SAFETY: a test's calls; its memory.
    let (calls, done) = unsafe {
        let calls = &mut *argument.cast::<Calls>();
        (calls, libc::mprotect(at.cast(), bytes, 3))
    };
    calls.committed.push((at.addr(), bytes));
    if calls.refuse_commit { -1 } else { done }
}

unsafe extern "C" fn decommit(at: *mut u8, bytes: usize, argument: *mut ()) -> i32 {
    // SAFETY: as above.
    unsafe {
        (*argument.cast::<Calls>()).decommitted.push((at.addr(), bytes));
        libc::mprotect(at.cast(), bytes, libc::PROT_NONE)
    }
}

unsafe extern "C" fn release(at: *mut u8, bytes: usize, argument: *mut ()) {
    // SAFETY: as above.
    unsafe {
        (*argument.cast::<Calls>()).released.push((at.addr(), bytes));
        assert_eq!(libc::munmap(at.cast(), bytes), 0);
    }
}

/// What is there stays usable.
unsafe extern "C" fn forget(at: *mut u8, bytes: usize, argument: *mut ()) -> i32 {
    // SAFETY: as above.
    unsafe {
        (*argument.cast::<Calls>()).decommitted.push((at.addr(), bytes));
        libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED)
    }
}

/// Has need of another region while one ends.
unsafe extern "C" fn release_and_make(at: *mut u8, bytes: usize, argument: *mut ()) {
    let (_memory, another) = Fenced::with_region(MIB);
    assert!(another.end());
    // SAFETY: as above.
    unsafe { release(at, bytes, argument) }
}

fn growing(calls: &mut Calls) -> RegionId {
    let calls = RegionCalls {
        reserve: Some(reserve),
        commit: Some(commit),
        decommit: Some(decommit),
        release: Some(release),
        argument: NonNull::new(core::ptr::from_mut(calls).cast()),
    };
    // SAFETY: they do what they shall, and stay.
    unsafe { RegionId::new(null_mut(), 0, calls) }.expect("room")
}

#[test]
fn a_region_grows_by_the_programs_functions() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls { most: 5, ..Calls::default() };
            let calls_at = &raw mut calls;
            let region = growing(&mut calls);
            // SAFETY: this test's alone, between its calls.
            let calls = || unsafe { &mut *calls_at };
            let heap = Heap::in_region(region).expect("memory");
            let mut blocks: Vec<_> = std::iter::repeat_with(|| heap.allocate(3000, 16))
                .take_while(|block| !block.is_null())
                .collect();
            assert_eq!(calls().supplied.len(), 5);
            assert!(blocks.len() * 3000 > 4 * MIB);
            for block in &blocks {
                let is_in =
                    |&(at, bytes): &(usize, usize)| (at..at + bytes).contains(&block.addr());
                assert!(calls().committed.iter().any(is_in));
                // SAFETY: the block has so many bytes.
                unsafe { block.write_bytes(1, 3000) };
            }
            assert!(heap.allocate(3 * MIB, 16).is_null());
            // What is free goes back by a purge, and comes again.
            blocks.drain(100..).for_each(free);
            assert!(heap.purge() > 3 * MIB && !calls().decommitted.is_empty());
            let large_one = heap.allocate(MIB / 2, 16);
            // SAFETY: the block has so many bytes.
            unsafe { large_one.write_bytes(2, MIB / 2) };
            // The program cannot make memory usable: nothing is lost.
            heap.purge();
            calls().refuse_commit = true;
            let used = region.stats().used;
            assert!(heap.allocate(MIB / 2, 16).is_null() && region.stats().used == used);
            calls().refuse_commit = false;
            assert!(!heap.allocate(MIB / 2, 16).is_null());
            heap.destroy();
            assert!(region.end());
            calls().supplied.sort_unstable();
            calls().released.sort_unstable();
            assert_eq!(calls().supplied, calls().released);
            check();
        });
    });
}

/// More memory is of no use where the program cannot make it usable.
#[test]
fn what_commit_refuses_is_not_supplied_again() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls { most: 100, ..Calls::default() };
            let calls_at = &raw mut calls;
            let region = growing(&mut calls);
            // SAFETY: this test's alone, between its calls.
            let calls = || unsafe { &mut *calls_at };
            let heap = Heap::in_region(region).expect("memory");
            free(heap.allocate(MIB / 2, 16));
            heap.purge();
            let supplied = calls().supplied.len();
            calls().refuse_commit = true;
            assert!(heap.allocate(MIB / 2, 16).is_null() && heap.allocate(3000, 16).is_null());
            assert_eq!(calls().supplied.len(), supplied);
            calls().refuse_commit = false;
            assert!(!heap.allocate(MIB / 2, 16).is_null() && !heap.allocate(3000, 16).is_null());
            // And it grows again when it is full.
            let all = std::iter::repeat_with(|| heap.allocate(MIB / 2, 16)).take(40);
            assert!(all.filter(|block| !block.is_null()).count() == 40);
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// What is usable already is nobody's to make usable: with larger pages others' blocks may be there.
#[test]
fn commit_gets_what_is_not_usable_yet() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls { most: 1, ..Calls::default() };
            let calls_at = &raw mut calls;
            let region = growing(&mut calls);
            // SAFETY: this test's alone, between its calls.
            let calls = || unsafe { &mut *calls_at };
            let heap = Heap::in_region(region).expect("memory");
            let block = heap.allocate(100_000, 16);
            // SAFETY: a live block of the heap's.
            let block = unsafe { heap.id().reallocate(block, 200_000, 16) };
            free(block);
            free(heap.allocate(300_000, 16));
            calls().committed.sort_unstable();
            let ends = calls().committed.iter().map(|&(at, bytes)| at + bytes);
            let next = calls().committed.iter().skip(1).map(|&(at, _)| at);
            assert!(ends.zip(next).all(|(end, next)| end <= next), "{:x?}", calls().committed);
            assert!(calls().committed.len() >= 3);
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// Memory that is usable without a call goes back all the same.
#[test]
fn a_region_without_commit_gives_back() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls::default();
            let argument = NonNull::new((&raw mut calls).cast());
            let functions = RegionCalls { decommit: Some(forget), argument, ..Default::default() };
            let memory = Fenced::new(4 * MIB);
            // SAFETY: nobody else's; they do what they shall.
            let made = unsafe { RegionId::new(memory.start, memory.bytes, functions) };
            let (region, mut gone) = (made.expect("room"), 0);
            let heap = Heap::in_region(region).expect("memory");
            for _ in 0..2 {
                let block = heap.allocate(MIB, 16);
                // SAFETY: the block has so many bytes.
                unsafe { block.write_bytes(1, MIB) };
                free(block);
                gone += heap.purge();
                // What nobody has had since goes once.
                heap.purge();
            }
            assert!((2 * MIB..2 * MIB + 8 * SLICE_SIZE).contains(&gone), "{gone}");
            assert_eq!(calls.decommitted.iter().map(|(_, bytes)| bytes).sum::<usize>(), gone);
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// No lock is held while the program's functions run.
#[test]
fn a_region_is_made_while_another_one_ends() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls { most: 1, ..Calls::default() };
            let functions = RegionCalls {
                reserve: Some(reserve),
                commit: Some(commit),
                release: Some(release_and_make),
                argument: NonNull::new((&raw mut calls).cast()),
                ..Default::default()
            };
            // SAFETY: they do what they shall, and stay.
            let region = unsafe { RegionId::new(null_mut(), 0, functions) }.expect("room");
            let heap = Heap::in_region(region).expect("memory");
            assert!(!heap.allocate(1000, 16).is_null());
            heap.destroy();
            assert!(region.end());
            assert_eq!(calls.released.len(), 1);
        });
    });
}

/// Two regions side by side.
#[test]
fn a_block_does_not_grow_into_the_next_region() {
    alone(|| {
        with_regions(|| {
            let at = map(null_mut(), 24 * MIB, 3);
            let start = at.wrapping_add(at.align_offset(8 * MIB));
            let [first, second] = [0, 8 * MIB]
                .map(|at| Fenced { start: start.wrapping_add(at), bytes: 8 * MIB }.region());
            let heap = Heap::in_region(first).expect("memory");
            let whole = heap.allocate(8 * MIB, 8 * MIB);
            assert_eq!(whole, start);
            // SAFETY: a live block, of the heap; it stays.
            unsafe {
                assert!(!try_expand(whole, 8 * MIB + SLICE_SIZE));
                assert!(heap.reallocate(whole, 9 * MIB, 16).is_null());
            }
            assert_eq!(second.stats().used, 0);
            heap.destroy();
            assert!(first.end() && second.end());
            check();
        });
    });
}

/// A block larger than any piece so far makes the region grow by as much.
#[test]
fn a_region_grows_by_what_a_large_block_needs() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls { most: 2, ..Calls::default() };
            let region = growing(&mut calls);
            let heap = Heap::shared_in_region(region).expect("memory");
            let block = heap.allocate(20 * MIB, 4 * MIB);
            assert!(!block.is_null() && block.addr().is_multiple_of(4 * MIB));
            // A limit holds, whatever the program would supply.
            let mut limited = Heap::in_region(region).expect("memory");
            assert!(limited.set_limits(0, MIB, None, [0; 2]));
            assert!(limited.allocate(30 * MIB, 16).is_null());
            // Less than a slice at its ends is not used.
            assert_eq!(region.stats().bytes.next_multiple_of(MIB), 40 * MIB);
            limited.destroy();
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// For small blocks it grows by spans, as far as the heap's limit goes.
#[test]
fn a_region_grows_by_what_small_blocks_need() {
    alone(|| {
        with_regions(|| {
            let mut calls = Calls { most: 5, ..Calls::default() };
            let region = growing(&mut calls);
            let mut heap = Heap::in_region(region).expect("memory");
            let row = || Stats::take().classes[class_of(1000).index()];
            let held: Vec<_> = (0..100).map(|_| allocate(1000)).collect();
            let elsewhere = Heap::new().expect("memory");
            elsewhere.id().use_no_nursery();
            let before = row();
            free(elsewhere.allocate(1000, 16));
            let counted = row();
            assert!(counted.cached > before.cached);
            let first = heap.allocate(1000, 16);
            assert!(!first.is_null() && heap.stats().large_blocks == 0, "it is a span's");
            // What is ready there is not in the account of the rest.
            assert_eq!((row().cached, row().in_use), (counted.cached, counted.in_use));
            held.into_iter().for_each(free);
            assert!(heap.set_limits(0, MIB / 2, None, [0; 2]));
            let more = std::iter::repeat_with(|| heap.allocate(1000, 16));
            assert!(more.take_while(|block| !block.is_null()).count() > 400);
            assert!(region.stats().bytes <= MIB, "no more than the heap may have");
            // Nor where there is room for a slice, but not for a span.
            let mut narrow = Heap::in_region(region).expect("memory");
            assert!(narrow.set_limits(0, 6 * SLICE_SIZE, None, [0; 2]));
            while !narrow.allocate(3000, 16).is_null() {}
            assert!(region.stats().bytes <= MIB);
            narrow.destroy();
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// An address whose metadata stands where that of slice `index` of the reservation stands.
fn like(index: usize, bytes: usize) -> *mut u8 {
    let window = address_map::slice_limit() * SLICE_SIZE;
    let at = |nth: usize| address_map::slice_address(index).wrapping_sub(nth * window);
    let free = |&at: &*mut u8| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: new memory, nowhere where anything is.
        let got = unsafe { libc::mmap(at.cast(), bytes, 0, flags | libc::MAP_NORESERVE, -1, 0) };
        got.cast() == at && {
            // SAFETY: mapped just now.
            unsafe { libc::munmap(got, bytes) == 0 }
        }
    };
    (1..60).map(at).find(free).expect("room in the address space")
}

fn try_region(at: *mut u8, bytes: usize) -> Result<RegionId, RegionError> {
    map(at, bytes, 3);
    // SAFETY: nobody else's, and it stays.
    unsafe { RegionId::new(at, bytes, RegionCalls::default()) }
}

/// The reservation grows around slices whose metadata a region has.
#[test]
fn the_reservation_grows_around_a_region() {
    alone(|| {
        with_regions(|| {
            if shares_its_address_space() {
                return;
            }
            free(allocate(100));
            let end = address_map::committed();
            // Right behind what is committed, and a gap of 3 slices in between.
            let first = try_region(like(end, 2 * MIB), 2 * MIB).expect("room");
            let second = try_region(like(end + 128 + 3, MIB), MIB).expect("room");
            // Inside of what is committed and free.
            let third = try_region(like(end - 64, MIB), MIB).expect("room");
            let used = address_map::slice_of(allocate(100));
            let refused = try_region(like(used, MIB), MIB);
            assert_eq!(refused.err(), Some(RegionError::PlaceInUse));
            let regions = [first, second, third];
            let heaps = regions.map(|region| Heap::in_region(region).expect("memory"));
            let fill = |heap: &Heap, byte: u8| -> Vec<*mut u8> {
                let blocks = std::iter::repeat_with(|| heap.allocate(2000, 16))
                    .take_while(|block| !block.is_null());
                // SAFETY: blocks of so many bytes.
                blocks.inspect(|block| unsafe { block.write_bytes(byte, 2000) }).collect()
            };
            let inside: Vec<_> = heaps.iter().zip([1, 2, 3]).map(|(h, b)| fill(h, b)).collect();
            // 200 MiB of spans, and large blocks: the reservation grows beyond all of them.
            let mut outside: Vec<*mut u8> = (0..50_000).map(|_| allocate(2000)).collect();
            outside.extend((0..50).map(|_| allocate(2 * MIB)));
            for block in &outside {
                // SAFETY: blocks of at least so many bytes.
                unsafe { block.write_bytes(9, 2000) };
            }
            assert!(address_map::committed() > end + 10_000);
            check();
            for (blocks, byte) in inside.iter().zip([1u8, 2, 3]) {
                for &block in blocks {
                    // SAFETY: a live block of so many bytes.
                    let bytes = unsafe { core::slice::from_raw_parts(block, 2000) };
                    assert!(bytes.iter().all(|&at| at == byte));
                }
            }
            outside.into_iter().for_each(free);
            heaps.into_iter().for_each(Heap::destroy);
            assert!(regions.into_iter().all(RegionId::end));
            check();
            purge();
            // The slices are the reservation's again.
            let all: Vec<_> = (0..100).map(|_| allocate(MIB)).collect();
            all.into_iter().for_each(free);
            check();
        });
    });
}

#[test]
fn what_cannot_be_a_region_is_told_apart() {
    alone(|| {
        with_regions(|| {
            let of = |start: *mut u8, bytes| {
                // SAFETY: it is refused.
                unsafe { RegionId::new(start, bytes, RegionCalls::default()) }.err()
            };
            let ours = allocate(4 * MIB);
            assert_eq!(of(null_mut(), MIB), Some(RegionError::Invalid));
            assert_eq!(of(ours, MIB), Some(RegionError::Invalid), "a run of the allocator's");
            let memory = Fenced::new(MIB);
            assert_eq!(of(memory.start, 0), Some(RegionError::Invalid));
            assert_eq!(of(memory.start, SLICE_SIZE - 1), Some(RegionError::Invalid));
            assert_eq!(of(memory.start, usize::MAX), Some(RegionError::Invalid));
            let region = memory.region();
            let inside = memory.start.wrapping_add(MIB / 2);
            assert_eq!(of(inside, MIB / 4), Some(RegionError::Invalid), "a region is there");
            assert_eq!(of(memory.start.wrapping_sub(MIB), 4 * MIB), Some(RegionError::Invalid));
            let window = address_map::slice_limit() * SLICE_SIZE;
            assert_eq!(of(inside, window + MIB), Some(RegionError::Invalid));
            if !shares_its_address_space() {
                let first = memory.start.align_offset(SLICE_SIZE);
                let index = address_map::slice_of(memory.start.wrapping_add(first));
                let twin = like(index & (address_map::slice_limit() - 1), MIB);
                assert_eq!(try_region(twin, MIB).err(), Some(RegionError::PlaceInUse));
            }
            assert!(region.end());
            free(ours);
            check();
            // The upper bits of an address are the mark of free blocks.
            let beyond = core::ptr::without_provenance_mut(1 << 48);
            assert_eq!(of(beyond, MIB), Some(RegionError::Invalid));
            // There may be 64 regions, and again 64.
            for _ in 0..2 {
                let all: Vec<_> = (0..64).map(|_| Fenced::new(MIB)).collect();
                let regions: Vec<_> = all.iter().map(Fenced::region).collect();
                let one_more = Fenced::new(MIB);
                assert_eq!(of(one_more.start, MIB), Some(RegionError::NoMemory));
                assert!(regions.into_iter().all(RegionId::end));
            }
            check();
        });
    });
}

#[test]
fn a_walk_finds_the_blocks_of_regions() {
    alone(|| {
        with_regions(|| {
            let regions = [32 * MIB, 33 * MIB].map(|bytes| Fenced::with_region(bytes).1);
            let heaps = regions.map(|region| Heap::in_region(region).expect("memory"));
            let mut live = Vec::new();
            for heap in &heaps {
                for nth in 0..300 {
                    let block = heap.allocate(16 + nth * 50, 16);
                    match nth % 3 {
                        0 => free(block),
                        _ => live.push(block),
                    }
                }
                live.push(heap.allocate(200_000, 16));
            }
            let mut seen = Vec::with_capacity(4096);
            for heap in &heaps {
                // SAFETY: nobody else allocates; the vector has room.
                let whole = unsafe {
                    visit(Some(heap.id()), true, |_, block| {
                        block.into_iter().for_each(|block| seen.push(block));
                        true
                    })
                };
                assert!(whole);
            }
            live.sort_unstable();
            seen.sort_unstable();
            assert_eq!(live, seen);
            heaps.into_iter().for_each(Heap::destroy);
        });
    });
}

/// A heap may end meanwhile, and then its region, or what it had there be taken: nobody who asks for blocks of one heap looks
/// at free ones of another.
#[test]
fn what_asks_for_one_heap_does_not_touch_another() {
    alone(|| {
        with_regions(|| {
            const SIZES: [usize; 4] = [16, 100, 1000, 10_000];
            let [region, elsewhere] = [(); 2].map(|()| Fenced::with_region(8 * MIB).1);
            let heap = Heap::in_region(region).expect("memory");
            let others = [region, elsewhere].map(|at| Heap::in_region(at).expect("memory"));
            let mut live: Vec<_> = SIZES.iter().map(|&size| heap.allocate(size, 16)).collect();
            // In the caches of all.
            let cached = |heap: &Heap| {
                SIZES.map(|size| {
                    let block = heap.allocate(size, 16);
                    free(block);
                    block
                })
            };
            let (freed, theirs) = (cached(&heap), others.each_ref().map(cached));
            let allow = |rights: c_int| {
                for block in theirs.as_flattened() {
                    let slice = block.map_addr(|at| at & !(SLICE_SIZE - 1));
                    // SAFETY: nothing there is in use.
                    assert_eq!(unsafe { libc::mprotect(slice.cast(), SLICE_SIZE, rights) }, 0);
                }
            };
            let mut seen = Vec::with_capacity(64);
            allow(libc::PROT_NONE);
            // SAFETY: nobody else allocates; the vector has room.
            let whole = unsafe {
                visit(Some(heap.id()), true, |_, block| {
                    block.into_iter().for_each(|block| seen.push(block));
                    true
                })
            };
            // What looks freed, and is not, and what is.
            for &block in &live {
                // SAFETY: a live block, whose bytes are of no more use.
                unsafe { Block::set_next(block.cast(), END) };
                assert!(!search::is_free(block.cast()));
            }
            assert!(freed.iter().all(|block| search::is_free(block.cast())));
            allow(libc::PROT_READ | libc::PROT_WRITE);
            live.sort_unstable();
            seen.sort_unstable();
            assert!(whole && live == seen);
            others.into_iter().chain([heap]).for_each(Heap::destroy);
            assert!(region.end() && elsewhere.end());
        });
    });
}

/// A child has the blocks; what threads that it does not have were doing is taken in by whoever comes.
#[test]
fn a_child_goes_on_in_a_region() {
    alone(|| {
        with_regions(|| {
            let (memory, region) = Fenced::with_region(8 * MIB);
            let heap = Heap::shared_in_region(region).expect("memory");
            let other = Other::new();
            let at = heap.id();
            let theirs = Mutex::new(Vec::new());
            // SAFETY: the thread is waited for.
            let list: &'static Mutex<Vec<usize>> =
                unsafe { (&raw const theirs).as_ref() }.expect("it is there");
            other.does(move || {
                for nth in 0..500 {
                    // SAFETY: the heap is there, and shared.
                    let block = unsafe { at.allocate(100 + nth, 16) };
                    list.lock().expect("whole").push(block.addr());
                }
            });
            let blocks: Vec<_> = theirs.lock().expect("whole").clone();
            let parent_used = region.stats().used;
            let is_held = region::REGIONS.lock();
            drop(is_held);
            assert!(child_does(|| {
                for &at in &blocks {
                    free(memory.start.with_addr(at));
                }
                let mine: Vec<_> = (0..2000).map(|_| heap.allocate(300, 16)).collect();
                assert!(mine.iter().all(|&block| memory.has(block, 300)));
                mine.into_iter().for_each(free);
                heap.purge();
                assert!(region.stats().used <= parent_used + MIB / 4, "{:?}", region.stats());
                check();
                // A stranger has none of it.
                let strangers: Vec<_> = (0..3000).map(|_| allocate(300)).collect();
                assert!(strangers.iter().all(|&block| !memory.has(block, 1)));
            }));
            blocks.iter().for_each(|&at| free(memory.start.with_addr(at)));
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// A child that is forked while another thread holds a lock finds the bitmaps whole: the regions' and the reservation's, in
/// which a region's slices are in no use, wherever they are.
#[test]
fn a_child_makes_the_bitmaps_anew() {
    alone(|| {
        with_regions(|| {
            for is_arenas in [false, true] {
                let (_, region) = Fenced::with_region(32 * MIB);
                let heap = Heap::in_region(region).expect("memory");
                // The lowest slice is a large block's: that is not one of the reservation's.
                let large_one = heap.allocate(MIB, 16);
                let blocks: Vec<_> = (0..300).map(|nth| heap.allocate(nth * 100, 16)).collect();
                let used = region.stats().used;
                // Without this the reservation has no bitmaps.
                free(allocate(64));
                let (told, holds) = std::sync::mpsc::channel();
                let (go, wait) = std::sync::mpsc::channel::<()>();
                let holder = std::thread::spawn(move || {
                    let arenas = is_arenas.then(|| crate::slices::arena::ARENA.lock());
                    let regions = (!is_arenas).then(|| region::REGIONS.lock());
                    told.send(()).expect("it waits");
                    wait.recv().expect("it says so");
                    drop((arenas, regions));
                });
                holds.recv().expect("it holds");
                assert!(child_does(|| {
                    assert_eq!(region.stats().used, used);
                    check();
                    assert_eq!(base(large_one.wrapping_add(MIB - 1)), Some(large_one));
                    blocks.iter().for_each(|&block| free(block));
                    free(large_one);
                    heap.purge();
                    assert_eq!(region.stats().used, 0);
                }));
                go.send(()).expect("it waits");
                holder.join().expect("it ends");
                heap.destroy();
                assert!(region.end());
            }
        });
    });
}

/// A region whose metadata stands where spans and large blocks of the reservation have been: what walks those does not come
/// upon what is in the region. An account, a walk over blocks, and a child that finds another thread's part there.
#[test]
fn a_walk_over_the_reservation_finds_nothing_of_a_region() {
    alone(|| {
        with_regions(|| {
            if shares_its_address_space() {
                return;
            }
            let described: Vec<_> = (0..64).map(|_| allocate(MIB)).collect();
            let index = address_map::slice_of(described[8]);
            described.into_iter().for_each(free);
            purge();
            let start = like(index, 8 * MIB);
            let region = try_region(start, 8 * MIB).expect("room");
            let before = Stats::take();
            let heap = Heap::shared_in_region(region).expect("memory");
            let at = heap.id();
            let other = Other::new();
            // SAFETY: the heap is there, and shared; so many bytes are the block's.
            let fill = move || unsafe {
                let sizes = (0..400).map(|nth| 100 + nth * 8).chain([MIB]);
                let blocks = sizes.map(|size| (at.allocate(size, 16).addr(), size));
                blocks.inspect(|&(p, size)| start.with_addr(p).write_bytes(7, size)).collect()
            };
            let theirs: Vec<_> = other.does(fill);
            let mut seen = Vec::with_capacity(4096);
            // SAFETY: nobody else allocates; the vector has room.
            let whole = unsafe {
                visit(Some(at), true, |_, block| {
                    seen.extend(block.map(|block| block.addr()));
                    true
                })
            };
            let mut blocks: Vec<_> = theirs.iter().map(|&(p, _)| p).collect();
            blocks.sort_unstable();
            seen.sort_unstable();
            assert!(whole && seen == blocks);
            let after = Stats::take();
            assert_eq!(after.large_blocks, before.large_blocks);
            assert_eq!(after.spans.bytes, before.spans.bytes);
            assert!(child_does(|| {
                // Salvages the other thread's part.
                // SAFETY: the heap is there.
                let mine = (0..300).map(|_| unsafe { at.allocate(300, 16) });
                let mine: Vec<_> = mine.collect();
                assert!(mine.iter().all(|block| !block.is_null()));
                check();
                for &(p, size) in &theirs {
                    // SAFETY: live, and so long.
                    let bytes = unsafe { core::slice::from_raw_parts(start.with_addr(p), size) };
                    assert!(bytes.iter().all(|&byte| byte == 7));
                }
                // SAFETY: nobody uses it any more.
                unsafe { at.destroy() };
                assert_eq!(region.stats().used, 0);
                assert!(region.end());
                check();
            }));
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// While a heap in a region is walked, another thread, which has nothing to do with it, makes the reservation longer.
#[test]
fn a_walk_is_right_while_others_commit() {
    alone(|| {
        with_regions(|| {
            let (_memory, region) = Fenced::with_region(4 * MIB);
            let heap = Heap::in_region(region).expect("memory");
            let blocks: Vec<_> =
                (0..400).map(|nth| heap.allocate(64 + nth % 2 * 700, 16)).collect();
            let (gone, kept) = blocks.split_at(40);
            gone.iter().copied().for_each(free);
            let (other, mut more, mut found) = (Other::new(), Vec::new(), Vec::new());
            // SAFETY: nobody else uses the heap.
            let whole = unsafe {
                visit(Some(heap.id()), true, |_, block| {
                    if more.is_empty() {
                        let before = address_map::committed();
                        while address_map::committed() == before {
                            more.extend(other.allocates(1 << 20, 8));
                        }
                    }
                    found.extend(block);
                    true
                })
            };
            assert!(whole && found.len() == kept.len(), "{} of {}", found.len(), kept.len());
            assert!(kept.iter().all(|block| found.contains(block)));
            more.into_iter().for_each(free);
            heap.destroy();
        });
    });
}

/// What a heap must not have is not asked of the program, and a region that grows makes the process short of nothing.
#[test]
fn a_region_at_a_limit_reserves_nothing() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    alone(|| {
        with_regions(|| {
            assert!(set_memory_limits(usize::MAX, 1 << 30));
            on_low_memory(Some(|_, _| _ = TOLD.fetch_add(1, Ordering::Relaxed)), [0; 2]);
            let mut calls = Calls { most: 100, ..Calls::default() };
            let calls_at = &raw mut calls;
            let region = growing(&mut calls);
            let mut heap = Heap::in_region(region).expect("memory");
            // No multiple of a slice.
            assert!(heap.set_limits(0, 1_000_000, None, [0; 2]));
            while !heap.allocate(100, 16).is_null() {}
            // SAFETY: this test's alone, between its calls.
            assert!(unsafe { (*calls_at).supplied.len() } <= 2);
            assert!(heap.set_limits(0, 0, None, [0; 2]));
            let more = std::iter::repeat_with(|| heap.allocate(3000, 16));
            assert!(more.take(2000).all(|block| !block.is_null()), "it grows");
            assert_eq!(TOLD.load(Ordering::Relaxed), 0);
            on_low_memory(None, [0; 2]);
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// There are 64 pieces for all regions. A program that supplies just what it is asked for gets far with them, and is not asked
/// when there is none left.
#[test]
fn a_region_grows_by_parts_of_what_it_has() {
    unsafe extern "C" fn just_so(bytes: *mut usize, argument: *mut ()) -> *mut u8 {
        // SAFETY: a test's calls, and its number.
        let (calls, bytes) = unsafe { (&mut *argument.cast::<Calls>(), *bytes) };
        assert!(bytes.is_multiple_of(SLICE_SIZE));
        let at = map(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE);
        calls.supplied.push((at.addr(), bytes));
        at
    }
    alone(|| {
        with_regions(|| {
            let mut calls = Calls::default();
            let calls_at = &raw mut calls;
            let argument = NonNull::new(calls_at.cast());
            let functions =
                RegionCalls { reserve: Some(just_so), argument, ..RegionCalls::default() };
            // SAFETY: they do what they shall, and stay.
            let region = unsafe { RegionId::new(null_mut(), 0, functions) }.expect("room");
            let heap = Heap::in_region(region).expect("memory");
            let blocks = std::iter::repeat_with(|| heap.allocate(1000, 16));
            assert_eq!(blocks.take(16_000).filter(|block| block.is_null()).count(), 0);
            while !heap.allocate(40_000, 16).is_null() {}
            // SAFETY: this test's alone, between its calls.
            let count = || unsafe { (*calls_at).supplied.len() };
            assert_eq!(count(), 64);
            assert!(heap.allocate(1 << 30, 16).is_null() && count() == 64);
            assert!(matches!(region::begin_growing(number_of(region)), Grower::Nobody));
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// Threads that find a region full at once have it grow once: who comes while another asks for memory waits, and finds that.
#[test]
fn one_thread_has_a_region_grow() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn slowly(bytes: *mut usize, _: *mut ()) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(50));
        // SAFETY: a number of the caller's.
        let bytes = unsafe { &mut *bytes };
        *bytes = (*bytes).max(4 * MIB);
        map(null_mut(), *bytes, libc::PROT_READ | libc::PROT_WRITE)
    }
    alone(|| {
        with_regions(|| {
            let functions = RegionCalls { reserve: Some(slowly), ..RegionCalls::default() };
            // SAFETY: it does what it shall, and stays.
            let region = unsafe { RegionId::new(null_mut(), 0, functions) }.expect("room");
            let heap = region.new_shared().expect("memory");
            let begin = std::sync::Barrier::new(8);
            let works = || {
                begin.wait();
                for size in [1000, 100_000] {
                    // SAFETY: the heap is there, and any thread's.
                    assert!(!unsafe { heap.allocate(size, 16) }.is_null());
                }
            };
            std::thread::scope(|scope| {
                let threads = [(); 8].map(|()| scope.spawn(works));
                threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            });
            assert_eq!(CALLS.load(Ordering::Relaxed), 1);
            // SAFETY: nobody uses it.
            unsafe { heap.destroy() };
            assert!(region.end());
        });
    });
}

/// Nobody waits for memory that cannot come.
#[test]
fn a_region_without_reserve_has_no_grower() {
    alone(|| {
        with_regions(|| {
            let (_memory, region) = Fenced::with_region(MIB);
            for _ in 0..2 {
                assert!(matches!(region::begin_growing(number_of(region)), Grower::Nobody));
            }
            assert!(region.end());
        });
    });
}

/// A thread may end inside the program's function.
#[test]
fn who_ends_asks_for_no_more_memory() {
    unsafe extern "C" fn supplies(bytes: *mut usize, _: *mut ()) -> *mut u8 {
        // SAFETY: a number of the caller's.
        let bytes = unsafe { &mut *bytes };
        *bytes = (*bytes).max(4 * MIB);
        map(null_mut(), *bytes, libc::PROT_READ | libc::PROT_WRITE)
    }
    alone(|| {
        with_regions(|| {
            let functions = RegionCalls { reserve: Some(supplies), ..RegionCalls::default() };
            // SAFETY: it does what it shall, and stays.
            let region = unsafe { RegionId::new(null_mut(), 0, functions) }.expect("room");
            let heap = Heap::shared_in_region(region).expect("memory");
            let ends = || {
                free(allocate(100));
                assert!(matches!(region::begin_growing(number_of(region)), Grower::Caller(_)));
            };
            std::thread::scope(|scope| _ = scope.spawn(ends).join());
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!heap.allocate(1000, 16).is_null()));
            });
            assert!(!heap.allocate(1000, 16).is_null());
            heap.destroy();
            assert!(region.end());
        });
    });
}

/// Inside `commit` the program may be called for what it has put off, and free blocks of the heap that needs the memory.
#[test]
fn what_is_freed_inside_commit_is_not_lost() {
    static PUT_OFF: AtomicPtr<u8> = AtomicPtr::new(null_mut());
    static INSIDE: AtomicBool = AtomicBool::new(false);
    fn frees(_: bool, _: u64, _: [usize; 2]) {
        if INSIDE.load(Ordering::Relaxed) {
            free(PUT_OFF.swap(null_mut(), Ordering::Relaxed));
        }
    }
    unsafe extern "C" fn allocates(_: *mut u8, _: usize, _: *mut ()) -> i32 {
        INSIDE.store(true, Ordering::Relaxed);
        while !PUT_OFF.load(Ordering::Relaxed).is_null() {
            free(allocate(100));
        }
        INSIDE.store(false, Ordering::Relaxed);
        0
    }
    alone(|| {
        with_regions(|| {
            let memory = Fenced::new(4 * MIB);
            let calls = RegionCalls { commit: Some(allocates), ..RegionCalls::default() };
            // SAFETY: it is nobody else's, and stays.
            let region = unsafe { RegionId::new(memory.start, memory.bytes, calls) };
            let region = region.expect("room");
            let heap = Heap::in_region(region).expect("memory");
            on_deferred_free(Some(frees), [0; 2]);
            let (mut blocks, mut put_off) = (Vec::new(), 0);
            for _ in 0..2000 {
                let block = heap.allocate(1000, 16);
                assert!(!block.is_null());
                if PUT_OFF.load(Ordering::Relaxed).is_null() {
                    PUT_OFF.store(block, Ordering::Relaxed);
                    put_off += 1;
                } else {
                    blocks.push(block);
                }
            }
            on_deferred_free(None, [0; 2]);
            assert!(put_off > 2, "some have been freed inside");
            check();
            blocks.into_iter().for_each(free);
            free(PUT_OFF.load(Ordering::Relaxed));
            heap.purge();
            assert_eq!(heap.stats().spans, 0);
            drop(heap);
            assert!(region.end());
            check();
        });
    });
}

/// Who has looked a region up by its name may find another one of its number. While one is purged it does not end.
#[test]
fn a_name_is_not_the_next_regions() {
    static PURGED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn ends(_: *mut u8, _: usize, _: *mut ()) -> i32 {
        let name = NonZeroUsize::new(PURGED.load(Ordering::Relaxed)).expect("it is there");
        assert!(!RegionId::from_raw(name).end());
        0
    }
    alone(|| {
        with_regions(|| {
            let ended = growing(&mut Calls::default());
            assert!(ended.end());
            let memory = Fenced::new(MIB);
            let calls = RegionCalls { decommit: Some(ends), ..RegionCalls::default() };
            // SAFETY: it is nobody else's, and stays.
            let region = unsafe { RegionId::new(memory.start, memory.bytes, calls) };
            let region = region.expect("room");
            assert_eq!(number_of(region), 0, "it has the number of the other one");
            assert!(!regions::end(ended.into_raw().get()));
            PURGED.store(region.into_raw().get(), Ordering::Relaxed);
            let heap = Heap::in_region(region).expect("memory");
            free(heap.allocate(MIB / 2, 16));
            heap.destroy();
            assert!(region.purge() > 0 && region.end());
        });
    });
}

/// What is free in the reservation where a region takes the metadata goes: nobody finds it there.
#[test]
fn what_is_free_under_a_region_goes() {
    alone(|| {
        with_regions(|| {
            const SPACE: usize = 256 << 20;
            set_address_space(SPACE);
            set_purge_delay_ms(usize::MAX);
            let block = allocate(16 * MIB);
            // SAFETY: a live block.
            unsafe { block.write_bytes(1, 16 * MIB) };
            free(block);
            let under = block.with_addr((block.addr() + 4 * MIB).next_multiple_of(MIB));
            let resident = || {
                let mut pages = [0_u8; 8 * MIB / PAGE];
                // SAFETY: a byte for each page.
                let done = unsafe { libc::mincore(under.cast(), 8 * MIB, pages.as_mut_ptr()) };
                assert_eq!(done, 0);
                pages.iter().filter(|&&page| page & 1 != 0).count() * PAGE
            };
            assert_eq!(resident(), 8 * MIB);
            let at = (1..100).map(|nth| under.wrapping_add(nth * SPACE));
            let start = at.into_iter().find_map(try_map).expect("some place is free");
            let memory = Fenced { start, bytes: 8 * MIB };
            let region = memory.region();
            assert_eq!(resident(), 0);
            assert!(region.end());
            check();
        });
    });
}

/// As a child may find deleted heaps while another thread collects: one is being given back, the others are in nobody's list.
#[test]
fn a_child_finds_what_deleted_heaps_have_left() {
    alone(|| {
        with_regions(|| {
            let (_, region) = Fenced::with_region(8 * MIB);
            let deleted = |_| {
                let heap = Heap::in_region(region).expect("memory");
                let blocks: Vec<_> =
                    (0..200).map(|nth| heap.allocate(48 << (nth % 7), 16)).collect();
                assert!(blocks.iter().all(|block| !block.is_null()));
                blocks
            };
            let blocks: Vec<_> = (0..20).flat_map(deleted).collect();
            let (holds, is_held) = std::sync::mpsc::channel();
            let (go, goes) = std::sync::mpsc::channel();
            let collector = std::thread::spawn(move || {
                let mut left = LEFT.lock();
                left.busy = left.all.pop();
                let all = core::mem::replace(&mut left.all, Stack::EMPTY);
                // SAFETY: the list's heap, which is whole again before it stands there.
                let was = unsafe { left.busy.read() };
                tear(left.busy);
                holds.send(()).expect("somebody waits");
                goes.recv().expect("somebody goes on");
                left.all = all;
                // SAFETY: as above.
                unsafe {
                    left.busy.write(was);
                    let busy = left.busy;
                    left.all.push(busy);
                }
            });
            is_held.recv().expect("it holds");
            assert!(child_does(|| {
                blocks.iter().for_each(|&block| free(block));
                purge();
                assert!(region.end() && LEFT.lock().all.is_empty());
                check();
            }));
            go.send(()).expect("it waits");
            collector.join().expect("it ends");
            blocks.into_iter().for_each(free);
            assert!(region.end());
            check();
        });
    });
}
