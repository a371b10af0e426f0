//! The golden table: what the fast paths cost when they were last looked at.

use super::report::Column;
use super::trace::Counts;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Upper bounds that hold whatever the golden table says.
pub(super) const YARDSTICK: [(&str, f64); 2] = [("malloc(64)", 14.0), ("free(64)", 20.0)];
/// The same for the amortised rows.
pub(super) const AMORTISED_YARDSTICK: [(&str, f64); 2] = [("malloc(64)", 22.0), ("free(64)", 28.0)];

/// The amortised rows contain slow paths, and those may ask the clock; half a hundred
/// instructions in a batch of a thousand are not a change.
const AMORTISED_SLACK: f64 = 0.05;

const HEADER: &str = "\
# Machine instructions executed inside libcairn.so, counted one by one on x86-64.
#
#   cargo xtask fast-path            compare; any count above this table is a failure
#   cargo xtask fast-path --update   write this table anew
#
# [calls]      one warm call: the most frequent outcome of 40, each traced from the first
#              instruction inside the library to the return. A load or store is an
#              instruction that reads or writes memory, push and pop included, the return
#              address of call and ret not; branches are jumps, conditional or not.
# [amortised]  instructions per call in batches of 1,000 malloc(64) and then 1,000
#              free, oldest first, in steady state, refills and all.
#
# Yardstick, asserted by the command whatever stands below:
";

/// The table as it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Golden {
    calls: BTreeMap<String, Counts>,
    amortised: BTreeMap<String, f64>,
}

/// What a comparison found.
#[derive(Default)]
pub(super) struct Difference {
    /// Each line is a failure.
    pub(super) worse: Vec<String>,
    /// Each line is a reason to update the table.
    pub(super) better: Vec<String>,
}

impl Golden {
    /// Reads the table.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("no {}; write it with --update", path.display()))?;
        toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Compares what was measured with the table.
    pub(super) fn compare(&self, measured: &Column) -> Difference {
        let mut found = Difference::default();
        for (name, golden) in &self.calls {
            let Some(now) = measured.call(name) else {
                found.worse.push(format!("{name}: in the golden table, but not measured"));
                continue;
            };
            for (what, before, after) in [
                ("instructions", golden.instructions, now.instructions),
                ("loads", golden.loads, now.loads),
                ("stores", golden.stores, now.stores),
                ("branches", golden.branches, now.branches),
                ("calls", golden.calls, now.calls),
            ] {
                found.note(name, what, before as f64, after as f64, 0.0);
            }
        }
        for (name, golden) in &self.amortised {
            match measured.amortised(name) {
                Some(now) => {
                    found.note(name, "amortised instructions", *golden, now, AMORTISED_SLACK);
                }
                None => found.worse.push(format!("{name}: no amortised figure")),
            }
        }
        for (name, _) in measured.measured_calls() {
            if !self.calls.contains_key(name) {
                found.worse.push(format!("{name}: not in the golden table; --update adds it"));
            }
        }
        found
    }
}

impl Difference {
    fn note(&mut self, name: &str, what: &str, before: f64, after: f64, slack: f64) {
        let line = || format!("{name}: {what} {before} -> {after} ({:+})", round(after - before));
        if after > before + slack {
            self.worse.push(line());
        } else if after < before - slack {
            self.better.push(line());
        }
    }
}

/// Where `measured` breaks the yardstick.
pub(super) fn over_the_yardstick(measured: &Column) -> Vec<String> {
    let mut over = Vec::new();
    let mut check = |kind: &str, name: &str, now: Option<f64>, bound: f64| match now {
        Some(now) if now <= bound => {}
        Some(now) => {
            over.push(format!("{kind}{name}: {now} instructions, at most {bound} allowed"))
        }
        None => over.push(format!("{kind}{name}: not measured")),
    };
    for (name, bound) in YARDSTICK {
        let now = measured.call(name).map(|counts| counts.instructions as f64);
        check("", name, now, bound);
    }
    for (name, bound) in AMORTISED_YARDSTICK {
        check("amortised ", name, measured.amortised(name), bound);
    }
    over
}

/// The text of a golden file for `measured`.
pub(super) fn render(measured: &Column) -> Result<String> {
    let mut text = String::from(HEADER);
    for (kind, bounds) in [("", YARDSTICK), ("amortised ", AMORTISED_YARDSTICK)] {
        for (name, bound) in bounds {
            writeln!(text, "#   {kind}{name} <= {bound}")?;
        }
    }
    writeln!(text, "\n[calls]")?;
    for (name, counts) in measured.measured_calls() {
        let Counts { instructions, loads, stores, branches, calls, outside: _ } = counts;
        writeln!(
            text,
            "{:<24} = {{ instructions = {instructions}, loads = {loads}, stores = {stores}, \
             branches = {branches}, calls = {calls} }}",
            format!("\"{name}\"")
        )?;
    }
    writeln!(text, "\n[amortised]")?;
    for (name, instructions) in measured.measured_batches() {
        writeln!(text, "{:<24} = {:.2}", format!("\"{name}\""), instructions)?;
    }
    Ok(text)
}

/// To two digits, as the file has them.
pub(super) fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(instructions: u64, amortised: f64) -> Column {
        let counts =
            Counts { instructions, loads: 4, stores: 1, branches: 2, calls: 0, outside: 0 };
        let calls = vec![("malloc(64)", Some(counts)), ("free(64)", Some(counts))];
        let batches = vec![("malloc(64)", Some(amortised)), ("free(64)", Some(amortised))];
        Column { name: "test".into(), calls, batches }
    }

    #[test]
    fn a_written_table_reads_back_as_equal() {
        let golden: Golden = toml::from_str(&render(&column(12, 19.25)).unwrap()).unwrap();
        let found = golden.compare(&column(12, 19.25));
        assert!(found.worse.is_empty() && found.better.is_empty());
    }

    #[test]
    fn more_is_a_failure_and_less_a_hint() {
        let golden: Golden = toml::from_str(&render(&column(12, 19.25)).unwrap()).unwrap();
        let found = golden.compare(&column(13, 19.0));
        assert_eq!(found.worse[1], "malloc(64): instructions 12 -> 13 (+1)");
        assert_eq!(found.better[1], "malloc(64): amortised instructions 19.25 -> 19 (-0.25)");
    }

    #[test]
    fn the_yardstick_holds_whatever_the_table_says() {
        assert!(over_the_yardstick(&column(14, 22.0)).is_empty());
        assert_eq!(over_the_yardstick(&column(15, 22.5)).len(), 2);
    }
}
