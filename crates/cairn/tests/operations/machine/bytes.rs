//! Decodes programs: every byte string is one, and past its end all bytes are 0.

use std::sync::OnceLock;

/// Where blocks stop being runs of slices and become mappings of their own.
const MAPPING_MIN: usize = 32 << 20;
/// The largest alignment.
const ALIGN_SHIFT_MAX: u32 = 22;

/// The largest size that each class serves; the last is the largest a span serves.
fn class_sizes() -> &'static [usize] {
    static SIZES: OnceLock<Vec<usize>> = OnceLock::new();
    // The build decides how much of a block the program gets, but it is more than in the class before.
    SIZES.get_or_init(|| cairn::class_sizes().map(|bytes| cairn::good_size(bytes - 8)).collect())
}

/// Looks the classes up.
pub(super) fn prepare() {
    class_sizes();
}

/// What is still to be read of a program.
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads `program` from the start.
    pub(crate) fn new(program: &'a [u8]) -> Self {
        Bytes(program)
    }

    /// Whether all has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// The next byte as a number.
    pub(crate) fn number(&mut self) -> usize {
        usize::from(self.byte())
    }

    /// The next two bytes as a number.
    pub(crate) fn pair(&mut self) -> usize {
        self.number() << 8 | self.number()
    }

    /// The next `len` bytes, or as many as there are.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// How many of something: mostly few, sometimes a span full.
    pub(crate) fn count(&mut self) -> usize {
        match self.number() {
            n @ 0..200 => 1 + n % 16,
            n => 1 + (n - 200) * 16,
        }
    }

    /// A power of two up to 4 MiB.
    pub(crate) fn align(&mut self) -> usize {
        1 << (u32::from(self.byte()) % (ALIGN_SHIFT_MAX + 1))
    }

    /// A size: mostly small, often at a bound of something, seldom up to 16 MiB.
    pub(crate) fn size(&mut self) -> usize {
        let (kind, detail) = (self.byte(), self.number());
        let classes = class_sizes();
        let medium_max = classes[classes.len() - 1];
        // One less, as it is, or one more.
        let around = |size: usize| size + usize::from(kind % 3) - 1;
        match kind {
            0..100 => detail,
            100..140 => 4 * detail + usize::from(kind % 4),
            140..190 => around(classes[detail % classes.len()]),
            190..220 => around(256 * (detail + 4)),
            220..244 => around(1 << (detail % 18)),
            244..250 => around(medium_max + 1024 * detail),
            250..252 => around(medium_max + 64 * detail * detail),
            // Once in a while only: each costs as much time as thousands of small ones.
            _ if self.byte() >= 40 => 16 * detail,
            _ => match detail % 4 {
                0 => around(MAPPING_MIN),
                1 => around(1 << (20 + detail / 4 % 5)),
                2 => around((detail + 1) << 16),
                _ => MAPPING_MIN - detail / 4 * 4096,
            },
        }
    }
}
