//! The rule of the documents: links lead somewhere.

use super::Report;
use crate::library::workspace;
use anyhow::Result;
use pulldown_cmark::{Event, Parser, Tag};

pub(super) fn check(documents: &[String], report: &mut Report) -> Result<()> {
    for name in documents {
        let path = workspace().join(name);
        let text = std::fs::read_to_string(&path)?;
        for (number, target) in links(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            if !to.exists() {
                report.fail(name, number, "link", format!("{target} does not exist"));
            } else if !anchor.is_empty() && to.extension().is_some_and(|end| end == "md") {
                let headings = std::fs::read_to_string(&to)?;
                if !headings.lines().any(|line| slug(line) == Some(anchor.to_owned())) {
                    report.fail(name, number, "link", format!("{target}: no such heading"));
                }
            }
        }
    }
    Ok(())
}

/// The targets of links to files and headings, each with its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url),
        _ => None,
    };
    let all = Parser::new(text).into_offset_iter().filter_map(|(event, at)| {
        let line = text[..at.start].matches('\n').count() + 1;
        Some((line, target(event)?.into_string()))
    });
    all.filter(|(_, to)| !to.contains("://") && !to.starts_with("mailto:")).collect()
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
        let text = "[a](b.md) `[c](d)` [e](https://f) [`g`](h.md#i)\n```\n[j](k)\n```\n[l] ![m](n)\n\n[l]: o.md";
        let found = links(text);
        let found: Vec<(usize, &str)> = found.iter().map(|(line, to)| (*line, &**to)).collect();
        assert_eq!(found, [(1, "b.md"), (1, "h.md#i"), (5, "o.md"), (5, "n")]);
        assert_eq!(slug("## Why not: `calloc`?").as_deref(), Some("why-not-calloc"));
    }
}
