//! The structural rules of the source, as checks.
//!
//! Each violation is a line `file:line: rule — reason`. The order of the core's rooms is
//! read from the fenced block labelled `rooms` in ARCHITECTURE.md: one room per line,
//! bottom to top, its name first and after it what is worth saying about it.

use crate::library;
use anyhow::{Context, Result, bail};
use object::read::elf::{Dyn, ElfFile64};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the lines of every module of the core.
    #[arg(long)]
    count: bool,
}

const CORE: &str = "crates/cairn/src";
/// The map of the crate; its header is the vocabulary and the ladders.
const MAP: &str = "lib.rs";
const LABELS: [&str; 6] = ["Owns:", "Idea:", "Never:", "Threads:", "Checked:", "Story:"];

/// (a warning above, a failure above)
const MODULE_LINES: (usize, usize) = (600, 700);
const FUNCTION_LINES: (usize, usize) = (70, 90);
const CORE_CODE_LINES: usize = 4000;
const STRIPPED_BYTES: u64 = 200 * 1024;

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

/// Words that promise work or praise the author; neither belongs in a document.
const DENIED_WORDS: [&str; 9] = [
    "TODO",
    "TBD",
    "FIXME",
    "XXX",
    "for now",
    "lorem ipsum",
    "blazing",
    "cutting-edge",
    "world-class",
];
/// Where a path may begin that means the same on every machine.
#[rustfmt::skip]
const SYSTEM_FOLDERS: [&str; 13] = [
    "usr", "proc", "sys", "dev", "etc", "lib", "lib64", "bin", "sbin", "tmp", "var", "opt", "run",
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = library::workspace();
    let mut report = Report::default();
    let mut core = Vec::new();
    for path in files_below(&root.join("crates"), "rs")? {
        let source = Source::read(root, &path)?;
        check_sizes(&source, &mut report);
        check_unfinished(&source, &mut report);
        if source.path.starts_with(CORE) {
            core.push(source);
        }
    }
    mark_test_files(&mut core);
    check_rooms(&root.join("ARCHITECTURE.md"), &core, &mut report);
    for source in &core {
        check_header(root, source, &mut report);
        check_cfg(source, &mut report);
        check_reach(source, &mut report);
    }
    check_one_arch_file(&core, &mut report);
    check_dependencies(root, &mut report)?;
    let code: usize = core.iter().map(|source| source.lines().code).sum();
    if code > CORE_CODE_LINES {
        report.fail(
            CORE,
            1,
            "core-size",
            format!("{code} lines of code, at most {CORE_CODE_LINES}"),
        );
    }
    check_documents(root, &mut report)?;
    let shared = root.join("target/release/libcairn.so");
    let size = if shared.exists() { check_library(&shared, &mut report)? } else { String::new() };
    if args.count {
        print_counts(&core);
    }
    println!("core: {code} lines of code, at most {CORE_CODE_LINES}{size}");
    report.finish()
}

/// The lines of a Rust file that only tests and models compile.
pub(crate) fn test_lines(path: &Path) -> Result<Vec<RangeInclusive<usize>>> {
    let text = std::fs::read_to_string(path)?;
    Ok(Source::parse(path.display().to_string(), text)?.tests)
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

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ident,
    Punct,
    Literal,
    Delimiter,
}

/// A token outside comments.
struct Token {
    text: String,
    lines: RangeInclusive<usize>,
    kind: Kind,
}

/// A Rust file.
struct Source {
    /// Relative to the workspace.
    path: String,
    text: String,
    tokens: Vec<Token>,
    functions: Vec<(String, RangeInclusive<usize>)>,
    /// Lines of modules that only tests compile, attributes included.
    tests: Vec<RangeInclusive<usize>>,
    /// Names of such modules in files of their own.
    test_files: Vec<String>,
}

/// How long a file is.
struct Lines {
    /// With a token on them, outside tests.
    code: usize,
    /// Not blank, outside tests.
    written: usize,
    tests: usize,
}

impl Source {
    fn read(root: &Path, path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        Self::parse(relative, text)
    }

    fn parse(path: String, text: String) -> Result<Self> {
        let cannot = || format!("cannot parse {path}");
        let tree = syn::parse_file(&text).with_context(cannot)?;
        let stream: TokenStream =
            text.parse().map_err(|e| anyhow::anyhow!("{e}")).with_context(cannot)?;
        let mut tokens = Vec::new();
        flatten(stream, &text.lines().collect::<Vec<_>>(), &mut tokens);
        let mut outline = Outline::default();
        outline.visit_file(&tree);
        let Outline { functions, tests, test_files } = outline;
        Ok(Self { path, text, tokens, functions, tests, test_files })
    }

