//! A table that has an order: columns, rows with a key each, and how both are written.
//!
//! The one idea: a cell is its value, and the text follows from it; so rows can be put in the order of any column. It
//! must never know what the figures are of.

use crate::units::{change, human};
use std::cmp::Ordering;

/// Between columns.
const GAP: usize = 1;

/// A column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// What its figures are.
    pub(super) about: &'static str,
    pub(super) width: usize,
    /// Where its cells begin.
    pub(super) side: Side,
}

/// Where a cell's text stands in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Column {
    /// A text in the column's places.
    fn fit(&self, text: &str) -> String {
        let width = self.width;
        let text: String = text.chars().take(width).collect();
        match self.side {
            Side::Left => format!("{text:<width$}"),
            Side::Right => format!("{text:>width$}"),
        }
    }
}

/// A value in a row.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    Text(String),
    /// A name that stands for a number.
    Named(u64, String),
    Count(u64),
    Bytes(u64),
    /// Bytes of so many.
    Part(u64, u64),
    /// Bytes in a second, if a second has gone by.
    Rate(Option<f64>),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Text(text) | Cell::Named(_, text) => text.clone(),
            Cell::Count(count) => count.to_string(),
            Cell::Bytes(bytes) => human(*bytes),
            Cell::Part(_, 0) | Cell::Rate(None) => "-".to_owned(),
            Cell::Part(part, all) => format!("{:.0} %", 100.0 * *part as f64 / *all as f64),
            Cell::Rate(Some(rate)) => change(*rate),
        }
    }

    /// The order from top to bottom: large numbers first, but texts and names as they are read.
    fn compare(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Text(one), Cell::Text(other)) => one.cmp(other),
            (Cell::Named(one, _), Cell::Named(other, _)) => one.cmp(other),
            _ => other.number().total_cmp(&self.number()),
        }
    }

    fn number(&self) -> f64 {
        match *self {
            Cell::Count(number) | Cell::Bytes(number) => number as f64,
            Cell::Part(part, all) => part as f64 / all.max(1) as f64,
            Cell::Rate(Some(rate)) => rate,
            Cell::Text(_) | Cell::Named(..) | Cell::Rate(None) => 0.0,
        }
    }
}

/// What a row is about, from one time to the next.
pub(super) type Key = (u64, u64);

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) cells: Vec<Cell>,
}

/// A table. The first column tells rows apart.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Row>,
}

impl Table {
    /// Puts the rows in the order of a column.
    pub(super) fn sort(&mut self, column: usize, is_inverted: bool) {
        self.rows.sort_by(|one, other| {
            let order = one.cells[column].compare(&other.cells[column]);
            let order = if is_inverted { order.reverse() } else { order };
            order.then(one.key.cmp(&other.key))
        });
    }

    /// The columns that are shown where there is room for so many places: the first `fixed`, and of the others those up
    /// to the chosen one.
    pub(super) fn shown(&self, fixed: usize, chosen: usize, places: usize) -> Vec<usize> {
        let width = |nth: &usize| self.columns[*nth].width + GAP;
        let mut shown: Vec<usize> = (0..fixed).collect();
        let room = (places + GAP).saturating_sub(shown.iter().map(width).sum());
        let fits = |from: usize| {
            let mut room = room;
            (from..self.columns.len())
                .take_while(|nth| {
                    let is_room = width(nth) <= room;
                    room = room.saturating_sub(width(nth));
                    is_room
                })
                .collect::<Vec<_>>()
        };
        let from = (fixed..=chosen).find(|&from| fits(from).contains(&chosen));
        shown.extend(fits(from.unwrap_or(fixed.max(chosen))));
        shown
    }

    /// The titles of some columns.
    pub(super) fn titles(&self, shown: &[usize]) -> Vec<String> {
        shown.iter().map(|&nth| self.columns[nth].fit(self.columns[nth].title)).collect()
    }

    /// The cells of a row in some columns.
    pub(super) fn cells(&self, row: &Row, shown: &[usize]) -> Vec<String> {
        shown.iter().map(|&nth| self.columns[nth].fit(&row.cells[nth].text())).collect()
    }

    /// All of it as lines.
    pub(super) fn text(&self) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let lines = self.rows.iter().map(|row| self.cells(row, &all));
        let line = |cells: Vec<String>| cells.join(" ").trim_end().to_owned() + "\n";
        std::iter::once(self.titles(&all)).chain(lines).map(line).collect()
    }
}
