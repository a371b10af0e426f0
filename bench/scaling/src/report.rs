//! What was counted, as tables and as JSON.

use crate::account::{Account, Cause, Figures};
use crate::places::Places;
use crate::probe::Shape;
use crate::simulation::Simulated;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// The figures of one library, shape and number of threads.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The library's name.
    pub library: String,
    /// Who frees what.
    pub shape: Shape,
    /// How many threads.
    pub threads: usize,
    /// Pairs of malloc and free that were counted.
    pub operations: u64,
    /// Counts per pair.
    pub per_operation: Figures,
    /// The code that moves most lines.
    pub code: Vec<Site>,
    /// The allocator's own lines that move most.
    pub lines: Vec<HotLine>,
}

/// An instruction of the allocator that moves lines.
#[derive(Debug, Serialize, Deserialize)]
pub struct Site {
    /// Where it is.
    pub place: String,
    /// What lines it moves.
    pub cause: Cause,
    /// How many, per operation.
    pub transfers: f64,
    /// How many copies that takes from others, per operation.
    pub invalidated: f64,
}

/// A line of the allocator's own.
#[derive(Debug, Serialize, Deserialize)]
pub struct HotLine {
    /// Where it is.
    pub place: String,
    /// How often it moves, per operation.
    pub transfers: f64,
    /// How many cores move it.
    pub cores: usize,
    /// How many of its eight words they want: one word is shared, several may only be
    /// neighbours.
    pub words: usize,
}

impl Measured {
    /// Draws up the figures, with the `top` places of each kind.
    pub fn new(
        library: &str,
        shape: Shape,
        threads: usize,
        run: &mut Simulated,
        top: usize,
    ) -> Measured {
        let (account, places) = (&run.account, &mut run.places);
        Measured {
            library: library.to_owned(),
            shape,
            threads,
            operations: account.operations(),
            per_operation: account.figures(),
            code: sites(account, places, top),
            lines: hot_lines(account, places, top),
        }
    }
}

fn per(count: u64, account: &Account) -> f64 {
    count as f64 / account.operations().max(1) as f64
}

fn sites(account: &Account, places: &mut Places, top: usize) -> Vec<Site> {
    let mut all: Vec<_> = account.sites.iter().collect();
    all.sort_by_key(|((code, _), traffic)| (Reverse(traffic.transfers()), *code));
    let site = |(&(code, cause), traffic): (&(u64, Cause), &crate::account::Traffic)| Site {
        place: places.describe(code),
        cause,
        transfers: per(traffic.transfers(), account),
        invalidated: per(traffic.invalidated, account),
    };
    all.into_iter().take(top).map(site).collect()
}

fn hot_lines(account: &Account, places: &mut Places, top: usize) -> Vec<HotLine> {
    let mut all: Vec<_> = account.lines.iter().collect();
    all.sort_by_key(|(line, shared)| (Reverse(shared.transfers), **line));
    all.truncate(top);
    let line = |(line, shared): (&crate::coherence::Line, &crate::account::Shared)| HotLine {
        place: places.describe(line.address()),
        transfers: per(shared.transfers, account),
        cores: shared.cores.count_ones(..),
        words: shared.words.count_ones(..),
    };
    all.into_iter().map(line).collect()
}

type Column = (&'static str, fn(&Figures) -> f64);

const COLUMNS: [Column; 13] = [
    ("instr", |f| f.instructions),
    ("locked", |f| f.locked),
    ("transfers", Figures::transfers),
    ("meta r", |f| f.metadata.read),
    ("meta w", |f| f.metadata.write),
    ("block r", |f| f.block.read),
    ("block w", |f| f.block.write),
    ("inval", |f| f.metadata.invalidated + f.block.invalidated),
    ("hottest", |f| f.hottest_line),
    ("program", |f| f.program.transfers()),
    ("cold", |f| f.cold),
    ("syscalls", |f| f.system_calls),
    ("blocked", |f| f.blocked),
];

/// The table of all figures per operation.
pub fn table(all: &[Measured]) -> Table {
    let mut table = empty_table();
    let names = COLUMNS.iter().map(|(name, _)| *name);
    table.set_header(["library", "shape", "threads", "ops"].into_iter().chain(names));
    for run in all {
        let mut row = vec![
            run.library.clone(),
            run.shape.name(),
            run.threads.to_string(),
            run.operations.to_string(),
        ];
        row.extend(COLUMNS.iter().map(|(_, figure)| number(figure(&run.per_operation))));
        table.add_row(row);
    }
    align(&mut table, 2);
    table
}

/// Where the lines of one run move.
pub fn places(run: &Measured) -> Table {
    let mut table = empty_table();
    table.set_header(["per op", "inval", "what", "where"]);
    for site in &run.code {
        let cause = format!("{:?}", site.cause).to_lowercase();
        table.add_row([
            number(site.transfers),
            number(site.invalidated),
            cause,
            site.place.clone(),
        ]);
    }
    for line in &run.lines {
        let cores = format!("line, {} cores, {} words", line.cores, line.words);
        table.add_row([number(line.transfers), String::new(), cores, line.place.clone()]);
    }
    table
}

fn empty_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table
}

fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn number(figure: f64) -> String {
    match figure {
        0.0 => "0".to_owned(),
        figure if figure < 0.0005 => "<0.001".to_owned(),
        figure if figure < 0.0995 => format!("{figure:.3}"),
        figure if figure < 9.95 => format!("{figure:.2}"),
        figure => format!("{figure:.0}"),
    }
}
