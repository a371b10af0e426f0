//! Owns: what has grown from one account to another.
//! Idea: rows of the same name are set side by side, and the few that matter are said in words, with what they are a
//!   sign of.
//! Never: believes an account: it may come from a file, and have any numbers.
//! Threads: none; data.
//! Checked: tests here; tests/diff.rs of the command.
//! Story: docs/guide/inspect.md

use crate::account::{Account, ClassRow, Target};
use serde::Serialize;
use std::cmp::Reverse;

/// The version of the fields' meaning.
const SCHEMA: u32 = 1;
/// Bytes that are worth a sentence, if they are a part of what came through cairn that is worth one.
const LEAST: i64 = 1 << 20;
const PART: i64 = 20;
/// Classes that are named at most.
const CLASSES: usize = 3;
const LARGE: &str = "large blocks and mappings";

/// Two accounts, side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The version of these fields' meaning.
    pub schema: u32,
    /// What was read first.
    pub before: Target,
    /// What was read then.
    pub after: Target,
    /// The steps of both accounts.
    pub steps: Vec<Change>,
    /// What is resident, and the floor.
    pub totals: Vec<Change>,
    /// Size classes of which anything has changed, by how much the program's blocks have.
    pub classes: Vec<ClassChange>,
    /// What has grown, in words.
    pub words: Vec<String>,
}

/// A figure of both, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What it is.
    pub name: String,
    /// In the first account.
    pub before: i64,
    /// In the other one.
    pub after: i64,
    /// The difference.
    pub grown: i64,
}

/// A size class in both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassChange {
    /// Bytes in a block.
    pub size: u64,
    /// Blocks that the program holds.
    pub blocks: Change,
    /// Bytes of them.
    pub held: Change,
    /// Resident bytes of its spans.
    pub resident: Change,
    /// Of those, pages with a byte of a block in use.
    pub floor: Change,
}

impl Change {
    fn new(name: impl Into<String>, before: i64, after: i64) -> Change {
        Change { name: name.into(), before, after, grown: after.saturating_sub(before) }
    }

