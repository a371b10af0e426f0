//! The rules of the source: rooms, headers, sizes, variants, and who may reach the system.

use super::source::{Kind, Source, Token};
use super::{Report, has_word};
use std::path::Path;

/// The map of the crate; its header is the vocabulary and the ladders.
const MAP: &str = "lib.rs";
const LABELS: [&str; 6] = ["Owns:", "Idea:", "Never:", "Threads:", "Checked:", "Story:"];

/// (a warning above, a failure above)
const MODULE_LINES: (usize, usize) = (600, 700);
const FUNCTION_LINES: (usize, usize) = (70, 90);

const CFG_NAMES: [&str; 8] =
    ["not", "all", "any", "target_os", "target_arch", "miri", "test", "debug_assertions"];
const UNFINISHED_MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
const UNFINISHED_WORDS: [&str; 3] = ["FIXME", "XXX", "for now"];

/// Functions of libc that are, or wrap, a system call an allocator makes.
#[rustfmt::skip]
const SYSTEM_CALLS: [&str; 36] = [
    "mmap", "mmap64", "munmap", "mprotect", "madvise", "mremap", "mincore", "mlock", "brk", "sbrk",
    "posix_madvise", "syscall", "prctl", "sysconf", "getpagesize", "getrlimit", "getauxval", "open",
    "openat", "close", "read", "write", "writev", "clock_gettime", "nanosleep", "usleep",
    "sched_yield", "sched_getcpu", "getcpu", "getpid", "gettid", "getrandom", "kill", "raise",
    "abort", "*",
];
const TLS_NAMES: [&str; 6] = [
    "thread_local",
    "__tls_get_addr",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_getspecific",
    "pthread_setspecific",
];
/// What assembly says when it reaches for thread-local storage.
const TLS_ASSEMBLY: [&str; 6] = [".tbss", "tpoff", "TPOFF", "tpidr_el0", "fs:[", "fs:0"];

pub(super) fn check_rooms(architecture: &Path, core: &[Source], report: &mut Report) {
    const FILE: &str = "ARCHITECTURE.md";
    const RULE: &str = "rooms";
    let text = std::fs::read_to_string(architecture).unwrap_or_default();
    let Some(rooms) = read_rooms(&text) else {
        let reason = "no fenced block labelled `rooms` (one room per line, bottom to top)";
        return report.fail(FILE, 1, RULE, reason);
    };
    for (room, line) in &rooms {
        if !core.iter().any(|source| source.room() == room) {
            report.fail(FILE, *line, RULE, format!("no file belongs to the room `{room}`"));
        }
    }
    let height = |name: &str| rooms.iter().position(|(room, _)| room == name);
    for source in core {
        let room = source.room();
        let Some(own) = height(room) else {
            let reason = format!("the room `{room}` is not in the list in {FILE}");
            report.fail(&source.path, 1, RULE, reason);
            continue;
        };
        for (name, line) in source.names_after("crate").into_iter().chain(source.names_above()) {
            // What is no room is an item of the crate's root.
            let target = if height(&name).is_some() { name.as_str() } else { "lib" };
            if height(target).is_none_or(|target| target > own) {
                let reason = format!("`{room}` uses `{name}`, which stands above it in {FILE}");
                report.fail(&source.path, line, RULE, reason);
            }
        }
    }
}

/// The rooms, bottom to top, each with its line.
fn read_rooms(text: &str) -> Option<Vec<(String, usize)>> {
    let mut lines = (1..).zip(text.lines());
    lines.find(|(_, line)| line.trim() == "```rooms")?;
    let inside = lines.take_while(|(_, line)| line.trim() != "```");
    let names = inside.filter_map(|(number, line)| Some((line.split_whitespace().next()?, number)));
    Some(names.map(|(name, number)| (name.to_owned(), number)).collect())
}

