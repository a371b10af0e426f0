//! A profile in the form of pprof: `profile.proto`, compressed by gzip.
//!
//! Owns: the few messages of it that a heap profile needs, written field by field.
//! Idea: a message is fields with numbers; each is a number, or bytes with their length in front.
//! Never: writes a reference to what is not there.

use super::{HeapProfile, Names, View};
use flate2::{Compression, write::GzEncoder};
use std::collections::HashMap;
use std::io::{self, Write};

/// The sample types, and their units.
const TYPES: [(&str, &str); 6] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    (FIRST_SHOWN, "bytes"),
    ("peak_space", "bytes"),
    ("pinned_space", "bytes"),
];
const FIRST_SHOWN: &str = "inuse_space";

/// A message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 1 << 7 {
            self.0.push(value as u8 | 1 << 7);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field that is a number; 0 is what a reader takes it for that does not find it.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn numbers(&mut self, field: u64, values: impl IntoIterator<Item = u64>) {
        self.message(field, |packed| values.into_iter().for_each(|value| packed.varint(value)));
    }
}

/// Strings of a profile, by their places in its table, of which the first is empty.
struct Strings {
    places: HashMap<String, u64>,
    all: Vec<String>,
}

impl Strings {
    fn place(&mut self, text: &str) -> u64 {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = self.all.len() as u64;
        self.all.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }
}

/// Writes the profile.
///
/// # Errors
/// Compression says that of memory.
pub fn pprof(profile: &HeapProfile, names: &mut Names) -> io::Result<Vec<u8>> {
    let mut out = Message::default();
    let mut strings = Strings { places: HashMap::new(), all: Vec::new() };
    strings.place("");
    for (name, unit) in TYPES {
        let (name, unit) = (strings.place(name), strings.place(unit));
        out.message(1, |value| {
            value.number(1, name);
            value.number(2, unit);
        });
    }
    let mut locations = HashMap::new();
    for site in &profile.sites {
        write_sample(&mut out, profile, names, &mut strings, &mut locations, site);
    }
    write_mappings(&mut out, profile, names, &mut strings);
    write_locations(&mut out, profile, names, &mut strings, locations);
    let (space, bytes) = (strings.place("space"), strings.place("bytes"));
    out.message(11, |period| {
        period.number(1, space);
        period.number(2, bytes);
    });
    out.number(12, profile.rate);
    let first_shown = strings.place(FIRST_SHOWN);
    out.number(14, first_shown);
    // Last: all of them are known.
    strings.all.iter().for_each(|text| out.bytes(6, text.as_bytes()));
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&out.0)?;
    packed.finish()
}

fn write_sample(
    out: &mut Message,
    profile: &HeapProfile,
    names: &mut Names,
    strings: &mut Strings,
    locations: &mut HashMap<u64, u64>,
    site: &super::Site,
) {
    let calls = site.outside(profile, names);
    let number = |&call: &u64| {
        let next = locations.len() as u64 + 1;
        *locations.entry(call).or_insert(next)
    };
    let numbers: Vec<_> = calls.iter().map(number).collect();
    let (allocated, live) = (site.estimate(View::Allocated), site.estimate(View::Live));
    let (peak, pinned) = (site.estimate(View::Peak), site.estimate(View::Pinned));
    let values =
        [allocated.objects, allocated.bytes, live.objects, live.bytes, peak.bytes, pinned.bytes];
    let bytes = strings.place("bytes");
    out.message(2, |sample| {
        sample.numbers(1, numbers);
        // Beyond its range a number is the nearest there is.
        sample.numbers(2, values.map(|value| value.round() as i64 as u64));
        sample.message(3, |label| {
            label.number(1, bytes);
            label.number(3, site.weighed);
            label.number(4, bytes);
        });
    });
}

fn write_mappings(
    out: &mut Message,
    profile: &HeapProfile,
    names: &mut Names,
    strings: &mut Strings,
) {
    for (at, mapping) in profile.mappings.iter().enumerate() {
        let path = strings.place(&mapping.path.to_string_lossy());
        let build_id = strings.place(names.build_id(profile, mapping));
        out.message(3, |message| {
            message.number(1, at as u64 + 1);
            message.number(2, mapping.start);
            message.number(3, mapping.end);
            message.number(4, mapping.offset);
            message.number(5, path);
            message.number(6, build_id);
            // Functions, files, lines and what is inlined: a viewer need not look for them.
            (7..=10).for_each(|field| message.number(field, 1));
        });
    }
}

fn write_locations(
    out: &mut Message,
    profile: &HeapProfile,
    names: &mut Names,
    strings: &mut Strings,
    locations: HashMap<u64, u64>,
) {
    let mut functions: HashMap<(u64, u64), u64> = HashMap::new();
    let mut sorted: Vec<_> = locations.into_iter().collect();
    sorted.sort_unstable_by_key(|&(_, number)| number);
    for (call, number) in sorted {
        let mapping = profile.mapping(call.wrapping_sub(1)).map_or(0, |(at, _)| at as u64 + 1);
        let mut lines = Vec::new();
        for frame in names.frames(profile, call) {
            let key = (strings.place(&frame.function), strings.place(&frame.source));
            let next = functions.len() as u64 + 1;
            lines.push((*functions.entry(key).or_insert(next), frame.line));
        }
        out.message(4, |location| {
            location.number(1, number);
            location.number(2, mapping);
            location.number(3, call.wrapping_sub(1));
            for (function, line) in lines {
                location.message(4, |message| {
                    message.number(1, function);
                    message.number(2, line);
                });
            }
        });
    }
    let mut sorted: Vec<_> = functions.into_iter().collect();
    sorted.sort_unstable_by_key(|&(_, number)| number);
    for ((name, source), number) in sorted {
        out.message(5, |function| {
            function.number(1, number);
            function.number(2, name);
            function.number(3, name);
            function.number(4, source);
        });
    }
}
