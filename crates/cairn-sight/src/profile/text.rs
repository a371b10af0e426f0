//! A heap profile as text: what the library writes, written again.
//!
//! Owns: that form, as `HeapProfile::parse` reads it.
//! Idea: what was read from a running process can be looked at later, by any command that takes a file.
//! Never: loses what the form can say.

use super::{Amounts, HEAD, HeapProfile, Mapping, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

/// The text of a profile. Mappings have what is needed for names.
impl Display for HeapProfile {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{HEAD}\nrate {}\ndropped {}", self.rate, self.dropped)?;
        self.sites.iter().try_for_each(|site| write_site(out, site))?;
        writeln!(out, "mappings")?;
        for mapping in &self.mappings {
            let Mapping { start, end, offset, inode, path } = mapping;
            let path = path.to_string_lossy().replace('\n', " ");
            writeln!(out, "{start:x}-{end:x} r-xp {offset:08x} 00:00 {inode} {path}")?;
        }
        writeln!(out, "builds")?;
        let paths = self.mappings.iter().map(|mapping| mapping.path.as_path());
        let known = paths.filter_map(|path| Some((path, self.builds.get(path)?)));
        for (path, build) in known.collect::<BTreeMap<_, _>>() {
            writeln!(out, "{build} {}", path.to_string_lossy().replace('\n', " "))?;
        }
        writeln!(out, "names")?;
        let calls = self.sites.iter().flat_map(|site| &site.calls);
        let used = calls.filter_map(|call| self.perf_map.function(call.wrapping_sub(1)));
        for (start, end, name) in used.collect::<BTreeSet<_>>() {
            writeln!(out, "{start:x} {:x} {name}", end - start)?;
        }
        writeln!(out, "end")
    }
}

fn write_site(out: &mut Formatter<'_>, site: &Site) -> fmt::Result {
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
