//! `cairn leaks`: which blocks of a process, or of a core file, no pointer leads to.
//!
//! Owns how the report is printed, and the exit status; `cairn_sight` draws it up. The one idea: the four words that
//! valgrind's users know, each with what it means. It must never call a guess a certainty.

use crate::units::{human, printable};
use anyhow::{Context, Result, ensure};
use cairn_sight::{Leaks, LostBlock, LostRow, LostStack, Source, Sum};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Rows that a table shows, and functions of a stack; the JSON text has all.
const ROWS: usize = 12;
const FRAMES: usize = 6;
/// Bytes of a block that are shown.
const BYTES: usize = 16;
/// Seconds that two looks may be apart.
const APART_MAX: u64 = 86_400;

/// Say which blocks of a running process or of a core file no pointer leads to
///
/// It looks for pointers in the program's data, stacks and other memory, and follows them from block to block. It reads
/// from outside, and stops nobody: of a process that runs one look is a guess, and two tell what is lost in both. With a
/// heap profile (cairn run --profile) it names the code that has allocated lost blocks. What has grown between two
/// moments, cairn diff says. The exit status is 0 if nothing is lost directly, 1 if something is, 125 for an error.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn leaks 1234                 the process 1234, one look
  cairn leaks --again 5 1234       what is lost now and in 5 seconds
  cairn leaks ./core               a core file
  cairn leaks --json 1234 | jq .direct.bytes
What it cannot see, and the fields of --json, are in docs/guide/leaks.md.")]
pub(crate) struct Args {
    /// The number of the process, or the path of a core file; a path of digits alone needs ./ in front
    #[arg(value_name = "PID|CORE")]
    target: OsString,

    /// Look again after so many seconds, and tell what is lost both times
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=APART_MAX))]
    again: Option<u64>,

    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the report: whether anything is lost directly.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let pid = args.target.to_str().and_then(|text| text.parse().ok());
    let source = pid.map_or_else(|| Source::Core(PathBuf::from(&args.target)), Source::Process);
    let is_again = args.again.is_some() && pid.is_none();
    ensure!(!is_again, "--again: a core file does not change");
    let leaks = cairn_sight::leaks(&source, args.again.map(Duration::from_secs))?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&leaks).context("JSON")? + "\n",
        false => text(&leaks)?,
    };
    crate::print(text.as_bytes())?;
    Ok(leaks.direct.blocks > 0)
}

/// The report for people.
fn text(leaks: &Leaks) -> Result<String> {
    let mut text = String::new();
    let target = &leaks.target;
    let whose = match (&target.program, target.pid) {
        (Some(program), Some(pid)) => format!("{}, process {pid}", printable(program)),
        _ => "a core file".to_owned(),
    };
    writeln!(text, "cairn: what is lost in {whose}")?;
    for (sum, name) in [
        (leaks.direct, "lost directly: no pointer leads there"),
        (leaks.indirect, "lost indirectly: only lost blocks lead there"),
        (leaks.possibly, "possibly lost: only pointers into the middle lead there"),
        (leaks.reachable, "reachable"),
    ] {
        writeln!(text, "  {:>12} {:>10} blocks  {name}", human(sum.bytes), sum.blocks)?;
    }
    classes(&mut text, &leaks.classes)?;
    biggest(&mut text, &leaks.biggest)?;
    stacks(&mut text, &leaks.stacks)?;
    if !leaks.notes.is_empty() {
        writeln!(text, "\n  Note: {}.", leaks.notes.join("; "))?;
    }
    Ok(text)
}

fn classes(text: &mut String, rows: &[LostRow]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = |row: &LostRow| row.direct.bytes + row.indirect.bytes;
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| std::cmp::Reverse(bytes(row)));
    writeln!(text, "\n  Lost blocks, by size:")?;
    writeln!(
        text,
        "  {:>8} {:>10} {:>10} {:>10} {:>10}",
        "size", "directly", "bytes", "indirectly", "bytes"
    )?;
    for LostRow { size, direct, indirect } in rows.iter().take(ROWS) {
        let size = size.map_or("large".to_owned(), |size| size.to_string());
        writeln!(
            text,
            "  {size:>8} {:>10} {:>10} {:>10} {:>10}",
            direct.blocks,
            human(direct.bytes),
            indirect.blocks,
            human(indirect.bytes)
        )?;
    }
    more(text, rows.len())
}

fn biggest(text: &mut String, blocks: &[LostBlock]) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  The biggest that are lost directly, with what is lost by them:")?;
    for block in blocks {
        let (bytes, at) = (human(block.bytes), block.address);
        writeln!(text, "  {bytes:>12}  at {at:#x}{}", leads_to(block.leads_to))?;
        if !block.begins.is_empty() {
            writeln!(text, "  {:>12}  {}", "", beginning(&block.begins))?;
        }
        frames(text, &block.stack)?;
    }
    Ok(())
}

fn leads_to(sum: Sum) -> String {
    match sum.blocks {
        0 => String::new(),
        blocks => format!(", and {} in {blocks} more blocks", human(sum.bytes)),
    }
}

/// Bytes as numbers and as letters.
fn beginning(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(BYTES)];
    let numbers: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let letter = |&byte: &u8| if (b' '..=b'~').contains(&byte) { char::from(byte) } else { '.' };
    let letters: String = bytes.iter().map(letter).collect();
    format!("{}  {letters}", numbers.join(" "))
}

fn stacks(text: &mut String, stacks: &[LostStack]) -> Result<()> {
    if stacks.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  Who has allocated lost blocks, estimated from samples:")?;
    for row in stacks.iter().take(ROWS) {
        writeln!(text, "  {:>12}  in {:.0} blocks", human(row.bytes as u64), row.blocks)?;
        frames(text, &row.stack)?;
    }
    more(text, stacks.len())
}

fn frames(text: &mut String, stack: &[String]) -> Result<()> {
    for (nth, frame) in stack.iter().take(FRAMES).enumerate() {
        let arrow = if nth == 0 { "by" } else { " <" };
        writeln!(text, "  {:>12}  {arrow} {}", "", printable(frame))?;
    }
    Ok(())
}

fn more(text: &mut String, rows: usize) -> Result<()> {
    if rows > ROWS {
        writeln!(text, "  {:>8} more", rows - ROWS)?;
    }
    Ok(())
}
