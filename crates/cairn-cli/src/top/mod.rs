//! `cairn top`: where the memory of all processes on cairn is, again and again.
//!
//! Owns when processes are looked at, and the forms for pipes: tables and JSON; the terminal has modules of its own. The
//! one idea: `cairn_sight` looks, in a thread of its own, so that a key is never kept waiting. It must never look more
//! often than it was told.

mod figures;
mod screen;
mod state;
mod table;
mod terminal;

use anyhow::{Context, Result, bail};
use cairn_sight::{Glance, Part, Round, Unread, Watch};
use figures::{RESIDENT, Rates, Seen, Since};
use serde::Serialize;
use std::collections::HashSet;
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The version of the fields' meaning in the JSON text.
const SCHEMA: u32 = 1;

/// Show where the memory of processes is, live
///
/// Every process on cairn is a row: whether cairn is preloaded, linked, or a Rust program's allocator. Enter leads to
/// the size classes of one, Esc back; Left and Right choose the column that decides the order, i inverts the order, q
/// ends. The processes run on meanwhile. Where standard output is no terminal, a table is printed at each interval.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn top                        all processes that may be read
  sudo cairn top                   those of others, too
  cairn top 1234                   one process, by size class
  cairn top --interval 0.5 $(pidof postgres)
  cairn top --once | head -3       one table, for a pipe
  cairn top --once --json | jq -c '.processes | sort_by(.heap.live)[] | [.pid, .heap.live]'
The fields of --json are in docs/guide/inspect.md.")]
pub(crate) struct Args {
    /// Only these processes; a single one is shown by size class
    #[arg(value_name = "PID")]
    pids: Vec<u32>,

    /// Seconds from one look to the next
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// Look once, print that, and end
    #[arg(long, conflicts_with = "interval")]
    once: bool,

    /// Print tables, also to a terminal
    #[arg(long)]
    plain: bool,

    /// Print a line with a JSON object for each look
    #[arg(long, conflicts_with = "plain")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds: f64 = seconds.ok_or("it is a number of seconds from 0.1 to 3600")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Looks until there is an end to it.
pub(crate) fn run(mut args: Args) -> Result<()> {
    // Each once, as it came first.
    let mut seen = HashSet::new();
    args.pids.retain(|pid| seen.insert(*pid));
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_plain = args.once || args.plain || args.json || is_dumb;
    let looks = looks(&args);
    let is_shown = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match is_plain || !is_shown {
        true => print(&args, &looks),
        false => screen::show(&args.pids, &looks),
    }
}

/// Looks at each interval, in another thread. One look is ahead of who takes them at most.
fn looks(args: &Args) -> Receiver<Seen> {
    let (sender, receiver) = sync_channel(0);
    let (pids, interval) = (args.pids.clone(), args.interval);
    thread::spawn(move || {
        let mut watch = Watch::default();
        loop {
            let at = Instant::now();
            let round = if pids.is_empty() { watch.all() } else { watch.some(&pids) };
            if sender.send(Seen { round }).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(at.elapsed()));
        }
    });
    receiver
}

/// Prints what is seen.
fn print(args: &Args, looks: &Receiver<Seen>) -> Result<()> {
    let mut before = None;
    loop {
        let now = looks.recv().context("the thread that looks has ended")?;
        if !args.pids.is_empty() && now.round.processes.is_empty() {
            bail!("{}", now.notes().join("; "));
        }
        let text = match args.json {
            true => json(&now, before.as_ref())? + "\n",
            false => text(args, &now, before.as_ref()),
        };
        crate::print(text.as_bytes())?;
        if args.once {
            return Ok(());
        }
        before = Some(now);
    }
}

/// A table, what is to be said beside it, and an empty line if more follow.
fn text(args: &Args, now: &Seen, before: Option<&Seen>) -> String {
    let one = now.round.processes.first().filter(|_| args.pids.len() == 1);
    let parts = one.and_then(|glance| figures::parts(now, before, figures::key(glance)));
    let table = parts.unwrap_or_else(|| {
        let mut table = figures::processes(now, before);
        table.sort(RESIDENT, false);
        table
    });
    let notes: String = now.notes().iter().map(|note| format!("cairn: {note}\n")).collect();
    let end = if args.once { "" } else { "\n" };
    table.text() + &notes + end
}

/// What is printed of a look.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    processes: Vec<Process<'a>>,
    unread: &'a [Unread],
    hidden: u64,
    remedy: Option<&'a str>,
}

#[derive(Serialize)]
struct Process<'a> {
    #[serde(flatten)]
    glance: &'a Glance,
    #[serde(flatten)]
    rates: Rates,
    parts: Vec<PartOf<'a>>,
}

#[derive(Serialize)]
struct PartOf<'a> {
    #[serde(flatten)]
    part: &'a Part,
    #[serde(flatten)]
    rates: Rates,
}

fn json(now: &Seen, before: Option<&Seen>) -> Result<String> {
    let Round { processes, unread, hidden, remedy } = &now.round;
    let process = |glance| {
        let since = Since::new(glance, before);
        let part = |part| PartOf { part, rates: since.rates_of(part) };
        let parts = glance.parts.iter().map(part).collect();
        Process { glance, rates: since.rates(glance), parts }
    };
    let processes = processes.iter().map(process).collect();
    let (hidden, remedy) = (*hidden, remedy.as_deref());
    let line = Line { schema: SCHEMA, processes, unread, hidden, remedy };
    serde_json::to_string(&line).context("JSON")
}
