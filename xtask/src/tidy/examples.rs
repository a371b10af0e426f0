//! Each public item of the core has an example, which the doc tests run.

use super::source::Source;
use super::{MAP, Report};

/// `pub` is what programs may reach: rustc warns of what is public and cannot be reached. What the map hides is left out.
pub(super) fn check(core: &[Source], report: &mut Report) {
    let map = core.iter().find(|source| source.path == MAP).map_or("", |map| &map.text);
    let hidden = hidden_names(map);
    for source in core {
        for (number, name) in without_example(&source.text) {
            if !hidden.contains(&name) && !source.path.ends_with("/values.rs") {
                let reason = format!("`{name}` is public: show by an example how it is used");
                report.fail(&source.path, number, "examples", reason);
            }
        }
    }
}

/// The names in groups that are exported and hidden.
fn hidden_names(map: &str) -> Vec<&str> {
    let groups = map.split("#[doc(hidden)]\npub use {").skip(1);
    let groups = groups.filter_map(|rest| rest.split("};").next());
    groups.flat_map(|group| group.split(|c: char| !c.is_alphanumeric() && c != '_')).collect()
}

/// Public items whose documentation has no example, but for those that are hidden.
fn without_example(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_shown = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim_start)) {
        if line.starts_with("///") || line.starts_with("#[") {
            is_shown |= line.starts_with("/// ```") || line == "#[doc(hidden)]";
            continue;
        }
        found.extend(public_name(line).filter(|_| !is_shown).map(|name| (number, name)));
        is_shown = false;
    }
    found
}

/// The name that a line declares as public, if it is an item's.
fn public_name(line: &str) -> Option<&str> {
    const KINDS: [&str; 7] = ["fn", "struct", "enum", "type", "trait", "const", "static"];
    let mut words = line.strip_prefix("pub ")?.split_whitespace().peekable();
    while matches!(words.peek(), Some(&"unsafe" | &"const" | &"extern"))
        && words.clone().nth(1).is_some_and(|next| KINDS.contains(&next) || next == "unsafe")
    {
        words.next();
    }
    let kind = words.next().filter(|word| KINDS.contains(word));
    let name = kind.and_then(|_| words.next())?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_public_and_not_shown_is_found() {
        let text = "/// Shown.\n/// ```\n/// f();\n/// ```\n#[inline]\npub fn f() {}\n\n/// Not.\n#[must_use]\n\
                    pub unsafe fn g<T>(t: T) {}\n#[doc(hidden)]\npub fn h() {}\npub(crate) fn i() {}\n\
                    impl T {\n    /// Not.\n    pub const K: usize = 1;\n    pub const fn l() {}\n}\npub use a::b;\n";
        assert_eq!(without_example(text), [(10, "g"), (16, "K"), (17, "l")]);
        let map = "pub use a::b;\n#[doc(hidden)]\npub use {\n    c::{d, e},\n    f::G,\n};\n";
        assert!(["d", "e", "G"].iter().all(|name| hidden_names(map).contains(name)));
        assert!(!hidden_names(map).contains(&"b"));
    }
}