    /// The file's module path below the crate: `os/linux.rs` is `os`, `linux`; `lib.rs` is `lib`.
    fn modules(&self) -> Vec<&str> {
        let inside = self.path.strip_prefix(CORE).unwrap_or(&self.path).trim_start_matches('/');
        let inside = inside.trim_end_matches(".rs");
        inside.trim_end_matches("/mod").split('/').collect()
    }

    fn room(&self) -> &str {
        self.modules()[0]
    }

    fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&line))
    }

    fn lines(&self) -> Lines {
        let coded: HashSet<usize> = self.tokens.iter().flat_map(|t| t.lines.clone()).collect();
        let mut lines = Lines { code: 0, written: 0, tests: 0 };
        for (line, text) in (1..).zip(self.text.lines()) {
            let written = !text.trim().is_empty();
            if self.is_test(line) {
                lines.tests += usize::from(written);
            } else {
                lines.written += usize::from(written);
                lines.code += usize::from(coded.contains(&line));
            }
        }
        lines
    }

    /// The names that follow `root::`, each with its line: several if a group follows, `*`
    /// if a glob does.
    fn names_after(&self, root: &str) -> Vec<(String, usize)> {
        let mut names = Vec::new();
        for (i, token) in self.tokens.iter().enumerate() {
            if token.kind == Kind::Ident && token.text == root && self.is_path(i + 1) {
                names_at(&self.tokens[i + 3..], &mut names);
            }
        }
        names
    }

    /// The names reached in the crate's root by as many `super::` as it takes.
    fn names_above(&self) -> Vec<(String, usize)> {
        let file_depth = if self.room() == "lib" { 0 } else { self.modules().len() };
        let (mut braces, mut inline, mut names) = (0_usize, Vec::new(), Vec::new());
        let mut i = 0;
        while let Some(token) = self.tokens.get(i) {
            match token.text.as_str() {
                "{" if token.kind == Kind::Delimiter => {
                    braces += 1;
                    if i >= 2 && self.tokens[i - 2].text == "mod" {
                        inline.push(braces);
                    }
                }
                "}" if token.kind == Kind::Delimiter => {
                    inline.pop_if(|depth| *depth == braces);
                    braces -= 1;
                }
                "super" => {
                    let mut levels = 1;
                    while self.is_path(i + 1)
                        && self.tokens.get(i + 3).is_some_and(|next| next.text == "super")
                    {
                        levels += 1;
                        i += 3;
                    }
                    if levels == file_depth + inline.len() && self.is_path(i + 1) {
                        names_at(&self.tokens[i + 3..], &mut names);
                    }
                }
                _ => {}
            }
            i += 1;
        }
        names
    }

    fn is_path(&self, at: usize) -> bool {
        let colon = |i: usize| self.tokens.get(i).is_some_and(|token| token.text == ":");
        colon(at) && colon(at + 1)
    }
}

/// The first names of the path, group or glob that `tokens` begins with.
fn names_at(tokens: &[Token], names: &mut Vec<(String, usize)>) {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            text => {
                let begins = i == 0 || matches!(tokens[i - 1].text.as_str(), "{" | ",");
                if depth <= 1 && begins && text != "," && text != "self" {
                    names.push((text.to_owned(), *token.lines.start()));
                }
            }
        }
        if depth == 0 {
            return;
        }
    }
}

/// Appends the tokens of `stream`; `///` and `//!` comments, which parse as attributes, apart.
fn flatten(stream: TokenStream, lines: &[&str], tokens: &mut Vec<Token>) {
    for tree in stream {
        let span = tree.span();
        let (start, end) = (span.start(), span.end());
        let written: String =
            lines.get(start.line - 1).map_or("", |line| line).chars().skip(start.column).collect();
        if written.starts_with("//") || written.starts_with("/*") {
            continue;
        }
        let mut push = |text: &str, line: RangeInclusive<usize>, kind| {
            tokens.push(Token { text: text.to_owned(), lines: line, kind });
        };
        let all = start.line..=end.line;
        match tree {
            TokenTree::Ident(ident) => push(&ident.to_string(), all, Kind::Ident),
            TokenTree::Punct(punct) => push(&punct.as_char().to_string(), all, Kind::Punct),
            TokenTree::Literal(literal) => push(&literal.to_string(), all, Kind::Literal),
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::None => ("", ""),
                };
                push(open, start.line..=start.line, Kind::Delimiter);
                flatten(group.stream(), lines, tokens);
                let text = close.to_owned();
                tokens.push(Token { text, lines: end.line..=end.line, kind: Kind::Delimiter });
            }
        }
    }
}

