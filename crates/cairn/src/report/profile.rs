//! Owns: how the heap profile is written.
//! Idea: lines of numbers, and what the system says of the process's mappings: names are found elsewhere.
//! Never: allocates, or holds a lock while it calls.
//! Threads: any.
//! Checked: tests/sample/profile.rs; the command reads it back.
//! Story: docs/guide/profile.md

use crate::os;
use crate::samples::profile::{self, Site};
use core::fmt::{self, Write};

/// Gives the heap profile to `out`, piece by piece, as text: where what is live was allocated, and what has been allocated since
/// `profile_every` was first called. `cairn profile` reads it (docs/guide/profile.md). `out` may do anything.
///
/// ```
/// cairn::profile_every(1 << 10);
/// let blocks: Vec<_> = (0..1000).map(|_| cairn::allocate(100)).collect();
/// let mut text = Vec::new();
/// cairn::write_profile(|piece| text.extend_from_slice(piece));
/// assert!(text.starts_with(b"cairn heap profile 1\n"));
/// # cairn::profile_every(0);
/// # blocks.into_iter().for_each(|block| unsafe { cairn::deallocate(block) });
/// ```
pub fn write_profile(mut out: impl FnMut(&[u8])) {
    write(&mut out);
}

// The lines:
//
//     cairn heap profile 1
//     rate BYTES                      as it is now; 0: off
//     dropped SAMPLES
//     site WEIGHED RATE ALLOCATED BYTES FREED BYTES CALL...
//     mappings
//     ... /proc/self/maps
//     end
//
// Numbers are decimal, calls hexadecimal, the innermost first. A site's amounts are those of samples.
#[inline(never)]
fn write(out: &mut dyn FnMut(&[u8])) {
    let mut text = Text(out);
    // It does not fail.
    let _ = writeln!(text, "cairn heap profile 1\nrate {}", profile::rate());
    let _ = writeln!(text, "dropped {}", profile::dropped());
    for site in profile::sites() {
        let _ = write_site(&mut text, &site);
    }
    let _ = writeln!(text, "mappings");
    os::mappings(|piece| (text.0)(piece));
    let _ = writeln!(text, "end");
}

fn write_site(text: &mut Text<'_>, site: &Site<'_>) -> fmt::Result {
    let Site { weighed, rate, allocated, freed, .. } = site;
    write!(text, "site {weighed} {rate}")?;
    for amounts in [allocated, freed] {
        write!(text, " {} {}", amounts.count, amounts.bytes)?;
    }
    for call in site.calls() {
        write!(text, " {call:x}")?;
    }
    writeln!(text)
}

struct Text<'a>(&'a mut dyn FnMut(&[u8]));

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        (self.0)(text.as_bytes());
        Ok(())
    }
}
