//! Names of code that a process makes while it runs, as it tells `perf` of them.
//!
//! Owns: the form of `/tmp/perf-PID.map`: of each function a line with its start and its length, in hexadecimal, and its name.
//! Idea: code comes and goes; what is said last of an address is so.
//! Never: believes the file: a line that makes no sense is left out, and there is a bound for all that is kept.
//! Threads: one.
//! Checked: tests here; tests/perf_map.rs of the command.
//! Story: docs/guide/profile.md

use crate::process;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Bytes of a file that are read: the last ones, because later lines count.
const BYTES_MAX: u64 = 64 << 20;
/// Functions that are kept, and letters of a name.
const FUNCTIONS_MAX: usize = 1 << 20;
const LETTERS_MAX: usize = 1024;

/// Functions that do not overlap.
#[derive(Clone, Debug, Default)]
pub struct PerfMap {
    /// By the first address: the one behind the last, and the name.
    functions: BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// What a process has written of itself: nothing, unless it is a plain file of its user's or of root's.
    #[must_use]
    pub fn of(pid: u32) -> PerfMap {
        bytes_of(pid).map_or_else(PerfMap::default, |bytes| PerfMap::parse(&bytes))
    }

    /// The functions in a file's bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> PerfMap {
        let mut map = PerfMap::default();
        let text = String::from_utf8_lossy(bytes);
        // What follows the last line is half of one that is being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().for_each(|line| map.add(line));
        map
    }

    /// Adds the function of a line, if it makes sense.
    pub(super) fn add(&mut self, line: &str) {
        let Some((start, end, name)) = function(line) else { return };
        // What was there is gone.
        if let Some((_, before)) = self.functions.range_mut(..start).next_back() {
            before.0 = before.0.min(start);
        }
        while let Some((&old, _)) = self.functions.range(start..end).next() {
            self.functions.remove(&old);
        }
        if self.functions.len() < FUNCTIONS_MAX {
            let name = name.chars().take(LETTERS_MAX).collect();
            self.functions.insert(start, (end, name));
        }
    }

    /// The function around an address: its first address, the one behind its last, and its name.
    #[must_use]
    pub fn function(&self, address: u64) -> Option<(u64, u64, &str)> {
        let (&start, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then_some((start, *end, name))
    }
}

fn function(line: &str) -> Option<(u64, u64, &str)> {
    let (start, rest) = line.split_once(' ')?;
    let (bytes, name) = rest.split_once(' ')?;
    let (start, name) = (hex(start)?, name.trim());
    let end = start.checked_add(hex(bytes)?)?;
    (start < end && !name.is_empty()).then_some((start, end, name))
}

/// Some write `0x` in front.
fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
}

/// The file of a process, as it knows itself: by its own number, in its own `/tmp`.
fn bytes_of(pid: u32) -> Option<Vec<u8>> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().map(|word| word.parse::<u32>().ok()).collect::<Option<Vec<_>>>()
    };
    // One for each namespace, the innermost last. The second user is the one who owns what it writes.
    let own = numbers("NSpid:").and_then(|numbers| numbers.last().copied()).unwrap_or(pid);
    let user = *numbers("Uid:")?.get(1)?;
    let path = format!("/proc/{}/root", process::task_of(pid)) + &format!("/tmp/perf-{own}.map");
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let known = file.metadata().ok()?;
    if !known.is_file() || ![0, user].contains(&known.uid()) {
        return None;
    }
    let mut bytes = Vec::new();
    let left_out = known.len().saturating_sub(BYTES_MAX);
    file.seek(SeekFrom::Start(left_out)).ok()?;
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    if left_out > 0 {
        // It begins in the middle of a line.
        let first = bytes.iter().position(|&byte| byte == b'\n')?;
        bytes.drain(..first);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::PerfMap;

    fn name(map: &PerfMap, address: u64) -> &str {
        map.function(address).map_or("", |found| found.2)
    }

    #[test]
    fn what_is_said_last_is_so() {
        let map = PerfMap::parse(
            b"1000 100 old\n0x1080 0x20 py::new:/a b.py \n2000 10 gone\n1ff0 40 over it\n\
              nonsense\n3000\n3000 0 none\nffffffffffffffff 10 beyond\n3000 10  \n-1 1 x\n4000 10 half",
        );
        assert_eq!(name(&map, 0xfff), "");
        assert_eq!(name(&map, 0x107f), "old");
        assert_eq!(name(&map, 0x1080), "py::new:/a b.py");
        assert_eq!(name(&map, 0x10a0), "");
        assert_eq!(name(&map, 0x2000), "over it");
        assert_eq!((name(&map, 0x3000), name(&map, 0x4000)), ("", ""));
        assert_eq!(map.functions.len(), 3);
    }

    /// Any bytes do; what is kept never overlaps, and is what the last line around an address says.
    #[test]
    fn any_file_is_read() {
        let mut random = 1_u64;
        let mut below = |count: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % count
        };
        for _ in 0..200 {
            let mut lines = Vec::new();
            let mut text = Vec::new();
            for nth in 0..below(60) {
                let (start, bytes) = (below(64), 1 + below(16));
                lines.push((start, start + bytes, format!("f{nth}")));
                text.extend(format!("{start:x} {bytes:x} f{nth}\n").bytes());
            }
            let map = PerfMap::parse(&text);
            for address in 0..100 {
                let last = lines.iter().rfind(|line| (line.0..line.1).contains(&address));
                let found = name(&map, address);
                // The rest of what has been written over in its middle has no name.
                assert!(found.is_empty() || last.is_some_and(|line| line.2 == found));
            }
            let ends = map.functions.values().map(|function| function.0);
            assert!(ends.zip(map.functions.keys().skip(1)).all(|(end, &next)| end <= next));
            for _ in 0..below(20) {
                let at = below(text.len() as u64 + 1) as usize;
                text.insert(at, below(256) as u8);
            }
            let _ = PerfMap::parse(&text).function(below(100));
        }
    }
}
