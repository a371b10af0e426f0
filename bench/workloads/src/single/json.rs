//! Parsing JSON into trees of values with the `simd-json` crate, in the three ways it offers: strings that borrow from
//! the text, the same with the parser's buffers kept from document to document, and strings of their own.

use crate::case::{Results, Settings};
use crate::clock::ms_since;
use fastrand::Rng;
use serde::Serialize;
use serde_json::{Value, json};
use simd_json::Buffers;
use std::hint::black_box;
use std::time::Instant;

/// How often all documents are parsed at scale 1; the median counts.
const ROUNDS: usize = 180;
const WARM_UP: usize = 5;
pub(crate) const LARGEST: usize = 512 << 10;

/// How often each byte occurs in a text. That does not depend on the order of fields, which parsed objects do not keep.
type Bytes = [usize; 256];

pub(crate) fn borrowed(text: &mut [u8], look: Option<&mut Bytes>) {
    look_at(&simd_json::to_borrowed_value(text).expect("valid"), look);
}

pub(crate) fn buffered(mut buffers: Buffers) -> impl FnMut(&mut [u8], Option<&mut Bytes>) {
    move |text, look| {
        let value = simd_json::to_borrowed_value_with_buffers(text, &mut buffers);
        look_at(&value.expect("valid"), look);
    }
}

pub(crate) fn owned(text: &mut [u8], look: Option<&mut Bytes>) {
    look_at(&simd_json::to_owned_value(text).expect("valid"), look);
}

/// Counts the bytes of a parsed document when it is written again.
fn look_at(value: &impl Serialize, look: Option<&mut Bytes>) {
    if let Some(bytes) = look {
        *bytes = bytes_of(serde_json::to_string(black_box(value)).expect("it came from text"));
    }
    black_box(value);
}

fn bytes_of(text: impl AsRef<str>) -> Bytes {
    let mut bytes = [0; 256];
    text.as_ref().bytes().for_each(|byte| bytes[usize::from(byte)] += 1);
    bytes
}

/// `parse` parses a text, which it overwrites, looks at the result if that is wanted, and frees it.
pub(crate) fn run(
    settings: &Settings,
    mut parse: impl FnMut(&mut [u8], Option<&mut Bytes>),
) -> Results {
    let documents = [messages(110), catalog(250), outline(7_000)];
    check(&documents, &mut parse);
    let mut input = Vec::with_capacity(LARGEST);
    let mut round = || {
        let start = Instant::now();
        for document in &documents {
            input.clear();
            input.extend_from_slice(document.as_bytes());
            parse(&mut input, None);
        }
        ms_since(start)
    };
    for _ in 0..WARM_UP {
        round();
    }
    let mut times: Vec<f64> = (0..settings.scaled(ROUNDS)).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    check(&documents, &mut parse);
    Results::of([("ms", times[times.len() / 2])])
}

/// Ends the run unless what was written is what is read.
fn check(documents: &[String], mut parse: impl FnMut(&mut [u8], Option<&mut Bytes>)) {
    for document in documents {
        assert!(document.len() <= LARGEST, "{} bytes", document.len());
        let mut found = [0; 256];
        parse(&mut document.clone().into_bytes(), Some(&mut found));
        assert!(bytes_of(document) == found, "wrong contents");
    }
}

// Documents of the three usual kinds, after those that parsers have been compared with since
// nativejson-benchmark: one full of strings, one full of objects, one full of numbers.

const WORDS: &str = "heap arena 今日は page\nfault ページ bin \"quoted\" größe cache メモリ slab chunk \
                     https://example.org/a/b?c=d zone\u{2028} \u{1f980} free";

fn words(rng: &mut Rng, most: usize) -> String {
    let all: Vec<&str> = WORDS.split(' ').collect();
    let words: Vec<&str> = (0..rng.usize(0..=most)).map(|_| all[rng.usize(..16)]).collect();
    words.join(" ")
}

