//! The reservation: where its tables are, that every pointer has a descriptor, and what becomes of it
//! in a small address space.

use super::alone::{alone, shares_its_address_space};
use crate::base::{HARDENED, Ordering, PARTITIONS, SLICE_SIZE, in_hardened};
use crate::map::{CHUNK_SLICES, HEAP_SIZE, SECTION_SLICES, address_map};
use crate::os::Overcommit;
use crate::slices::reservation;
use crate::thread::pool;
use crate::{HeapId, allocate, allocate_in, base, check, deallocate, os, purge, thread};
use std::string::String;
use std::vec::Vec;

#[test]
fn every_pointer_has_a_descriptor() {
    alone(|| {
        if is_a_tools() {
            return;
        }
        assert!(!address_map::contains(core::ptr::dangling()));
        assert!(thread::start());
        let first = address_map::slice_address(0);
        let end = address_map::slice_address(address_map::slice_limit());
        assert_eq!(end.addr() - first.addr(), 1 << 40);
        assert!(first.addr().is_multiple_of(2 << 20));
        // Far from programs, libraries and stacks.
        assert!((48..81).contains(&(first.addr() >> 40)));
        for (p, inside) in [
            (first, true),
            (end.wrapping_sub(1), true),
            (end, false),
            (first.wrapping_sub(1), false),
            (core::ptr::null_mut(), false),
            (core::ptr::without_provenance_mut(usize::MAX), false),
        ] {
            assert_eq!(address_map::contains(p), inside);
            // Whatever it says, it can be read.
            address_map::descriptor(p).owner.load(Ordering::Relaxed);
        }
        for index in [0, 1, 63, 64, 12_345, address_map::slice_limit() - 1] {
            let at = address_map::slice_address(index);
            for inside in [at, at.wrapping_add(SLICE_SIZE - 1)] {
                assert_eq!(address_map::slice_of(inside), index);
                let d = address_map::descriptor(inside);
                assert!(core::ptr::eq(d, address_map::descriptor_at(index)));
            }
        }
    });
}

#[test]
fn tables_do_not_overlap() {
    alone(|| {
        drop_block(allocate(100));
        let (from, to) = (0, address_map::committed());
        assert!(to > from);
        // (address, bytes) of every piece of metadata.
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for index in from..to {
            let d: *const _ = address_map::descriptor_at(index);
            // SAFETY: a committed slice.
            let word: *const _ = unsafe { address_map::remote_word(index) };
            pieces.extend([
                (d.addr(), 32),
                (word.addr(), 8),
                (address_map::slot(index).addr(), 64),
            ]);
        }
        for chunk in from / CHUNK_SLICES..to / CHUNK_SLICES {
            pieces.push((address_map::chunk_bits(chunk).addr(), 32));
        }
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        for index in [0, 1, 65_535] {
            let heap = address_map::heap_address(index).expect("it has a place");
            pieces.push((heap.addr(), HEAP_SIZE));
        }
        // All of them in what counts as metadata, which is in front of all slices. The table of descriptors
        // may begin again in between.
        let extents = reservation::metadata_extents();
        let slices = address_map::slice_address(from).addr();
        for &(at, bytes) in &pieces {
            let inside = |&(start, len): &(*mut u8, usize)| {
                start.addr() <= at && at + bytes <= start.addr() + len
            };
            assert_eq!(extents.iter().filter(|extent| inside(extent)).count(), 1);
            assert!(at + bytes <= slices);
        }
        for (start, len) in extents {
            assert!(start.addr().is_multiple_of(4096) && len.is_multiple_of(4096));
            assert!(start.addr() + len <= slices);
        }
        // And not much besides.
        let sections = to.div_ceil(SECTION_SLICES) - from / SECTION_SLICES;
        let bytes = [(to - from) * 32, sections * address_map::SECTION_BYTES, 65_536 * HEAP_SIZE];
        let [descriptors, beyond, sections, _, heaps] = extents.map(|(_, len)| len);
        for (len, bytes) in [descriptors + beyond, sections, heaps].into_iter().zip(bytes) {
            assert!((bytes..bytes + 2 * 4096).contains(&len), "{len} for {bytes}");
        }
        // The words of neighbours are on different lines.
        let line = |index| {
            // SAFETY: a committed slice.
            core::ptr::from_ref(unsafe { address_map::remote_word(index) }).addr() / 64
        };
        assert!((from..to - 1).all(|index| line(index) != line(index + 1)));
    });
}

fn drop_block(block: *mut u8) {
    assert!(!block.is_null());
    // SAFETY: allocated by the caller just now.
    unsafe { deallocate(block) };
}

