//! `cairn inspect`: where the memory of a process, or of a core file, is.
//!
//! Owns how an account is printed; `cairn_sight` draws it up. The one idea: the same words as in the statistics of
//! the library, and the JSON text has every figure. It must never print a figure without its unit.

use crate::embedded;
use crate::profile::refuse_same;
use crate::units::{human, printable};
use anyhow::{Context, Result, bail};
use cairn_sight::{Account, HeapMap, HeapRow, Moment, Source, Target, account_page};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rows that a table shows; the JSON text has all.
const ROWS: usize = 12;
/// Seconds that a process may be looked at.
const SECONDS_MAX: u64 = 86_400;

/// Say where the memory of a running process or of a core file is
///
/// It reads from outside, and stops nobody. The account goes from the blocks that the program holds to what the kernel
/// calls resident; then come the floor (resident pages with a byte of a block in use), size classes, heaps, the biggest
/// blocks, and advice, with the code behind a leak where a heap profile is on. Another user's process takes root or CAP_SYS_PTRACE. A core file needs the files that the
/// program ran, cairn's among them, where they were.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn inspect 1234               the process 1234
  cairn inspect $(pidof redis-server)
  cairn inspect ./core             a core file
  cairn inspect --json 1234 | jq .floor
  cairn inspect 1234 --html heap.html      a page with a map of the heap, for a browser
  cairn inspect 1234 --seconds 60          what it does for a minute, and what only grows
The fields of --json are in docs/guide/inspect.md.")]
pub(crate) struct Args {
    /// The number of the process, or the path of a core file; a path of digits alone needs ./ in front
    #[arg(value_name = "PID|CORE")]
    target: OsString,

    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,

    /// Write a page with a map of the heap for a browser: one file, which needs no network
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    html: Option<PathBuf>,

    /// Look at the process for so long first: a curve, and what grows all the while, from 10 seconds on
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
}

/// Prints the account of a target.
pub(crate) fn run(args: &Args) -> Result<()> {
    let pid = args.target.to_str().and_then(|text| text.parse().ok());
    let source = pid.map_or_else(|| Source::Core(PathBuf::from(&args.target)), Source::Process);
    if let Some(out) = &args.html {
        return draw(args, &source, out).context("--html");
    }
    let account = match args.seconds {
        Some(seconds) => over(&source, seconds)?.0,
        None => cairn_sight::inspect(&source)?,
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&account).context("JSON")? + "\n",
        false => text(&account)?,
    };
    crate::print(text.as_bytes())
}

/// The account of a process that is looked at for a while.
fn over(source: &Source, seconds: u64) -> Result<(Account, HeapMap)> {
    let Source::Process(pid) = source else { bail!("--seconds: a core file does not change") };
    Ok(cairn_sight::inspect_over(*pid, Duration::from_secs(seconds))?)
}

/// Writes the page.
fn draw(args: &Args, source: &Source, out: &Path) -> Result<()> {
    let (account, map) = match args.seconds {
        Some(seconds) => over(source, seconds)?,
        None => cairn_sight::inspect_with_map(source)?,
    };
    if let Source::Core(core) = source {
        refuse_same(out, core)?;
    }
    fs::write(out, account_page(&account, &map)?).with_context(|| out.display().to_string())
}

/// The account for people.
fn text(account: &Account) -> Result<String> {
    let mut text = String::new();
    let target = &account.target;
    let whose = match (&target.program, target.pid) {
        (Some(program), Some(pid)) => format!("{}, process {pid}", printable(program)),
        _ => "a core file".to_owned(),
    };
    let build = if target.hardened { ", the hardened build" } else { "" };
    writeln!(text, "cairn: the memory of {whose}{build}")?;
    writeln!(text, "  {}", library(target))?;
    steps(&mut text, account)?;
    curve(&mut text, &account.curve)?;
    floor(&mut text, account)?;
    classes(&mut text, account)?;
    heaps(&mut text, account)?;
    biggest(&mut text, account)?;
    for advice in &account.advice {
        writeln!(text, "\n  {}", advice.text)?;
        for site in &advice.sites {
            writeln!(text, "  {:>12}  by {}", human(site.bytes), printable(&site.line))?;
        }
    }
    if !account.notes.is_empty() {
        writeln!(text, "\n  Note: {}.", account.notes.join("; "))?;
    }
    Ok(text)
}

/// Which cairn it is.
fn library(target: &Target) -> String {
    let file = printable(&target.library);
    let own = [embedded::DEFAULT.build(), embedded::HARDENED.build()];
    match &target.build {
        None => format!("by {file}, of no known build"),
        build if own.contains(build) => format!("by {file}, the library in this command"),
        Some(build) => format!("by {file}, build {build}: not the library in this command"),
    }
}

