//! Every command of the README, the start page, the guide and the cairn(1) works as printed.
//!
//! Blocks of shell run one after the other, and the README's table of uses with them, as an ordinary user has it: with
//! a home of their own, without a network, with nothing in the environment. They run in a folder that looks like a
//! clone and may be written to; cargo itself works in the clone, so that nothing is built twice.
//!
//! What cannot run here says so in a comment right above it, or in its row, which readers do not see:
//!
//! - `<!-- not run: WHY -->`
//! - `<!-- needs: PROGRAM PACKAGE, PROGRAM PACKAGE -->`: skipped where a program is missing
//!
//! In the manual page these begin with `.\"`.

use runner::{Limits, Outputs};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// A block that takes longer counts as hung.
const LIMIT: Duration = Duration::from_secs(900);

/// What readers have where they follow a page.
const FILES: [(&str, &str); 5] = [
    ("program.c", "#include <stdlib.h>\nint main(void) { free(malloc(100)); return 0; }\n"),
    ("plugin.c", "#include <stdlib.h>\nvoid *give(void) { return malloc(100); }\n"),
    ("plugin.cpp", "#include <string>\nstd::string give() { return std::string(100, 'x'); }\n"),
    ("app.py", "print(len([0] * 1000))\n"),
    ("words", "to\nhave\nand\nto\nhold\n"),
];

/// Before each block. Cargo finds the clone, and the rest the folder.
const BEFORE: &str = "set -eo pipefail\ncargo() { (cd \"$CLONE\" && command cargo \"$@\"); }\n";

fn clone() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the clone")
}

/// Commands of a page that run together.
struct Block {
    /// The page and the line.
    place: String,
    script: String,
    /// What the line above says.
    note: String,
}

/// The pages, in the order in which they run: the README installs the command, and the last page removes it.
fn pages() -> Vec<PathBuf> {
    let list = |folder: &str| {
        let entries = std::fs::read_dir(clone().join(folder)).expect("a folder of the clone");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    };
    let first = ["README.md", "docs/start.md"].map(|page| clone().join(page));
    let of_commands = |page: &PathBuf| page.extension().is_some_and(|section| section == "1");
    let manual = list("docs/man").into_iter().filter(of_commands);
    let mut guide = list("docs/guide");
    guide.sort_by_key(|page| page.ends_with("install.md"));
    first.into_iter().chain(manual).chain(guide).collect()
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).expect("a page");
    let name = page.strip_prefix(clone()).unwrap_or(page).display();
    let is_manual = page.extension().is_none_or(|end| end != "md");
    let (begin, end) = if is_manual { (".nf", ".fi") } else { ("```sh", "```") };
    let mut found: Vec<Block> = Vec::new();
    let (mut above, mut section, mut is_inside) = ("", "", false);
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{name}:{}", number + 1);
        match line {
            _ if is_inside && line == end => is_inside = false,
            _ if is_inside => {
                let block = found.last_mut().expect("it has begun");
                let _ = writeln!(block.script, "{}", line.replace("\\-", "-"));
            }
            _ if line == begin && (!is_manual || section == ".SH EXAMPLES") => {
                is_inside = true;
                found.push(Block { place: place(), script: String::new(), note: above.to_owned() });
            }
            _ if line.starts_with('|') && section == "## Use it" => {
                let script = commands_of(line);
                found.push(Block { place: place(), script, note: line.to_owned() });
            }
            _ => {}
        }
        if line.starts_with(".SH ") || line.starts_with("## ") {
            section = line;
        }
        if !line.is_empty() {
            above = line;
        }
    }
    found.retain(|block| !block.script.is_empty());
    found
}

/// The commands between backticks in a row of a table.
fn commands_of(row: &str) -> String {
    let code = row.split('`').skip(1).step_by(2);
    let is_command = |code: &&str| code.starts_with("cargo ") || code.starts_with("cairn ");
    code.filter(is_command).map(|command| format!("{command}\n")).collect()
}

