//! The structural rules of the source, as checks; what clippy knows is in Cargo.toml and
//! clippy.toml.
//!
//! Each violation is a line `file:line: rule — reason`. The order of the core's rooms is
//! read from the fenced block labelled `rooms` in ARCHITECTURE.md: one floor per line, and below it,
//! indented, its rooms; bottom to top, the name first and after it what is worth saying about it.

mod circles;
mod documents;
mod doors;
mod examples;
mod policy;
mod source;
mod syntax;
mod tuning;

use crate::library::{shell, workspace};
use anyhow::{Result, ensure};
use source::Source;
use std::collections::BTreeMap;
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
const HOT: [&str; 6] =
    ["map/address_map", "map/block", "store/caches", "map/remote", "spans/span", "heap/heap"];
const FAST_PATHS: &str = "crates/cairn/src/api/mod.rs";
/// What is in one of these rooms and on no fast path of theirs.
const BESIDE: &str = "crates/cairn/src/heap/handle/";
const HOT_CODE_LINES: usize = 2600;
/// Lines of code of a floor that can be understood on its own.
const FLOOR_CODE_LINES: usize = 2000;
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
        if source.path.starts_with(CORE) && source.floor() != "tests" {
            core.push(source);
        }
    }
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let rooms = Rooms::read(&architecture);
    check_rooms(&rooms, &core, &mut report);
    check_floors(&core, &mut report);
    doors::check(&core, block(&architecture, "```doors").map(first_word), &mut report);
    for source in &core {
        check_header(source, &mut report);
        check_reach(&rooms, source, &mut report);
    }
    examples::check(&core, &mut report);
    let hooks: Vec<_> = block(&architecture, "```hooks").map(first_word).collect();
    syntax::check(&core, &hooks, &mut report);
    let (tuned, not_tried) = tuning::check(&core, &mut report);
    let asked = policy::check(&core, block(&architecture, "```policy"), &mut report);
    for (name, files) in crates(&shell)? {
        circles::check(&name, &files, &mut report);
    }
    check_dependencies(&shell, &mut report)?;
    check_words(&shell, &mut report)?;
    documents::check(&files(&shell, &DOCUMENTS)?, &mut report)?;
    let code: usize = core.iter().map(|source| source.code.len()).sum();
    let is_hot = |source: &&Source| {
        let is_in = |room: String| HOT.contains(&&*room) && !source.path.starts_with(BESIDE);
        source.path == FAST_PATHS || rooms.of(source).is_some_and(is_in)
    };
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
    println!("core: {tuned} tuned constants, of {not_tried} half and twice are not tried");
    println!("core: the constant of the hardened build is asked {asked} times");
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

fn check_floors(core: &[Source], report: &mut Report) {
    let mut floors = BTreeMap::new();
    for source in core {
        *floors.entry(source.floor()).or_insert(0) += source.code.len();
    }
    for (floor, lines) in floors {
        report.budget(&format!("{CORE}/{floor}"), lines, FLOOR_CODE_LINES);
    }
}

/// The lines of a fenced block of ARCHITECTURE.md.
fn block<'a>(architecture: &'a str, begin: &str) -> impl Iterator<Item = &'a str> {
    architecture
        .lines()
        .skip_while(move |line| *line != begin)
        .skip(1)
        .take_while(|line| *line != "```")
}