/// CLISP maps its heap where it likes, between 16 and 32 TiB.
#[test]
fn it_lies_behind_what_programs_map_at_fixed_places() {
    alone(|| {
        assert!(thread::start());
        let (limit, start) = (address_map::slice_limit(), address_map::slice_address(0).addr());
        assert!(limit * SLICE_SIZE < 1 << 40 || start >= 32 << 40, "{start:#x}");
    });
}

#[test]
fn heaps_have_places_one_behind_the_other() {
    alone(|| {
        assert!(thread::start());
        let at = |index| address_map::heap_address(index).map(<*mut u8>::addr);
        let first = at(0).expect("there is one");
        assert!(first.is_multiple_of(HEAP_SIZE));
        assert_eq!(at(1), Some(first + HEAP_SIZE));
        assert_eq!(at(65_535), Some(first + 65_535 * HEAP_SIZE));
        assert_eq!(at(65_536), None);
        assert!(!reservation::commit_heap(65_536));
        assert!(reservation::commit_heap(7));
        let seventh = address_map::heap_address(7).expect("it has a place");
        // SAFETY: committed just now, used by nobody.
        unsafe {
            seventh.write(1);
            seventh.add(HEAP_SIZE - 1).write(1);
        }
    });
}

#[test]
fn the_reservation_does_not_grow_beyond_its_end() {
    alone(|| {
        assert!(thread::start());
        let (before, limit) = (address_map::committed(), address_map::slice_limit());
        assert!(!reservation::commit(limit - before + 1));
        assert!(!reservation::commit(limit + 1));
        assert_eq!(address_map::committed(), before);
        assert!(reservation::commit(100));
        assert_eq!(address_map::committed(), before + 100);
        // SAFETY: committed just now, used by nobody.
        unsafe {
            address_map::slice_address(before).write(1);
            address_map::slice_address(before + 100).sub(1).write(1);
        }
    });
}

fn limit_address_space(limit: u64) {
    let limits = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the struct is valid for reading.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limits) }, 0);
}

/// Whether the address space is a tool's, as under a sanitizer, which reserves many TiB: it can be
/// neither limited nor filled up.
fn is_a_tools() -> bool {
    status_bytes("VmSize:") > 8 << 40
}

/// Whether the thread sanitizer runs, which reserves the most.
pub(super) fn is_watched() -> bool {
    status_bytes("VmSize:") > 64 << 40
}

/// With a limit on address space nothing is reserved but the tables.
fn works_within(limit: u64) {
    if is_a_tools() {
        return;
    }
    limit_address_space(limit);
    let mut held = Vec::new();
    for round in 0..3000 {
        let size = [24, 700, 5000, 40_000, 200_000][round % 5] + round;
        let block = allocate(size);
        if block.is_null() {
            break;
        }
        // SAFETY: a live block.
        unsafe { block.write_bytes(round as u8, size.min(2000)) };
        held.push((block, round as u8));
    }
    assert!(held.len() > 400, "{} blocks", held.len());
    if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        let is_small = |&(block, _): &(*mut u8, u8)| flags_at(block).contains(" nh");
        assert!(held.iter().filter(|&it| address_map::contains(it.0)).all(is_small));
    }
    check();
    // Its tables begin and end anywhere in a page; whole pages are what can be resident.
    for (at, len) in reservation::metadata_extents() {
        assert!(at.addr().is_multiple_of(4096) && len.is_multiple_of(4096));
    }
    let size = address_map::slice_limit() * SLICE_SIZE;
    assert_eq!(size as u64, limit.next_power_of_two().clamp(32 << 20, 1 << 40));
    for (block, seed) in held {
        // SAFETY: a live block.
        assert_eq!(unsafe { block.add(20).read() }, seed);
        drop_block(block);
    }
    purge();
    check();
}

#[test]
fn a_small_address_space_is_enough() {
    alone(|| works_within(300 << 20));
}

#[test]
fn a_limit_of_some_gigabytes_is_kept_within() {
    alone(|| works_within(5 << 30));
}

/// Threads have heaps for good as long as there are places but for those that partitions need, the one that is lent, and the
/// last, which is for the shared heap.
#[test]
fn the_last_heap_is_for_the_shared_heap() {
    alone(|| {
        if is_a_tools() {
            return;
        }
        limit_address_space(300 << 20);
        assert!(thread::start());
        let places = (0..).find(|&index| address_map::heap_address(index).is_none());
        let places = places.expect("there is an end");
        assert_eq!(places, in_hardened(512, 64));
        let lent = 1 + in_hardened(0, PARTITIONS);
        for _ in 0..places - 1 - lent {
            assert!(!pool::take().is_null());
        }
        assert!(pool::take().is_null());
        (0..lent).for_each(|_| assert!(!pool::lend().is_null()));
        assert!(pool::lend().is_null());
        assert_eq!(pool::counts(), (places - 1, places - 1));
        assert!(!pool::take_shared().is_null());
        assert!(pool::take_shared().is_null());
        assert_eq!(pool::counts(), (places - 1, places));
    });
}

