//! Owns: the kernel's search for pages, `PAGEMAP_SCAN`, which Linux has from 6.7 on.
//! Idea: it tells runs of pages, and which are the one page of zeros, that no count of resident memory has.
//! Never: changes the process: it asks, and sets no mark.
//! Threads: any.
//! Checked: tests here; tests/inspect.rs of the command.
//! Story: docs/design/outside-view.md

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const IS_PRESENT: u64 = 1 << 3;
const IS_ZERO_PAGE: u64 = 1 << 5;
/// Runs that one call tells of, and pages: for so long the process's calls to map or unmap something wait.
const RUNS: usize = 1 << 12;
const PAGES: u64 = 1 << 14;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    runs_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

const _: () = assert!(size_of::<Scan>() == 96);

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

/// The runs of resident pages in a range of whole pages, by a process's `pagemap`; false, and none, if the kernel does not
/// know the call.
pub(super) fn each_run(
    pagemap: &File,
    range: Range<u64>,
    each: &mut dyn FnMut(Range<u64>),
) -> bool {
    let mut runs = vec![Run::default(); RUNS];
    let mut from = range.start;
    while from < range.end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: from,
            end: range.end,
            runs: runs.as_mut_ptr().expose_provenance() as u64,
            runs_len: RUNS as u64,
            max_pages: PAGES,
            inverted: IS_ZERO_PAGE,
            all_of: IS_PRESENT | IS_ZERO_PAGE,
            told: IS_PRESENT,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes `scan`, and writes at most so many runs.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        let Ok(count) = usize::try_from(count) else { return from > range.start };
        runs.iter().take(count).for_each(|run| each(run.start..run.end));
        if scan.walk_end <= from {
            break;
        }
        from = scan.walk_end;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::each_run;
    use std::fs::File;

    #[test]
    fn pages_of_zeros_are_not_resident() {
        let page = rustix::param::page_size();
        // So large that it is a mapping, whose pages nobody has had.
        let mut bytes = vec![0_u8; 40 << 20];
        let first = bytes.as_ptr().addr().next_multiple_of(page) - bytes.as_ptr().addr();
        let read: u32 = bytes[..100 * page].iter().step_by(page).map(|&byte| u32::from(byte)).sum();
        for nth in 0..10 {
            bytes[first + nth * 3 * page] = 1;
        }
        let start = (bytes.as_ptr().addr() + first) as u64;
        let mut pages = Vec::new();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let asked = start..start + 99 * page as u64;
        if !each_run(&pagemap, asked, &mut |run| pages.extend(run.step_by(page))) {
            return;
        }
        let written = (0..10).map(|nth| start + nth * 3 * page as u64);
        assert!(written.clone().all(|at| pages.contains(&at)), "{read} {pages:x?}");
        // Where the system has huge pages for all, all are.
        let is_huge = pages.len() == 99;
        assert!(is_huge || pages == written.collect::<Vec<_>>(), "{pages:x?}");
    }
}
