//! A Rust file as the rules see it: its lines of code, without comments and tests.
//!
//! It is read as text, which rustfmt has laid out: a test module ends with the first line that is
//! a closing brace alone, and a string holds no `//` but in an address.

use super::CORE;

/// A Rust file.
pub(super) struct Source {
    /// Relative to the workspace.
    pub(super) path: String,
    pub(super) text: String,
    /// Each line's number and code; without blank ones, comments and test modules.
    pub(super) code: Vec<(usize, String)>,
    /// Lines outside of test modules.
    pub(super) lines: usize,
}

impl Source {
    pub(super) fn parse(text: String, path: String) -> Self {
        let mut code = Vec::new();
        let mut lines = 0;
        let mut all = (1..).zip(text.lines()).peekable();
        while let Some((number, line)) = all.next() {
            let module = |(_, next): &(usize, &str)| next.contains("mod ") && next.ends_with('{');
            if line == "#[cfg(test)]" && all.peek().is_some_and(module) {
                all.find(|(_, line)| *line == "}");
                continue;
            }
            lines += 1;
            let comment = line.match_indices("//").map(|(at, _)| at);
            let comment = comment.filter(|at| !line[..*at].ends_with(':')).min();
            let line = line[..comment.unwrap_or(line.len())].trim_end();
            if !line.is_empty() {
                code.push((number, line.to_owned()));
            }
        }
        Self { path, text, code, lines }
    }

    /// The file's module path below the core: `os/linux.rs` is `os`, `linux`; `lib.rs` is `lib`.
    pub(super) fn modules(&self) -> Vec<&str> {
        let inside = self.path.strip_prefix(CORE).unwrap_or(&self.path).trim_start_matches('/');
        inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect()
    }

    pub(super) fn floor(&self) -> &str {
        self.modules()[0]
    }

    /// Its code without imports and what it offers of other files.
    pub(super) fn code_but_imports(&self) -> Vec<&(usize, String)> {
        let mut is_inside = false;
        let is_other = |(_, line): &&(usize, String)| {
            let begins = line.starts_with("use ")
                || line.starts_with("pub") && line.split(' ').nth(1) == Some("use");
            let is_import = is_inside || begins;
            is_inside = is_import && !line.ends_with(';');
            !is_import
        };
        self.code.iter().filter(is_other).collect()
    }

    /// The paths that follow each `prefix`, two names of each at most, with their lines: several if a group follows.
    pub(super) fn paths_after(&self, prefix: &str) -> Vec<(String, usize)> {
        let mut names = Vec::new();
        for (at, (number, line)) in self.code.iter().enumerate() {
            for (column, _) in line.match_indices(prefix) {
                let before = line[..column].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || "_:".contains(c)) {
                    continue;
                }
                let more = self.code[at + 1..].iter().map(|(_, line)| line.as_str());
                let rest = std::iter::once(&line[column + prefix.len()..]).chain(more);
                let following = rest.collect::<Vec<_>>().concat();
                names.extend(paths(&following, 2).into_iter().map(|path| (path, *number)));
            }
        }
        names
    }
}

/// The path, or the paths of the group, that a text begins with: so many names of each at most.
fn paths(text: &str, most: usize) -> Vec<String> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        return items(group).into_iter().flat_map(|item| paths(item, most)).collect();
    }
    let is_name = |c: char| c.is_alphanumeric() || "_*".contains(c);
    let (name, rest) = text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len()));
    match rest.strip_prefix("::") {
        _ if name.is_empty() || name == "self" => Vec::new(),
        Some(rest) if most > 1 => {
            let inner = paths(rest, most - 1);
            let own = inner.is_empty().then(|| name.to_owned());
            own.into_iter().chain(inner.iter().map(|inner| format!("{name}::{inner}"))).collect()
        }
        _ => vec![name.to_owned()],
    }
}

/// The items of a group, whose opening brace is not in the text.
fn items(group: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (1, 0, Vec::new());
    for (at, c) in group.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 || depth == 1 && c == ',' {
            found.push(&group[from..at]);
            from = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file of the core.
    pub(in crate::tidy) fn core(path: &str, text: &str) -> Source {
        Source::parse(text.to_owned(), format!("{CORE}/{path}"))
    }

    #[test]
    fn paths_are_found_in_groups_macros_and_code_but_not_in_comments() {
        let text = "use crate::{\n    a::{b, c::y},\n    d as x, self, z::{self, w},\n};\n// crate::no\n\
                    pub(crate) fn f() { assert!(crate::e::g(), crate::h); mycrate::no }\n\
                    #[cfg(test)]\nmod tests {\n    use crate::no;\n}\nuse crate::*;";
        let names = core("x.rs", text).paths_after("crate::").into_iter().map(|(name, _)| name);
        assert_eq!(names.collect::<Vec<_>>(), ["a::b", "a::c", "d", "z::w", "e::g", "h", "*"]);
    }

    #[test]
    fn lines_of_code_leave_out_comments_blanks_and_tests() {
        let text = "//! doc\n\nfn f() {\n    // note\n    g(\"http://x\"); // more\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn g() {}\n}\nfn h() {}\n";
        let source = core("x.rs", text);
        let code: Vec<_> = source.code.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(code, ["fn f() {", "    g(\"http://x\");", "}", "fn h() {}"]);
        assert_eq!(source.lines, 7);
    }
}