/// Items with commas in between, each made of a value that goes at once.
fn list(items: impl Iterator<Item = Value>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(",")
}

fn some<T: Serialize>(rng: &mut Rng, most: u32, item: impl Fn(&mut Rng) -> T) -> Value {
    let items: Vec<T> = (0..rng.u32(0..=most)).map(|_| item(rng)).collect();
    json!(items)
}

/// An object with fields of each kind: short texts, addresses, numbers, flags, nulls.
fn record(rng: &mut Rng, [texts, addresses, numbers, flags, nulls]: [usize; 5]) -> Value {
    type Field = fn(&mut Rng) -> Value;
    let kinds: [(&str, usize, Field); 5] = [
        ("text", texts, |rng| json!(words(rng, 4))),
        ("address", addresses, |rng| {
            json!(format!("http://pbs.example.org/profile_images/{}.png", rng.u32(..)))
        }),
        ("number", numbers, |rng| json!(rng.u32(0..400_000_000))),
        ("flag", flags, |rng| json!(rng.bool())),
        ("empty", nulls, |_| Value::Null),
    ];
    let mut fields = serde_json::Map::new();
    for (kind, count, value) in kinds {
        fields.extend((0..count).map(|at| (format!("{kind}_field_{at}"), value(rng))));
    }
    fields.into()
}

/// Messages of a social network: strings, many of them not ASCII or with escapes.
fn messages(count: u32) -> String {
    let mut rng = Rng::with_seed(7);
    let messages = list((0..count).map(|_| message(&mut rng, true)));
    format!(r#"{{"statuses":[{messages}]}}"#)
}

fn message(rng: &mut Rng, may_repeat: bool) -> Value {
    let mut message = record(rng, [4, 1, 2, 1, 5]);
    message["text"] = json!(words(rng, 20));
    message["metadata"] = record(rng, [2, 0, 0, 0, 0]);
    message["user"] = record(rng, [10, 3, 7, 7, 1]);
    message["user"]["description"] = json!(words(rng, 25));
    message["mentions"] = some(rng, 6, |rng| record(rng, [1, 0, 2, 0, 0]));
    if may_repeat && rng.bool() {
        message["retweeted_status"] = self::message(rng, false);
    }
    message
}

/// The programme of some theatres: small objects, which refer to one another by number.
fn catalog(events: u32) -> String {
    let mut rng = Rng::with_seed(8);
    let number = |rng: &mut Rng| 100_000_000 + rng.u32(0..400_000_000);
    let performances = list((0..events).map(|_| {
        let mut performance = record(&mut rng, [2, 0, 4, 0, 5]);
        performance["topicIds"] = some(&mut rng, 10, number);
        performance["prices"] = some(&mut rng, 5, |rng| record(rng, [0, 0, 3, 0, 0]));
        let area = |rng: &mut Rng| json!({ "areaId": number(rng), "blockIds": [] });
        performance["areas"] = some(&mut rng, 30, area);
        performance
    }));
    format!(r#"{{"performances":[{performances}]}}"#)
}

/// The outline of a country: pairs of numbers with many digits.
fn outline(points: u32) -> String {
    const LINE: u32 = 200;
    let mut rng = Rng::with_seed(9);
    let (mut longitude, mut latitude) = (-65.613_616_999_999_98, 43.420_273_000_000_01);
    let mut point = |_| {
        longitude += rng.f64() * 0.02 - 0.01;
        latitude += rng.f64() * 0.02 - 0.01;
        [longitude, latitude]
    };
    let lines = list((0..points / LINE).map(|_| (0..LINE).map(&mut point).collect()));
    format!(r#"{{"type":"Polygon","coordinates":[{lines}]}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "wrong contents"]
    fn a_different_value_is_found() {
        check(&["[1,2]".to_owned()], |_, look| borrowed(&mut b"[1,3]".to_vec(), look));
    }
}