pub(super) fn check_header(root: &Path, source: &Source, report: &mut Report) {
    const RULE: &str = "header";
    if source.is_test(1) || source.path.ends_with(MAP) {
        return;
    }
    let mut wanted = LABELS.iter().peekable();
    for (number, line) in (1..).zip(source.text.lines()) {
        let Some(said) = line.strip_prefix("//!").map(str::trim) else { break };
        let label = LABELS.iter().find(|label| said.starts_with(**label));
        if number == 1 && label != Some(&LABELS[0]) {
            break;
        }
        let Some(label) = label else { continue };
        if wanted.next_if_eq(&label).is_none() {
            let reason = format!("`{label}` out of order; the order is {}", LABELS.join(" "));
            return report.fail(&source.path, number, RULE, reason);
        }
        if said == *label {
            report.fail(&source.path, number, RULE, format!("nothing after `{label}`"));
        }
        for word in said.split([' ', ',', ';', '(', ')', '`']) {
            let word = word.trim_end_matches('.');
            if *label == "Story:" && word.ends_with(".md") && !root.join(word).exists() {
                report.fail(&source.path, number, RULE, format!("no page {word}"));
            }
        }
    }
    if let Some(missing) = wanted.next() {
        let reason = format!("the module header lacks `{missing}`");
        report.fail(&source.path, 1, RULE, reason);
    }
}

pub(super) fn check_sizes(source: &Source, report: &mut Report) {
    let file = source.path.as_str();
    report.bound((file, 1), "module-size", "the module", source.lines().written, MODULE_LINES);
    for (name, lines) in &source.functions {
        let (start, length) = (*lines.start(), lines.clone().count());
        let what = format!("`{name}`");
        report.bound((file, start), "function-size", &what, length, FUNCTION_LINES);
    }
}

pub(super) fn check_unfinished(source: &Source, report: &mut Report) {
    const RULE: &str = "unfinished";
    for (number, line) in (1..).zip(source.text.lines()) {
        for word in UNFINISHED_WORDS.iter().filter(|word| has_word(line, word)) {
            report.fail(&source.path, number, RULE, format!("`{word}`"));
        }
    }
    for pair in source.tokens.windows(2) {
        if pair[1].text == "!" && UNFINISHED_MACROS.contains(&pair[0].text.as_str()) {
            let reason = format!("`{}!`", pair[0].text);
            report.fail(&source.path, *pair[0].lines.start(), RULE, reason);
        }
    }
}

pub(super) fn check_cfg(source: &Source, report: &mut Report) {
    const RULE: &str = "cfg";
    for (names, line) in cfg_predicates(&source.tokens) {
        for name in names.iter().filter(|name| !CFG_NAMES.contains(name)) {
            let reason = format!("`{name}` is no reason for a variant; make it a `const`");
            report.fail(&source.path, line, RULE, reason);
        }
    }
    for token in source.tokens.iter().filter(|token| token.text == "macro_rules") {
        let reason = "no macro defines anything in the core";
        report.fail(&source.path, *token.lines.start(), "macro", reason);
    }
}

