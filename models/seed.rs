//! How seeds.toml writes a bug: one text with what stands in the core's file and what takes its
//! place. Of `a[-b-][+c+]d` these are `abd` and `acd`.

/// What stands there.
pub(crate) fn found(edit: &str) -> String {
    side(edit, ["[+", "+]"], ["[-", "-]"])
}

/// What takes its place.
pub(crate) fn replacement(edit: &str) -> String {
    side(edit, ["[-", "-]"], ["[+", "+]"])
}

/// The text without what stands between the marks `dropped`, and without the marks `kept`.
fn side(edit: &str, dropped: [&str; 2], kept: [&str; 2]) -> String {
    let mut parts = edit.split(dropped[0]);
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once(dropped[1]).expect("it is closed").1);
    [first].into_iter().chain(rest).collect::<String>().replace(kept[0], "").replace(kept[1], "")
}
