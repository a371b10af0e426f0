//! One colour per allocator, the same in every chart of a page.

use crate::result::{Allocator, SUBJECT};
use std::collections::BTreeMap;

/// The strongest of all.
const OWN: [u8; 3] = [0x1f, 0x6f, 0xeb];

/// For families in the order of the result; told apart with any colour vision as far as so
/// many can be, the dashes doing the rest.
const FAMILIES: [[u8; 3]; 14] = [
    [0x80, 0x80, 0x86],
    [0xe6, 0x9f, 0x00],
    [0x00, 0x9e, 0x73],
    [0xd5, 0x4a, 0x1e],
    [0xb0, 0x5a, 0xa8],
    [0x8c, 0x6d, 0x46],
    [0x3f, 0xb4, 0xc8],
    [0xa8, 0xa0, 0x1c],
    [0xe3, 0x77, 0xa6],
    [0x6a, 0x4c, 0x93],
    [0x6f, 0x9b, 0x3c],
    [0xc0, 0x39, 0x4b],
    [0x2b, 0x7a, 0x78],
    [0xc9, 0x8b, 0x5e],
];

const DASHES: [&str; 3] = ["solid", "dashed", "dotted"];

/// The colours of one result.
pub(crate) struct Colours(BTreeMap<String, (String, &'static str)>);

impl Colours {
    /// Variants of an allocator, such as `NAME-secure` and `NAME2`, share a hue: they are darker
    /// and lighter by turns, and their lines dashed.
    pub(crate) fn new(allocators: &[Allocator]) -> Colours {
        let mut families: Vec<(&str, usize)> = Vec::new();
        let mut colours = BTreeMap::new();
        for name in allocators.iter().map(|allocator| &*allocator.name) {
            let end = name.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(name.len());
            let known = families.iter().position(|(family, _)| *family == &name[..end]);
            let family = known.unwrap_or_else(|| {
                families.push((&name[..end], 0));
                families.len() - 1
            });
            let variant = families[family].1;
            families[family].1 += 1;
            let own = families.iter().position(|(family, _)| *family == SUBJECT);
            let base = match own {
                Some(own) if own == family => OWN,
                Some(own) if own < family => FAMILIES[(family - 1) % FAMILIES.len()],
                _ => FAMILIES[family % FAMILIES.len()],
            };
            let [r, g, b] = base.map(|c| shade(c, variant));
            let dash = DASHES[variant % DASHES.len()];
            colours.insert(name.to_owned(), (format!("#{r:02x}{g:02x}{b:02x}"), dash));
        }
        Colours(colours)
    }

    /// As `#rrggbb`.
    pub(crate) fn of(&self, name: &str) -> String {
        self.0.get(name).map_or("#808080".into(), |(colour, _)| colour.clone())
    }

    /// Of its lines: solid, dashed or dotted.
    pub(crate) fn dash(&self, name: &str) -> &'static str {
        self.0.get(name).map_or("solid", |(_, dash)| dash)
    }
}

/// A part of a colour, darker for odd variants and lighter for even ones.
fn shade(part: u8, variant: usize) -> u8 {
    let towards = if variant % 2 == 1 { 0.0 } else { 255.0 };
    let share = [0.0, 0.25, 0.4, 0.42][variant.min(3)];
    (f64::from(part) * (1.0 - share) + towards * share) as u8
}
