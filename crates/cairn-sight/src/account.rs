//! Owns: the account: from the bytes that the program holds to what the kernel calls resident, and what of it is needed.
//! Idea: each step has a name, and the steps add up: what is resident is found page by page, so nothing is left over.
//! Never: guesses: blocks count with the bytes they have room for, and what was asked for is told beside.
//! Threads: none; data.
//! Checked: tests/inspect.rs of the command, against the kernel's account.
//! Story: docs/guide/inspect.md

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// All that is found of a target. The fields of the JSON text are these; more may be added.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    /// The version of these fields' meaning.
    pub schema: u32,
    /// What was read.
    pub target: Target,
    /// What the program holds, by the sizes of its blocks.
    pub held: Held,
    /// From there to what is resident; the sum is `resident.sum`.
    pub steps: Vec<Step>,
    /// What is resident.
    pub resident: Resident,
    /// Resident pages with a byte of a block in use, and what the others hold.
    pub floor: Floor,
    /// Size classes that have spans.
    pub classes: Vec<ClassRow>,
    /// Heaps that have spans or cached blocks, the largest first.
    pub heaps: Vec<HeapRow>,
    /// The biggest blocks.
    pub biggest: Vec<BlockRow>,
    /// What would make a difference.
    pub advice: Vec<Advice>,
    /// What it was while it was looked at, if it was for a while.
    #[serde(default)]
    pub curve: Vec<Moment>,
    /// What could not be known.
    pub notes: Vec<String>,
}

/// A process or a core file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Target {
    /// The process; none if it is a core file.
    pub pid: Option<u32>,
    /// The program's name, if it is known.
    pub program: Option<String>,
    /// The file that cairn is in.
    pub library: String,
    /// The number that the linker has given that file, in hexadecimal.
    #[serde(default)]
    pub build: Option<String>,
    /// Whether it is the hardened build.
    pub hardened: bool,
    /// Threads, and those that were asleep.
    pub threads: Option<(u64, u64)>,
}

/// Blocks that the program has.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    /// Bytes that they have room for.
    pub bytes: u64,
    /// Of `small`, the bytes that the program has asked for, where that is known.
    #[serde(default)]
    pub asked: Option<u64>,
    /// Their number.
    pub blocks: u64,
    /// Of `bytes`, those in blocks of size classes.
    pub small: u64,
    /// Large blocks, and the heap profile's samples of small ones: these stand alone, too.
    pub large: u64,
    /// Slices of nurseries, whole.
    pub nurseries: u64,
    /// Blocks with a mapping each.
    pub mappings: u64,
}

/// A step of the account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// What it is.
    pub name: Cow<'static, str>,
    /// How many bytes it adds, or takes away.
    pub bytes: i64,
}

/// What is resident.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Resident {
    /// What came through cairn.
    pub through_cairn: u64,
    /// That and all other areas of the target.
    pub sum: u64,
    /// What the kernel says; none of a core file.
    pub kernel: Option<u64>,
    /// Of the sum, what is in huge pages of cairn's.
    pub huge: u64,
    /// Bytes of cairn's areas that are swapped out.
    pub swapped: u64,
}

/// What is needed of what came through cairn, by whole pages.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Floor {
    /// Resident pages with a byte of a block in use.
    pub bytes: u64,
    /// Resident pages of spans with none.
    pub free_in_spans: u64,
    /// Free slices with memory behind them.
    pub dirty: u64,
    /// Metadata.
    pub metadata: u64,
    /// Spans were looked at one in so many; the rest is their share.
    pub one_in: u64,
}

/// A size class.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ClassRow {
    /// Bytes in a block.
    pub size: u64,
    /// Its spans.
    pub spans: u64,
    /// Blocks that the program has.
    pub in_use: u64,
    /// Bytes of them that it has asked for, where that is known.
    #[serde(default)]
    pub asked: Option<u64>,
    /// Blocks in threads' caches.
    pub cached: u64,
    /// Blocks freed into their spans.
    pub free: u64,
    /// Of those, what other threads have freed and the span's owner has not seen.
    pub pending: u64,
    /// Blocks never handed out.
    pub untouched: u64,
    /// Resident bytes of its spans.
    pub resident: u64,
    /// Of those, pages with a byte of a block in use.
    pub floor: u64,
}

/// A heap.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeapRow {
    /// Its number; none: the spans that nobody owns.
    pub heap: Option<u64>,
    /// The thread that has it, if that is known.
    #[serde(default)]
    pub thread: Option<u32>,
    /// That thread's name.
    #[serde(default)]
    pub thread_name: Option<String>,
    /// Whether it is one of the program's.
    pub closed: bool,
    /// Its spans.
    pub spans: u64,
    /// Bytes of blocks in use in them, those in caches left out where that is known.
    pub in_use: u64,
    /// Bytes in its caches.
    pub cached: u64,
    /// Resident bytes of its spans.
    pub resident: u64,
}

/// A block of its own.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BlockRow {
    /// Where it starts.
    pub address: u64,
    /// Bytes that it has room for.
    pub bytes: u64,
    /// Resident bytes of what it takes.
    pub resident: u64,
    /// Whether it is a mapping of its own.
    pub mapping: bool,
}

/// Something that would make a difference.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Advice {
    /// Which kind it is.
    pub kind: Cow<'static, str>,
    /// What there is, and what to do.
    pub text: String,
    /// The bytes that it is about.
    pub bytes: u64,
    /// Code that is behind it, as far as samples of the heap profile tell.
    #[serde(default)]
    pub sites: Vec<AdviceSite>,
}

/// Code that allocates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AdviceSite {
    /// The bytes of the advice that it has allocated: an estimate, by samples.
    pub bytes: u64,
    /// Its innermost functions in one line, without those of languages' libraries.
    pub line: String,
    /// The innermost function first.
    pub stack: Vec<String>,
}

/// A process at a moment, in bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Moment {
    /// From the first look on.
    pub seconds: f64,
    /// In blocks that the program holds.
    pub live: u64,
    /// In free blocks in threads' caches.
    pub cached: u64,
    /// What came through cairn and is resident.
    pub resident: u64,
}
