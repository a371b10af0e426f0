//! `cairn top` on a terminal.
//!
//! Owns what is drawn, and when. The one idea: a table, what is to be said beside it, and a line that names the keys;
//! drawn anew when there is something new. It must never wait for longer than a signal may.

use super::figures::Seen;
use super::state::{State, Turn};
use super::table::{Key, Table};
use super::terminal::{self, Screen};
use crate::units::{human, printable};
use anyhow::{Result, bail};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{self, TableState};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// How long a signal or a new look waits for a key.
const PATIENCE: Duration = Duration::from_millis(50);
/// Lines for what is to be said beside the table, at most.
const NOTES: usize = 4;
const LIST_KEYS: &str =
    "Up Down select   Left Right column   i invert   Enter by size class   q quit";
const INSIDE_KEYS: &str =
    "Up Down select   Left Right column   i invert   Esc all processes   q quit";

/// What is shown.
struct Shown {
    now: Option<Seen>,
    before: Option<Seen>,
    state: State,
    scroll: TableState,
    /// Rows that there is room for.
    page: usize,
}

/// Shows what is seen, until the user ends it.
pub(super) fn show(pids: &[u32], looks: &Receiver<Seen>) -> Result<()> {
    let state = State::new(pids);
    let mut shown =
        Shown { now: None, before: None, state, scroll: TableState::default(), page: 1 };
    loop {
        let mut screen = Screen::take()?;
        let end = shown.follow(&mut screen, looks);
        drop(screen);
        match end? {
            End::Signal(signal) => terminal::raise(signal),
            End::Suspend => terminal::raise(libc::SIGTSTP),
            End::Quit => return Ok(()),
        }
    }
}

/// Why the terminal is given back.
enum End {
    Quit,
    Suspend,
    Signal(i32),
}

impl Shown {
    /// Follows looks and keys.
    fn follow(&mut self, screen: &mut Screen, looks: &Receiver<Seen>) -> Result<End> {
        let mut is_new = true;
        loop {
            if is_new {
                screen.0.draw(|frame| self.draw(frame))?;
            }
            is_new = self.take(looks)?;
            if !terminal::is_there(PATIENCE) {
                return Ok(End::Quit);
            }
            // What comes by a signal, as a new size does, too.
            if event::poll(Duration::ZERO)? {
                is_new = true;
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        match self.state.press(key, self.page) {
                            Turn::Stay => {}
                            Turn::End => return Ok(End::Quit),
                            Turn::Suspend => return Ok(End::Suspend),
                        }
                    }
                    _ => {}
                }
            }
            if let Some(signal) = terminal::caught() {
                return Ok(End::Signal(signal));
            }
        }
    }

    /// Takes a look, if there is one.
    fn take(&mut self, looks: &Receiver<Seen>) -> Result<bool> {
        match looks.try_recv() {
            Ok(seen) => {
                self.before = self.now.replace(seen);
                Ok(true)
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => bail!("the thread that looks has ended"),
        }
    }

    fn draw(&mut self, frame: &mut Frame) {
        let Some(now) = &self.now else {
            return frame.render_widget("Looking for processes on cairn ...", frame.area());
        };
        let notes = wrapped(&now.notes(), frame.area().width.into());
        let [title, middle, beside, about, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(notes.len() as u16),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.page = usize::from(middle.height).saturating_sub(2).max(1);
        let table = self.state.table(now, self.before.as_ref());
        let head = head(now, self.state.open);
        frame.render_widget(Line::styled(head, Modifier::BOLD), title);
        match &table {
            Some(table) => draw_table(frame, middle, table, &self.state, &mut self.scroll),
            None => frame.render_widget("The process has ended. Esc leads to the others.", middle),
        }
        frame.render_widget(Text::from_iter(notes), beside);
        let column = table.map(|table| &table.columns[self.state.view().column]);
        let said =
            column.map_or(String::new(), |column| format!("{}: {}", column.title, column.about));
        frame.render_widget(Line::styled(said, Modifier::DIM), about);
        let help = if self.state.open.is_some() { INSIDE_KEYS } else { LIST_KEYS };
        frame.render_widget(Line::styled(help, Modifier::REVERSED), keys);
    }
}

/// Texts in lines of so many places, at words.
fn wrapped(texts: &[String], places: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for text in texts {
        lines.push(String::new());
        for word in text.split(' ') {
            let line = lines.last().map_or(0, |line| line.chars().count());
            if line > 0 && line + 1 + word.chars().count() > places {
                lines.push(String::new());
            }
            if let Some(line) = lines.last_mut() {
                *line += if line.is_empty() { "" } else { " " };
                *line += word;
            }
        }
    }
    lines.truncate(NOTES);
    lines
}

/// The first line.
fn head(now: &Seen, open: Option<Key>) -> String {
    let all = &now.round.processes;
    match open.and_then(|key| now.find(key)) {
        Some(glance) => format!(
            "cairn top   {}, process {}{}   resident through cairn {}, in all {}; threads {}",
            printable(&glance.program),
            glance.pid,
            if glance.hardened { ", hardened" } else { "" },
            human(glance.heap.resident),
            human(glance.rss),
            glance.threads
        ),
        None => format!(
            "cairn top   processes on cairn: {}   resident {}, live {}",
            all.len(),
            human(all.iter().map(|glance| glance.heap.resident).sum()),
            human(all.iter().map(|glance| glance.heap.live).sum())
        ),
    }
}

fn draw_table(
    frame: &mut Frame,
    area: Rect,
    table: &Table,
    state: &State,
    scroll: &mut TableState,
) {
    let view = state.view();
    let shown = table.shown(state.fixed(), view.column, area.width.into());
    let titles = table.titles(&shown).into_iter().zip(&shown).map(|(title, &column)| {
        let style = Style::new().add_modifier(Modifier::BOLD);
        let chosen = style.add_modifier(Modifier::REVERSED);
        Line::styled(title, if column == view.column { chosen } else { style })
    });
    let rows = table.rows.iter().map(|row| widgets::Row::new(table.cells(row, &shown)));
    let widths = shown.iter().map(|&column| table.columns[column].width as u16);
    let widget = widgets::Table::new(rows, widths)
        .header(widgets::Row::new(titles))
        .row_highlight_style(Modifier::REVERSED);
    scroll.select((!table.rows.is_empty()).then_some(view.place));
    frame.render_stateful_widget(widget, area, scroll);
}
