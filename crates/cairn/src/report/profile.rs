//! Owns: how the heap profile is written.
//! Idea: lines of numbers, and what the system says of the process's mappings: names are found elsewhere.
//! Never: allocates, or holds a lock.
//! Threads: any.
//! Checked: tests/sample/profile.rs; the command reads it back.
//! Story: docs/guide/profile.md

use crate::base::Ordering;
use crate::map::{OWNER_LARGE, OWNER_NONE, address_map};
use crate::report::tuning::PINNED_SITES;
use crate::samples::profile::{self, Live, Site};
use crate::{os, thread::search};
use core::fmt::{self, Write};

/// Gives the heap profile to `out`, piece by piece, as text: where what is live was allocated, and what has been allocated since
/// `profile_every` was first called. `cairn profile` reads it (docs/guide/profile.md). `out` may do anything.
///
/// ```
/// cairn::profile_every(1 << 10);
/// let blocks: Vec<_> = (0..1000).map(|_| cairn::allocate(100)).collect();
/// let mut text = Vec::new();
/// cairn::write_profile(|piece| text.extend_from_slice(piece));
/// assert!(text.starts_with(b"cairn heap profile 2\n"));
/// # cairn::profile_every(0);
/// # blocks.into_iter().for_each(|block| unsafe { cairn::deallocate(block) });
/// ```
pub fn write_profile(mut out: impl FnMut(&[u8])) {
    write(&mut out);
}

// The lines:
//
//     cairn heap profile 2
//     rate BYTES                      as it is now; 0: off
//     dropped SAMPLES
//     site WEIGHED RATE ALLOCATED BYTES FREED BYTES CALL...
//     peak SAMPLES BYTES              those of the site that were live when most bytes were
//     lived SAMPLES...                those that were freed before 1 ms, 10 ms, ..., 1000 s, and later
//     pinned BYTES                    of the pages that its live samples keep
//     mappings
//     ... /proc/self/maps
//     builds
//     NUMBER PATH                     what its linker has given a file that is mapped, in hexadecimal
//     names
//     ... /tmp/perf-PID.map, of code that the process has made while it ran
//     end
//
// Numbers are decimal, calls hexadecimal, the innermost first. A site's amounts are those of samples. Lines behind a site
// belong to it; those of zeros are left out.
#[inline(never)]
fn write(out: &mut dyn FnMut(&[u8])) {
    let mut text = Text(out);
    // It does not fail.
    let _ = writeln!(text, "cairn heap profile 2\nrate {}", profile::rate());
    let _ = writeln!(text, "dropped {}", profile::dropped());
    let mut pinned = [0; PINNED_SITES];
    for (number, site) in profile::sites().enumerate() {
        if number % PINNED_SITES == 0 {
            find_pinned(number, &mut pinned);
        }
        let _ = write_site(&mut text, &site, pinned[number % PINNED_SITES]);
    }
    let _ = writeln!(text, "mappings");
    os::mappings(|piece| (text.0)(piece));
    let _ = writeln!(text, "builds");
    os::builds(|number, path| write_build(&mut text, number, path));
    let _ = writeln!(text, "names");
    os::perf_map(|piece| (text.0)(piece));
    // The last line may be half written.
    let _ = writeln!(text, "\nend");
}

fn write_site(text: &mut Text<'_>, site: &Site<'_>, pinned: usize) -> fmt::Result {
    let Site { weighed, rate, allocated, freed, at_peak, .. } = site;
    write!(text, "site {weighed} {rate}")?;
    for amounts in [allocated, freed] {
        write!(text, " {} {}", amounts.count, amounts.bytes)?;
    }
    for call in site.calls() {
        write!(text, " {call:x}")?;
    }
    writeln!(text)?;
    if at_peak.count > 0 {
        writeln!(text, "peak {} {}", at_peak.count, at_peak.bytes)?;
    }
    if freed.count > 0 {
        write!(text, "lived")?;
        site.lived().iter().try_for_each(|count| write!(text, " {count}"))?;
        writeln!(text)?;
    }
    if pinned > 0 { writeln!(text, "pinned {pinned}") } else { Ok(()) }
}

fn write_build(text: &mut Text<'_>, number: &[u8], path: &[u8]) {
    for byte in number {
        let _ = write!(text, "{byte:02x}");
    }
    (text.0)(b" ");
    (text.0)(path);
    (text.0)(b"\n");
}

/// Bytes of pages that the live samples of some sites, from number `first` on, keep from going back.
#[inline(never)]
fn find_pinned(first: usize, pinned: &mut [usize]) {
    pinned.fill(0);
    for sample in profile::live() {
        let site = (sample.site as usize).wrapping_sub(first);
        if let Some(pinned) = pinned.get_mut(site) {
            *pinned += pages_kept(&sample);
        }
    }
}

/// Of a block in place of which a sample is: the pages that it touches, shared with as many neighbours as its span would lead
/// one to expect there. Where the span is gone, the pages are all its own. A large block keeps its pages.
fn pages_kept(sample: &Live) -> usize {
    let page = os::page_size();
    let whole = os::round_up(sample.asked.max(1), page);
    let Some(index) = (sample.near as usize).checked_sub(1) else { return whole };
    let d = address_map::descriptor_at(index);
    let owner = d.owner.load(Ordering::Acquire);
    let class = d.class();
    let size = class.block_size();
    if owner == OWNER_NONE || owner == OWNER_LARGE || size != sample.weighed {
        return whole;
    }
    // SAFETY: what has an owner has had a span, whose metadata is never unmapped; its fields may be changing.
    let (used, _) = unsafe { search::peek_span(d.slot.load(Ordering::Relaxed).cast()) };
    let blocks = usize::from(class.layout().blocks);
    // On its pages, on average over the blocks of a span: how much is not its own, and how much of that is in use. The pages
    // are divided by bytes in use: with all blocks in use it keeps its own size.
    let beside = page - page.min(size & size.wrapping_neg());
    let used_beside = beside * used.min(blocks) / blocks;
    let touched = size + beside;
    touched - touched * used_beside / (size + used_beside)
}

struct Text<'a>(&'a mut dyn FnMut(&[u8]));

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        (self.0)(text.as_bytes());
        Ok(())
    }
}
