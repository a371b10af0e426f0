//! What `cairn top` shows: a row for each process, and for one process a row for each size class.
//!
//! Owns the columns. The one idea: a rate is the difference to what was seen before, if it was seen. It must never
//! take one process for another that has its number now.

use super::table::{Cell, Column, Key, Row, Side, Table};
use crate::units::printable;
use cairn_sight::{Glance, Part, Round, Unread, Use};
use serde::Serialize;
use std::collections::BTreeMap;

/// Columns that stay where they are: what the rows are.
pub(super) const FIXED: usize = 2;
/// The column by which rows are ordered at first.
pub(super) const RESIDENT: usize = 2;

/// Processes that are named for a reason.
const NAMES: usize = 5;

/// What all processes are at a time.
pub(super) struct Seen {
    pub(super) round: Round,
}

const fn figure(title: &'static str, about: &'static str) -> Column {
    Column { title, about, width: 9, side: Side::Right }
}

const fn name(title: &'static str, about: &'static str, width: usize) -> Column {
    Column { title, about, width, side: Side::Left }
}

const fn narrow(title: &'static str, about: &'static str) -> Column {
    Column { title, about, width: 7, side: Side::Right }
}

const PROCESSES: [Column; 15] = [
    narrow("PID", "the number of the process"),
    name("PROGRAM", "the program's name", 15),
    figure("RESIDENT", "memory that came through cairn and is there"),
    figure("LIVE", "blocks that the program holds"),
    figure("WASTE", "resident, and in no block that the program holds"),
    narrow("WASTE%", "of what is resident, what is waste"),
    figure("CACHED", "free blocks in threads' caches"),
    figure("FREE", "free blocks in spans"),
    figure("HOLES", "pages among blocks that have no memory behind them"),
    figure("RETURNED", "free slices given back to the system, or not used yet"),
    figure("LIVE/S", "how fast live blocks grow in a second"),
    figure("RES/S", "how fast resident memory grows in a second"),
    figure("ALLOC/S", "how much is allocated in a second, by the heap profile if it is on"),
    figure("RSS", "what the kernel calls resident, of the whole process"),
    narrow("THREADS", "threads of the process"),
];

const PARTS: [Column; 14] = [
    name("BLOCKS OF", "a size class, or what else there is", 12),
    figure("BLOCKS", "how many blocks the program holds"),
    figure("RESIDENT", "memory of it that is there"),
    figure("LIVE", "blocks that the program holds"),
    figure("WASTE", "resident, and in no block that the program holds"),
    narrow("WASTE%", "of what is resident, what is waste"),
    figure("CACHED", "free blocks in threads' caches"),
    figure("FREE", "free blocks in spans"),
    figure("HOLES", "pages among blocks that have no memory behind them"),
    figure("RETURNED", "free slices given back to the system, or not used yet"),
    figure("LIVE/S", "how fast live blocks grow in a second"),
    figure("RES/S", "how fast resident memory grows in a second"),
    figure("ALLOC/S", "how much is allocated in a second, by the heap profile if it is on"),
    figure("SPANS", "spans of the class; runs and mappings of other blocks"),
];

/// All processes.
pub(super) fn processes(now: &Seen, before: Option<&Seen>) -> Table {
    let row = |glance: &Glance| {
        let mut cells = vec![
            Cell::Named(glance.pid.into(), glance.pid.to_string()),
            Cell::Text(printable(&glance.program)),
        ];
        cells.extend(usage(&glance.heap));
        cells.extend(Since::new(glance, before).rates(glance).cells());
        cells.extend([Cell::Bytes(glance.rss), Cell::Count(glance.threads)]);
        Row { key: key(glance), cells }
    };
    Table { columns: &PROCESSES, rows: now.round.processes.iter().map(row).collect() }
}

/// What a process consists of; none if it is not there.
pub(super) fn parts(now: &Seen, before: Option<&Seen>, key: Key) -> Option<Table> {
    let glance = now.find(key)?;
    let since = Since::new(glance, before);
    let row = |part: &Part| {
        let (order, name) = match part.size {
            Some(size) => (size, format!("{size} bytes")),
            None => (u64::MAX, part.name.unwrap_or_default().to_owned()),
        };
        let mut cells = vec![Cell::Named(order, name.clone()), Cell::Count(part.blocks)];
        cells.extend(usage(&part.bytes));
        cells.extend(since.rates_of(part).cells());
        cells.push(Cell::Count(part.spans));
        // Names differ in these bytes.
        let tag = name.bytes().take(7).fold(0, |tag, byte| tag << 8 | u64::from(byte));
        Row { key: (order, tag), cells }
    };
    Some(Table { columns: &PARTS, rows: glance.parts.iter().map(row).collect() })
}

