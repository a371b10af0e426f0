//! The structural rules of the source, as checks; what clippy knows is in Cargo.toml and
//! clippy.toml.
//!
//! Each violation is a line `file:line: rule — reason`. The order of the core's rooms is
//! read from the fenced block labelled `rooms` in ARCHITECTURE.md: one room per line,
//! bottom to top, its name first and after it what is worth saying about it.

mod documents;
mod examples;
mod source;

use crate::library::{shell, workspace};
use anyhow::{Result, ensure};
use source::Source;
use xshell::{Shell, cmd};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the lines of every module of the core.
    #[arg(long)]
    count: bool,
}

const CORE: &str = "crates/cairn/src";
/// The map of the crate; its header is the vocabulary and the ladders.
const MAP: &str = "crates/cairn/src/lib.rs";
const LABELS: [&str; 6] = ["Owns:", "Idea:", "Never:", "Threads:", "Checked:", "Story:"];

/// Lines of code that are still held in the head.
const CORE_CODE_LINES: usize = 7000;
/// The rooms of the fast paths, and their lines of code; of `api`, `malloc` and `free`.
const HOT: [&str; 6] = ["address_map", "block", "caches", "remote", "span", "heap"];
const FAST_PATHS: &str = "crates/cairn/src/api/mod.rs";
const HOT_CODE_LINES: usize = 2600;
/// Lines of a file, tests apart.
const FILE_LINES: usize = 500;
/// Words that promise work, praise the author, or are paths on one machine.
const DENIED: &str = concat!(
    "TODO|TBD|FIXME|XXX|for now|lorem ipsum|blazing|cutting-edge|world-class|",
    r"/(home|root|work)/\w*"
);
const SOURCES: [&str; 2] = [":(glob)crates/**/*.rs", ":(exclude,glob)crates/**/tests/**"];
const DOCUMENTS: [&str; 3] = [":(glob)*.md", ":(glob)docs/**/*.md", ":(glob)crates/**/*.md"];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace();
    let mut report = Report::default();
    let mut core = Vec::new();
    let shell = shell()?;
    for path in files(&shell, &SOURCES)? {
        let source = Source::parse(std::fs::read_to_string(root.join(&path))?, path);
        report.budget(&source.path, source.lines, FILE_LINES);
        if source.path.starts_with(CORE) && source.room() != "tests" {
            core.push(source);
        }
    }
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    check_rooms(&architecture, &core, &mut report);
    for source in &core {
        check_header(source, &mut report);
        check_reach(source, &mut report);
    }
    examples::check(&core, &mut report);
    check_dependencies(&shell, &mut report)?;
    check_words(&shell, &mut report)?;
    documents::check(&files(&shell, &DOCUMENTS)?, &mut report)?;
    let code: usize = core.iter().map(|source| source.code.len()).sum();
    let is_hot = |source: &&Source| source.path == FAST_PATHS || HOT.contains(&source.room());
    let hot = core.iter().filter(is_hot).map(|source| source.code.len()).sum();
    report.budget("the hot core", hot, HOT_CODE_LINES);
    if code > CORE_CODE_LINES {
        println!("{CORE}: warning — {code} lines, aim at {CORE_CODE_LINES}");
    }
    if args.count {
        for source in &core {
            println!("{:>5} {:>5}  {}", source.code.len(), source.lines, source.path);
        }
    }
    println!("core: {code} lines of code, {hot} of them on the fast paths");
    ensure!(report.failures == 0, "{} violations", report.failures);
    Ok(())
}

/// What was found.
#[derive(Default)]
struct Report {
    failures: usize,
}

impl Report {
    fn fail(&mut self, file: &str, line: usize, rule: &str, reason: impl std::fmt::Display) {
        self.failures += 1;
        println!("{file}:{line}: {rule} — {reason}");
    }

    fn budget(&mut self, what: &str, lines: usize, most: usize) {
        if lines > most {
            self.fail(what, 1, "size", format!("{lines} lines, at most {most}"));
        }
    }
}

fn check_rooms(architecture: &str, core: &[Source], report: &mut Report) {
    const FILE: &str = "ARCHITECTURE.md";
    const RULE: &str = "rooms";
    let inside = architecture.lines().skip_while(|line| *line != "```rooms").skip(1);
    let rooms = inside.take_while(|line| *line != "```");
    let rooms: Vec<&str> = rooms.filter_map(|line| line.split_whitespace().next()).collect();
    for room in rooms.iter().filter(|room| **room != "tests") {
        if !core.iter().any(|source| source.room() == *room) {
            report.fail(FILE, 1, RULE, format!("no file belongs to the room `{room}`"));
        }
    }
    let height = |name: &str| rooms.iter().position(|room| *room == name);
    for source in core {
        let room = source.room();
        let Some(own) = height(room) else {
            let reason = format!("the room `{room}` is not in the list in {FILE}");
            report.fail(&source.path, 1, RULE, reason);
            continue;
        };
        for (name, line) in source.names_after("crate::") {
            // What is no room is an item of the crate's root.
            let target = if height(&name).is_some() { name.as_str() } else { "lib" };
            if height(target).is_none_or(|target| target > own) {
                let reason = format!("`{room}` uses `{name}`, which stands above it in {FILE}");
                report.fail(&source.path, line, RULE, reason);
            }
        }
        let root = "super::".repeat(source.modules().len());
        for (_, line) in source.names_after(&root) {
            report.fail(&source.path, line, RULE, "the crate's root is reached by `crate::`");
        }
    }
}

