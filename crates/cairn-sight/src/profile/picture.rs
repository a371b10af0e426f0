//! A heap profile as a page: flame graph, and a table of places.
//!
//! Owns: what of profiles gets into the page.
//! Idea: texts, frames and stacks are tables, each entry once; figures are a row for each view, a pair for each stack. A second
//!   profile has rows for the same stacks: those with the same names.
//! Never: has more than `STACKS_MAX` stacks, or deeper ones than `DEPTH_MAX`: the smallest are one.

use super::{Amounts, Frame, HeapProfile, Names, View};
use crate::page::Page;
use serde::Serialize;
use serde_json::error::Result;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Stacks of a page, and functions of one.
const STACKS_MAX: usize = 20_000;
const DEPTH_MAX: usize = 512;
/// Letters of a text.
const LETTERS_MAX: usize = 2000;

/// A profile with what it is called, and how names are found.
pub struct Subject<'a> {
    /// How the page calls it.
    pub name: String,
    /// What it is about.
    pub profile: &'a HeapProfile,
    /// Those of its functions.
    pub names: &'a mut Names,
}

#[derive(Serialize)]
struct Data {
    name: String,
    before: Option<String>,
    rate: u64,
    dropped: u64,
    /// Names of the views, and which is shown first.
    views: Vec<&'static str>,
    first: usize,
    texts: Vec<String>,
    frames: Vec<FrameData>,
    /// Places in `frames`, the outermost first.
    stacks: Vec<Vec<usize>>,
    /// For each view for each stack: bytes and blocks.
    now: Vec<Vec<[f64; 2]>>,
    old: Option<Vec<Vec<[f64; 2]>>>,
}

/// Places of texts: function and source; and a line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize)]
struct FrameData(usize, usize, u64);

/// Things that have numbers in the order in which they came.
struct Table<T> {
    numbers: HashMap<T, usize>,
    all: Vec<T>,
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn new() -> Table<T> {
        Table { numbers: HashMap::new(), all: Vec::new() }
    }

    fn number(&mut self, thing: T) -> usize {
        let next = self.all.len();
        *self.numbers.entry(thing).or_insert_with_key(|thing| {
            self.all.push(thing.clone());
            next
        })
    }
}

/// What is known of stacks: for each view their amounts.
type Sums = Vec<Vec<Amounts>>;

struct Stacks {
    texts: Table<String>,
    frames: Table<FrameData>,
    stacks: Table<Vec<usize>>,
}

impl Stacks {
    fn frame(&mut self, frame: &Frame) -> usize {
        let short = |text: &str| text.chars().take(LETTERS_MAX).collect();
        let function = self.texts.number(short(&frame.function));
        let source = self.texts.number(short(&frame.source));
        self.frames.number(FrameData(function, source, frame.line))
    }

    /// Adds a profile's sites: for each view the amounts of the stacks that are known then.
    fn add(&mut self, subject: &mut Subject<'_>) -> Sums {
        let mut sums = vec![Vec::new(); View::ALL.len()];
        for site in &subject.profile.sites {
            let frames = site.frames(subject.profile, subject.names);
            let outermost = frames.iter().take(DEPTH_MAX).rev();
            let stack: Vec<_> = outermost.map(|frame| self.frame(frame)).collect();
            let nth = self.stacks.number(stack);
            for (view, sums) in View::ALL.into_iter().zip(&mut sums) {
                sums.resize(sums.len().max(nth + 1), Amounts::default());
                sums[nth] = sums[nth].plus(site.estimate(view));
            }
        }
        sums
    }
}

/// The page of a profile, and of what has changed from another one.
///
/// # Errors
/// None is known: the data is plain.
pub fn page(mut subject: Subject<'_>, before: Option<Subject<'_>>, first: View) -> Result<String> {
    let mut stacks = Stacks { texts: Table::new(), frames: Table::new(), stacks: Table::new() };
    let mut now = stacks.add(&mut subject);
    let named = before.as_ref().map(|before| before.name.clone());
    let mut old = before.map(|mut before| stacks.add(&mut before));
    let count = stacks.stacks.all.len();
    for row in now.iter_mut().chain(old.iter_mut().flatten()) {
        row.resize(count, Amounts::default());
    }
    let kept = largest(&now, old.as_ref(), count);
    let rest = Frame { function: "[smaller stacks]".to_owned(), source: String::new(), line: 0 };
    let rest = vec![stacks.frame(&rest)];
    let mut of_kept: Vec<_> = kept.iter().map(|&nth| stacks.stacks.all[nth].clone()).collect();
    of_kept.extend((kept.len() < count).then_some(rest));
    // A view without anything is not known in such a profile.
    let is_known = |nth: &usize| {
        let has = |row: &[Amounts]| row.iter().any(|amounts| amounts.bytes > 0.0);
        has(&now[*nth]) || old.as_ref().is_some_and(|old| has(&old[*nth]))
    };
    let mut views: Vec<_> = (0..View::ALL.len()).filter(is_known).collect();
    if views.is_empty() {
        views.push(0);
    }
    let rows = |sums: &Sums| views.iter().map(|&view| figures(&sums[view], &kept)).collect();
    let data = Data {
        name: subject.name,
        before: named,
        rate: subject.profile.rate,
        dropped: subject.profile.dropped,
        first: views.iter().position(|&view| View::ALL[view] == first).unwrap_or(0),
        views: views.iter().map(|&view| View::ALL[view].name()).collect(),
        texts: stacks.texts.all,
        frames: stacks.frames.all,
        stacks: of_kept,
        now: rows(&now),
        old: old.as_ref().map(rows),
    };
    let page = Page {
        body: include_str!("../../assets/profile.html"),
        scripts: &[include_str!("../../assets/stacks.js"), include_str!("../../assets/flames.js")],
    };
    page.with(&data)
}

