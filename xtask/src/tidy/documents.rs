//! The rules of the documents: links that lead somewhere, no words that do not belong.

use super::{Report, files_below, files_in};
use anyhow::{Context, Result};
use std::path::Path;

pub(super) fn check(root: &Path, report: &mut Report) -> Result<()> {
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
        report.check_words(&name, &text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_searched_for_links() {
        let text = "[a](b.md) `[c](d)` [e](https://f) [`g`](h.md#i)\n```\n[j](k)\n```\n[l]: m.md";
        assert_eq!(links(text), [(1, "b.md"), (1, "h.md#i"), (5, "m.md")]);
        assert_eq!(slug("## Why not: `calloc`?").as_deref(), Some("why-not-calloc"));
    }
}
