//! Reads a heap profile: what `CAIRN_PROFILE` or a call of the library has written.
//!
//! Owns: the text's form, and what a sample stands for.
//! Idea: the process writes numbers; names are found here, in the files that it had mapped.
//! Never: believes the text: it may come from anywhere.
//! Threads: one.
//! Checked: tests/profile.rs and tests/hostile_profile.rs of the command.
//! Story: docs/guide/profile.md

mod builds;
mod debug;
mod lines;
mod names;
mod outside;
mod perf_map;
mod picture;
mod pprof;
mod short;
mod stacks;
mod text;

pub use builds::Builds;
pub(crate) use lines::Lines;
pub use names::{Frame, Names};
pub use outside::sampled;
pub(crate) use outside::{Allocated, Sample, Table, allocated};
pub use perf_map::PerfMap;
pub use picture::{Subject, page};
pub use pprof::pprof;
pub use short::short;
pub(crate) use stacks::is_own;
pub use stacks::{Row, View, collapsed, rows};

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The first line.
const HEAD: &str = "cairn heap profile 2";
/// What it was before there were lines behind a site.
const OLD_HEAD: &str = "cairn heap profile 1";
/// More is no profile: 65,536 sites have 40 MiB at most, and as many mappings 20.
const BYTES_MAX: u64 = 256 << 20;
/// A stack has no more calls.
const CALLS_MAX: usize = 256;

/// Why a file is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// It begins otherwise.
    #[error("it is no heap profile of cairn's: its first line is not `{HEAD}`")]
    Head,
    /// A line makes no sense.
    #[error("it is damaged: line {0} makes no sense")]
    Line(usize),
    /// The end is missing.
    #[error("its end is missing: the process was still writing it, or could not")]
    End,
}

/// Blocks, and bytes that the program asked for in them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amounts {
    /// Blocks.
    pub objects: f64,
    /// Bytes.
    pub bytes: f64,
}

/// How many lifetimes are told apart: below 1 ms, 10 ms, and so on to 1000 s, and others.
pub const LIFETIMES: usize = 8;

/// What was allocated by one stack in blocks of one size.
#[derive(Clone, Debug)]
pub struct Site {
    /// Bytes of each block, as it was drawn.
    pub weighed: u64,
    /// Bytes from one sample to the next on average, when they were drawn.
    pub rate: u64,
    /// So many blocks of that size does a sample stand for.
    pub scale: f64,
    /// Samples.
    pub allocated: Amounts,
    /// Those of them that are live.
    pub live: Amounts,
    /// Those that were live when most bytes were.
    pub peak: Amounts,
    /// How many have been freed, by their lifetimes.
    pub lived: [f64; LIFETIMES],
    /// Bytes of pages that the live ones keep from going back.
    pub pinned: f64,
    /// Return addresses, the innermost first.
    pub calls: Vec<u64>,
}

impl Amounts {
    fn times(self, scale: f64) -> Amounts {
        Amounts { objects: self.objects * scale, bytes: self.bytes * scale }
    }

    fn less(self, other: Amounts) -> Amounts {
        Amounts {
            objects: (self.objects - other.objects).max(0.0),
            bytes: (self.bytes - other.bytes).max(0.0),
        }
    }

    fn plus(self, other: Amounts) -> Amounts {
        Amounts { objects: self.objects + other.objects, bytes: self.bytes + other.bytes }
    }
}

impl Site {
    /// Leaves out what had been allocated and freed when the site was like that.
    pub fn begin_at(&mut self, old: &Site) {
        self.allocated = self.allocated.less(old.allocated).plus(old.live);
        for (count, old) in self.lived.iter_mut().zip(old.lived) {
            *count = (*count - old).max(0.0);
        }
    }

    /// What its samples stand for.
    #[must_use]
    pub fn estimate(&self, view: View) -> Amounts {
        let samples = match view {
            View::Live => self.live,
            View::Allocated => self.allocated,
            View::Peak => self.peak,
            View::Pinned => Amounts { bytes: self.pinned, ..self.live },
        };
        samples.times(self.scale)
    }
}

/// A file of which the process had code mapped.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The one behind the last.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// The file's number on its device; 0: not known.
    pub inode: u64,
    /// Its path.
    pub path: PathBuf,
}

/// A profile.
#[derive(Clone, Debug, Default)]
pub struct HeapProfile {
    /// Bytes from one sample to the next on average when it was written; 0: no more were taken.
    pub rate: u64,
    /// Samples for which there was no room.
    pub dropped: u64,
    /// Where what was allocated.
    pub sites: Vec<Site>,
    /// Code, in the order of addresses.
    pub mappings: Vec<Mapping>,
    /// Which builds of these files they were.
    pub builds: Builds,
    /// Names of code that is in no file.
    pub perf_map: PerfMap,
    /// The process, if it may run still: files are looked at as it sees them.
    pub pid: Option<u32>,
}

/// What the lines of a profile are about.
#[derive(PartialEq)]
enum Part {
    Sites,
    Mappings,
    Builds,
    Names,
}

