//! Pages to look at: one HTML file each, which needs nothing else.
//!
//! Owns: how data gets into a page, and the page of an account.
//! Idea: the page is fixed text; all that is known of a target stands in it as JSON, and scripts write it as text.
//! Never: puts a target's words into HTML; names another file or host.
//! Threads: none.
//! Checked: tests/pages.rs of the command, in a browser if there is one.
//! Story: docs/guide/inspect.md

use crate::account::Account;
use crate::map::HeapMap;
use serde::Serialize;
use serde_json::error::Result;

/// How all pages of the project look: colours, body, controls, tables.
pub const BASE_STYLE: &str = include_str!("../assets/base.css");
const STYLE: &str = include_str!("../assets/page.css");
const SHARED: &str = include_str!("../assets/page.js");
/// The second line of defence: a browser loads nothing for it, from nowhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// What a page shows: its fixed part, and the scripts that fill it.
pub(crate) struct Page {
    pub(crate) body: &'static str,
    pub(crate) scripts: &'static [&'static str],
}

impl Page {
    /// The file with some data.
    pub(crate) fn with(&self, data: &impl Serialize) -> Result<String> {
        // Inside a script element nothing else ends it, or begins another.
        let data = serde_json::to_string(data)?.replace('<', "\\u003c");
        let scripts = self.scripts.concat();
        let body = self.body;
        Ok(format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n<title>cairn</title>\n\
             <style>\n{BASE_STYLE}{STYLE}</style>\n</head>\n<body>\n{body}\
             <noscript>This page is drawn by its scripts, which are switched off.</noscript>\n\
             <script type=\"application/json\" id=\"data\">{data}</script>\n\
             <script>\n{SHARED}{scripts}</script>\n</body>\n</html>\n"
        ))
    }
}

/// The page of an account, with its heap map.
///
/// # Errors
/// None is known: the data is plain.
pub fn account_page(account: &Account, map: &HeapMap) -> Result<String> {
    #[derive(Serialize)]
    struct Data<'a> {
        account: &'a Account,
        map: &'a HeapMap,
    }
    let page = Page {
        body: include_str!("../assets/account.html"),
        scripts: &[
            include_str!("../assets/samples.js"),
            include_str!("../assets/tiles.js"),
            include_str!("../assets/map.js"),
            include_str!("../assets/curve.js"),
            include_str!("../assets/account.js"),
        ],
    };
    page.with(&Data { account, map })
}