fn steps(text: &mut String, account: &Account) -> Result<()> {
    for step in &account.steps {
        let sign = if step.bytes < 0 { "-" } else { "" };
        let bytes = format!("{sign}{}", human(step.bytes.unsigned_abs()));
        writeln!(text, "  {bytes:>12}  {}", step.name)?;
        if let (Some(asked), "blocks that the program holds") = (account.held.asked, &*step.name) {
            let small = human(account.held.small);
            writeln!(
                text,
                "  {:>12}    {} of {small} in size classes were asked for",
                "",
                human(asked)
            )?;
        }
    }
    let resident = &account.resident;
    let kernel = match resident.kernel {
        Some(kernel) => format!("; the kernel says {}", human(kernel)),
        None => String::new(),
    };
    let through = human(resident.through_cairn);
    let sum = human(resident.sum);
    writeln!(text, "  {sum:>12}  resident in all, {through} of it through cairn{kernel}")?;
    if resident.swapped > 0 {
        writeln!(text, "  {:>12}  of cairn's is swapped out", human(resident.swapped))?;
    }
    Ok(())
}

/// A figure of a moment, in bytes.
type Figure = fn(&Moment) -> u64;

/// What was there while it was looked at.
fn curve(text: &mut String, moments: &[Moment]) -> Result<()> {
    let [first, .., last] = moments else { return Ok(()) };
    writeln!(text, "\n  In {:.0} s, {} looks:", last.seconds, moments.len())?;
    writeln!(text, "  {:>12} {:>12} {:>12} {:>12}", "first", "least", "most", "last")?;
    let rows: [(&str, Figure); 3] = [
        ("blocks that the program holds", |moment| moment.live),
        ("free blocks in threads' caches", |moment| moment.cached),
        ("resident through cairn", |moment| moment.resident),
    ];
    for (name, figure) in rows {
        let all = || moments.iter().map(figure);
        let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
        let [first, least, most, last] = [figure(first), least, most, figure(last)].map(human);
        writeln!(text, "  {first:>12} {least:>12} {most:>12} {last:>12}  {name}")?;
    }
    Ok(())
}

fn floor(text: &mut String, account: &Account) -> Result<()> {
    let floor = &account.floor;
    writeln!(text, "\n  The floor: resident pages with a byte of a block in use")?;
    for (bytes, name) in [
        (floor.bytes, "floor"),
        (floor.free_in_spans, "pages of spans with free blocks alone"),
        (floor.dirty, "dirty"),
        (floor.metadata, "metadata"),
    ] {
        writeln!(text, "  {:>12}  {name}", human(bytes))?;
    }
    Ok(())
}

fn classes(text: &mut String, account: &Account) -> Result<()> {
    let mut rows = account.classes.clone();
    rows.sort_by_key(|row| std::cmp::Reverse(row.resident));
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  Size classes, by what is resident:")?;
    writeln!(
        text,
        "  {:>8} {:>7} {:>9} {:>8} {:>9} {:>9} {:>10} {:>10} {:>10}",
        "size", "spans", "in use", "cached", "free", "untouched", "bytes", "floor", "resident"
    )?;
    for row in rows.iter().take(ROWS) {
        writeln!(
            text,
            "  {:>8} {:>7} {:>9} {:>8} {:>9} {:>9} {:>10} {:>10} {:>10}",
            row.size,
            row.spans,
            row.in_use,
            row.cached,
            row.free,
            row.untouched,
            human(row.in_use * row.size),
            human(row.floor),
            human(row.resident)
        )?;
    }
    more(text, rows.len())
}

fn heaps(text: &mut String, account: &Account) -> Result<()> {
    if account.heaps.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  Heaps, by what is resident:")?;
    writeln!(
        text,
        "  {:>10} {:>7} {:>10} {:>10} {:>10}  thread",
        "heap", "spans", "in use", "cached", "resident"
    )?;
    for row in account.heaps.iter().take(ROWS) {
        writeln!(
            text,
            "  {:>10} {:>7} {:>10} {:>10} {:>10}  {}",
            name(row),
            row.spans,
            human(row.in_use),
            human(row.cached),
            human(row.resident),
            thread(row)
        )?;
    }
    more(text, account.heaps.len())
}

fn name(row: &HeapRow) -> String {
    match (row.heap, row.closed) {
        (None, _) => "nobody's".to_owned(),
        (Some(heap), true) => format!("closed {heap}"),
        (Some(heap), false) => heap.to_string(),
    }
}

/// Whose it is, as far as that is known.
fn thread(row: &HeapRow) -> String {
    let name = printable(row.thread_name.as_deref().unwrap_or_default());
    row.thread.map_or(String::new(), |thread| format!("{thread} {name}"))
}

fn biggest(text: &mut String, account: &Account) -> Result<()> {
    if account.biggest.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  The biggest blocks:")?;
    for row in &account.biggest {
        let kind = if row.mapping { "a mapping" } else { "slices" };
        let (bytes, resident) = (human(row.bytes), human(row.resident));
        writeln!(text, "  {bytes:>12}  at {:#x}, {kind}, {resident} resident", row.address)?;
    }
    Ok(())
}

fn more(text: &mut String, rows: usize) -> Result<()> {
    if rows > ROWS {
        writeln!(text, "  {:>8} more", rows - ROWS)?;
    }
    Ok(())
}