/// There is no memory for a thread's part of a shared heap: the heap answers null, and there is nothing to give back.
#[test]
fn a_thread_may_have_no_part() {
    alone(|| {
        if is_a_tools() {
            return;
        }
        limit_address_space(300 << 20);
        let heap = HeapId::new_shared().expect("memory");
        drop_block(allocate(64));
        while !pool::lend().is_null() {}
        // SAFETY: the heap is there.
        unsafe {
            for size in [64, 1 << 40] {
                assert!(heap.allocate(size, 16).is_null());
            }
            heap.purge();
            heap.destroy();
        }
        check();
    });
}

#[test]
fn no_block_is_where_no_slice_is() {
    alone(|| {
        drop_block(allocate(100));
        let (first, end) = (0, address_map::committed());
        assert_eq!(base(address_map::slice_address(first).wrapping_sub(1)), None);
        for index in [end, address_map::slice_limit() - 1, end - 1] {
            assert_eq!(base(address_map::slice_address(index)), None);
        }
    });
}

/// Maps a page at each of these places, or something is there already.
fn occupy(places: impl Iterator<Item = usize>) {
    places.for_each(|at| _ = os::map_at(core::ptr::without_provenance_mut(at), 4096));
}

#[test]
fn the_reservation_may_be_anywhere() {
    alone(|| {
        if is_a_tools() {
            return;
        }
        // All places that it would like best; above them there is room.
        occupy((32..163).map(|half| half << 39));
        let before = status_bytes("VmSize:");
        drop_block(allocate(100));
        let more = status_bytes("VmSize:") - before;
        assert!((9 << 17..10 << 17).contains(&(more >> 20)), "what was cut off is given back");
        let first = address_map::slice_address(0);
        assert!(first.addr().is_multiple_of(2 << 20));
        assert_eq!(address_map::slice_limit() * SLICE_SIZE, 1 << 40);
        ends_where_it_should();
        check();
    });
}

#[test]
fn a_smaller_reservation_is_better_than_none() {
    alone(|| {
        if is_a_tools() {
            return;
        }
        // Nowhere is there a whole tebibyte. What 39 bits reach is free, and what a reservation there may end in.
        occupy((1..256).map(|half| (half << 39) + (16 << 30)));
        drop_block(allocate(100));
        let bytes = address_map::slice_limit() * SLICE_SIZE;
        assert_eq!(bytes, 64 << 30);
        let first = address_map::slice_address(0).addr();
        // There may be no more than 39 bits of addresses.
        assert!((1..8).contains(&(first / bytes)), "{first:#x}");
        check();
    });
}

/// All of the reservation is taken.
fn ends_where_it_should() {
    let end = address_map::slice_address(address_map::slice_limit());
    assert!(!os::map_at(end.wrapping_sub(4096), 4096));
}

/// Leaves a hole of `hole` bytes in the address space, and many of less than 256 MiB.
fn leave_a_hole(hole: usize) {
    let mut made: usize = 0;
    for shift in (28..47).rev() {
        loop {
            let at = os::reserve(core::ptr::null_mut(), 1 << shift, Overcommit::Granted);
            if at.is_null() {
                break;
            }
            if made == 0 && 1 << shift > hole {
                // SAFETY: reserved just now. The rest may be reserved again.
                unsafe { os::release(at, 1 << shift) };
                let at = os::reserve(core::ptr::null_mut(), hole, Overcommit::Granted);
                assert!(!at.is_null());
                made = at.addr();
            }
        }
    }
    // SAFETY: reserved above.
    assert!(unsafe { os::release(core::ptr::without_provenance_mut(made), hole) });
}

#[test]
fn a_reservation_of_some_gigabytes_is_better_than_none() {
    alone(|| reservation_in_a_hole(9 << 30, 4 << 30));
}

#[test]
fn a_small_reservation_is_better_than_none() {
    alone(|| reservation_in_a_hole(600 << 20, 256 << 20));
}

fn reservation_in_a_hole(hole: usize, reservation: usize) {
    if shares_its_address_space() {
        return;
    }
    leave_a_hole(hole);
    drop_block(allocate(100));
    assert_eq!(address_map::slice_limit() * SLICE_SIZE, reservation);
    assert!(address_map::slice_address(0).addr().is_multiple_of(2 << 20));
    check();
    // To its very end, and not further.
    let left = address_map::slice_limit() - address_map::committed();
    assert!(!reservation::commit(left + 1));
    assert!(reservation::commit(left));
    assert!(!reservation::commit(1));
}

