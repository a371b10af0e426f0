//! Reads the heap of a process on cairn from outside: alive, or from its core file.
//!
//! Owns: the way from a process number or a file to an [`Account`], and from a heap profile to its names; pages of both.
//! Idea: metadata is plain data at computed addresses (`cairn_header`); what is read is checked, and what is not resident
//!   is not read.
//! Never: writes, or stops anybody; depends on the allocator.
//! Threads: one.
//! Checked: tests/inspect.rs and tests/hostile.rs of the command.
//! Story: docs/design/outside-view.md, docs/guide/inspect.md

mod account;
mod advice;
mod asked;
mod blocks;
mod build_id;
mod clock;
mod core_file;
mod curve;
mod difference;
mod elf;
mod glance;
mod header;
mod leaks;
mod limits;
mod map;
mod memory;
mod page;
mod process;
pub mod profile;
mod sums;
mod suspects;
mod symbol;
mod threads;
mod walk;
mod watch;

pub use account::{
    Account, Advice, AdviceSite, BlockRow, ClassRow, Floor, HeapRow, Held, Moment, Resident, Step,
    Target,
};

pub use difference::{Change, ClassChange, Difference, difference};
pub use glance::{Glance, Part, Use};
pub use header::VERSION as HEADER_VERSION;
pub use leaks::{Leaks, LostBlock, LostRow, LostStack, Sum, leaks};
pub use map::HeapMap;
pub use page::{BASE_STYLE, account_page};
pub use process::task_of;
pub use watch::{Round, Unread, Watch};

use asked::{Asked, By};
use core_file::Core;
use curve::Curve;
use header::Header;
use memory::{Memory, Pages};
use process::Process;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use suspects::{Before, Grown};
use symbol::{Copy, Found};

/// Files that an error names.
const NAMES: usize = 5;
/// The version of the fields' meaning in [`Account`].
pub const SCHEMA: u32 = 1;

/// Why a target cannot be read. Each text names the remedy, where there is one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Nobody has that number.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// It has ended, or is the kernel's.
    #[error("process {0} has no memory: it has ended, or is the kernel's")]
    NoMemory(u32),
    /// It was there at an earlier look.
    #[error("process {0} has ended")]
    Ended(u32),
    /// The user may not.
    #[error("not permitted to read process {0}: {1}")]
    NotPermitted(u32, String),
    /// Something else is in the way.
    #[error("process {0} cannot be read: {1}")]
    Unreadable(u32, String),
    /// A file cannot be opened.
    #[error("{path}: {why}")]
    File {
        /// Its name.
        path: String,
        /// What the system says.
        why: String,
    },
    /// A file is no core file.
    #[error("{0} is no core file of this kind of machine")]
    NoCore(String),
    /// A core file ends before its segments do.
    #[error("the core file is cut off: it has {there} of {whole} bytes")]
    CutOff {
        /// How long it is.
        there: u64,
        /// How long it should be.
        whole: u64,
    },
    /// No file of the target leads to a header.
    #[error("no cairn in it{}", listed("; not found as the process ran them: ", missing))]
    NoCairn {
        /// Files that are not here, or are others than those of the target.
        missing: Vec<String>,
    },
    /// Its first version is its own, the other one what is read.
    #[error(
        "its cairn has version {0} of the header; this command reads version {1}: use the command of that cairn"
    )]
    Version(u32, u32),
    /// The header lacks fields.
    #[error(
        "its cairn is older: its header has {0} bytes and does not say enough; use the command of that cairn"
    )]
    Older(u32),
    /// One of these, and which cairn that is.
    #[error("{why}, which is in {}{}", path.escape_debug(), numbered(build.as_ref()))]
    Needs {
        /// What is in the way.
        why: Box<Error>,
        /// Its file.
        path: String,
        /// The number that the linker has given that.
        build: Option<String>,
    },
    /// Nothing has been allocated.
    #[error("its cairn is not in use: nothing has been allocated yet")]
    Unused,
    /// What is read makes no sense.
    #[error("its heap is damaged, or no heap of cairn's: {0}")]
    Damaged(&'static str),
}

impl Error {
    /// The same at a later look: what has been there has ended.
    pub(crate) fn later(self) -> Error {
        match self {
            Error::NoProcess(pid) | Error::NoMemory(pid) => Error::Ended(pid),
            other => other,
        }
    }
}

