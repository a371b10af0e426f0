//! The golden table: what the fast paths cost when they were last looked at.

use super::report::{BATCHES, CALLS};
use super::trace::Counts;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Upper bounds that hold whatever the golden table says: of one call, and amortised.
const YARDSTICK: [(&str, u64, f64); 2] = [("malloc(64)", 14, 22.0), ("free(64)", 20, 28.0)];

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

/// The figures of one library, as measured, or as they stand in the file. What the library does
/// not define is absent.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// Single calls.
    pub(super) calls: BTreeMap<String, Counts>,
    /// Instructions per call in batches.
    pub(super) amortised: BTreeMap<String, f64>,
}

impl Table {
    /// What is worse in `now` than in this table, or missing in one of them, a line each; and what
    /// is better.
    pub(super) fn compare(&self, now: &Table) -> (Vec<String>, Vec<String>) {
        let (mut worse, mut better) = (Vec::new(), Vec::new());
        let mut note = |name: &str, what: &str, before: f64, after: f64, slack: f64| {
            let line = format!("{name}: {what} {before} -> {after} ({:+})", round(after - before));
            if after > before + slack {
                worse.push(line);
            } else if after < before - slack {
                better.push(line);
            }
        };
        for (name, before) in &self.calls {
            let Some(after) = now.calls.get(name) else { continue };
            for ((what, before), (_, after)) in before.named().into_iter().zip(after.named()) {
                note(name, what, before as f64, after as f64, 0.0);
            }
        }
        for (name, before) in &self.amortised {
            let Some(after) = now.amortised.get(name) else { continue };
            note(name, "amortised instructions", *before, *after, AMORTISED_SLACK);
        }
        let names = |table: &Table| -> Vec<String> {
            let amortised = table.amortised.keys().map(|name| format!("amortised {name}"));
            table.calls.keys().cloned().chain(amortised).collect()
        };
        let (golden, measured) = (names(self), names(now));
        let missing = golden.iter().filter(|name| !measured.contains(name));
        worse.extend(missing.map(|name| format!("{name}: in the golden table, but not measured")));
        let new = measured.iter().filter(|name| !golden.contains(name));
        worse.extend(new.map(|name| format!("{name}: not in the golden table; --update adds it")));
        (worse, better)
    }

    /// Where this breaks the yardstick.
    pub(super) fn over_the_yardstick(&self) -> Vec<String> {
        let mut over = Vec::new();
        for (name, call, amortised) in YARDSTICK {
            if self.calls.get(name).is_none_or(|counts| counts.instructions > call) {
                over.push(format!("{name}: more than {call} instructions"));
            }
            if self.amortised.get(name).is_none_or(|figure| *figure > amortised) {
                over.push(format!("amortised {name}: more than {amortised} instructions"));
            }
        }
        over
    }

    /// The text of a golden file for this.
    pub(super) fn render(&self) -> String {
        let mut lines = Vec::new();
        lines.extend(YARDSTICK.map(|(name, bound, _)| format!("#   {name} <= {bound}")));
        lines.extend(YARDSTICK.map(|(name, _, bound)| format!("#   amortised {name} <= {bound}")));
        lines.push("\n[calls]".to_owned());
        for (name, _) in CALLS {
            if let Some(counts) = self.calls.get(name) {
                let counts = counts.named().map(|(what, count)| format!("{what} = {count}"));
                lines.push(format!("{:<24} = {{ {} }}", format!("\"{name}\""), counts.join(", ")));
            }
        }
        lines.push("\n[amortised]".to_owned());
        for name in BATCHES {
            if let Some(figure) = self.amortised.get(name) {
                lines.push(format!("{:<24} = {figure:.2}", format!("\"{name}\"")));
            }
        }
        format!("{HEADER}{}\n", lines.join("\n"))
    }
}

/// To two digits, as the file has them.
pub(super) fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(instructions: u64, amortised: f64) -> Table {
        let counts =
            Counts { instructions, loads: 4, stores: 1, branches: 2, calls: 0, outside: 0 };
        let names = ["malloc(64)", "free(64)"].map(str::to_owned);
        Table {
            calls: names.clone().map(|name| (name, counts)).into(),
            amortised: names.map(|name| (name, amortised)).into(),
        }
    }

    #[test]
    fn a_written_table_reads_back_and_more_is_a_failure_and_less_a_hint() {
        let golden: Table = toml::from_str(&table(12, 19.25).render()).unwrap();
        assert_eq!(golden.compare(&table(12, 19.25)), (vec![], vec![]));
        let (worse, better) = golden.compare(&table(13, 19.0));
        assert_eq!(worse[1], "malloc(64): instructions 12 -> 13 (+1)");
        assert_eq!(better[1], "malloc(64): amortised instructions 19.25 -> 19 (-0.25)");
        assert_eq!(golden.compare(&Table::default()).0.len(), 4);
        assert_eq!(Table::default().compare(&golden).0.len(), 4);
    }

    #[test]
    fn the_yardstick_holds_whatever_the_table_says() {
        assert!(table(14, 22.0).over_the_yardstick().is_empty());
        assert_eq!(table(15, 22.5).over_the_yardstick().len(), 2);
        assert_eq!(Table::default().over_the_yardstick().len(), 4);
    }
}
