//! What the page tells of each case and each allocator, in text and raw numbers.

use super::charts::slug;
use super::summary::number;
use crate::result::{Allocator, CaseResult, Cell, LabResult, SUBJECT};
use crate::stats::Summary;
use programs::process::Failure;
use serde::Serialize;
use std::collections::BTreeSet;

/// A case, told in full.
#[derive(Serialize)]
pub(crate) struct CaseDetails {
    /// Its name and form.
    pub(crate) label: String,
    /// Where it is linked to.
    pub(crate) anchor: String,
    /// Title of its group.
    pub(crate) group: &'static str,
    /// What it does.
    pub(crate) about: String,
    /// Who described it first; empty if the lab did.
    pub(crate) origin: String,
    /// Headers of the values.
    pub(crate) keys: Vec<String>,
    /// One per allocator that should have run it.
    pub(crate) rows: Vec<CaseRow>,
}

/// All values of an allocator on a case.
#[derive(Serialize)]
pub(crate) struct CaseRow {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is the subject.
    pub(crate) own: bool,
    /// Medians, each with its spread.
    pub(crate) values: Vec<(String, String)>,
    /// How it failed, if it did.
    pub(crate) failure: String,
}

/// Tells of a case.
pub(crate) fn case(result: &LabResult, case: &CaseResult) -> CaseDetails {
    let keys = keys(case);
    let unit = |key: &String| {
        let row = case.case.rows.iter().find(|row| &*row.key == key && row.per.is_none());
        row.map_or(key.clone(), |row| {
            if *row.unit == **key { key.clone() } else { format!("{key} ({})", &*row.unit) }
        })
    };
    let cells = case.cells.iter().map(|(name, cell)| (name.as_str(), cell));
    let mut cells: Vec<(&str, &Cell)> = cells.collect();
    let place = |name: &str| result.allocators.iter().position(|a| a.name == name);
    cells.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
    let row = |(name, cell): (&str, &Cell)| CaseRow {
        name: name.to_owned(),
        own: name == SUBJECT,
        values: keys.iter().map(|key| value(cell, key)).collect(),
        failure: cell.failures.last().map_or(String::new(), Failure::to_string),
    };
    CaseDetails {
        label: case.label(),
        anchor: format!("case-{}", slug(&case.label())),
        group: case.case.group.title(),
        about: case.case.about.to_string(),
        origin: case.case.origin.to_string(),
        rows: cells.into_iter().map(row).collect(),
        keys: keys.iter().map(unit).collect(),
    }
}

/// The keys of the case's rows, in their order, and then all others.
fn keys(case: &CaseResult) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    let own = case.case.rows.iter().map(|row| row.key.to_string());
    let other: BTreeSet<&String> = case.cells.values().flat_map(|c| c.values.keys()).collect();
    for key in own.chain(other.into_iter().cloned()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

fn value(cell: &Cell, key: &str) -> (String, String) {
    let summary = cell.values.get(key).and_then(|values| Summary::of(values.clone()));
    summary.map_or(("–".into(), String::new()), |summary| {
        let spread = match summary.relative_mad() {
            mad if mad >= 0.005 => format!("±{:.0}%", mad * 100.0),
            _ => String::new(),
        };
        (number(summary.median), spread)
    })
}

/// An allocator, told in full.
#[derive(Serialize)]
pub(crate) struct AllocatorDetails {
    /// What the result says.
    #[serde(flatten)]
    pub(crate) told: Allocator,
    /// Its colour.
    pub(crate) colour: String,
    /// Its dash.
    pub(crate) dash: &'static str,
    /// Whether it is the subject.
    pub(crate) own: bool,
}