    fn of(name: impl Into<String>, before: u64, after: u64) -> Change {
        Change::new(name, signed(before), signed(after))
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Sets two accounts side by side.
pub fn difference(before: &Account, after: &Account) -> Difference {
    let mut classes = classes(before, after);
    classes.sort_by_key(|class| Reverse(class.held.grown.unsigned_abs()));
    let mut difference = Difference {
        schema: SCHEMA,
        before: before.target.clone(),
        after: after.target.clone(),
        steps: steps(before, after),
        totals: totals(before, after),
        classes,
        words: Vec::new(),
    };
    difference.words = words(&difference, after);
    difference
}

/// The steps of the second account, and those that the first one alone has.
fn steps(before: &Account, after: &Account) -> Vec<Change> {
    let find = |account: &Account, name: &str| {
        account.steps.iter().find(|step| step.name == name).map_or(0, |step| step.bytes)
    };
    let mut steps: Vec<Change> = Vec::new();
    for step in after.steps.iter().chain(&before.steps) {
        if !steps.iter().any(|known| known.name == step.name) {
            let (one, other) = (find(before, &step.name), find(after, &step.name));
            steps.push(Change::new(step.name.as_ref(), one, other));
        }
    }
    steps
}

fn totals(before: &Account, after: &Account) -> Vec<Change> {
    let total = |name, figure: fn(&Account) -> u64| Change::of(name, figure(before), figure(after));
    vec![
        total("resident", |account| account.resident.sum),
        total("resident through cairn", |account| account.resident.through_cairn),
        total(LARGE, |account| account.held.large.saturating_add(account.held.mappings)),
        total("floor", |account| account.floor.bytes),
        total("pages of spans with free blocks alone", |account| account.floor.free_in_spans),
        total("free slices (dirty)", |account| account.floor.dirty),
        total("cached by threads", |account| {
            let cached = |row: &ClassRow| row.cached.saturating_mul(row.size);
            account.classes.iter().map(cached).fold(0, u64::saturating_add)
        }),
    ]
}

fn classes(before: &Account, after: &Account) -> Vec<ClassChange> {
    let sizes = before.classes.iter().chain(&after.classes).map(|row| row.size);
    let sizes: std::collections::BTreeSet<u64> = sizes.collect();
    let find = |account: &Account, size: u64| {
        let row = account.classes.iter().find(|row| row.size == size);
        row.copied().unwrap_or_default()
    };
    let all = sizes.into_iter().map(|size| {
        let (one, other) = (find(before, size), find(after, size));
        let change = |name: &str, figure: &dyn Fn(&ClassRow) -> u64| {
            Change::of(name, figure(&one), figure(&other))
        };
        ClassChange {
            size,
            blocks: change("blocks", &|row| row.in_use),
            held: change("held", &|row| row.in_use.saturating_mul(size)),
            resident: change("resident", &|row| row.resident),
            floor: change("floor", &|row| row.floor),
        }
    });
    all.filter(ClassChange::has_changed).collect()
}

impl ClassChange {
    fn has_changed(&self) -> bool {
        [&self.blocks, &self.resident, &self.floor].iter().any(|change| change.grown != 0)
    }
}

impl Difference {
    /// By how much a row of both accounts has grown.
    fn grown(&self, name: &str) -> i64 {
        let mut rows = self.totals.iter().chain(&self.steps);
        rows.find(|row| row.name == name).map_or(0, |row| row.grown)
    }
}

/// What has grown, the whole first.
fn words(difference: &Difference, after: &Account) -> Vec<String> {
    let least = LEAST.max(signed(after.resident.through_cairn) / PART);
    let is_worth = |bytes: i64| bytes >= least;
    let mut words = Vec::new();
    if difference.before.program != difference.after.program
        && difference.before.program.is_some()
        && difference.after.program.is_some()
    {
        words.push("These are two programs.".to_owned());
    }
    let [sum, through] = [&difference.totals[0], &difference.totals[1]];
    words.push(format!("Resident memory {}{}.", whole(sum), part(sum, through)));
    let held = difference.grown("blocks that the program holds");
    if is_worth(held) {
        let blocks = grown_blocks(difference, held);
        words.push(format!(
            "The program holds {} more{blocks}. cairn leaks says what of it no pointer leads to.",
            mib(held)
        ));
    }
    let floor = difference.grown("floor");
    let scattered = floor.saturating_sub(held.max(0));
    if is_worth(scattered) {
        words.push(format!(
            "Survivors are more scattered: pages with a block in use grew by {}, the blocks by {}.",
            mib(floor),
            mib(held)
        ));
    }
    let free = ["pages of spans with free blocks alone", "free slices (dirty)"];
    let free = free.iter().map(|name| difference.grown(name)).fold(0, i64::saturating_add);
    if is_worth(free) {
        words.push(format!(
            "Free memory that is still there grew by {}: no leak; upkeep gives it back, or malloc_trim(0).",
            mib(free)
        ));
    }
    let elsewhere = sum.grown.saturating_sub(through.grown);
    if is_worth(elsewhere) {
        words.push(format!("What is not cairn's grew by {}: see the steps.", mib(elsewhere)));
    }
    if words.iter().all(|said| said.starts_with("Resident") || said.starts_with("These")) {
        let rows = difference.steps.iter().chain(&difference.totals[1..]);
        words.push(match rows.max_by_key(|row| row.grown).filter(|row| is_worth(row.grown)) {
            Some(row) => {
                format!("The largest growth is of \"{}\", by {}.", row.name, mib(row.grown))
            }
            None => format!("Nothing else grew by {} or more.", mib(least)),
        });
    }
    words
}

/// How what is resident has changed.
fn whole(sum: &Change) -> String {
    match moved(sum.grown) {
        Some(moved) => format!("{moved}, from {} to {}", mib(sum.before), mib(sum.after)),
        None => format!("is the same: {}", mib(sum.after)),
    }
}

/// And the part of it that is cairn's, unless that is the same, too.
fn part(sum: &Change, through: &Change) -> String {
    match (moved(sum.grown), moved(through.grown)) {
        (None, None) => String::new(),
        (_, Some(moved)) => format!("; through cairn it {moved}"),
        (Some(_), None) => "; through cairn it is the same".to_owned(),
    }
}

/// In which direction, and by how much; none: by nothing that is shown.
fn moved(grown: i64) -> Option<String> {
    let by = mib(grown.saturating_abs());
    let verb = if grown < 0 { "fell" } else { "grew" };
    (by != mib(0)).then(|| format!("{verb} by {by}"))
}

/// The blocks that have grown most: by size class, and those of their own.
fn grown_blocks(difference: &Difference, held: i64) -> String {
    let is_part = |grown: i64| grown > held / PART;
    let classes = difference.classes.iter().filter(|class| is_part(class.held.grown));
    let mut named: Vec<_> = classes
        .take(CLASSES)
        .map(|class| {
            let (more, held) = (class.blocks.grown, mib(class.held.grown));
            format!("{more} blocks of {} bytes ({held})", class.size)
        })
        .collect();
    let large = difference.grown(LARGE);
    if is_part(large) {
        named.push(format!("large blocks ({})", mib(large)));
    }
    if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) }
}

