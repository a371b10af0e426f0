//! JSON text, together with what is in it.

use std::fmt::{Display, Write};

/// What is in a document. None of it depends on the order of an object's fields.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) objects: u64,
    pub(super) arrays: u64,
    pub(super) literals: u64,
    pub(super) numbers: u64,
    pub(super) strings: u64,
    /// Sum over the numbers' bits.
    number_sum: u64,
    /// Sum over the hashes of strings and keys.
    string_sum: u64,
}

impl Tally {
    pub(super) fn number(&mut self, value: f64) {
        self.numbers += 1;
        self.number_sum = self.number_sum.wrapping_add(value.to_bits());
    }

    /// A string, or a key of an object.
    pub(super) fn string(&mut self, text: &str) {
        self.strings += 1;
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        self.string_sum = self.string_sum.wrapping_add(text.as_bytes().iter().fold(0, mix));
    }
}

/// A document that grows from its front to its end.
pub(super) struct Document {
    pub(super) text: String,
    pub(super) tally: Tally,
}

impl Document {
    /// What `fill` writes; `capacity` should be larger.
    pub(super) fn new(capacity: usize, fill: impl FnOnce(&mut Document)) -> Document {
        let text = String::with_capacity(capacity);
        let mut document = Document { text, tally: Tally::default() };
        fill(&mut document);
        assert!(document.text.len() <= capacity, "{} bytes", document.text.len());
        document
    }

    /// A comma, unless this is the first item or the value of a field.
    fn separate(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(['{', '[', ':']) {
            self.text.push(',');
        }
    }

    pub(super) fn object(&mut self, fill: impl FnOnce(&mut Document)) {
        self.tally.objects += 1;
        self.separate();
        self.text.push('{');
        fill(self);
        self.text.push('}');
    }

    pub(super) fn array(&mut self, fill: impl FnOnce(&mut Document)) {
        self.tally.arrays += 1;
        self.separate();
        self.text.push('[');
        fill(self);
        self.text.push(']');
    }

    /// The key of a field, whose value comes next.
    pub(super) fn key(&mut self, key: &str) -> &mut Document {
        self.string(key);
        self.text.push(':');
        self
    }

    pub(super) fn string(&mut self, text: &str) {
        self.tally.string(text);
        self.separate();
        self.text.push('"');
        for char in text.chars() {
            match char {
                '"' => self.text.push_str("\\\""),
                '/' => self.text.push_str("\\/"),
                '\n' => self.text.push_str("\\n"),
                '\u{2028}' => self.text.push_str("\\u2028"),
                _ => self.text.push(char),
            }
        }
        self.text.push('"');
    }

    pub(super) fn integer(&mut self, value: u32) {
        self.tally.number(f64::from(value));
        self.plain(value);
    }

    pub(super) fn float(&mut self, value: f64) {
        self.tally.number(value);
        self.plain(value);
    }

    /// True or false, or null.
    pub(super) fn literal(&mut self, value: Option<bool>) {
        self.tally.literals += 1;
        match value {
            Some(value) => self.plain(value),
            None => self.plain("null"),
        }
    }

    fn plain(&mut self, value: impl Display) {
        self.separate();
        write!(self.text, "{value}").expect("strings take all that is written");
    }
}