fn numbered(build: Option<&String>) -> String {
    build.map_or(String::new(), |build| format!(" (build {build})"))
}

/// Names of files, of which some may be the target's invention.
fn listed(what: &str, names: &[String]) -> String {
    let some: Vec<_> =
        names.iter().take(NAMES).map(|name| name.escape_debug().to_string()).collect();
    match names.len() {
        0 => String::new(),
        1..=NAMES => format!("{what}{}", some.join(", ")),
        many => format!("{what}{} and {} more", some.join(", "), many - NAMES),
    }
}

/// What is to be read.
#[derive(Clone, Debug)]
pub enum Source {
    /// A process that runs.
    Process(u32),
    /// A core file.
    Core(PathBuf),
}

/// Opens a file that a process has mapped at `area`, as the process sees it; None unless it is a regular file that can be
/// read.
pub fn mapped_file(pid: u32, path: &Path, area: &Range<u64>) -> Option<File> {
    symbol::open(&process::file(pid, path, area))
}

/// Draws up the account of a target.
pub fn inspect(source: &Source) -> Result<Account, Error> {
    inspect_and(source, &mut |_| {})
}

/// The same, and a map of its heap.
pub fn inspect_with_map(source: &Source) -> Result<(Account, HeapMap), Error> {
    let mut map = HeapMap::default();
    let account = inspect_and(source, &mut |found| map = HeapMap::of(found))?;
    Ok((account, map))
}

/// The same of a process that is looked at for so long first.
pub fn inspect_over(pid: u32, time: Duration) -> Result<(Account, HeapMap), Error> {
    let before = Before::of(pid);
    let curve = Curve::of(pid, time)?;
    let (mut map, mut grown) = (HeapMap::default(), None);
    let account = inspect_and(&Source::Process(pid), &mut |found| {
        map = HeapMap::of(found);
        grown = before.as_ref().and_then(|before| Grown::of(found, before));
    });
    let mut account = account.map_err(Error::later)?;
    let suspects = curve.suspects(&mut grown.unwrap_or_default());
    if !suspects.is_empty() {
        // What one look supposes is known better.
        account.advice.retain(|advice| !["nothing", "leak possible"].contains(&&*advice.kind));
        account.advice.splice(..0, suspects);
    }
    if curve.is_sparse() {
        let note = "there were too few looks to suspect a leak, for each took long: watch longer";
        account.notes.push(note.to_owned());
    }
    account.curve = curve.moments;
    Ok((account, map))
}