/// Why a block does not run, if it does not. A panic if what it needs is demanded.
fn reason(note: &str) -> Option<String> {
    let said = |word| Some(note.split_once(word)?.1.split("-->").next()?.trim());
    if let Some(why) = said("not run:") {
        return Some(why.to_owned());
    }
    let needs = said("needs:")?;
    let missing = needs.split(',').find_map(|need| {
        let (program, package) = need.trim().split_once(' ').expect("a program and its package");
        let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        let is_there = there.expect("a shell").status.success();
        (!is_there).then(|| format!("no {program}; install the package `{package}`"))
    })?;
    assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {missing}");
    Some(missing)
}

/// A folder that looks like a clone, with a home in it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["crates", "docs", "examples"] {
        let link = std::os::unix::fs::symlink(clone().join(name), folder.path().join(name));
        link.expect("a link");
    }
    let usual = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = std::os::unix::fs::symlink(clone().join(usual), folder.path().join("target"));
    target.expect("a link");
    for (name, contents) in FILES {
        std::fs::write(folder.path().join(name), contents).expect("a file");
    }
    std::fs::create_dir(folder.path().join("home")).expect("a folder");
    folder
}

/// Runs commands as a user with this folder has them: how they ended, and what they said of errors.
fn run(folder: &Path, script: &str) -> (Option<ExitStatus>, String) {
    let kept = |name| std::env::var_os(name).map(|value| (name, value));
    let of_home = |name: &'static str, below: &str| {
        kept(name).or_else(|| Some((name, std::env::home_dir()?.join(below).into_os_string())))
    };
    let cargos = ["CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "RUSTUP_TOOLCHAIN"].map(kept);
    let homes = [of_home("CARGO_HOME", ".cargo"), of_home("RUSTUP_HOME", ".rustup")];
    let home = folder.join("home");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("{BEFORE}{script}")])
        .current_dir(folder)
        .env_clear()
        .env("CLONE", clone())
        .env("HOME", &home)
        .env("PATH", format!("{}/.cargo/bin:{path}", home.display()))
        .env("CARGO_INSTALL_ROOT", home.join(".cargo"))
        .env("CARGO_NET_OFFLINE", "true")
        .envs(cargos.into_iter().chain(homes).flatten());
    runner::alone(&mut bash);
    let file = || tempfile::tempfile().expect("a writable folder");
    let (outputs, limits) = (Outputs::apart(file(), file()), Limits::of_time(LIMIT));
    let ended = runner::run(&mut bash, &outputs, &limits, runner::PAUSE, || false);
    let ended = ended.expect("bash starts");
    (ended.end.status(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[test]
fn every_command_works_as_printed() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let fetched = Command::new(cargo).args(["fetch", "--locked"]).current_dir(clone()).status();
    assert!(fetched.expect("cargo starts").success(), "the crates are not there");
    let folder = folder();
    // There is a history to look at.
    let identity = "-c user.name=reader -c user.email=reader@example.org";
    let history = format!("git init -q && git {identity} commit -q --allow-empty -m first");
    assert!(run(folder.path(), &history).0.is_some_and(|status| status.success()), "git");
    let (mut failures, mut count) = (String::new(), 0);
    for block in pages().iter().flat_map(|page| blocks(page)) {
        if let Some(why) = reason(&block.note) {
            // Not `eprintln!`, which the harness keeps to itself if the test passes.
            let line = format!("skipped {}: {why}\n", block.place);
            let _ = std::io::stderr().write_all(line.as_bytes());
            continue;
        }
        let start = std::time::Instant::now();
        let (status, said) = run(folder.path(), &block.script);
        count += 1;
        println!("{}: {:.1} s", block.place, start.elapsed().as_secs_f64());
        if !status.is_some_and(|status| status.success()) {
            let Block { place, script, .. } = &block;
            let end = status.map_or("it hangs".to_owned(), |status| status.to_string());
            let _ = writeln!(failures, "{place}: {end}\n{script}{said}");
        }
    }
    assert!(count > 0, "no page has a command");
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn notes_are_understood() {
    assert_eq!(reason("text").as_deref(), None);
    assert_eq!(reason("<!-- not run: it takes root -->").as_deref(), Some("it takes root"));
    assert_eq!(reason("<!-- needs: sh dash, cat coreutils -->").as_deref(), None);
    assert_eq!(reason("| `a` | b <!-- not run: c --> |").as_deref(), Some("c"));
    assert_eq!(
        commands_of("| a | `cargo x`, then `cairn run y` of `z` |"),
        "cargo x\ncairn run y\n"
    );
}