/// The figures from RESIDENT to RETURNED.
fn usage(bytes: &Use) -> [Cell; 8] {
    [
        Cell::Bytes(bytes.resident),
        Cell::Bytes(bytes.live),
        Cell::Bytes(bytes.waste),
        Cell::Part(bytes.waste, bytes.resident),
        Cell::Bytes(bytes.cached),
        Cell::Bytes(bytes.free),
        Cell::Bytes(bytes.holes),
        Cell::Bytes(bytes.returned),
    ]
}

/// Bytes in a second, from one look at a process to the next; none where there has been no other look.
#[derive(Default, Serialize)]
pub(super) struct Rates {
    #[serde(rename = "live_per_second")]
    live: Option<f64>,
    #[serde(rename = "resident_per_second")]
    resident: Option<f64>,
    #[serde(rename = "allocated_per_second")]
    allocated: Option<f64>,
}

impl Rates {
    fn cells(self) -> [Cell; 3] {
        [self.live, self.resident, self.allocated].map(Cell::Rate)
    }
}

/// An earlier look at a process, and how long ago it was.
pub(super) struct Since<'a>(Option<(&'a Glance, f64)>);

impl<'a> Since<'a> {
    pub(super) fn new(now: &Glance, before: Option<&'a Seen>) -> Since<'a> {
        let earlier = before.and_then(|seen| seen.find(key(now)));
        let seconds = |earlier: &Glance| now.at.saturating_duration_since(earlier.at).as_secs_f64();
        let both = earlier.map(|earlier| (earlier, seconds(earlier)));
        Since(both.filter(|(_, seconds)| *seconds > 0.0))
    }

    /// What has grown in the process.
    pub(super) fn rates(&self, now: &Glance) -> Rates {
        let Some((earlier, seconds)) = self.0 else { return Rates::default() };
        rates((&now.heap, now.allocated), (&earlier.heap, earlier.allocated), seconds)
    }

    /// What has grown in a part of it, which may be new.
    pub(super) fn rates_of(&self, part: &Part) -> Rates {
        let Some((earlier, seconds)) = self.0 else { return Rates::default() };
        let is_same = |other: &&Part| (other.size, other.name) == (part.size, part.name);
        let found = earlier.parts.iter().find(is_same);
        let old = found.map_or((Use::default(), None), |part| (part.bytes, part.allocated));
        rates((&part.bytes, part.allocated), (&old.0, old.1), seconds)
    }
}

/// A use of memory, and what has been allocated ever.
type Figures<'a> = (&'a Use, Option<u64>);

fn rates(now: Figures<'_>, earlier: Figures<'_>, seconds: f64) -> Rates {
    let rate = |now: u64, earlier: u64| (now as f64 - earlier as f64) / seconds;
    Rates {
        live: Some(rate(now.0.live, earlier.0.live)),
        resident: Some(rate(now.0.resident, earlier.0.resident)),
        allocated: now.1.zip(earlier.1).map(|(now, earlier)| rate(now, earlier)),
    }
}

/// Which process it is.
pub(super) fn key(glance: &Glance) -> Key {
    (glance.pid.into(), glance.started)
}

impl Seen {
    /// A process, if it is there.
    pub(super) fn find(&self, wanted: Key) -> Option<&Glance> {
        self.round.processes.iter().find(|glance| key(glance) == wanted)
    }

    /// What is to be said of those that are not in the table.
    pub(super) fn notes(&self) -> Vec<String> {
        // Many may have the same reason.
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Unread { pid, program, why } in &self.round.unread {
            let names = reasons.entry(why).or_default();
            names.extend(program.as_ref().map(|program| format!("{pid} {}", printable(program))));
        }
        let unread = reasons.into_iter().map(|(why, names)| match names.len() {
            0 => why.to_owned(),
            1..=NAMES => format!("{}: {why}", names.join(", ")),
            many => format!("{} and {} more: {why}", names[..NAMES].join(", "), many - NAMES),
        });
        let hidden = (self.round.hidden > 0).then(|| {
            let remedy = self.round.remedy.as_deref().unwrap_or_default();
            match self.round.hidden {
                1 => format!("1 process may not be read: {remedy}"),
                many => format!("{many} processes may not be read: {remedy}"),
            }
        });
        let nothing = self.round.processes.is_empty() && self.round.unread.is_empty();
        let nothing = nothing.then(|| "no process that may be read is on cairn".to_owned());
        unread.chain(nothing).chain(hidden).collect()
    }
}
