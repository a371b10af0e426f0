//! What the user of `cairn top` has chosen: a row, a column, an order, a process to look into.
//!
//! The one idea: what is chosen is known by its key, not by its place, so it stays chosen wherever it goes. It must
//! never forget a choice because a table is empty for a while.

use super::figures::{self, FIXED, RESIDENT, Seen};
use super::table::{Key, Table};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A table's order, and the row that is chosen.
pub(super) struct View {
    pub(super) column: usize,
    pub(super) is_inverted: bool,
    chosen: Option<Key>,
    /// Where that was last.
    pub(super) place: usize,
}

/// What a key leads to.
#[derive(PartialEq, Eq)]
pub(super) enum Turn {
    Stay,
    End,
    Suspend,
}

/// All that has been chosen.
pub(super) struct State {
    list: View,
    inside: View,
    /// The process that is looked into.
    pub(super) open: Option<Key>,
    /// The table as it was shown: what a key is about.
    rows: Vec<Key>,
    columns: usize,
    /// The only process that was asked for, until it has been seen.
    single: Option<u32>,
}

impl View {
    fn new(column: usize) -> View {
        View { column, is_inverted: false, chosen: None, place: 0 }
    }

    /// Finds what is chosen in rows; another one at its place if it has gone.
    fn find(&mut self, rows: &[Key]) {
        let same = self.chosen.and_then(|key| rows.iter().position(|row| *row == key));
        self.place = same.unwrap_or(self.place).min(rows.len().saturating_sub(1));
        self.chosen = rows.get(self.place).copied().or(self.chosen);
    }

    fn go(&mut self, rows: &[Key], place: usize) {
        self.place = place.min(rows.len().saturating_sub(1));
        self.chosen = rows.get(self.place).copied();
    }
}

impl State {
    pub(super) fn new(pids: &[u32]) -> State {
        let single = pids.first().copied().filter(|_| pids.len() == 1);
        let (list, inside) = (View::new(RESIDENT), View::new(RESIDENT));
        State { list, inside, open: None, rows: Vec::new(), columns: 0, single }
    }

    /// What is shown.
    pub(super) fn view(&self) -> &View {
        if self.open.is_some() { &self.inside } else { &self.list }
    }

    /// The table that is to be shown, in its order; none if its process has ended.
    pub(super) fn table(&mut self, now: &Seen, before: Option<&Seen>) -> Option<Table> {
        let single = now.round.processes.iter().find(|glance| self.single == Some(glance.pid));
        if let Some(glance) = single {
            (self.open, self.single) = (Some(figures::key(glance)), None);
        }
        let table = match self.open {
            Some(key) => figures::parts(now, before, key),
            None => Some(figures::processes(now, before)),
        };
        let mut table = table?;
        let view = if self.open.is_some() { &mut self.inside } else { &mut self.list };
        table.sort(view.column, view.is_inverted);
        self.rows = table.rows.iter().map(|row| row.key).collect();
        self.columns = table.columns.len();
        view.find(&self.rows);
        Some(table)
    }

    /// The columns that stay where they are.
    pub(super) fn fixed(&self) -> usize {
        FIXED - usize::from(self.open.is_some())
    }

    pub(super) fn press(&mut self, key: KeyEvent, page: usize) -> Turn {
        let rows = &self.rows;
        let view = if self.open.is_some() { &mut self.inside } else { &mut self.list };
        let place = view.place;
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if with_control => return Turn::End,
            KeyCode::Char('z') if with_control => return Turn::Suspend,
            KeyCode::Char('q') => return Turn::End,
            KeyCode::Up => view.go(rows, place.saturating_sub(1)),
            KeyCode::Down => view.go(rows, place + 1),
            KeyCode::PageUp => view.go(rows, place.saturating_sub(page)),
            KeyCode::PageDown => view.go(rows, place + page),
            KeyCode::Home => view.go(rows, 0),
            KeyCode::End => view.go(rows, usize::MAX),
            KeyCode::Left => view.column = view.column.saturating_sub(1),
            KeyCode::Right => view.column = (view.column + 1).min(self.columns.max(1) - 1),
            KeyCode::Char('i') => view.is_inverted = !view.is_inverted,
            KeyCode::Enter if self.open.is_none() => self.enter(),
            KeyCode::Esc => self.open = None,
            _ => {}
        }
        Turn::Stay
    }

    fn enter(&mut self) {
        self.open = self.list.chosen.filter(|key| self.rows.contains(key));
        let View { column, is_inverted, .. } = self.inside;
        self.inside = View { column, is_inverted, chosen: None, place: 0 };
    }
}
