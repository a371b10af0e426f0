//! Owns: text on its way to whoever asked for it.
//! Idea: what is formatted goes out in pieces; nothing is kept.
//! Never: allocates, or fails.
//! Threads: any; holds nothing.
//! Checked: by what is built on it.
//! Story: docs/guide/statistics.md

use core::fmt::{self, Write};

/// Where it goes.
pub(super) struct Text<'a>(pub(super) &'a mut dyn FnMut(&[u8]));

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        (self.0)(text.as_bytes());
        Ok(())
    }
}