fn mib(bytes: i64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::{LARGE, difference};
    use crate::account::{Account, ClassRow, Floor, Held, Resident, Step, Target};

    const MIB: u64 = 1 << 20;

    /// So many blocks of a size, with some memory around them.
    fn account(size: u64, in_use: u64, dirty: u64) -> Account {
        let held = size.saturating_mul(in_use);
        let row = ClassRow { size, in_use, floor: held, resident: held, ..ClassRow::default() };
        let through_cairn = held.saturating_add(dirty);
        let sum = through_cairn.saturating_add(10 * MIB);
        Account {
            schema: 1,
            target: Target::default(),
            held: Held { bytes: held, blocks: in_use, small: held, ..Held::default() },
            steps: vec![Step { name: "blocks that the program holds".into(), bytes: held as i64 }],
            resident: Resident { through_cairn, sum, kernel: None, huge: 0, swapped: 0 },
            floor: Floor { bytes: held, dirty, ..Floor::default() },
            classes: vec![row],
            heaps: Vec::new(),
            biggest: Vec::new(),
            advice: Vec::new(),
            curve: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn what_grows_is_named() {
        let found = difference(&account(64, 1 << 14, 0), &account(64, 1 << 20, 0));
        let said = found.words.join(" ");
        assert!(said.contains("grew by 63.0 MiB"), "{said}");
        assert!(said.contains("1032192 blocks of 64 bytes (63.0 MiB)."), "{said}");
        assert!(!said.contains("scattered") && !said.contains("no leak"), "{said}");
        assert_eq!(found.classes[0].blocks.grown, (1 << 20) - (1 << 14));
        assert_eq!(found.steps[0].grown, 63 << 20);

        let found = difference(&account(64, 1 << 14, 0), &account(64, 1 << 14, 50 * MIB));
        let said = found.words.join(" ");
        assert!(said.contains("still there grew by 50.0 MiB"), "{said}");
        assert!(found.classes.is_empty(), "{found:?}");
    }

    #[test]
    fn survivors_and_large_blocks_are_told_apart() {
        let (before, mut after) = (account(64, 1 << 14, 0), account(64, 1 << 14, 0));
        after.floor.bytes += 30 * MIB;
        after.resident.sum += 30 * MIB;
        let said = difference(&before, &after).words.join(" ");
        assert!(
            said.contains("more scattered: pages with a block in use grew by 30.0 MiB"),
            "{said}"
        );
        after.held.large = 40 * MIB;
        after.steps[0].bytes += 40 << 20;
        let found = difference(&before, &after);
        assert!(
            found.words[1].contains("holds 40.0 MiB more: large blocks (40.0 MiB)"),
            "{found:?}"
        );
        assert_eq!(found.grown(LARGE), 40 << 20);
    }

    /// A file may say anything.
    #[test]
    fn no_number_is_too_large() {
        let none = account(0, 0, 0);
        let mut all = account(u64::MAX, u64::MAX, u64::MAX);
        all.classes.push(all.classes[0]);
        all.steps[0].bytes = i64::MIN;
        for (before, after) in [(&none, &all), (&all, &none), (&all, &all)] {
            assert!(!difference(before, after).words.is_empty());
        }
    }

    #[test]
    fn what_is_the_same_has_not_grown() {
        let found = difference(&account(64, 100, MIB), &account(64, 100, MIB));
        let said = found.words.join(" ");
        assert_eq!(
            said,
            "Resident memory is the same: 11.0 MiB. Nothing else grew by 1.0 MiB or more."
        );
    }

    #[test]
    fn what_falls_has_no_sign_of_its_own() {
        let found = difference(&account(64, 1 << 20, 0), &account(64, 1 << 14, 0));
        assert_eq!(
            found.words[0],
            "Resident memory fell by 63.0 MiB, from 74.0 MiB to 11.0 MiB; through cairn it fell by 63.0 MiB."
        );
        let mut after = account(64, 1 << 14, MIB);
        after.resident.sum = account(64, 1 << 14, 0).resident.sum;
        let found = difference(&account(64, 1 << 14, 0), &after);
        assert_eq!(
            found.words[0],
            "Resident memory is the same: 11.0 MiB; through cairn it grew by 1.0 MiB."
        );
    }

    /// A row that grew is not denied.
    #[test]
    fn what_grows_elsewhere_is_not_denied() {
        let (before, mut after) = (account(64, 1 << 14, 0), account(64, 1 << 14, 0));
        after.steps.push(Step { name: "free slices".into(), bytes: 84 << 20 });
        let said = difference(&before, &after).words.join(" ");
        assert!(!said.contains("Nothing"), "{said}");
        assert!(said.contains("The largest growth is of \"free slices\", by 84.0 MiB."), "{said}");
    }
}