/// Where functions and test modules stand in a file.
#[derive(Default)]
struct Outline {
    functions: Vec<(String, RangeInclusive<usize>)>,
    tests: Vec<RangeInclusive<usize>>,
    test_files: Vec<String>,
}

impl Outline {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (start, end) = (signature.span().start().line, block.span().end().line);
        self.functions.push((signature.ident.to_string(), start..=end));
    }
}

impl<'ast> Visit<'ast> for Outline {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let for_tests = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args().is_ok_and(|meta| in_release(&meta) == Some(false))
        };
        if !module.attrs.iter().any(for_tests) {
            return visit::visit_item_mod(self, module);
        }
        let start = module.attrs[0].span().start().line;
        self.tests.push(start..=module.span().end().line);
        if module.content.is_none() {
            self.test_files.push(module.ident.to_string());
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

/// What a `cfg` predicate is in the shipped library, as far as it is the same on all systems.
fn in_release(predicate: &syn::Meta) -> Option<bool> {
    let syn::Meta::List(list) = predicate else {
        let tool = ["test", "miri"].iter().any(|name| predicate.path().is_ident(name));
        return tool.then_some(false);
    };
    type Metas = syn::punctuated::Punctuated<syn::Meta, syn::Token![,]>;
    let inner = list.parse_args_with(Metas::parse_terminated).ok()?;
    let values: Vec<Option<bool>> = inner.iter().map(in_release).collect();
    if list.path.is_ident("not") {
        return values.first()?.map(|value| !value);
    }
    // The value that decides: one false makes `all` false, one true makes `any` true.
    let decides = list.path.is_ident("any");
    if values.contains(&Some(decides)) {
        Some(decides)
    } else if values.contains(&None) {
        None
    } else {
        Some(!decides)
    }
}

/// Marks as tests the files that a `#[cfg(test)] mod name;` elsewhere names.
fn mark_test_files(core: &mut [Source]) {
    let mut names = BTreeSet::new();
    for source in core.iter() {
        for name in &source.test_files {
            let mut path = source.modules();
            path.retain(|module| *module != "lib");
            path.push(name);
            names.insert(path.join("/"));
        }
    }
    for source in core {
        if names.contains(&source.modules().join("/")) {
            source.tests = vec![1..=source.text.lines().count()];
        }
    }
}

fn check_rooms(architecture: &Path, core: &[Source], report: &mut Report) {
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

fn check_header(root: &Path, source: &Source, report: &mut Report) {
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

fn check_sizes(source: &Source, report: &mut Report) {
    let file = source.path.as_str();
    report.bound((file, 1), "module-size", "the module", source.lines().written, MODULE_LINES);
    for (name, lines) in &source.functions {
        let (start, length) = (*lines.start(), lines.clone().count());
        let what = format!("`{name}`");
        report.bound((file, start), "function-size", &what, length, FUNCTION_LINES);
    }
}

fn check_unfinished(source: &Source, report: &mut Report) {
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

/// Whether `word` stands in `line`, and not as part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let beside = [line[..at].chars().next_back(), line[at + word.len()..].chars().next()];
        beside.iter().flatten().all(|c| !c.is_alphanumeric())
    })
}

fn check_cfg(source: &Source, report: &mut Report) {
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

fn check_one_arch_file(core: &[Source], report: &mut Report) {
    let mut first: Option<&str> = None;
    for source in core {
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

/// System calls only in `os`, thread-local storage only in `thread`.
fn check_reach(source: &Source, report: &mut Report) {
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
            (Kind::Ident, _) if TLS_NAMES.contains(&text) => fail(line, "tls", text, "thread"),
            (Kind::Literal, Some(word)) => fail(line, "tls", word, "thread"),
            _ => {}
        }
    }
}

fn check_dependencies(root: &Path, report: &mut Report) -> Result<()> {
    const FILE: &str = "crates/cairn/Cargo.toml";
    let text = std::fs::read_to_string(root.join(FILE))?;
    let manifest: toml::Table = toml::from_str(&text).with_context(|| format!("in {FILE}"))?;
    for (table, dependency) in strange_dependencies(&manifest) {
        let is_it = |line: &str| line.trim_start().starts_with(&dependency);
        let line = text.lines().position(is_it).map_or(1, |index| index + 1);
        let reason = format!("`{dependency}` in [{table}]; the core depends on libc alone");
        report.fail(FILE, line, "dependencies", reason);
    }
    Ok(())
}

fn strange_dependencies(manifest: &toml::Table) -> Vec<(String, String)> {
    let mut strange = Vec::new();
    let mut check = |place: String, table: &toml::Value| {
        for (kind, allowed) in [("dependencies", &["libc"][..]), ("build-dependencies", &[])] {
            let names = table.get(kind).and_then(toml::Value::as_table);
            for name in names.into_iter().flat_map(toml::Table::keys) {
                if !allowed.contains(&name.as_str()) {
                    strange.push((format!("{place}{kind}"), name.clone()));
                }
            }
        }
    };
    check(String::new(), &toml::Value::Table(manifest.clone()));
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for (target, table) in targets.into_iter().flatten() {
        check(format!("target.'{target}'."), table);
    }
    strange
}

fn check_documents(root: &Path, report: &mut Report) -> Result<()> {
    let mut documents = files_in(root, "md")?;
    if root.join("docs").exists() {
        documents.extend(files_below(&root.join("docs"), "md")?);
    }
    for path in documents {
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path)?;
        let folder = path.parent().context("a document stands in a folder")?;
        for (number, target) in links(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { folder.join(file) };
            if !to.exists() {
                report.fail(&name, number, "link", format!("{target} does not exist"));
            } else if !anchor.is_empty() && to.extension().is_some_and(|end| end == "md") {
                let headings = std::fs::read_to_string(&to)?;
                if !headings.lines().any(|line| slug(line) == Some(anchor.to_owned())) {
                    report.fail(&name, number, "link", format!("{target}: no such heading"));
                }
            }
        }
        for (number, line) in (1..).zip(text.lines()) {
            for word in DENIED_WORDS.iter().filter(|word| has_word(line, word)) {
                report.fail(&name, number, "words", format!("`{word}`"));
            }
            for path in local_paths(line) {
                let reason = format!("`{path}` exists on one machine only");
                report.fail(&name, number, "path", reason);
            }
        }
    }
    Ok(())
}

/// The targets of links to files and headings, each with its line; code apart.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        let mut targets: Vec<&str> = definition.iter().map(|(_, target)| target.trim()).collect();
        for (at, _) in line.match_indices("](") {
            let in_code = line[..at].matches('`').count() % 2 == 1 && line[at..].contains('`');
            let target = line[at + 2..].split([')', ' ']).next().unwrap_or("");
            // A link's text may itself be code; then the backquotes before it are paired.
            if !in_code {
                targets.push(target);
            }
        }
        let local = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
        found.extend(targets.into_iter().filter(local).map(|target| (number, target)));
    }
    found
}

