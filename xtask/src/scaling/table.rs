//! The page's table, and what no figure of cairn's may exceed.

use super::Args;
use super::simulation::{self, Figures};
use crate::library::{self, Build};
use anyhow::{Context, Result, ensure};
use std::ops::RangeInclusive;
use std::path::{Path, absolute};
use xshell::cmd;

/// The shapes of subject.c. For each malloc and free, the most locked instructions, moves of cairn's own lines, and
/// moves of the line that moves most; and the moves of lines of blocks. A line that all want moves twice or more.
const SHAPES: [(&str, [f64; 3], RangeInclusive<f64>); 4] = [
    ("local", [0.1, 0.1, 0.1], 0.0..=0.1),
    // Where it is freed it is linked; where it is allocated its link is read and then cleared.
    ("pairs", [0.5, 0.75, 0.5], 2.7..=3.3),
    ("larson-like", [0.5, 0.75, 0.2], 0.0..=4.0),
    ("one-to-all", [0.5, 0.75, 0.75], 2.7..=3.3),
];
const THREADS: [usize; 4] = [2, 16, 64, 256];
const QUICK: usize = 2;

/// Counts, prints, and judges cairn's figures.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (source, subject) = (folder.path().join("subject.c"), folder.path().join("subject"));
    std::fs::write(&source, include_str!("subject.c"))?;
    let shell = library::shell()?;
    cmd!(shell, "cc -O1 -fno-builtin -pthread -o {subject} {source} -ldl").quiet().run()?;

    let library = match &args.library {
        None => Some(Build::default().library()?),
        Some(library) if library == Path::new("glibc") => None,
        Some(library) => Some(absolute(library)?),
    };
    let threads = if args.quick { &THREADS[..QUICK] } else { &THREADS };
    let columns = threads.iter().map(|count| format!("{count} threads|"));
    println!("|shape|{}\n|---|{}", columns.collect::<String>(), "---|".repeat(threads.len()));
    let mut bad = Vec::new();
    for (shape, most, blocks) in SHAPES {
        print!("|{shape}|");
        for &threads in threads {
            // Few for each of many threads: they were stopped at random points of what they repeat, so that together
            // they show all of it.
            let pairs = (threads as u64 * 64).max(2048);
            let figures = simulation::run(&subject, (shape, threads), pairs, library.as_deref())
                .with_context(|| format!("{shape}, {threads} threads"))?;
            let Figures { locked, own, hottest, blocks: of_blocks } = figures;
            print!("{}|", [locked, own, hottest].map(|figure| format!("{figure:.2}")).join("/"));
            let over = [locked, own, hottest].into_iter().zip(most).any(|(it, most)| it > most);
            if over || !blocks.contains(&of_blocks) {
                bad.push(format!("{shape}, {threads} threads: {figures:?}"));
            }
        }
        println!();
    }
    ensure!(args.library.is_some() || bad.is_empty(), "out of bounds:\n{}", bad.join("\n"));
    Ok(())
}