/// The stacks that are largest in any view, in the order of their numbers.
fn largest(now: &Sums, old: Option<&Sums>, count: usize) -> BTreeSet<usize> {
    let rows: Vec<_> = now.iter().chain(old.into_iter().flatten()).collect();
    let wholes = rows.iter().map(|row| row.iter().map(|amounts| amounts.bytes).sum::<f64>());
    let wholes: Vec<_> = wholes.collect();
    let share = |nth: usize| {
        let shares = rows.iter().zip(&wholes).map(|(row, whole)| row[nth].bytes / whole.max(1.0));
        shares.fold(0.0, f64::max)
    };
    let mut all: Vec<_> = (0..count).map(|nth| (share(nth), nth)).collect();
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    all.into_iter().take(STACKS_MAX).map(|(_, nth)| nth).collect()
}

/// Bytes and blocks of those that are kept, and of all others together.
fn figures(row: &[Amounts], kept: &BTreeSet<usize>) -> Vec<[f64; 2]> {
    let pair = |amounts: Amounts| {
        let tenths = (amounts.objects * 10.0).round() / 10.0;
        [amounts.bytes.round(), tenths].map(|figure| if figure.is_finite() { figure } else { 0.0 })
    };
    let mut all: Vec<_> = kept.iter().map(|&nth| pair(row[nth])).collect();
    if kept.len() < row.len() {
        let others = row.iter().enumerate().filter(|(nth, _)| !kept.contains(nth));
        let rest = others.fold(Amounts::default(), |sum, (_, amounts)| sum.plus(*amounts));
        all.push(pair(rest));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{STACKS_MAX, Subject, page};
    use crate::profile::{HeapProfile, Names, View};
    use serde_json::Value;
    use std::fmt::Write;

    fn data(page: &str) -> Value {
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
    }

    fn profile(sites: &str) -> HeapProfile {
        HeapProfile::parse(
            format!("cairn heap profile 1\nrate 1\n{sites}mappings\nend\n").as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn small_stacks_are_one() {
        let mut sites = String::new();
        for nth in 0..STACKS_MAX + 100 {
            writeln!(sites, "site 4096 1 1 {} 0 0 {:x}", if nth < 100 { 1 } else { 4096 }, nth + 1)
                .unwrap();
        }
        let (profile, mut names) = (profile(&sites), Names::new());
        let subject = Subject { name: "x".into(), profile: &profile, names: &mut names };
        let data = data(&page(subject, None, View::Live).unwrap());
        assert_eq!(data["stacks"].as_array().unwrap().len(), STACKS_MAX + 1);
        assert_eq!(data["now"][0][STACKS_MAX], serde_json::json!([100.0, 100.0]));
    }

    #[test]
    fn two_profiles_have_the_same_stacks() {
        let (one, other) =
            (profile("site 16 1 2 32 0 0 a b\n"), profile("site 16 1 1 16 1 16 c\n"));
        let (mut names, mut others) = (Names::new(), Names::new());
        let now = Subject { name: "now".into(), profile: &one, names: &mut names };
        let old = Subject { name: "old".into(), profile: &other, names: &mut others };
        let data = data(&page(now, Some(old), View::Allocated).unwrap());
        assert_eq!(data["views"][data["first"].as_u64().unwrap() as usize], "allocated");
        assert_eq!(data["stacks"].as_array().unwrap().len(), 2);
        assert_eq!(data["now"][1], serde_json::json!([[32.0, 2.0], [0.0, 0.0]]));
        assert_eq!(data["old"][1], serde_json::json!([[0.0, 0.0], [16.0, 1.0]]));
        assert_eq!(data["old"][0][1], serde_json::json!([0.0, 0.0]));
    }
}
