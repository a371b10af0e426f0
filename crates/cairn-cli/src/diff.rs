//! `cairn diff`: what has grown from one account to another.
//!
//! Owns where accounts come from, and how the difference is printed; `cairn_sight` draws it up. The one idea: what
//! `cairn inspect --json` has written is an account like that of a process. It must never take more of a file into
//! memory than an account can have.

use crate::units::{change, human, printable};
use anyhow::{Context, Result, ensure};
use cairn_sight::{Account, Change, Difference, SCHEMA, Source, Target};
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Bytes of a saved account at most.
const SAVED_MAX: u64 = 64 << 20;
/// Classes that are shown; the JSON text has all.
const ROWS: usize = 12;

/// Say what has grown between two accounts of memory
///
/// Each is a running process, a core file, or what `cairn inspect --json` has printed into a file. What has grown is
/// said in words, by the steps from the program's blocks to what is resident, and by size class.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn inspect --json 1234 > before; sleep 60; cairn diff before 1234
  cairn diff 1234 1235             two processes
  cairn diff before ./core         what a core file has more
  cairn diff --json before after | jq '.classes[0]'
The fields of --json are in docs/guide/inspect.md.")]
pub(crate) struct Args {
    /// What was before: a process, a core file, or a saved account; a path of digits alone needs ./ in front
    #[arg(value_name = "A")]
    before: OsString,

    /// What came after
    #[arg(value_name = "B")]
    after: OsString,

    /// Print the difference as one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints what has grown.
pub(crate) fn run(args: &Args) -> Result<()> {
    let difference = cairn_sight::difference(&account(&args.before)?, &account(&args.after)?);
    let text = match args.json {
        true => serde_json::to_string_pretty(&difference).context("JSON")? + "\n",
        false => text(&difference)?,
    };
    crate::print(text.as_bytes())
}

/// The account of what an argument names.
fn account(target: &OsStr) -> Result<Account> {
    let name = target.display();
    if let Some(pid) = target.to_str().and_then(|text| text.parse().ok()) {
        return cairn_sight::inspect(&Source::Process(pid)).map_err(Into::into);
    }
    match saved(target).with_context(|| name.to_string())? {
        Some(account) => Ok(account),
        None => Ok(cairn_sight::inspect(&Source::Core(PathBuf::from(target)))?),
    }
}

/// The account that a file has; none if it begins as no account does.
fn saved(path: &OsStr) -> Result<Option<Account>> {
    let file = File::open(path)?;
    let mut first = [0];
    (&file).take(1).read_exact(&mut first).unwrap_or_default();
    if first != *b"{" {
        return Ok(None);
    }
    let mut text = first.to_vec();
    file.take(SAVED_MAX).read_to_end(&mut text)?;
    ensure!((text.len() as u64) < SAVED_MAX, "longer than any account");
    let account: Account =
        serde_json::from_slice(&text).context("no account that `cairn inspect --json` prints")?;
    ensure!(account.schema == SCHEMA, "its schema is {}, not {SCHEMA}", account.schema);
    Ok(Some(account))
}

fn text(difference: &Difference) -> Result<String> {
    let mut text = String::new();
    let (before, after) = (whose(&difference.before), whose(&difference.after));
    writeln!(text, "cairn: from {before} to {after}")?;
    for said in &difference.words {
        writeln!(text, "  {}", printable(said))?;
    }
    writeln!(text, "\n  {:>10} {:>10} {:>10}", "before", "after", "grown")?;
    for row in &difference.steps {
        line(&mut text, row)?;
    }
    writeln!(text)?;
    for row in &difference.totals {
        line(&mut text, row)?;
    }
    if difference.classes.is_empty() {
        return Ok(text);
    }
    writeln!(text, "\n  Size classes, by how much the program's blocks have changed:")?;
    writeln!(
        text,
        "  {:>8} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "size", "blocks", "more", "held", "floor", "resident"
    )?;
    for class in difference.classes.iter().take(ROWS) {
        let bytes = [&class.held, &class.floor, &class.resident];
        let [held, floor, resident] = bytes.map(|row| change(row.grown as f64));
        let (size, blocks) = (class.size, &class.blocks);
        let (now, more) = (blocks.after, format!("{:+}", blocks.grown));
        writeln!(text, "  {size:>8} {now:>10} {more:>10} {held:>10} {floor:>10} {resident:>10}")?;
    }
    if difference.classes.len() > ROWS {
        writeln!(text, "  {:>8} more", difference.classes.len() - ROWS)?;
    }
    Ok(text)
}

fn line(text: &mut String, row: &Change) -> Result<()> {
    let signed = |bytes: i64| {
        let sign = if bytes < 0 { "-" } else { "" };
        format!("{sign}{}", human(bytes.unsigned_abs()))
    };
    let (before, after) = (signed(row.before), signed(row.after));
    // The name may come from a file.
    let (grown, name) = (change(row.grown as f64), printable(&row.name));
    Ok(writeln!(text, "  {before:>10} {after:>10} {grown:>10}  {name}")?)
}

fn whose(target: &Target) -> String {
    match (&target.program, target.pid) {
        (Some(program), Some(pid)) => format!("{}, process {pid}", printable(program)),
        _ => "a core file".to_owned(),
    }
}
