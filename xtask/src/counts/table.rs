//! The table that is kept, and what has changed since.

use anyhow::{Context, Result};
use programs::tables::markdown;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What one program costs.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cost {
    /// In user mode, of all its processes.
    pub(super) instructions: u64,
    /// Of all its processes.
    pub(super) faults: u64,
    /// The most memory that one of its processes had resident.
    pub(super) peak_kib: u64,
}

/// The name of a count, how to find it, and how much it may rise beside the share of it. A fault
/// more or less comes from where a file's pages lie, and the kernel counts memory in batches of
/// 32 pages.
type Count = (&'static str, fn(&Cost) -> u64, u64);
const COUNTS: [Count; 3] = [
    ("instructions", |cost| cost.instructions, 0),
    ("faults", |cost| cost.faults, 8),
    ("peak KiB", |cost| cost.peak_kib, 128),
];

/// How much a count may rise: another compiler's choices in cold code stay below.
const ROOM_PERCENT: u64 = 2;

const HEADER: &str = "\
# What small programs cost on libcairn.so: instructions in user mode, counted by valgrind; page faults and the
# most memory resident, of three runs the least.
#
#   cargo xtask counts            compare; 2 % more than this, 8 faults or 128 KiB, is a failure
#   cargo xtask counts --update   write this table anew
";

/// The costs of all rows.
#[derive(Default, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// The versions of what the counts depend on beside the library.
    pub(super) tools: BTreeMap<String, String>,
    /// The rows by their names.
    pub(super) costs: BTreeMap<String, Cost>,
}

/// What is not as it was, a line each.
#[derive(Default, Debug, PartialEq)]
pub(super) struct Changes {
    /// What has risen beyond the room, and rows that only one of the tables has.
    pub(super) bad: Vec<String>,
    /// The rows of these.
    pub(super) bad_rows: Vec<String>,
    /// What has fallen as far.
    pub(super) fallen: Vec<String>,
}

impl Table {
    /// Of the text of a file.
    pub(super) fn parse(text: &str) -> Result<Table> {
        toml::from_str(text).context(super::KEPT)
    }

    /// The text of a file.
    pub(super) fn render(&self) -> String {
        let mut text = format!("{HEADER}\n[tools]\n");
        for (tool, version) in &self.tools {
            text += &format!("{tool} = {version:?}\n");
        }
        text += "\n[costs]\n";
        for (row, Cost { instructions, faults, peak_kib }) in &self.costs {
            text += &format!(
                "{row:<13} = {{ instructions = {instructions:>9}, faults = {faults:>5}, peak_kib = {peak_kib:>6} }}\n"
            );
        }
        text
    }

    /// What has changed from this table to `now`.
    pub(super) fn compare(&self, now: &Table) -> Changes {
        let mut changes = Changes::default();
        for (row, before) in &self.costs {
            let Some(now) = now.costs.get(row) else {
                changes.bad(row, format!("{row}: in the table, but not measured"));
                continue;
            };
            for (name, count, slack) in COUNTS {
                let (before, now) = (count(before), count(now));
                let room = (before * ROOM_PERCENT / 100).max(slack);
                let line = format!("{row}: {name} {before} -> {now} ({})", change(before, now));
                if now > before + room {
                    changes.bad(row, format!("risen: {line}"));
                } else if now + room < before {
                    changes.fallen.push(line);
                }
            }
        }
        for row in now.costs.keys().filter(|row| !self.costs.contains_key(*row)) {
            changes.bad(row, format!("{row}: not in the table; --update adds it"));
        }
        changes
    }

    /// Tools of `now` that are not those of this table.
    pub(super) fn other_tools(&self, now: &Table) -> Vec<String> {
        let all = now.tools.iter().map(|(tool, now)| (tool, self.tools.get(tool), now));
        let other = all.filter(|(_, before, now)| *before != Some(now));
        other
            .map(|(tool, before, now)| {
                format!("{tool}: {} -> {now}", before.map_or("none", String::as_str))
            })
            .collect()
    }

    /// This table in Markdown, beside an earlier one.
    pub(super) fn print(&self, before: &Table) -> String {
        let rows = self.costs.iter().map(|(row, now)| {
            let before = before.costs.get(row);
            let cells = COUNTS.iter().flat_map(|(_, count, _)| {
                let (before, now) = (before.map(count), count(now));
                let change = before.map(|before| change(before, now));
                [before.map(|b| b.to_string()), Some(now.to_string()), change]
                    .map(|cell| cell.unwrap_or_else(|| "-".to_owned()))
            });
            [row.clone()].into_iter().chain(cells).collect()
        });
        let columns = COUNTS.map(|(name, ..)| [name, "now", "change"]);
        markdown(&[&["row"], columns.as_flattened()].concat(), |at| at > 0, rows)
    }
}

