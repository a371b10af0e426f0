//! Owns: which heap is whose thread's.
//! Idea: a thread's pointer to its heap is in its thread-local memory, which stands below what the C library knows of the
//!   thread: that begins with its own address, twice, and has the thread's number. The place of the pointer is the same
//!   in all threads: so the place that says something of most threads is it.
//! Never: takes a number for a thread's that the kernel does not know as one of the process's.
//! Threads: one.
//! Checked: tests here; tests/inspect.rs of the command.
//! Story: docs/design/tls.md

use crate::header::Header;
use crate::memory::{Area, Kind, Memory, Pages, overlapping, read_sparse, u32_at, u64_at};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Areas that are looked at, and bytes of one: what is below a thread's pointer is at the end of its stack.
const AREAS_MAX: usize = 1 << 16;
const WHOLE: u64 = 1 << 17;
const END: u64 = 1 << 14;
/// Bytes of thread-local memory below the pointer that are looked at.
const LOCAL: usize = 1 << 13;
/// Where glibc has a thread's address for the second time, and its number: there, or near.
const AGAIN: usize = 16;
const NUMBER: usize = 0x2d0;
const NEAR: Range<usize> = 0x200..0x400;

/// Of each thread of glibc's on x86-64 that has one the number of its heap, by that.
pub(crate) fn heaps(
    memory: &dyn Memory,
    header: &Header,
    threads: &BTreeSet<u32>,
) -> BTreeMap<u64, u32> {
    let mut places = Places::new();
    let is_known = cfg!(target_arch = "x86_64");
    let areas = memory.areas().iter().filter(|area| is_known && may_have(area, header));
    for area in areas.take(AREAS_MAX) {
        let range = part(area);
        let Ok(pages) = Pages::of(memory, range.clone()) else { continue };
        if pages.bytes(range.clone()) > 0 {
            let bytes = read_sparse(memory, range.clone(), &pages);
            search(&bytes, range.start, header, threads, &mut places);
        }
    }
    let most = places.into_values().max_by_key(BTreeMap::len);
    most.unwrap_or_default()
}

/// By the place below the pointer: which heap each thread would have.
type Places = BTreeMap<usize, BTreeMap<u64, u32>>;

fn may_have(area: &Area, header: &Header) -> bool {
    let ours = [header.reservation(), header.metadata()];
    let is_ours =
        |range: &Range<u64>| overlapping(std::slice::from_ref(area), range).next().is_some();
    let is_of_kind = matches!(area.kind, Kind::Anonymous | Kind::Brk);
    is_of_kind && area.resident > 0 && !ours.iter().any(is_ours)
}

fn part(area: &Area) -> Range<u64> {
    let Range { start, end } = area.range;
    match area.kind {
        _ if end - start <= WHOLE => start..end,
        // A static program has its first thread's there.
        Kind::Brk => start..start + END,
        _ => end - END..end,
    }
}

/// Finds threads in bytes that are at `base`.
fn search(bytes: &[u8], base: u64, header: &Header, threads: &BTreeSet<u32>, places: &mut Places) {
    for at in (0..bytes.len()).step_by(8) {
        let address = base + at as u64;
        if u64_at(bytes, at) != address || u64_at(bytes, at + AGAIN) != address {
            continue;
        }
        let number =
            |offset: usize| Some(u32_at(bytes, at + offset)).filter(|n| threads.contains(n));
        let Some(thread) = number(NUMBER).or_else(|| NEAR.step_by(4).find_map(number)) else {
            continue;
        };
        for below in (8..=LOCAL.min(at)).step_by(8) {
            if let Some(heap) = header.heap_at(u64_at(bytes, at - below)) {
                places.entry(below).or_default().insert(heap, thread);
            }
        }
    }
}
