//! Pages that the command writes, and how they are looked at.

use super::browser::Look;
use super::{Home, assert_succeeded};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

pub(crate) const WIDE: Look = Look { width: 1400, height: 900, is_dark: false };
pub(crate) const NARROW: Look = Look { width: 400, height: 800, is_dark: true };

/// A page, its data apart.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) rest: String,
    pub(crate) data: Value,
}

/// Reads a page, which must need nothing else, and have one place for data.
#[track_caller]
pub(crate) fn page(path: PathBuf) -> Page {
    let whole = fs::read_to_string(&path).unwrap();
    let (before, data) = whole.split_once("id=\"data\">").unwrap();
    let (data, behind) = data.split_once("</script>").unwrap();
    let rest = format!("{before}{behind}");
    for word in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "innerHTML"] {
        assert!(!rest.contains(word), "{word}");
    }
    assert!(rest.contains("default-src 'none'") && !data.contains('<'));
    Page { path, rest, data: serde_json::from_str(data).unwrap() }
}

impl Page {
    /// The same page with other data.
    pub(crate) fn with(self, data: Value) -> Page {
        let whole = fs::read_to_string(&self.path).unwrap();
        let (before, rest) = whole.split_once("id=\"data\">").unwrap();
        let (_, behind) = rest.split_once("</script>").unwrap();
        let text = data.to_string().replace('<', "\\u003c");
        fs::write(&self.path, format!("{before}id=\"data\">{text}</script>{behind}")).unwrap();
        Page { data, ..self }
    }
}

#[track_caller]
pub(crate) fn heap_page(home: &Home, target: &str) -> Page {
    let mut command = home.cairn();
    let output = command.current_dir(home.path()).args(["inspect", target, "--html", "out.html"]);
    assert_succeeded(&output.output().unwrap());
    page(home.path().join("out.html"))
}
