//! The page's table, and what no figure of cairn's may exceed.

use super::Args;
use super::simulation::{self, Figures};
use crate::library::{self, Build};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf, absolute};
use xshell::cmd;

/// The shapes of subject.c. For each malloc and free, the most locked instructions, moves of cairn's own lines, moves
/// of the line that moves most, and moves of lines of blocks. A line that all want moves twice or more.
const SHAPES: [(&str, [f64; 4]); 4] = [
    ("local", [0.1, 0.1, 0.1, 0.1]),
    ("pairs", [0.2, 0.3, 0.15, 3.3]),
    ("larson-like", [0.5, 0.6, 0.1, 4.0]),
    ("one-to-all", [0.5, 1.2, 0.3, 3.3]),
];
/// At 2 threads of `pairs` the least moves of lines of blocks: where it is freed it is linked; where it is allocated
/// its link is read and then cleared. Among many threads the stretch that is counted has parts of this.
const KNOWN: f64 = 2.7;
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
        // No later build replaces the copy while it is counted.
        None => Some(copied(&Build::default().library()?, folder.path())?),
        Some(library) if library == Path::new("glibc") => None,
        Some(library) => Some(absolute(library)?),
    };
    let threads = if args.quick { &THREADS[..QUICK] } else { &THREADS };
    let columns = threads.iter().map(|count| format!("{count} threads|"));
    println!("|shape|{}\n|---|{}", columns.collect::<String>(), "---|".repeat(threads.len()));
    let mut bad = Vec::new();
    for (shape, most) in SHAPES {
        print!("|{shape}|");
        for &threads in threads {
            // Few for each of many threads: they were stopped at random points of what they repeat, so that together
            // they show all of it.
            let pairs = (threads as u64 * 64).max(2048);
            let figures = simulation::run(&subject, (shape, threads), pairs, library.as_deref())
                .with_context(|| format!("{shape}, {threads} threads"))?;
            let Figures { locked, own, hottest, blocks } = figures;
            print!("{}|", [locked, own, hottest].map(|figure| format!("{figure:.2}")).join("/"));
            let over =
                [locked, own, hottest, blocks].into_iter().zip(most).any(|(it, most)| it > most);
            if over || (shape, threads) == ("pairs", 2) && blocks < KNOWN {
                bad.push(format!("{shape}, {threads} threads: {figures:?}"));
            }
        }
        println!();
    }
    ensure!(args.library.is_some() || bad.is_empty(), "out of bounds:\n{}", bad.join("\n"));
    Ok(())
}

fn copied(library: &Path, folder: &Path) -> Result<PathBuf> {
    let copy = folder.join(library.file_name().context("a library is a file")?);
    std::fs::copy(library, &copy).with_context(|| library.display().to_string())?;
    Ok(copy)
}
