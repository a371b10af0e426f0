//! A heap profile as text: what the library writes, written again.
//!
//! Owns: that form, as `HeapProfile::parse` reads it.
//! Idea: what was read from a running process can be looked at later, by any command that takes a file.
//! Never: loses what the form can say.

use super::{Amounts, HEAD, HeapProfile, Mapping, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl HeapProfile {
    /// The profile as the library writes it. Mappings have what is needed for names; paths are bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // It does not fail.
        let _ = write(&mut out, self);
        out
    }
}

fn write(out: &mut Vec<u8>, profile: &HeapProfile) -> io::Result<()> {
    writeln!(out, "{HEAD}\nrate {}\ndropped {}", profile.rate, profile.dropped)?;
    profile.sites.iter().try_for_each(|site| write_site(out, site))?;
    writeln!(out, "mappings")?;
    for mapping in &profile.mappings {
        let Mapping { start, end, offset, inode, path } = mapping;
        write!(out, "{start:x}-{end:x} r-xp {offset:08x} 00:00 {inode} ")?;
        write_path(out, path)?;
    }
    writeln!(out, "builds")?;
    let paths = profile.mappings.iter().map(|mapping| mapping.path.as_path());
    let known = paths.filter_map(|path| Some((path, profile.builds.get(path)?)));
    for (path, build) in known.collect::<BTreeMap<_, _>>() {
        write!(out, "{build} ")?;
        write_path(out, path)?;
    }
    writeln!(out, "names")?;
    let calls = profile.sites.iter().flat_map(|site| &site.calls);
    let used = calls.filter_map(|call| profile.perf_map.function(call.wrapping_sub(1)));
    for (start, end, name) in used.collect::<BTreeSet<_>>() {
        writeln!(out, "{start:x} {:x} {name}", end - start)?;
    }
    writeln!(out, "end")
}

/// The rest of a line.
fn write_path(out: &mut Vec<u8>, path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_bytes().iter();
    out.extend(bytes.map(|&byte| if byte == b'\n' { b' ' } else { byte }));
    writeln!(out)
}

fn write_site(out: &mut Vec<u8>, site: &Site) -> io::Result<()> {
    let freed = site.allocated.less(site.live);
    write!(out, "site {} {}", site.weighed, site.rate)?;
    for Amounts { objects, bytes } in [site.allocated, freed] {
        write!(out, " {objects:.0} {bytes:.0}")?;
    }
    site.calls.iter().try_for_each(|call| write!(out, " {call:x}"))?;
    let Amounts { objects, bytes } = site.peak;
    write!(out, "\npeak {objects:.0} {bytes:.0}\nlived")?;
    site.lived.iter().try_for_each(|count| write!(out, " {count:.0}"))?;
    writeln!(out, "\npinned {:.0}", site.pinned)
}
