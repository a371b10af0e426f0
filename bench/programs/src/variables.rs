//! Names in scripts and command lines, and what stands for them.

use std::collections::BTreeMap;

/// Names and what stands for them.
pub(crate) type Variables = BTreeMap<String, String>;

/// Scripts, and programs that they run.
pub(crate) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");

/// The text with its variables replaced; other braces stay.
pub(crate) fn fill(text: &str, variables: &Variables) -> String {
    let mut filled = text.to_owned();
    for (name, value) in variables {
        filled = filled.replace(&format!("{{{name}}}"), value);
    }
    filled
}