impl Changes {
    fn bad(&mut self, row: &str, line: String) {
        self.bad.push(line);
        if self.bad_rows.last().is_none_or(|last| last != row) {
            self.bad_rows.push(row.to_owned());
        }
    }
}

/// In percent.
fn change(before: u64, now: u64) -> String {
    format!("{:+.2} %", (now as f64 / before as f64 - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, [u64; 3])]) -> Table {
        let cost = |&(row, [instructions, faults, peak_kib]): &(&str, [u64; 3])| {
            (row.to_owned(), Cost { instructions, faults, peak_kib })
        };
        Table {
            tools: [("cc".to_owned(), "gcc \"12\"".to_owned())].into(),
            costs: rows.iter().map(cost).collect(),
        }
    }

    #[test]
    fn a_written_table_reads_back() {
        let table = table(&[("a", [1_000_000, 100, 2000]), ("b-1", [2, 3, 4])]);
        assert_eq!(Table::parse(&table.render()).unwrap(), table);
    }

    #[test]
    fn a_bad_file_is_an_error_that_names_it() {
        let good = table(&[("a", [1, 2, 3])]).render();
        for bad in [
            "",
            "<<<<<<< HEAD",
            &good.replace("instructions =", "seconds ="),
            &good.replace("faults =     2, ", ""),
            &good.replace("=         1,", "= -1,"),
            &good.replace("[costs]", "[other]"),
            &format!("{good}a = {{ instructions = 1, faults = 2, peak_kib = 3 }}\n"),
        ] {
            assert_ne!(bad, good);
            let error = Table::parse(bad).unwrap_err();
            assert_eq!(error.to_string(), super::super::KEPT, "{bad}");
        }
    }

    #[test]
    fn a_rise_is_bad_beyond_the_room_and_a_fall_is_told() {
        let before = table(&[("a", [1_000_000, 1000, 10_000])]);
        let to = |cost| before.compare(&table(&[("a", cost)]));
        assert_eq!(to([1_020_000, 1020, 10_200]), Changes::default());
        assert_eq!(to([980_000, 980, 9800]), Changes::default());
        let risen = to([1_020_001, 1021, 10_201]);
        assert_eq!(risen.bad[0], "risen: a: instructions 1000000 -> 1020001 (+2.00 %)");
        assert_eq!(risen.bad[1], "risen: a: faults 1000 -> 1021 (+2.10 %)");
        assert_eq!(risen.bad[2], "risen: a: peak KiB 10000 -> 10201 (+2.01 %)");
        assert_eq!(
            (risen.bad.len(), risen.bad_rows, risen.fallen),
            (3, vec!["a".to_owned()], vec![])
        );
        let fallen = to([979_999, 979, 9799]);
        assert_eq!(fallen.fallen.len(), 3);
        assert!(fallen.bad.is_empty());
    }

    #[test]
    fn small_counts_have_room_for_some_pages() {
        let before = table(&[("a", [1_000_000, 100, 1600])]);
        let to = |cost| before.compare(&table(&[("a", cost)]));
        assert_eq!(to([1_000_000, 108, 1728]), Changes::default());
        assert_eq!(to([1_000_000, 92, 1472]), Changes::default());
        assert_eq!(to([1_000_000, 109, 1729]).bad.len(), 2);
        assert_eq!(to([1_000_000, 91, 1471]).fallen.len(), 2);
    }

    #[test]
    fn a_row_that_only_one_table_has_is_bad() {
        let (one, both) =
            (table(&[("a", [1, 2, 3])]), table(&[("a", [1, 2, 3]), ("b", [1, 2, 3])]));
        assert_eq!(both.compare(&one).bad, ["b: in the table, but not measured"]);
        assert_eq!(one.compare(&both).bad, ["b: not in the table; --update adds it"]);
        assert_eq!(one.compare(&both).bad_rows, ["b"]);
    }

    #[test]
    fn other_tools_are_named() {
        let (before, mut now) = (table(&[]), table(&[]));
        assert!(before.other_tools(&now).is_empty());
        now.tools =
            [("cc".to_owned(), "14".to_owned()), ("perl".to_owned(), "5".to_owned())].into();
        assert_eq!(before.other_tools(&now), ["cc: gcc \"12\" -> 14", "perl: none -> 5"]);
    }

    #[test]
    fn the_printed_table_has_both_sides() {
        let now = table(&[("a", [102, 2, 3]), ("b", [1, 2, 3])]);
        let text = now.print(&table(&[("a", [100, 2, 3])]));
        assert!(text.contains("|a|100|102|+2.00 %|2|2|+0.00 %|3|3|+0.00 %|"), "{text}");
        assert!(text.contains("|b|-|1|-|-|2|-|-|3|-|"), "{text}");
    }
}
