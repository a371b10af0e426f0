//! The result in words and a few numbers, for who reads no further.

use super::charts::slug;
use crate::evaluate::{Entry, Line, Mean, Standing, mean};
use crate::result::{Allocator, LabResult, SUBJECT};
use crate::table::{ratio, title};
use cairn_workloads::case::Table;
use serde::Serialize;

/// What stands at the top of the page.
#[derive(Serialize)]
pub(crate) struct Summary {
    /// A few sentences.
    pub(crate) sentences: Vec<String>,
    /// The few numbers to remember.
    pub(crate) tiles: Vec<Tile>,
    /// Titles of the tables that have rows.
    pub(crate) tables: Vec<&'static str>,
    /// One per allocator, the least time first.
    pub(crate) means: Vec<MeanRow>,
    /// Every row that the subject does not win, by table.
    pub(crate) open: Vec<OpenTable>,
    /// Ahead, tied, behind, no figure: by table.
    pub(crate) standings: Vec<(&'static str, [usize; 4])>,
}

/// A number to remember.
#[derive(Serialize)]
pub(crate) struct Tile {
    /// The number.
    pub(crate) value: String,
    /// What it is.
    pub(crate) label: String,
    /// What to hold it against.
    pub(crate) detail: String,
}

/// An allocator's means.
#[derive(Serialize)]
pub(crate) struct MeanRow {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is the subject.
    pub(crate) own: bool,
    /// In the order of the tables.
    pub(crate) cells: Vec<MeanCell>,
    /// Rows in which its median is the smallest of all.
    pub(crate) first: usize,
    #[serde(skip)]
    order: f64,
}

/// A mean, and of how many rows.
#[derive(Serialize)]
pub(crate) struct MeanCell {
    /// The mean, or a dash.
    pub(crate) mean: String,
    /// Rows with a value or a bound.
    pub(crate) rows: usize,
    /// Of those, rows with a bound.
    pub(crate) bounds: usize,
    /// Rows that failed.
    pub(crate) failed: usize,
}

/// The rows of a table that the subject does not win.
#[derive(Serialize)]
pub(crate) struct OpenTable {
    /// The table's title.
    pub(crate) title: &'static str,
    /// All its rows.
    pub(crate) all: usize,
    /// Furthest behind first, then those without a figure, then the ties.
    pub(crate) rows: Vec<OpenRow>,
}

/// A row that the subject does not win.
#[derive(Serialize)]
pub(crate) struct OpenRow {
    /// Its label.
    pub(crate) label: String,
    /// Group of its case.
    pub(crate) group: &'static str,
    /// Where the page tells of its case.
    pub(crate) anchor: String,
    /// `behind`, `tied` or `no figure`.
    pub(crate) standing: &'static str,
    /// The subject over the best other.
    pub(crate) ratio: String,
    /// The subject's median, or why there is none.
    pub(crate) own: String,
    /// The best other, with its median.
    pub(crate) best: String,
    /// The subject's place among those with a value.
    pub(crate) place: String,
    /// Noise of the row.
    pub(crate) noise: String,
    #[serde(skip)]
    order: (u8, f64),
}

/// Where the page tells of a case.
pub(crate) fn anchor(line: &Line<'_>) -> String {
    format!("case-{}", slug(&line.result.label()))
}

/// Sums up.
pub(crate) fn summary(result: &LabResult, lines: &[Line<'_>]) -> Summary {
    let of = |table: Table| lines.iter().filter(move |line| line.table == table);
    let tables: Vec<Table> =
        Table::ALL.into_iter().filter(|table| of(*table).next().is_some()).collect();
    let standings: Vec<(&str, [usize; 4])> =
        tables.iter().map(|table| (title(*table), count(of(*table)))).collect();
    let means: Vec<MeanRow> = means(result, lines, &tables);
    let open = |table: &Table| {
        let mut rows: Vec<OpenRow> = of(*table).filter_map(|line| open_row(result, line)).collect();
        rows.sort_by(|a, b| a.order.0.cmp(&b.order.0).then(b.order.1.total_cmp(&a.order.1)));
        OpenTable { title: title(*table), all: of(*table).count(), rows }
    };
    let open = tables.iter().map(open).filter(|table| !table.rows.is_empty()).collect();
    let sentences = sentences(result, lines);
    let tiles = tiles(result, lines, &tables);
    let tables = tables.into_iter().map(title).collect();
    Summary { sentences, tiles, tables, means, open, standings }
}

fn count<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> [usize; 4] {
    let mut counts = [0; 4];
    for line in lines {
        counts[match line.standing() {
            Standing::Wins => 0,
            Standing::Ties => 1,
            Standing::Loses => 2,
            Standing::Unknown => 3,
        }] += 1;
    }
    counts
}

fn means(result: &LabResult, lines: &[Line<'_>], tables: &[Table]) -> Vec<MeanRow> {
    let row = |(column, name): (usize, &str)| {
        let mean_of = |table: Table| mean(lines.iter().filter(move |l| l.table == table), column);
        let cell = |table: &Table| match mean_of(*table) {
            Some(mean) => MeanCell {
                mean: bounded(&mean),
                rows: mean.rows,
                bounds: mean.bounds,
                failed: mean.failed,
            },
            None => {
                let of = lines.iter().filter(|line| line.table == *table);
                let failed = of.filter(|line| matches!(line.entries[column], Entry::Failed(_)));
                MeanCell { mean: "–".into(), rows: 0, bounds: 0, failed: failed.count() }
            }
        };
        let first = |line: &&Line<'_>| match line.entries[column] {
            Entry::Value { ratio, .. } => ratio <= 1.0,
            _ => false,
        };
        MeanRow {
            name: name.to_owned(),
            own: name == SUBJECT,
            cells: tables.iter().map(cell).collect(),
            first: lines.iter().filter(first).count(),
            order: mean_of(tables[0]).map_or(f64::INFINITY, |mean| mean.ratio),
        }
    };
    if tables.is_empty() {
        return Vec::new();
    }
    let names = result.allocators.iter().map(|allocator| &*allocator.name);
    let mut rows: Vec<MeanRow> = names.enumerate().map(row).collect();
    rows.sort_by(|a, b| a.order.total_cmp(&b.order));
    rows
}

/// The mean, marked if it is a bound.
pub(crate) fn bounded(mean: &Mean) -> String {
    format!("{}{}", if mean.bounds > 0 { "≥" } else { "" }, ratio(mean.ratio))
}

fn open_row(result: &LabResult, line: &Line<'_>) -> Option<OpenRow> {
    let standing = line.standing();
    let (rank, standing) = match standing {
        Standing::Wins => return None,
        Standing::Loses => (0, "behind"),
        Standing::Unknown => (1, "no figure"),
        Standing::Ties => (2, "tied"),
    };
    let named = || result.allocators.iter().map(|a| &*a.name).zip(&line.entries);
    let value = |entry: &Entry| match entry {
        Entry::Value { median, ratio, .. } => Some((*median, *ratio)),
        _ => None,
    };
    let others = named().filter(|(name, _)| *name != SUBJECT);
    let best = others
        .filter_map(|(name, entry)| value(entry).map(|(median, ratio)| (ratio, median, name)))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    let own = named().find(|(name, _)| *name == SUBJECT).map(|(_, entry)| entry);
    let place = own.and_then(value).map_or("–".into(), |(_, ratio)| {
        let ratios = line.entries.iter().filter_map(value).map(|(_, ratio)| ratio);
        let before = ratios.clone().filter(|other| *other < ratio).count();
        format!("{} of {}", before + 1, ratios.count())
    });
    Some(OpenRow {
        label: line.label.clone(),
        group: line.group().title(),
        anchor: anchor(line),
        standing,
        ratio: line.subject.map_or("–".into(), ratio),
        own: match own {
            Some(Entry::Value { median, .. }) => quantity(*median, line.unit),
            Some(Entry::AtLeast { .. }) => "stopped at a limit".into(),
            Some(Entry::Failed(why)) => (*why).into(),
            Some(Entry::Absent) | None => "not run".into(),
        },
        best: best.map_or("nobody else has a value".into(), |(_, median, name)| {
            format!("{name}, {}", quantity(median, line.unit))
        }),
        place,
        noise: format!("{:.0}%", line.noise * 100.0),
        order: (rank, line.subject.unwrap_or(f64::INFINITY)),
    })
}

/// The names of all allocators but the subject: those with a value or a bound in some row, and
/// those without.
fn others<'a>(result: &'a LabResult, lines: &[Line<'_>]) -> (Vec<&'a str>, Vec<&'a str>) {
    let ran = |column: usize| lines.iter().any(|line| line.entries[column].ratio().is_some());
    let named = (0..).zip(&result.allocators).filter(|(_, a)| a.name != SUBJECT);
    let (ran, missing): (Vec<_>, Vec<_>) = named.partition(|(column, _)| ran(*column));
    let names = |of: Vec<(usize, &'a Allocator)>| of.into_iter().map(|(_, a)| &*a.name).collect();
    (names(ran), names(missing))
}

fn sentences(result: &LabResult, lines: &[Line<'_>]) -> Vec<String> {
    let [ahead, tied, behind, unknown] = count(lines.iter());
    let rounds = result.rounds;
    let (ran, missing) = others(result, lines);
    let first = format!(
        "{SUBJECT} beside {} other {} in {} cases with {} rows, each the median of {rounds} {}.{}{}",
        ran.len(),
        if ran.len() == 1 { "allocator" } else { "allocators" },
        result.cases.len(),
        lines.len(),
        if rounds == 1 { "round" } else { "rounds" },
        match missing.len() {
            0 => String::new(),
            _ => format!(" Without any value, and not counted: {}.", missing.join(", ")),
        },
        if result.quick { " It was a quick run: small sizes, so more noise." } else { "" },
    );
    let second = format!(
        "{SUBJECT} is ahead of all others in {ahead} of {} rows, ties with the best of them in \
         {tied}, is behind in {behind}{}. Every row that it does not win is listed below.",
        lines.len(),
        if unknown > 0 { format!(", and has no figure in {unknown}") } else { String::new() },
    );
    vec![first, second]
}

fn tiles(result: &LabResult, lines: &[Line<'_>], tables: &[Table]) -> Vec<Tile> {
    let shown = tables.iter().filter(|table| **table != Table::Counts);
    let mut tiles: Vec<Tile> = shown.filter_map(|table| mean_tile(result, lines, *table)).collect();
    let [ahead, tied, behind, unknown] = count(lines.iter());
    let rest = if unknown > 0 { format!(", {unknown} without a figure") } else { String::new() };
    tiles.push(Tile {
        value: format!("{} of {}", ahead + tied, lines.len()),
        label: "rows ahead or tied".into(),
        detail: format!("{ahead} ahead of all others, {tied} tied, {behind} behind{rest}"),
    });
    tiles
}

fn mean_tile(result: &LabResult, lines: &[Line<'_>], table: Table) -> Option<Tile> {
    let of = |column: usize| mean(lines.iter().filter(|line| line.table == table), column);
    let means = result.allocators.iter().enumerate();
    let means: Vec<(&str, Mean)> =
        means.filter_map(|(column, a)| Some((&*a.name, of(column)?))).collect();
    let own = means.iter().find(|(name, _)| *name == SUBJECT).map(|(_, mean)| mean)?;
    let others = means.iter().filter(|(name, _)| *name != SUBJECT);
    let next = others.min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio)).map(|(name, best)| {
        format!("; the best single other, {name}, is at {} over {}", bounded(best), best.rows)
    });
    Some(Tile {
        value: format!("{}×", bounded(own)),
        label: format!("{} over the frontier", title(table).to_lowercase()),
        detail: format!("over {} rows{}", own.rows, next.unwrap_or_default()),
    })
}

/// A value to three significant digits, with its unit.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value)).trim_end().to_owned()
}

/// Three significant digits; thousands apart.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "–".into() };
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits);
    let value = (value * scale).round() / scale;
    let text = format!("{value:.*}", digits.clamp(0, 6) as usize);
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let mut apart = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0
            && (whole.len() - index) % 3 == 0
            && digit.is_ascii_digit()
            && !apart.ends_with('-')
        {
            apart.push(',');
        }
        apart.push(digit);
    }
    if part.is_empty() { apart } else { format!("{apart}.{part}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{lines, tests::result};
    use crate::result::CONTROL;
    use programs::process::Failure;

    #[test]
    fn numbers_have_three_digits() {
        let shown: Vec<String> =
            [0.0, 0.01234, 1.2345, 45.678, 999.6, 12345.6, 1234567.0].map(number).to_vec();
        assert_eq!(shown, ["0", "0.0123", "1.23", "45.7", "1,000", "12,300", "1,230,000"]);
        assert_eq!(quantity(3.0, "x live"), "3.00 x live");
    }

    #[test]
    fn a_win_is_said_and_nothing_is_open() {
        let result = result(&[("a", &[200.0], &[]), (SUBJECT, &[100.0], &[])]);
        let summary = summary(&result, &lines(&result));
        assert!(summary.sentences[1].contains("ahead of all others in 1 of 2 rows"));
        let tile = &summary.tiles[0];
        assert_eq!((&*tile.value, &*tile.label), ("0.50×", "time over the frontier"));
        assert_eq!(tile.detail, "over 1 rows; the best single other, a, is at 1.00 over 1");
        assert!(summary.open.iter().all(|table| table.title != "Time"));
    }

    #[test]
    fn only_those_that_ran_are_counted() {
        let crash = Failure::Crash { status: "signal 11".into(), message: String::new() };
        let slow = Failure::Timeout { seconds: 2.0, mib: 1.0 };
        let result = result(&[
            ("a", &[200.0], &[]),
            ("bounded", &[], &[slow]),
            ("crashed", &[], &[crash]),
            ("absent", &[], &[]),
            (SUBJECT, &[100.0], &[]),
            (CONTROL, &[101.0], &[]),
        ]);
        let sentence = &summary(&result, &lines(&result)).sentences[0];
        assert!(sentence.contains("beside 2 other allocators"), "{sentence}");
        assert!(sentence.contains("not counted: crashed, absent."), "{sentence}");
    }

    #[test]
    fn every_row_not_won_is_open() {
        let slow = Failure::Timeout { seconds: 2.0, mib: 1.0 };
        let behind = result(&[("a", &[100.0], &[]), (SUBJECT, &[130.0], &[])]);
        let tied = result(&[("a", &[100.0], &[]), (SUBJECT, &[100.2], &[])]);
        let none = result(&[("a", &[100.0], &[]), (SUBJECT, &[], &[slow])]);
        let time = |result: &LabResult| {
            let row = &summary(result, &lines(result)).open[0].rows[0];
            format!("{} {} {} {} {}", row.standing, row.ratio, row.own, row.best, row.place)
        };
        assert_eq!(time(&behind), "behind 1.30 130 ms a, 100 ms 2 of 2");
        assert_eq!(time(&tied), "tied 1.00 100 ms a, 100 ms 2 of 2");
        assert_eq!(time(&none), "no figure – stopped at a limit a, 100 ms –");
    }
}
