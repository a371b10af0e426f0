//! Owns: where the search for pointers begins: all readable memory of the target that is not the allocator's, registers.
//! Idea: what is left out is known by its addresses: the heap, its metadata, its tables, and stacks below their ends.
//! Never: takes the allocator's own notes of blocks for pointers of the program's.
//! Threads: one.
//! Checked: tests here; tests/leaks.rs of the command.
//! Story: docs/guide/leaks.md

use crate::header::Header;
use crate::memory::{Area, Kind, Memory, u64_at};
use crate::walk::Census;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// What a function may use below the end of its stack.
const RED_ZONE: u64 = 128;
/// Memory that programs share without a file, as the kernel names it.
const NO_FILES: [&str; 5] = ["/dev/zero", "/memfd:", "/SYSV", "/dev/shm/", "/anon_hugepage"];

/// Parts of areas, by address.
pub(super) fn roots(
    memory: &dyn Memory,
    header: &Header,
    census: &Census,
    tables: impl IntoIterator<Item = Range<u64>>,
    stacks: &[u64],
) -> Vec<Range<u64>> {
    let mut without = vec![header.reservation(), header.metadata()];
    without.extend(mapping_tables(memory, header));
    without.extend(tables);
    without.extend(census.mappings.iter().map(|block| block.run.clone()));
    without.extend(stacks.iter().filter_map(|&end| unused(memory.areas(), end)));
    without.sort_by_key(|range| range.start);
    let areas = memory.areas().iter().filter(|area| may_have_pointers(area));
    let mut roots: Vec<_> = areas.flat_map(|area| rest(&area.range, &without)).collect();
    roots.extend(census.nurseries.iter().cloned());
    roots
}

fn may_have_pointers(area: &Area) -> bool {
    let path = area.path.as_ref().map_or(&[][..], |path| path.as_os_str().as_bytes());
    let is_own = !area.shared || NO_FILES.iter().any(|name| path.starts_with(name.as_bytes()));
    let is_data = match area.kind {
        Kind::File => area.writes && is_own,
        _ => !path.starts_with(b"[v"),
    };
    is_data && area.reads && area.present() > 0
}

/// The tables of blocks with a mapping each.
fn mapping_tables(memory: &dyn Memory, header: &Header) -> [Range<u64>; 2] {
    let mut place = [0; 32];
    if header.mappings == 0 || !memory.read(header.mappings, &mut place) {
        return [0..0, 0..0];
    }
    let bytes = u64_at(&place, 16).saturating_mul(header.mapping_bytes);
    [0, 8].map(|at| u64_at(&place, at)).map(|table| table..table.saturating_add(bytes))
}

/// What is below the end of a stack, where it is known to be a stack: the first thread's, or what a guard stands below.
fn unused(areas: &[Area], end: u64) -> Option<Range<u64>> {
    let nth = areas.partition_point(|area| area.range.end <= end);
    let area = areas.get(nth).filter(|area| area.range.contains(&end))?;
    let below = nth.checked_sub(1).and_then(|nth| areas.get(nth));
    let is_guard = |below: &Area| below.range.end == area.range.start && !below.reads;
    let is_stack = area.kind == Kind::Stack || below.is_some_and(is_guard);
    let end = end.saturating_sub(RED_ZONE);
    (is_stack && area.range.start < end).then_some(area.range.start..end)
}

/// A range without others, which stand in order.
fn rest(range: &Range<u64>, without: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    for other in without.iter().filter(|other| other.start < range.end && range.start < other.end) {
        if at < other.start {
            parts.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        parts.push(at..range.end);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::{may_have_pointers, rest, unused};
    use crate::memory::{Area, Kind};
    use crate::process::areas;

    #[test]
    fn what_is_left_out_is_cut_out() {
        let without = [0..10, 20..40, 30..35, 50..60, 90..200];
        assert_eq!(rest(&(5..100), &without), [10..20, 40..50, 60..90]);
        assert_eq!(rest(&(20..40), &without), []);
        assert_eq!(rest(&(55..70), &without), vec![60..70]);
    }

    /// The kernel does not count them as resident.
    #[test]
    fn pages_of_the_pool_for_huge_ones_have_pointers() {
        let part = |private: u64, shared: u64, rights: &str| {
            format!(
                "40000000-40400000 {rights} 00000000 00:0f 42  /anon_hugepage (deleted)\n\
                 Size: 4096 kB\nRss: 0 kB\nAnonHugePages: 0 kB\n\
                 Shared_Hugetlb: {shared} kB\nPrivate_Hugetlb: {private} kB\nSwap: 0 kB\n"
            )
        };
        for (private, shared, rights, has) in [
            (2048, 0, "rw-p", true),
            (2048, 2048, "rw-s", true),
            (0, 2048, "r--p", false),
            (0, 0, "rw-p", false),
        ] {
            let [area] = &areas(part(private, shared, rights).as_bytes())[..] else { panic!() };
            assert_eq!((area.resident, area.present()), (0, (private + shared) << 10));
            assert_eq!(may_have_pointers(area), has, "{area:?}");
        }
    }

    #[test]
    fn stacks_are_cut_where_they_are_known() {
        let area = |from: u64, to: u64, kind, reads| Area {
            range: from << 12..to << 12,
            kind,
            path: None,
            offset: 0,
            reads,
            runs: false,
            writes: reads,
            shared: false,
            resident: 0,
            swapped: 0,
            huge: 0,
            hugetlb: 0,
        };
        let areas = [
            area(1, 2, Kind::Anonymous, false),
            area(2, 10, Kind::Anonymous, true),
            area(11, 20, Kind::Anonymous, true),
            area(30, 40, Kind::Stack, true),
        ];
        assert_eq!(unused(&areas, 0x9000), Some(0x2000..0x9000 - 128));
        assert_eq!(unused(&areas, 0xc000), None, "no guard stands below");
        assert_eq!(unused(&areas, 0x1f000), Some(0x1e000..0x1f000 - 128));
        for elsewhere in [0, 0x1800, 0x2000, 0x2010, 0xa800, u64::MAX] {
            assert_eq!(unused(&areas, elsewhere), None);
        }
    }
}
