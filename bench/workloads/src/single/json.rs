//! Parsing JSON into trees of values with the `simd-json` crate, in the three ways it offers:
//! strings that borrow from the text, the same with the parser's buffers kept from document to
//! document, and strings of their own.
//!
//! Stands for services that take requests apart: bursts of small strings, vectors and maps
//! that grow by reallocation, all freed together.

use crate::case::{Case, Group, Results, Row, Settings, Workload};
use crate::clock::ms_since;
use document::{Document, Tally};
use simd_json::{Buffers, StaticNode, borrowed, owned};
use std::hint::black_box;
use std::time::Instant;

mod document;
mod fixtures;

/// The cases.
pub const WORKLOADS: &[Workload] = &[
    case(
        "json-borrowed",
        "Parses three JSON documents of 0.8 MiB in all; strings borrow from the text. Services \
         that take requests apart: bursts of small blocks, freed together.",
        |s| run(s, &mut Borrowed),
    ),
    case(
        "json-buffers",
        "The same, while the parser keeps its large buffers from one document to the next.",
        |s| run(s, &mut Buffered(Buffers::new(LARGEST))),
    ),
    case(
        "json-owned",
        "The same with the buffers made afresh and every string a block of its own.",
        |s| run(s, &mut Owned),
    ),
];

const fn case(name: &'static str, about: &'static str, run: fn(&Settings) -> Results) -> Workload {
    Case::new(name, Group::Single, about, Row::MS_PEAK)
        .from("the benchmarks of the simd-json crate; used on allocators by smalloc")
        .quick(0.15)
        .rust(run)
}

/// How often all documents are parsed at scale 1; the median counts.
const ROUNDS: usize = 180;
/// How often before that.
const WARM_UP: usize = 5;
/// No document is larger.
const LARGEST: usize = 512 << 10;

/// A way to parse.
trait Parser {
    /// Parses, says something about the result, and frees it.
    fn parse<T>(&mut self, text: &mut [u8], look: impl FnOnce(&dyn Tree) -> T) -> T;
}

/// A parsed document.
trait Tree {
    /// Adds up what is in it.
    fn add_to(&self, tally: &mut Tally);
}

struct Borrowed;
struct Buffered(Buffers);
struct Owned;

impl Parser for Borrowed {
    fn parse<T>(&mut self, text: &mut [u8], look: impl FnOnce(&dyn Tree) -> T) -> T {
        look(&simd_json::to_borrowed_value(text).expect("valid"))
    }
}

impl Parser for Buffered {
    fn parse<T>(&mut self, text: &mut [u8], look: impl FnOnce(&dyn Tree) -> T) -> T {
        let parsed = simd_json::to_borrowed_value_with_buffers(text, &mut self.0);
        look(&parsed.expect("valid"))
    }
}

impl Parser for Owned {
    fn parse<T>(&mut self, text: &mut [u8], look: impl FnOnce(&dyn Tree) -> T) -> T {
        look(&simd_json::to_owned_value(text).expect("valid"))
    }
}

fn run(settings: &Settings, parser: &mut impl Parser) -> Results {
    let documents = [fixtures::messages(110), fixtures::catalog(250), fixtures::outline(7_000)];
    check(&documents, parser);
    // The parser overwrites its input.
    let mut input = Vec::with_capacity(LARGEST);
    let mut round = || {
        let start = Instant::now();
        for document in &documents {
            input.clear();
            input.extend_from_slice(document.text.as_bytes());
            parser.parse(&mut input, |tree| {
                black_box(tree);
            });
        }
        ms_since(start)
    };
    (0..WARM_UP).for_each(|_| {
        round();
    });
    let mut times: Vec<f64> = (0..settings.scaled(ROUNDS)).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    check(&documents, parser);
    Results::of([("ms", times[times.len() / 2])])
}

/// Ends the run unless what was written is what is read.
fn check(documents: &[Document], parser: &mut impl Parser) {
    for Document { text, tally } in documents {
        assert!(text.len() <= LARGEST, "{} bytes", text.len());
        let mut found = Tally::default();
        parser.parse(&mut text.clone().into_bytes(), |tree| tree.add_to(&mut found));
        assert_eq!(*tally, found);
    }
}

fn add_literal(node: &StaticNode, tally: &mut Tally) {
    match *node {
        StaticNode::I64(value) => tally.number(value as f64),
        StaticNode::U64(value) => tally.number(value as f64),
        StaticNode::F64(value) => tally.number(value),
        StaticNode::Bool(_) | StaticNode::Null => tally.literals += 1,
    }
}

/// The two types of trees differ in their strings only.
macro_rules! tree {
    ($module:ident, $tree:ty) => {
        impl Tree for $tree {
            fn add_to(&self, tally: &mut Tally) {
                use $module::Value;
                match self {
                    Value::Static(node) => add_literal(node, tally),
                    Value::String(text) => tally.string(text),
                    Value::Array(items) => {
                        tally.arrays += 1;
                        items.iter().for_each(|item| item.add_to(tally));
                    }
                    Value::Object(fields) => {
                        tally.objects += 1;
                        for (key, value) in fields.iter() {
                            tally.string(key);
                            value.add_to(tally);
                        }
                    }
                }
            }
        }
    };
}
tree!(borrowed, borrowed::Value<'_>);
tree!(owned, owned::Value);

#[cfg(test)]
mod tests {
    use super::{Borrowed, Buffered, Buffers, Owned, check, fixtures};

    #[test]
    fn reads_what_was_written() {
        let documents = [fixtures::messages(5), fixtures::catalog(5), fixtures::outline(400)];
        let [messages, catalog, outline] = &documents;
        assert!(messages.tally.strings > 5 * messages.tally.numbers);
        assert!(catalog.tally.objects > 100);
        assert!(outline.tally.numbers == 800);
        check(&documents, &mut Borrowed);
        check(&documents, &mut Buffered(Buffers::default()));
        check(&documents, &mut Owned);
    }
}