/// The header's labels in their order, and the page that has the long story.
fn check_header(source: &Source, report: &mut Report) {
    if source.path == MAP {
        return;
    }
    let header = source.text.lines().map_while(|line| line.strip_prefix("//! "));
    let label = |line: &str| LABELS.into_iter().find(|label| line.starts_with(label));
    if !header.clone().filter_map(label).eq(LABELS) {
        report.fail(&source.path, 1, "header", format!("its labels are {}", LABELS.join(" ")));
    }
    let story = header.skip_while(|line| !line.starts_with("Story:"));
    for page in story.flat_map(|line| line.split([' ', ',', ';'])) {
        if page.ends_with(".md") && !workspace().join(page).exists() {
            report.fail(&source.path, 1, "header", format!("no page {page}"));
        }
    }
}

/// The file of `os` that enters the kernel.
const MACHINE: &str = "/os/linux/machine.rs";

/// Variants only in `policy`, features in `lib`, the system in `os`, what is written for a machine in `thread`,
/// `sync`, `guards` and one file of `os`, and no macro defined.
fn check_reach(source: &Source, report: &mut Report) {
    // Rooms, and files: those end as a path does.
    const ONLY_IN: [(&str, &[&str]); 6] = [
        ("feature =", &["policy", "lib"]),
        ("libc::", &["os"]),
        ("thread_local", &["thread"]),
        ("target_arch", &["thread", "sync", "guards", MACHINE]),
        ("asm!", &["thread", "sync", "guards", MACHINE]),
        ("macro_rules!", &[]),
    ];
    for (number, line) in &source.code {
        for (word, rooms) in ONLY_IN {
            let is_here = |room: &&str| source.room() == *room || source.path.ends_with(*room);
            if line.contains(word) && !rooms.iter().any(is_here) {
                let reason = format!("`{word}` in the room `{}`", source.room());
                report.fail(&source.path, *number, "reach", reason);
            }
        }
    }
}

/// The core depends on libc alone; with all its features on allocator-api2, too.
fn check_dependencies(shell: &Shell, report: &mut Report) -> Result<()> {
    const ALLOWED: [(&str, &[&str]); 2] =
        [("--features=hardened", &["libc "]), ("--all-features", &["libc ", "allocator-api2 "])];
    for (features, allowed) in ALLOWED {
        let tree = cmd!(shell, "cargo tree --quiet --offline --package cairn-malloc")
            .args(["--edges", "normal,build", "--target", "all", features])
            .args(["--depth", "1", "--prefix", "none"]);
        // The first line is the core.
        for line in tree.quiet().read()?.lines().skip(1) {
            if !allowed.iter().any(|name| line.starts_with(name)) {
                let reason = format!("`{line}` with {features}: the core depends on libc alone");
                report.fail("crates/cairn/Cargo.toml", 1, "dependencies", reason);
            }
        }
    }
    Ok(())
}

/// Denied words in sources and documents.
fn check_words(shell: &Shell, report: &mut Report) -> Result<()> {
    let found = cmd!(shell, "git grep --untracked --line-number --only-matching -wE {DENIED} --");
    // Its status says whether there was one.
    let found = found.args(SOURCES).args(DOCUMENTS).ignore_status().quiet().read()?;
    for line in found.lines() {
        let mut parts = line.splitn(3, ':');
        let (file, number) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let word = parts.next().unwrap_or_default();
        report.fail(file, number.parse()?, "words", format!("`{word}`"));
    }
    Ok(())
}

/// The files of the workspace that git knows, or would take, and that match one of these patterns.
fn files(shell: &Shell, patterns: &[&str]) -> Result<Vec<String>> {
    let list = cmd!(shell, "git ls-files --cached --others --exclude-standard --deduplicate --");
    let list = list.args(patterns).quiet().read()?;
    // What was removed may still be known.
    let there = list.lines().filter(|path| workspace().join(path).exists());
    Ok(there.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use source::tests::core;

    fn failures(check: impl FnOnce(&mut Report)) -> usize {
        let mut report = Report::default();
        check(&mut report);
        report.failures
    }

    #[test]
    fn a_room_may_use_only_what_is_below() {
        let rooms = "```rooms\nos  system calls\nheap\nlib\n```\n";
        let sources = [
            core("os/mod.rs", "use crate::heap::Heap;"),
            core("heap/mod.rs", "use crate::{Item, os};\nuse super::os;"),
            core("heap/pool.rs", "use super::Heap;"),
            core("lib.rs", "use crate::heap;"),
        ];
        assert_eq!(failures(|report| check_rooms(rooms, &sources, report)), 3);
        assert_eq!(failures(|report| check_rooms("", &sources, report)), 4);
    }

    #[test]
    fn headers_need_the_six_labels_in_order() {
        let of = |text: &str| failures(|report| check_header(&core("x.rs", text), report));
        let good = "//! Owns: a\n//! Idea: b\n//!   more\n//! Never: c\n//! Threads: d\n\
                    //! Checked: e\n//! Story: none\n";
        assert_eq!(of(good), 0);
        assert_eq!(of(&good.replace("Story: none", "Story: docs/no-such.md")), 1);
        assert_eq!(of(&good.replace("Idea: b", "Never: b")), 1);
        assert_eq!(of("//! A module.\n"), 1);
    }

    #[test]
    fn reach_is_bounded() {
        let of = |path: &str, text: &str| failures(|report| check_reach(&core(path, text), report));
        assert_eq!(of("x.rs", "fn f() { libc::mmap(); }"), 1);
        assert_eq!(of("os/mod.rs", "#[cfg(target_arch = \"x86_64\")]"), 1);
        assert_eq!(of("os/linux/machine.rs", "#[cfg(target_arch = \"x86_64\")]"), 0);
        assert_eq!(of("os/linux.rs", "use libc::{mmap, c_int};"), 0);
        assert_eq!(of("x.rs", "thread_local! {}"), 1);
    }
}
