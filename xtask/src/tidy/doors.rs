//! A floor is entered by its front door: another one names what its `mod.rs` offers, or a room that is a door of its own,
//! because what it does is called by the room's name (`arena::release`). All else of a floor is behind that.

use super::Report;
use super::source::Source;

/// Who goes by another way still: the file, and the room. The list only gets shorter.
const BESIDE: [(&str, &str); 24] = [
    ("heap/spans.rs", "base/tuning"),
    ("heap/spans.rs", "spans/aside"),
    ("heap/spans.rs", "spans/span"),
    ("heap/spans.rs", "spans/span_list"),
    ("heap/thinning.rs", "base/policy"),
    ("heap/thinning.rs", "base/sync"),
    ("heap/thinning.rs", "spans/aside"),
    ("heap/thinning.rs", "spans/span"),
    ("heap/tuning.rs", "base/policy"),
    ("heap/tuning.rs", "base/sync"),
    ("heap/tuning.rs", "base/tuning"),
    ("heap/tuning.rs", "store/filling"),
    ("heap/upkeep.rs", "base/sync"),
    ("heap/upkeep.rs", "map/block"),
    ("heap/upkeep.rs", "spans/span"),
    ("heap/upkeep.rs", "spans/span_list"),
    ("map/address_map/mod.rs", "base/policy"),
    ("map/address_map/mod.rs", "base/sync"),
    ("map/remote.rs", "base/sync"),
    ("spans/aside.rs", "map/block"),
    ("spans/aside.rs", "store/live"),
    ("spans/holes.rs", "map/block"),
    ("spans/tuning.rs", "base/sync"),
    ("thread/purge.rs", "base/sync"),
];

/// Checks the paths of all files but the map's, which shows each room's names to programs. `doors` are rooms.
pub(super) fn check<'a>(
    core: &[Source],
    doors: impl Iterator<Item = &'a str>,
    report: &mut Report,
) {
    let doors: Vec<_> = doors.collect();
    let mut unseen = BESIDE.to_vec();
    for source in core.iter().filter(|source| source.floor() != "lib") {
        for (path, line) in source.paths_after("crate::") {
            let mut names = path.split("::");
            let (Some(floor), Some(inner)) = (names.next(), names.next()) else { continue };
            let room = format!("{floor}/{inner}");
            let is_file = core.iter().any(|one| one.modules().starts_with(&[floor, inner]));
            if floor == source.floor() || !is_file || doors.contains(&room.as_str()) {
                continue;
            }
            let beside = |(file, of): &(&str, &str)| {
                *of == room && source.path.ends_with(&format!("/src/{file}"))
            };
            if BESIDE.iter().any(beside) {
                unseen.retain(|one| !beside(one));
            } else {
                let reason = format!("`{room}` is behind the front door of `{floor}`");
                report.fail(&source.path, line, "doors", reason);
            }
        }
    }
    for (file, room) in unseen {
        report.fail(file!(), 1, "doors", format!("{file} does not name {room}: shorten the list"));
    }
    for door in doors {
        if !core.iter().any(|source| source.modules().join("/").starts_with(door)) {
            report.fail("ARCHITECTURE.md", 1, "doors", format!("there is no {door}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::tests::core;
    use super::*;

    #[test]
    fn a_floor_is_entered_by_its_doors() {
        let files = |text: &str| {
            [
                core("map/mod.rs", "pub(crate) mod walk;\nmod block;"),
                core("map/walk.rs", "use crate::map::block::Block;"),
                core("map/block.rs", ""),
                core("heap/mod.rs", text),
                core("lib.rs", "pub use crate::map::block::Block;"),
            ]
        };
        let of = |text: &str, doors: &[&str]| {
            let mut report = Report::default();
            check(&files(text), doors.iter().copied(), &mut report);
            report.failures - BESIDE.len()
        };
        assert_eq!(of("use crate::map::{Block, walk};", &["map/walk"]), 0);
        assert_eq!(of("use crate::map::{Block, walk};", &[]), 1);
        assert_eq!(of("fn f() { crate::map::block::f() }", &["map/walk"]), 1);
        assert_eq!(of("", &["map/none"]), 1, "there is no such room");
    }
}
