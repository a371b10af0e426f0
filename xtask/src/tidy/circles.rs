//! No two files of a crate need each other, nor do more of them in a circle: each can be understood after those that it
//! uses. A module and the files inside it are one thing here: what a module and its parts use of each other is no circle.

use super::Report;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// A crate's files by the paths of their modules; the crate's root has an empty one.
type Files = BTreeMap<Vec<String>, String>;

/// Checks one crate: `files` are (path below its `src`, text).
pub(super) fn check(name: &str, files: &[(String, String)], report: &mut Report) {
    let modules: Files = files.iter().map(|(path, _)| (modules_of(path), path.clone())).collect();
    let mut uses = BTreeMap::new();
    for (path, text) in files {
        // What does not parse is told by the compiler.
        let Ok(file) = syn::parse_file(text) else { continue };
        let mut walk = Walk { here: modules_of(path), modules: &modules, found: BTreeSet::new() };
        walk.visit_file(&file);
        uses.insert(path.as_str(), walk.found);
    }
    let mut told = BTreeSet::new();
    for start in uses.keys() {
        if let Some(circle) = way_back(start, &uses)
            && told.insert(circle.iter().copied().collect::<BTreeSet<_>>())
        {
            report.fail(&format!("{name}/src/{start}"), 1, "circle", circle.join(" needs "));
        }
    }
}

/// The path of a file's module: `a/mod.rs` is `a`, `lib.rs` and `main.rs` are the root.
fn modules_of(path: &str) -> Vec<String> {
    let inner = path.trim_end_matches(".rs");
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    if ["lib", "main", "mod"].contains(&inner) {
        Vec::new()
    } else {
        inner.split('/').map(str::to_owned).collect()
    }
}

/// The shortest way from a file back to itself, if there is one.
fn way_back<'a>(
    start: &'a str,
    uses: &'a BTreeMap<&str, BTreeSet<String>>,
) -> Option<Vec<&'a str>> {
    let mut from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = std::collections::VecDeque::from([start]);
    while let Some(at) = next.pop_front() {
        for to in uses.get(at).into_iter().flatten() {
            if to == start {
                let mut way = vec![start, at];
                while let Some(&before) = from.get(way[way.len() - 1]) {
                    way.push(before);
                }
                way.reverse();
                way.push(start);
                way.dedup();
                return Some(way);
            }
            if !from.contains_key(to.as_str()) {
                from.insert(to, at);
                next.push_back(to);
            }
        }
    }
    None
}

/// The walk over one file: which other files its paths lead into.
struct Walk<'a> {
    here: Vec<String>,
    modules: &'a Files,
    found: BTreeSet<String>,
}

impl Walk<'_> {
    /// A path of names from the file's place; `crate`, `self` and `super` begin one.
    fn follow(&mut self, names: &[String]) {
        let mut at = match names.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.here.clone(),
            _ => return,
        };
        for name in names {
            match name.as_str() {
                "crate" | "self" => (),
                "super" => drop(at.pop()),
                _ => at.push(name.clone()),
            }
        }
        while !self.modules.contains_key(&at) && !at.is_empty() {
            at.pop();
        }
        let is_inside = at.starts_with(&self.here) || self.here.starts_with(&at);
        if let Some(file) = self.modules.get(&at).filter(|_| !is_inside) {
            self.found.insert(file.clone());
        }
    }

    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(before, tree))
            }
            syn::UseTree::Name(name) => self.follow(&with(&name.ident)),
            syn::UseTree::Rename(name) => self.follow(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.follow(before),
        }
    }
}

impl<'a> Visit<'a> for Walk<'_> {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        // Inner modules are tests', or declare files.
        if module.content.is_some() && module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.follow(&names);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> usize {
        let files: Vec<_> =
            files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        let mut report = Report::default();
        check("a", &files, &mut report);
        report.failures
    }

    #[test]
    fn circles_of_files_are_found() {
        let root = ("lib.rs", "mod a; mod b; mod c;");
        let a = ("a.rs", "use crate::b::f;");
        assert_eq!(circles(&[root, a, ("b.rs", "fn f() {}")]), 0);
        assert_eq!(circles(&[root, a, ("b.rs", "fn f() { crate::a::g() }")]), 1);
        assert_eq!(
            circles(&[root, a, ("b.rs", "use super::c;"), ("c.rs", "use crate::{d, a::g};")]),
            1
        );
        assert_eq!(circles(&[root, a, ("b.rs", "mod tests { use crate::a::g; }")]), 0);
        assert_eq!(
            circles(&[root, ("a/mod.rs", "mod d; use d::f;"), ("a/d.rs", "use super::g;")]),
            0
        );
    }
}