/// The anchor of a heading line.
fn slug(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

/// Absolute paths in `line` that begin in no folder every system has.
fn local_paths(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices('/') {
        let before = line[..at].chars().next_back();
        if before.is_some_and(|c| !c.is_whitespace() && !"(`\"'=:<[".contains(c)) {
            continue;
        }
        let is_path = |c: char| c.is_alphanumeric() || "/._-".contains(c);
        let path = &line[at..];
        let path = &path[..path.find(|c| !is_path(c)).unwrap_or(path.len())];
        let Some((folder, _)) = path[1..].split_once('/') else { continue };
        if !folder.is_empty() && !SYSTEM_FOLDERS.contains(&folder) {
            found.push(path);
        }
    }
    found
}

/// Checks the size and the dependencies of the shipped library; returns what to say about it.
fn check_library(shared: &Path, report: &mut Report) -> Result<String> {
    const FILE: &str = "target/release/libcairn.so";
    let folder = tempfile::tempdir()?;
    let stripped = folder.path().join("libcairn.so");
    let status = Command::new("strip").args(["-s", "-o"]).args([&stripped, shared]).status();
    let Ok(true) = status.map(|status| status.success()) else {
        return Ok("; libcairn.so: cannot be stripped here".into());
    };
    let bytes = std::fs::read(&stripped)?;
    let size = bytes.len() as u64;
    if size > STRIPPED_BYTES {
        let reason = format!("{size} bytes stripped, at most {STRIPPED_BYTES}");
        report.fail(FILE, 1, "library-size", reason);
    }
    let needed = needed_libraries(&bytes).context("cannot read libcairn.so")?;
    for name in &needed {
        if name != "libc.so.6" && !name.starts_with("ld-linux") {
            report.fail(FILE, 1, "library-needs", format!("it needs {name}; only libc may be"));
        }
    }
    let panics = bytes.windows(11).filter(|window| window == b"panicked at").count();
    let needed = needed.join(", ");
    Ok(format!(
        "; libcairn.so: {size} bytes stripped, needs {needed}, {panics} panic messages inside"
    ))
}

fn needed_libraries(bytes: &[u8]) -> Result<Vec<String>> {
    let file = ElfFile64::<object::Endianness>::parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut needed = Vec::new();
    if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries.iter().filter(|e| e.d_tag(endian) == object::elf::DT_NEEDED) {
            let offset = u32::try_from(entry.d_val(endian))?;
            let name = strings.get(offset).ok().context("a name outside the string table")?;
            needed.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(needed)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn core(path: &str, text: &str) -> Source {
        Source::parse(format!("{CORE}/{path}"), text.to_owned()).unwrap()
    }

    fn names(found: Vec<(String, usize)>) -> Vec<String> {
        found.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn paths_are_found_in_groups_macros_and_code_but_not_in_comments() {
        let text = "use crate::{a::{b, c}, d};\n// crate::no\n/// crate::no\n\
                    pub(crate) fn f() { debug_assert!(crate::e::g()); }";
        assert_eq!(names(core("x.rs", text).names_after("crate")), ["a", "d", "e"]);
    }

    #[test]
    fn super_reaches_the_root_only_from_the_right_depth() {
        assert_eq!(names(core("x.rs", "use super::heap;").names_above()), ["heap"]);
        assert!(core("x/y.rs", "use super::heap;").names_above().is_empty());
        assert_eq!(names(core("x/y.rs", "use super::super::heap;").names_above()), ["heap"]);
        let inline = "mod tests { use super::*; use super::super::heap; }";
        assert_eq!(names(core("x.rs", inline).names_above()), ["heap"]);
    }

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
    fn lines_of_code_leave_out_comments_blanks_and_tests() {
        let text = "//! doc\n\n/// doc\nfn f() {\n    // note\n    g(\"a\n b\");\n}\n\
                    #[cfg(all(test, miri))]\nmod tests {\n    fn g() {}\n}\n";
        let lines = core("x.rs", text).lines();
        assert_eq!((lines.code, lines.written, lines.tests), (4, 7, 4));
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
    fn words_are_found_whole() {
        assert!(has_word("good for now.", "for now"));
        assert!(!has_word("good for nowhere", "for now"));
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

    #[test]
    fn documents_are_searched_for_links_and_paths() {
        let text = "[a](b.md) `[c](d)` [e](https://f) [`g`](h.md#i)\n```\n[j](k)\n```\n[l]: m.md";
        assert_eq!(links(text), [(1, "b.md"), (1, "h.md#i"), (5, "m.md")]);
        assert_eq!(slug("## Why not: `calloc`?").as_deref(), Some("why-not-calloc"));
        assert_eq!(local_paths("in /srv/x/y, and/or `/usr/lib/z`, https://a/b"), ["/srv/x/y"]);
    }

    #[test]
    fn the_core_may_depend_on_libc() {
        let manifest = "[dependencies]\nlibc = \"0\"\nrand = \"0\"\n[dev-dependencies]\nx = \"0\"\n\
                        [target.'cfg(unix)'.dependencies]\nlibc = \"0\"\nloom = \"0\"\n";
        let strange = strange_dependencies(&toml::from_str(manifest).unwrap());
        let expected = [("dependencies", "rand"), ("target.'cfg(unix)'.dependencies", "loom")];
        assert_eq!(strange, expected.map(|(table, name)| (table.to_owned(), name.to_owned())));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_file_says_which_libraries_it_needs() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needed_libraries(&bytes).unwrap().contains(&"libc.so.6".to_owned()));
    }
}
