//! What is mapped where.

use std::ops::Range;
use std::path::PathBuf;

/// A line of `/proc/PID/maps`.
#[derive(Debug)]
pub struct Mapping {
    /// The addresses.
    pub range: Range<u64>,
    /// Whether there may be code in it.
    pub executable: bool,
    /// The file, or the kernel's name for it in brackets, or nothing.
    pub path: PathBuf,
}

impl Mapping {
    /// Reads a line.
    pub(crate) fn parse(line: &str) -> Option<Mapping> {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [range, permissions, _, _, _, path] = fields[..] else { return None };
        let (start, end) = range.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        Some(Mapping {
            range: number(start)?..number(end)?,
            executable: permissions.contains('x'),
            path: path.trim_start().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let mapping = Mapping::parse("2000-3000 r-xp 00001000 08:01 7           /lib/x y.so");
        let mapping = mapping.unwrap();
        assert_eq!((mapping.range, mapping.executable), (0x2000..0x3000, true));
        assert_eq!(mapping.path, PathBuf::from("/lib/x y.so"));
        let anonymous = Mapping::parse("4000-5000 rw-p 00000000 00:00 0 ").unwrap();
        assert!(!anonymous.executable && anonymous.path.as_os_str().is_empty());
    }
}