/// What the system says of this process: `VmData:` counts against a limit on data, `VmSize:` on
/// address space.
pub(super) fn status_bytes(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is one");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.expect("a number") << 10
}

/// Of the metadata only what the first slices need is committed; and the kernel puts no huge pages
/// of its own accord.
#[test]
fn a_small_program_starts_small() {
    alone(|| {
        if shares_its_address_space() {
            return;
        }
        let before = status_bytes("VmData:");
        drop_block(allocate(100));
        let after = status_bytes("VmData:");
        assert!(
            (4 << 20..(4 << 20) + in_hardened(256 << 10, 512 << 10)).contains(&(after - before))
        );
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let first = address_map::slice_address(0);
        let last = address_map::slice_address(address_map::slice_limit() - 1);
        assert!(flags_at(first).contains(" nh") && flags_at(last).contains(" nh"));
    });
}

/// What the kernel says of the mapping around `p`.
pub(super) fn flags_at(p: *mut u8) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("there is one");
    let inside = maps.lines().skip_while(|line| {
        let word = line.split_whitespace().next().unwrap_or_default();
        let address = |hex| usize::from_str_radix(hex, 16).unwrap_or(0);
        let range = word.split_once('-').map(|(from, to)| address(from)..address(to));
        !range.is_some_and(|range| range.contains(&p.addr()))
    });
    inside.map(String::from).find(|line| line.starts_with("VmFlags:")).expect("it is mapped")
}

/// Within a limit there may be no room for the tables.
#[test]
fn there_may_be_no_place_for_the_reservation() {
    alone(|| {
        if is_a_tools() {
            return;
        }
        // Not even for the smallest ones.
        limit_address_space(status_bytes("VmSize:") as u64 + (256 << 10));
        let before = status_bytes("VmSize:");
        assert!(allocate(100).is_null() && allocate(1 << 20).is_null());
        assert!(!thread::start());
        assert!(status_bytes("VmSize:") <= before + (256 << 10), "what was tried is given back");
        assert_eq!(os::resident(core::ptr::without_provenance_mut(1 << 45), 8192), 0);
    });
}

/// The reservation may begin so that its table of descriptors goes on at its start.
#[test]
fn the_table_of_descriptors_goes_around() {
    alone(|| {
        assert!(thread::start());
        let (limit, base) = (address_map::slice_limit(), address_map::slice_address(0).addr());
        // The first slice whose descriptor stands at the table's start, if one does not begin there.
        let around = (limit - (base / SLICE_SIZE) % limit) % limit;
        let table = |index| core::ptr::from_ref(address_map::descriptor_at(index)).addr();
        assert_eq!(table((around + limit - 1) % limit) - table(around), (limit - 1) * 32);
        assert!((0..limit).step_by(12_345).all(|index| table(index) >= table(around)));
    });
}

/// Wherever a reservation begins, no heap has the tag of nobody: none stands at a multiple of 4 GiB.
#[test]
fn no_heap_has_nobodys_tag() {
    for (size, fronts) in [(1 << 40, 1 << 14), (64 << 30, 1 << 13), (256 << 20, 1 << 13)] {
        for front in (0..fronts).map(|nth| (64 << 30) + nth * (2 << 20)) {
            let place = reservation::place_of(front, size);
            let layout = reservation::layout_of(size);
            let (heaps, bytes) = (front + place + layout.heaps, layout.live - layout.heaps);
            assert!(heaps.next_multiple_of(4 << 30) >= heaps + bytes, "{front:x}: {heaps:x}");
            assert!(heaps + bytes <= front + size / 8);
        }
    }
}

/// Where there is no memory for a heap, no allocation in a partition waits for a turn: without a reservation, and where places for
/// heaps are scarce.
#[test]
fn no_turn_brings_memory() {
    alone(|| {
        let fails_at_once = || {
            let before = os::fault::failed();
            os::fault::arm(0, true);
            assert!(allocate_in(0, 64, 16).is_null());
            os::fault::disarm();
            let failed = os::fault::failed() - before;
            assert!((1..200).contains(&failed), "{failed} calls");
        };
        fails_at_once();
        if HARDENED {
            crate::set_address_space(256 << 20);
            assert!(!allocate(64).is_null());
            (0..40).for_each(|_| assert!(!pool::take().is_null()));
            assert!(pool::is_all_but_full());
            fails_at_once();
            assert!(!allocate_in(0, 64, 16).is_null());
        }
        check();
    });
}