/// The names in each `cfg(..)`, `cfg!(..)` and in the first part of each `cfg_attr(..)`.
fn cfg_predicates(tokens: &[Token]) -> Vec<(Vec<&str>, usize)> {
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let attribute = token.text == "cfg_attr";
        if token.kind != Kind::Ident || !(attribute || token.text == "cfg") {
            continue;
        }
        let rest = &tokens[i + 1..];
        let rest = if rest.first().is_some_and(|t| t.text == "!") { &rest[1..] } else { rest };
        if rest.first().is_none_or(|token| token.text != "(") {
            continue;
        }
        let (mut depth, mut names) = (0, Vec::new());
        for token in rest {
            match token.text.as_str() {
                "(" => depth += 1,
                ")" => depth -= 1,
                "," if attribute && depth == 1 => break,
                text if token.kind == Kind::Ident => names.push(text),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        found.push((names, *token.lines.start()));
    }
    found
}

pub(super) fn check_one_arch_file(core: &[Source], report: &mut Report) {
    let mut first: Option<&str> = None;
    // One comparison in `sync` is an instruction of its own.
    for source in core.iter().filter(|source| source.room() != "sync") {
        let mut predicates = cfg_predicates(&source.tokens).into_iter();
        let Some((_, line)) = predicates.find(|(names, _)| names.contains(&"target_arch")) else {
            continue;
        };
        match first {
            None => first = Some(&source.path),
            Some(first) => {
                let reason = format!("`target_arch` in a second file, after {first}");
                report.fail(&source.path, line, "cfg", reason);
            }
        }
    }
}

/// System calls only in `os`, thread-local storage only there and in `thread`.
pub(super) fn check_reach(source: &Source, report: &mut Report) {
    let mut fail = |line: usize, rule: &str, what: &str, only: &str| {
        report.fail(&source.path, line, rule, format!("`{what}` outside `{only}`"));
    };
    if source.room() != "os" {
        for (name, line) in source.names_after("libc") {
            if SYSTEM_CALLS.contains(&name.as_str()) {
                fail(line, "system-call", &name, "os");
            }
        }
    }
    for token in &source.tokens {
        let (text, line) = (token.text.as_str(), *token.lines.start());
        if token.kind == Kind::Literal && text.contains("syscall") && source.room() != "os" {
            fail(line, "system-call", "syscall", "os");
        }
        if source.room() == "thread" || source.is_test(line) {
            continue;
        }
        let assembly = TLS_ASSEMBLY.iter().find(|word| text.contains(**word));
        match (token.kind, assembly) {
            (Kind::Ident, _) if TLS_NAMES.contains(&text) && source.room() != "os" => {
                fail(line, "tls", text, "thread");
            }
            (Kind::Literal, Some(word)) => fail(line, "tls", word, "thread"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::source::tests::core;

    #[test]
    fn a_room_may_use_only_what_is_below() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "```rooms\nos  system calls\nheap\nlib\n```\n").unwrap();
        let sources = [
            core("os.rs", "use crate::heap::Heap;"),
            core("heap.rs", "use crate::os; use crate::Item;"),
            core("lib.rs", "use crate::heap;"),
        ];
        let mut report = Report::default();
        check_rooms(file.path(), &sources, &mut report);
        assert_eq!(report.failures, 2, "{:?}", report.lines);
        check_rooms(Path::new("no-such-file"), &sources, &mut report);
        assert!(report.lines[2].contains("no fenced block"));
    }

    #[test]
    fn headers_need_the_six_labels_in_order() {
        let failures = |text: &str| {
            let mut report = Report::default();
            check_header(Path::new("."), &core("x.rs", text), &mut report);
            report.failures
        };
        let good = "//! Owns: a\n//! Idea: b\n//!   more\n//! Never: c\n//! Threads: d\n\
                    //! Checked: e\n//! Story: none\n";
        assert_eq!(failures(good), 0);
        assert_eq!(failures(&good.replace("Story: none", "Story: docs/no-such.md")), 1);
        assert_eq!(failures(&good.replace("Idea: b", "Never: b")), 1);
        assert_eq!(failures("//! A module.\n"), 1);
    }

    #[test]
    fn variants_and_reach_are_bounded() {
        let failures = |path: &str, text: &str| {
            let mut report = Report::default();
            check_cfg(&core(path, text), &mut report);
            check_reach(&core(path, text), &mut report);
            report.failures
        };
        assert_eq!(failures("x.rs", "#[cfg(feature = \"a\")] fn f() {}"), 1);
        assert_eq!(failures("sync.rs", "#[cfg(loom)] fn f() {}"), 1);
        assert_eq!(failures("x.rs", "#[cfg(miri)] fn f() {}"), 0);
        assert_eq!(failures("x.rs", "fn f() { libc::mmap(); }"), 1);
        assert_eq!(failures("os/linux.rs", "use libc::{mmap, c_int};"), 0);
        assert_eq!(failures("x.rs", "thread_local! {}"), 1);
    }
}