impl HeapProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(path: &Path) -> Result<HeapProfile, ProfileError> {
        HeapProfile::read_from(File::open(path)?)
    }

    /// The same of what a file has.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read_from(file: impl Read) -> Result<HeapProfile, ProfileError> {
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        HeapProfile::parse(&bytes)
    }

    /// The same of its text.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8]) -> Result<HeapProfile, ProfileError> {
        let mut profile = HeapProfile::default();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let mut lines = text.split(|&byte| byte == b'\n').enumerate();
        let is_head = |line: &[u8]| line == HEAD.as_bytes() || line == OLD_HEAD.as_bytes();
        if !lines.next().is_some_and(|(_, line)| is_head(line)) {
            return Err(ProfileError::Head);
        }
        let mut part = Part::Sites;
        for (number, bytes) in lines {
            let line = &*String::from_utf8_lossy(bytes);
            let known = match line.split_once(' ') {
                _ if line == "end" => return Ok(profile.sorted()),
                // The process has only passed them on: they may be anything.
                _ if part == Part::Names => {
                    profile.perf_map.add(line);
                    Some(())
                }
                _ if line == "names" => {
                    part = Part::Names;
                    Some(())
                }
                Some((build, _)) if part == Part::Builds => {
                    let file = bytes.get(build.len() + 1..).unwrap_or_default();
                    profile.builds.add(build, path(file))
                }
                _ if line == "builds" => {
                    part = Part::Builds;
                    Some(())
                }
                _ if part == Part::Mappings => profile.add_mapping(bytes),
                _ if line == "mappings" => {
                    part = Part::Mappings;
                    Some(())
                }
                Some(("rate", rate)) => rate.parse().map(|rate| profile.rate = rate).ok(),
                Some(("dropped", count)) => count.parse().map(|n| profile.dropped = n).ok(),
                Some(("site", rest)) => site(rest).map(|site| profile.sites.push(site)),
                Some((word, rest)) => profile.add_to_site(word, rest),
                None => None,
            };
            known.ok_or(ProfileError::Line(number + 1))?;
        }
        Err(ProfileError::End)
    }

    /// A line behind a site's; a word that is not known is a later cairn's.
    fn add_to_site(&mut self, word: &str, rest: &str) -> Option<()> {
        let site = self.sites.last_mut()?;
        let numbers: Option<Vec<_>> =
            rest.split(' ').take(LIFETIMES).map(|word| word.parse::<u64>().ok()).collect();
        match (word, numbers?.as_slice()) {
            ("peak", &[objects, bytes]) => {
                site.peak = Amounts { objects: objects as f64, bytes: bytes as f64 };
            }
            ("pinned", &[bytes]) => site.pinned = bytes as f64,
            ("lived", counts) if counts.len() == LIFETIMES => {
                for (to, &count) in site.lived.iter_mut().zip(counts) {
                    *to = count as f64;
                }
            }
            ("peak" | "pinned" | "lived", _) => return None,
            _ => {}
        }
        Some(())
    }

    fn sorted(mut self) -> HeapProfile {
        self.mappings.sort_by_key(|mapping| mapping.start);
        self
    }

    /// A line like `5600-5700 r-xp 00001000 08:01 42   /usr/bin/cat`; only code is kept.
    fn add_mapping(&mut self, line: &[u8]) -> Option<()> {
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut field = || str::from_utf8(fields.next()?).ok();
        let (start, end) = field()?.split_once('-')?;
        let rights = field()?;
        let offset = u64::from_str_radix(field()?, 16).ok()?;
        let _device = field()?;
        let inode = field()?.parse().ok()?;
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let path = path(fields.next().unwrap_or_default().trim_ascii_start()).to_owned();
        let mapping = Mapping { start: hex(start)?, end: hex(end)?, offset, inode, path };
        if rights.contains('x') && mapping.start < mapping.end {
            self.mappings.push(mapping);
        }
        Some(())
    }

    /// The mapping around an address.
    #[must_use]
    pub fn mapping(&self, address: u64) -> Option<(usize, &Mapping)> {
        let behind = self.mappings.partition_point(|mapping| mapping.start <= address);
        let at = behind.checked_sub(1)?;
        self.mappings.get(at).filter(|mapping| address < mapping.end).map(|mapping| (at, mapping))
    }

    /// All of its samples together.
    #[must_use]
    pub fn sum(&self, view: View) -> Amounts {
        let add = |sum: Amounts, site: &Site| sum.plus(site.estimate(view));
        self.sites.iter().fold(Amounts::default(), add)
    }
}

/// A name of a file, which may be any bytes.
fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// A line without its first word: the size, the rate, samples and bytes allocated, samples and bytes freed, calls.
fn site(line: &str) -> Option<Site> {
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (weighed, rate) = (number()?, number()?);
    let [allocated, bytes, freed, freed_bytes] = [number()?, number()?, number()?, number()?];
    let calls: Option<Vec<_>> =
        words.take(CALLS_MAX).map(|word| u64::from_str_radix(word, 16).ok()).collect();
    let amounts =
        |objects: u64, bytes: u64| Amounts { objects: objects as f64, bytes: bytes as f64 };
    Some(Site {
        weighed,
        rate,
        scale: scale(weighed, rate)?,
        allocated: amounts(allocated, bytes),
        live: amounts(allocated.saturating_sub(freed), bytes.saturating_sub(freed_bytes)),
        peak: Amounts::default(),
        lived: [0.0; LIFETIMES],
        pinned: 0.0,
        calls: calls?,
    })
}

/// How many blocks a sample of so many bytes stands for at a rate.
fn scale(weighed: u64, rate: u64) -> Option<f64> {
    // Its probability: 1 - exp(-weighed / rate).
    let known = weighed > 0 && rate > 0;
    known.then(|| -1.0 / (-(weighed as f64) / rate as f64).exp_m1())
}