fn first_word(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

/// The floors and rooms of the core, bottom to top: `os`, or `map` and then `map/block`.
struct Rooms(Vec<String>);

impl Rooms {
    fn read(architecture: &str) -> Self {
        let (mut rooms, mut floor) = (Vec::new(), "");
        for line in block(architecture, "```rooms") {
            let name = first_word(line);
            if line.starts_with(' ') {
                rooms.push(format!("{floor}/{name}"));
            } else {
                floor = name;
                rooms.push(name.to_owned());
            }
        }
        Self(rooms)
    }

    fn height(&self, room: &str) -> Option<usize> {
        self.0.iter().position(|one| one == room)
    }

    /// The room that a path of modules leads into, if its first one is a floor: `heap::Heap` is one of the floor's own,
    /// which is the room of the same name.
    fn at(&self, path: &[&str]) -> Option<String> {
        let floor = *path.first()?;
        let inner = path.get(1).map(|inner| format!("{floor}/{inner}"));
        let rooms = inner.into_iter().chain([format!("{floor}/{floor}"), floor.to_owned()]);
        rooms.into_iter().find(|room| self.height(room).is_some())
    }

    /// The room of a file.
    fn of(&self, source: &Source) -> Option<String> {
        match source.modules()[..] {
            // What declares a floor's rooms.
            [floor] if !self.0.contains(&format!("{floor}/{floor}")) => {
                self.height(floor).map(|_| floor.to_owned())
            }
            ref modules => self.at(modules),
        }
    }
}

fn check_rooms(rooms: &Rooms, core: &[Source], report: &mut Report) {
    const FILE: &str = "ARCHITECTURE.md";
    const RULE: &str = "rooms";
    for room in rooms.0.iter().filter(|room| *room != "tests") {
        if !core.iter().any(|source| rooms.of(source).as_ref() == Some(room))
            && !rooms.0.contains(&format!("{room}/{room}"))
        {
            report.fail(FILE, 1, RULE, format!("no file belongs to the room `{room}`"));
        }
    }
    for source in core {
        let Some(room) = rooms.of(source) else {
            let reason = format!("the room `{}` is not in the list in {FILE}", source.floor());
            report.fail(&source.path, 1, RULE, reason);
            continue;
        };
        let own = rooms.height(&room);
        let floor = source.floor();
        let inside = format!("{floor}/");
        let on_floor = "super::".repeat(source.modules().len() - 1);
        let beside = if on_floor.is_empty() { Vec::new() } else { source.paths_after(&on_floor) };
        let beside = beside.into_iter().map(|(path, line)| (format!("{floor}::{path}"), line));
        for (path, line) in source.paths_after("crate::").into_iter().chain(beside) {
            let path: Vec<&str> = path.split("::").collect();
            // What is no room is an item of the crate's root.
            let target = rooms.at(&path).unwrap_or_else(|| "lib".to_owned());
            if rooms.height(&target).is_none_or(|target| Some(target) > own) {
                let reason = format!("`{room}` uses `{target}`, which stands above it in {FILE}");
                report.fail(&source.path, line, RULE, reason);
            } else if target == floor && rooms.0.iter().any(|room| room.starts_with(&inside)) {
                let reason = format!("a room of `{target}` is named with its floor in one path");
                report.fail(&source.path, line, RULE, reason);
            }
        }
        let root = "super::".repeat(source.modules().len());
        for (_, line) in source.paths_after(&root) {
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

/// What is written for a machine.
const MACHINES: [&str; 5] =
    ["thread/thread", "base/sync", "stacks/machine", "samples/probes", MACHINE];

/// Variants only in `policy`, features in `lib`, the system in `os`, what is written for a machine in five places, and no
/// macro defined.
fn check_reach(rooms: &Rooms, source: &Source, report: &mut Report) {
    // Rooms, and files: those end as a path does.
    const ONLY_IN: [(&str, &[&str]); 6] = [
        ("feature =", &["base/policy", "lib"]),
        ("libc::", &["os/os"]),
        ("thread_local", &["thread/thread"]),
        ("target_arch", &MACHINES),
        ("asm!", &MACHINES),
        ("macro_rules!", &[]),
    ];
    let own = rooms.of(source);
    for (number, line) in &source.code {
        for (word, allowed) in ONLY_IN {
            let is_here = |one: &&str| own.as_deref() == Some(one) || source.path.ends_with(*one);
            if line.contains(word) && !allowed.iter().any(is_here) {
                let reason = format!("`{word}` on the floor `{}`", source.floor());
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
/// The crates of the workspace with a `src`: their folders, and (path below `src`, text) of their files.
fn crates(shell: &Shell) -> Result<BTreeMap<String, Vec<(String, String)>>> {
    let mut crates: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for path in
        files(shell, &[":(glob)**/src/**/*.rs", ":(exclude,glob)crates/cairn/src/tests/**"])?
    {
        let text = std::fs::read_to_string(workspace().join(&path))?;
        if let Some((name, inner)) = path.split_once("/src/") {
            crates.entry(name.to_owned()).or_default().push((inner.to_owned(), text));
        }
    }
    Ok(crates)
}

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
        let rooms =
            "```rooms\nbase\n  sync\n  policy\nos  system calls\nheap\n  empty\n  heap\nlib\n```\n";
        let sources = [
            core("base/mod.rs", "pub(crate) mod sync;"),
            core("base/sync.rs", "use crate::base::policy;\nuse super::policy;"),
            core(
                "base/policy.rs",
                "use crate::base::{sync, sync::Atomic};\nuse super::sync;\nuse crate::base;",
            ),
            core("os/mod.rs", "use crate::heap::Heap;"),
            core(
                "heap/mod.rs",
                "use crate::{Item, base::{sync, policy}, heap::empty, os};\nuse super::os;",
            ),
            core("heap/empty.rs", "use crate::{heap::{Heap}};"),
            core("heap/pool.rs", "use super::Heap;"),
            core("lib.rs", "use crate::heap;"),
        ];
        let found = |rooms| failures(|report| check_rooms(&Rooms::read(rooms), &sources, report));
        assert_eq!(found(rooms), 7);
        assert_eq!(found(""), 8);
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
        let rooms = "```rooms\nbase\n  policy\nos\n  os\nthread\n  pool\n  thread\nx\n```\n";
        let rooms = Rooms::read(rooms);
        let of = |path: &str, text: &str| {
            failures(|report| check_reach(&rooms, &core(path, text), report))
        };
        assert_eq!(of("x.rs", "fn f() { libc::mmap(); }"), 1);
        assert_eq!(of("os/mod.rs", "#[cfg(target_arch = \"x86_64\")]"), 1);
        assert_eq!(of("os/linux/machine.rs", "#[cfg(target_arch = \"x86_64\")]"), 0);
        assert_eq!(of("os/linux.rs", "use libc::{mmap, c_int};"), 0);
        assert_eq!(of("base/policy.rs", "cfg!(feature = \"x\")"), 0);
        assert_eq!(of("thread/tls.rs", "thread_local! {}"), 0);
        assert_eq!(of("thread/pool/mod.rs", "thread_local! {}"), 1);
        assert_eq!(of("x.rs", "thread_local! {}"), 1);
    }
}
