//! What a check may find because a page of `docs` says why: blocks of TOML in the page.
//!
//! ````text
//! ```toml uncovered
//! [[because]]
//! why = "a sentence"
//! items = ["what was found", "..."]
//! ```
//! ````

use crate::library;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;

#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    because: Vec<Because>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Because {
    why: String,
    items: Vec<String>,
}

/// The items that the blocks labelled `label` in `page` give a reason for.
pub(crate) fn items(page: &str, label: &str) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(library::workspace().join(page))
        .with_context(|| format!("cannot read {page}"))?;
    let mut items = BTreeSet::new();
    let mut lines = text.lines();
    while lines.any(|line| line == format!("```toml {label}")) {
        let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let block: Block = toml::from_str(&inside.join("\n"))
            .with_context(|| format!("a block of {label} in {page}"))?;
        for because in block.because {
            ensure!(!because.why.trim().is_empty(), "{page}: items without a reason");
            items.extend(because.items);
        }
    }
    Ok(items)
}

/// Prints what was found, with a mark at what has no reason in `page`, and what has a reason
/// there but was not found; fails if anything has none.
pub(crate) fn judge(page: &str, label: &str, found: &[(String, String)]) -> Result<()> {
    let known = items(page, label)?;
    let mut unknown = 0;
    for (place, item) in found {
        let mark = if known.contains(item) { "explained" } else { "UNEXPLAINED" };
        unknown += usize::from(!known.contains(item));
        println!("{mark:11}  {place}  {item}");
    }
    println!("{} in all, {unknown} of them not explained in {page}", found.len());
    ensure!(unknown == 0, "{unknown} items are neither tested nor explained in {page}");
    Ok(())
}
