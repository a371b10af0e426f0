//! The structural rules of the source, as checks.
//!
//! Each violation is a line `file:line: rule — reason`. The order of the core's rooms is
//! read from the fenced block labelled `rooms` in ARCHITECTURE.md: one room per line,
//! bottom to top, its name first and after it what is worth saying about it.

mod documents;
mod rules;
mod shipped;
mod source;

use crate::library;
use anyhow::{Context, Result, bail};
use source::{Lines, Source};
use std::path::{Path, PathBuf};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the lines of every module of the core.
    #[arg(long)]
    count: bool,
}

const CORE: &str = "crates/cairn/src";
/// From here on it is no longer held in the head.
const CORE_CODE_LINES: usize = 7000;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = library::workspace();
    let mut report = Report::default();
    let mut core = Vec::new();
    for path in files_below(&root.join("crates"), "rs")? {
        let source = Source::read(root, &path)?;
        rules::check_sizes(&source, &mut report);
        rules::check_unfinished(&source, &mut report);
        if source.path.starts_with(CORE) {
            core.push(source);
        }
    }
    source::mark_test_files(&mut core);
    rules::check_rooms(&root.join("ARCHITECTURE.md"), &core, &mut report);
    for source in &core {
        rules::check_header(root, source, &mut report);
        rules::check_cfg(source, &mut report);
        rules::check_reach(source, &mut report);
    }
    rules::check_one_arch_file(&core, &mut report);
    shipped::check_dependencies(root, &mut report)?;
    let code: usize = core.iter().map(|source| source.lines().code).sum();
    if code > CORE_CODE_LINES {
        let reason = format!("{code} lines of code, aim at {CORE_CODE_LINES}");
        report.warn(CORE, 1, "core-size", reason);
    }
    documents::check(root, &mut report)?;
    let shared = root.join("target/release/libcairn.so");
    let size =
        if shared.exists() { shipped::check_library(&shared, &mut report)? } else { String::new() };
    if args.count {
        print_counts(&core);
    }
    println!("core: {code} lines of code, aim at {CORE_CODE_LINES}{size}");
    report.finish()
}

/// What was found.
#[derive(Default)]
struct Report {
    lines: Vec<String>,
    failures: usize,
}

impl Report {
    fn fail(&mut self, file: &str, line: usize, rule: &str, reason: impl std::fmt::Display) {
        self.failures += 1;
        self.lines.push(format!("{file}:{line}: {rule} — {reason}"));
    }

    fn warn(&mut self, file: &str, line: usize, rule: &str, reason: impl std::fmt::Display) {
        self.lines.push(format!("{file}:{line}: warning: {rule} — {reason}"));
    }

    /// Above the first bound a warning, above the second a failure.
    fn bound(
        &mut self,
        at: (&str, usize),
        rule: &str,
        what: &str,
        lines: usize,
        b: (usize, usize),
    ) {
        let reason = format!("{what} has {lines} lines, aim at {}, at most {}", b.0, b.1);
        if lines > b.1 {
            self.fail(at.0, at.1, rule, reason);
        } else if lines > b.0 {
            self.warn(at.0, at.1, rule, reason);
        }
    }

    fn finish(self) -> Result<()> {
        for line in &self.lines {
            println!("{line}");
        }
        if self.failures > 0 {
            bail!("{} violations", self.failures);
        }
        Ok(())
    }
}

fn print_counts(core: &[Source]) {
    println!("{:<32} {:>6} {:>8} {:>6}", "module", "code", "written", "tests");
    for source in core {
        let Lines { code, written, tests } = source.lines();
        let name = source.path.strip_prefix(CORE).unwrap_or(&source.path);
        println!("{:<32} {code:>6} {written:>8} {tests:>6}", name.trim_start_matches('/'));
    }
}

/// The files of `folder` itself that end in `extension`, in order.
fn files_in(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("no {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The same with every folder below it; `tests` and `target` folders apart.
fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = files_in(folder, extension)?;
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let apart = path.ends_with("tests") || path.ends_with("target");
        if path.is_dir() && !apart {
            found.extend(files_below(&path, extension)?);
        }
    }
    Ok(found)
}

/// Whether `word` stands in `line`, and not as part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let beside = [line[..at].chars().next_back(), line[at + word.len()..].chars().next()];
        beside.iter().flatten().all(|c| !c.is_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole() {
        assert!(has_word("good for now.", "for now"));
        assert!(!has_word("good for nowhere", "for now"));
    }
}
