//! A Rust file as the rules see it: its tokens, functions and tests.

use super::CORE;
use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Ident,
    Punct,
    Literal,
    Delimiter,
}

/// A token outside comments.
pub(super) struct Token {
    pub(super) text: String,
    pub(super) lines: RangeInclusive<usize>,
    pub(super) kind: Kind,
}

/// A Rust file.
pub(super) struct Source {
    /// Relative to the workspace.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
    pub(super) functions: Vec<(String, RangeInclusive<usize>)>,
    /// Lines of modules that only tests compile, attributes included.
    pub(super) tests: Vec<RangeInclusive<usize>>,
    /// Names of such modules in files of their own.
    pub(super) test_files: Vec<String>,
}

/// How long a file is.
pub(super) struct Lines {
    /// With a token on them, outside tests.
    pub(super) code: usize,
    /// Not blank, outside tests.
    pub(super) written: usize,
    pub(super) tests: usize,
}

impl Source {
    pub(super) fn read(root: &Path, path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        Self::parse(relative, text)
    }

    pub(super) fn parse(path: String, text: String) -> Result<Self> {
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

    pub(super) fn room(&self) -> &str {
        self.modules()[0]
    }

    pub(super) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&line))
    }

    pub(super) fn lines(&self) -> Lines {
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
    pub(super) fn names_after(&self, root: &str) -> Vec<(String, usize)> {
        let mut names = Vec::new();
        for (i, token) in self.tokens.iter().enumerate() {
            if token.kind == Kind::Ident && token.text == root && self.is_path(i + 1) {
                names_at(&self.tokens[i + 3..], &mut names);
            }
        }
        names
    }

    /// The names reached in the crate's root by as many `super::` as it takes.
    pub(super) fn names_above(&self) -> Vec<(String, usize)> {
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
pub(super) fn mark_test_files(core: &mut [Source]) {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file of the core.
    pub(in crate::tidy) fn core(path: &str, text: &str) -> Source {
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
    fn lines_of_code_leave_out_comments_blanks_and_tests() {
        let text = "//! doc\n\n/// doc\nfn f() {\n    // note\n    g(\"a\n b\");\n}\n\
                    #[cfg(all(test, miri))]\nmod tests {\n    fn g() {}\n}\n";
        let lines = core("x.rs", text).lines();
        assert_eq!((lines.code, lines.written, lines.tests), (4, 7, 4));
    }
}