/// Who looks at what an account is made of.
type Look<'a> = &'a mut dyn FnMut(&sums::Found<'_>);

fn inspect_and(source: &Source, look: Look<'_>) -> Result<Account, Error> {
    match source {
        Source::Process(pid) => inspect_process(*pid, look),
        Source::Core(path) => inspect_core(path, look),
    }
}

fn inspect_process(pid: u32, look: Look<'_>) -> Result<Account, Error> {
    let process = Process::open(pid)?;
    let mut files = symbol::Files::default();
    let found = symbol::find(&mut files, process.areas(), |path, area| process.file(path, area));
    let (mut account, header) = account(&process, found, look)?;
    let names = process.thread_names();
    let heaps = threads::heaps(&process, &header, &names.keys().copied().collect());
    name_threads(&mut account, &heaps);
    for row in &mut account.heaps {
        row.thread_name = row.thread.and_then(|thread| names.get(&thread).cloned());
    }
    let threads = process.threads();
    account.target.pid = Some(pid);
    account.target.program = Some(process.name());
    account.target.threads = Some((threads.all, threads.asleep));
    account.resident.kernel = process.resident();
    account.advice = advice::advice(&account, &limits::limits(pid));
    Ok(account)
}

fn inspect_core(path: &Path, look: Look<'_>) -> Result<Account, Error> {
    let core = Core::open(path)?;
    let found =
        symbol::find(&mut symbol::Files::default(), core.areas(), |path, _| path.to_owned());
    let (mut account, header) = account(&core, found, look).map_err(|error| core.reason(error))?;
    name_threads(&mut account, &threads::heaps(&core, &header, &core.threads));
    account.advice = advice::advice(&account, &[]);
    account.notes.push("a core file: resident is what is in the file".to_owned());
    account.notes.extend(core.cut_off.as_ref().map(Error::to_string));
    Ok(account)
}

/// Says whose heaps are.
fn name_threads(account: &mut Account, heaps: &BTreeMap<u64, u32>) {
    for row in &mut account.heaps {
        row.thread = row.heap.and_then(|heap| heaps.get(&heap).copied());
    }
}

/// The account of the copy of cairn that has the most.
fn account(
    memory: &dyn Memory,
    mut found: Found,
    look: Look<'_>,
) -> Result<(Account, Header), Error> {
    found.confirm(memory);
    let count = found.copies.len();
    let (header, copy) = largest(memory, found)?;
    let mut account = draw_up(memory, &header, &copy.path, look)?;
    account.target.build = build_id::of(memory, copy.base);
    if count > 1 {
        account.notes.push(format!("{count} copies of cairn are in it; this is the largest heap"));
    }
    Ok((account, header))
}

/// Of the copies that are confirmed the one that has the most, with its header.
fn largest(memory: &dyn Memory, found: Found) -> Result<(Header, Copy), Error> {
    let mut best: Option<(Header, &Copy)> = None;
    let mut failure = None;
    for copy in &found.copies {
        match Header::read(memory, copy.at) {
            Ok(header) if best.as_ref().is_none_or(|best| best.0.committed < header.committed) => {
                best = Some((header, copy));
            }
            Ok(_) => {}
            Err(error @ (Error::Version(..) | Error::Older(_))) => {
                let build = build_id::of(memory, copy.base);
                let (why, path) = (Box::new(error), symbol::shown(&copy.path));
                failure = Some(Error::Needs { why, path, build });
            }
            Err(error) => failure = Some(error),
        }
    }
    match best {
        Some((header, copy)) => Ok((header, copy.clone())),
        None => Err(failure.unwrap_or_else(|| found.nothing())),
    }
}

fn draw_up(
    memory: &dyn Memory,
    header: &Header,
    library: &Path,
    look: Look<'_>,
) -> Result<Account, Error> {
    let pages = Pages::of(memory, header.window())?;
    let census = walk::census(memory, header)?;
    let blocks = blocks::find(memory, header, &census.spans, &pages, blocks::LOOK_MAX)?;
    let asked = asked::find(asked::Target {
        memory,
        header,
        spans: &census.spans,
        blocks: &blocks,
        pages: &pages,
        library,
    });
    let found = sums::Found {
        memory,
        header,
        census: &census,
        blocks: &blocks,
        asked: asked.as_ref(),
        pages: &pages,
        library,
    };
    let sums = found.sums();
    look(&found);
    let notes = notes(header, &census, &blocks, asked.as_ref());
    Ok(Account {
        schema: SCHEMA,
        target: Target {
            pid: None,
            program: None,
            library: symbol::shown(library),
            build: None,
            hardened: header.is_hardened(),
            threads: None,
        },
        held: sums.held,
        steps: sums.steps,
        resident: sums.resident,
        floor: sums.floor,
        classes: sums.classes,
        heaps: sums.heaps,
        biggest: sums.biggest,
        advice: suspects::by_age(memory, header).into_iter().collect(),
        curve: Vec::new(),
        notes,
    })
}

/// What could not be known.
fn notes(
    header: &Header,
    census: &walk::Census,
    blocks: &blocks::Blocks,
    asked: Option<&Asked>,
) -> Vec<String> {
    let mut notes = Vec::new();
    match asked.map(|asked| asked.by) {
        None => notes.push(
            "what was asked for is not known, for no heap profile is on: blocks count with all their room"
                .to_owned(),
        ),
        Some(By::Reading(1)) => {}
        Some(By::Reading(many)) => {
            notes.push(format!("what was asked for is estimated from one block in {many}"));
        }
        Some(By::Samples(count)) => notes.push(format!(
            "what was asked for is estimated from {count} samples of the heap profile"
        )),
    }
    if header.is_hardened() {
        notes.push("the hardened build does not say which heap has what is cached".to_owned());
    }
    if blocks.one_in > 1 {
        notes.push(format!("the floor is estimated from one span in {}", blocks.one_in));
    }
    if !census.nurseries.is_empty() {
        notes.push("blocks in nurseries are not counted one by one: their slices are".to_owned());
    }
    if census.unsteady > 0 {
        notes.push(format!("{} spans changed while they were read", census.unsteady));
    }
    if census.supplied > 0 {
        notes.push("regions of the program's are not in the account".to_owned());
    }
    notes
}
