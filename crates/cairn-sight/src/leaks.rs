//! Owns: the report of leaks: which blocks of a target no pointer leads to.
//! Idea: words of the program's memory that look like pointers count as such, from its data, stacks and registers on through
//!   live blocks. What is not found so is lost, unless a pointer is hidden.
//! Never: stops the target; has more of it in memory than a piece, and some bits for each block.
//! Threads: one.
//! Checked: tests/leaks.rs and tests/hostile.rs of the command.
//! Story: docs/guide/leaks.md

mod lost;
mod roots;
mod search;
mod stacks;
mod table;
mod words;

use crate::account::Target;
use crate::core_file::Core;
use crate::memory::{Memory, Pages};
use crate::process::{Process, Registers};
use crate::profile;
use crate::symbol::{self, Found};
use crate::{Error, Source, blocks, build_id, largest, walk};
use lost::{Before, Lost};
use search::Search;
use serde::{Serialize, Serializer};
use stacks::Stacks;
use std::path::Path;
use std::time::Duration;
use table::Table;
use words::{Reader, words};

/// The version of the fields' meaning.
const SCHEMA: u32 = 1;
/// Bytes of a block that are shown.
const SHOWN: usize = 32;

/// Which blocks of a target are lost. More fields may be added.
#[derive(Clone, Debug, Serialize)]
pub struct Leaks {
    /// The version of these fields' meaning.
    pub schema: u32,
    /// What was read.
    pub target: Target,
    /// Pointers to their starts lead to these.
    pub reachable: Sum,
    /// Only pointers into them, or into a block before them, do.
    pub possibly: Sum,
    /// To these nothing points, or only what they lead to.
    pub direct: Sum,
    /// Only other lost blocks lead to these.
    pub indirect: Sum,
    /// Lost blocks, by size.
    pub classes: Vec<LostRow>,
    /// Those that are lost directly, with the most bytes that are lost by them.
    pub biggest: Vec<LostBlock>,
    /// Which code has allocated lost blocks, by samples.
    pub stacks: Vec<LostStack>,
    /// What could not be known.
    pub notes: Vec<String>,
}

/// Blocks, and bytes that they have room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Their number.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Lost blocks of a size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LostRow {
    /// Bytes of each; none: large blocks.
    pub size: Option<u64>,
    /// Lost directly.
    pub direct: Sum,
    /// Lost indirectly.
    pub indirect: Sum,
}

/// A block that is lost directly.
#[derive(Clone, Debug, Serialize)]
pub struct LostBlock {
    /// Where it starts.
    pub address: u64,
    /// Bytes that it has room for.
    pub bytes: u64,
    /// What is lost indirectly by it.
    pub leads_to: Sum,
    /// Its first bytes, in hexadecimal.
    #[serde(serialize_with = "hexadecimal")]
    pub begins: Vec<u8>,
    /// Which code has allocated it, if it is a sample: the innermost function first.
    pub stack: Vec<String>,
}

/// What one stack has allocated of lost blocks: an estimate, by samples.
#[derive(Clone, Debug, Serialize)]
pub struct LostStack {
    /// Blocks.
    pub blocks: f64,
    /// Bytes.
    pub bytes: f64,
    /// The innermost function first.
    pub stack: Vec<String>,
}

impl LostBlock {
    /// By this they are sorted: those with the most bytes first.
    fn order(&self) -> (std::cmp::Reverse<u64>, u64) {
        (std::cmp::Reverse(self.bytes + self.leads_to.bytes), self.address)
    }
}

fn hexadecimal<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    to.serialize_str(&text)
}

/// Finds the lost blocks of a target. Of a process that runs, with a pause, those that are lost before and after it.
///
/// # Errors
/// The target cannot be read, or has no cairn.
pub fn leaks(source: &Source, pause: Option<Duration>) -> Result<Leaks, Error> {
    match source {
        Source::Core(path) => of_core(path),
        Source::Process(pid) => of_process(*pid, pause),
    }
}

fn of_core(path: &Path) -> Result<Leaks, Error> {
    let core = Core::open(path)?;
    let found =
        symbol::find(&mut symbol::Files::default(), core.areas(), |path, _| path.to_owned());
    let leaks = search(&core, found, &core.registers, None, tell);
    let mut leaks = leaks.map_err(|error| core.reason(error))?;
    leaks.notes.extend(core.cut_off.as_ref().map(Error::to_string));
    if core.registers.stacks.iter().all(|&end| end == 0) {
        leaks.notes.push("the core file has no registers".to_owned());
    }
    Ok(leaks)
}

fn of_process(pid: u32, pause: Option<Duration>) -> Result<Leaks, Error> {
    let before = match pause {
        None => None,
        Some(pause) => {
            let before = look(pid, None, |search, _| search.before())?;
            std::thread::sleep(pause);
            Some(before)
        }
    };
    let is_first = before.is_none();
    let leaks = look(pid, before.as_ref(), tell);
    let mut leaks = leaks.map_err(|error| if is_first { error } else { error.later() })?;
    let note = match before {
        Some(_) => "what is told was lost in two looks",
        None => {
            "the program ran on while it was read, so that this is a guess: --again 5 looks twice"
        }
    };
    leaks.notes.push(note.to_owned());
    leaks
        .notes
        .push("registers of threads that wait are not known, but for what they wait with".into());
    Ok(leaks)
}

/// Looks at a process.
fn look<T>(
    pid: u32,
    before: Option<&Before>,
    tell: impl FnOnce(&mut Search<'_>, &Heap<'_>) -> T,
) -> Result<T, Error> {
    let process = Process::open(pid)?;
    let place = |path: &Path, area: &_| process.file(path, area);
    let found = symbol::find(&mut symbol::Files::default(), process.areas(), place);
    let registers = process.registers();
    search(&process, found, &registers, before, |search, heap| {
        let mut heap = heap.clone();
        heap.target.pid = Some(pid);
        heap.target.program = Some(process.name());
        tell(search, &heap)
    })
}

/// What is known of a heap besides its blocks.
#[derive(Clone)]
struct Heap<'a> {
    samples: Option<&'a profile::Table<'a>>,
    target: Target,
    reachable: Sum,
    possibly: Sum,
    notes: Vec<String>,
}

/// Searches a target, until it is known which blocks are lost.
fn search<T>(
    memory: &dyn Memory,
    mut found: Found,
    registers: &Registers,
    before: Option<&Before>,
    tell: impl FnOnce(&mut Search<'_>, &Heap<'_>) -> T,
) -> Result<T, Error> {
    found.confirm(memory);
    let (header, copy) = largest(memory, found)?;
    let pages = Pages::of(memory, header.window())?;
    let census = walk::census(memory, &header)?;
    let free = blocks::find(memory, &header, &census.spans, &pages, u64::MAX)?;
    let swapped = memory.areas().iter().map(|area| area.swapped).sum();
    let (table, live) = Table::new(&header, &census, &free, &pages, swapped)?;
    drop(free);
    let samples = profile::Table::find(memory, header.profile);
    let tables = samples.as_ref().map(profile::Table::range);
    let roots = roots::roots(memory, &header, &census, tables, &registers.stacks);
    let notes = notes(swapped, &census);
    drop(census);
    let reader = Reader { memory, window: header.window(), pages: &pages };
    let mut search = Search::new(&reader, &table, live);
    registers.words.iter().for_each(|&word| search.word(word));
    for root in &roots {
        reader.range(root, &mut |bytes| words(bytes).for_each(|word| search.word(word)));
    }
    search.take_closed();
    search.follow();
    let (reachable, possibly) = search.sums();
    // What has been freed meanwhile is not lost.
    let census = walk::census(memory, &header)?;
    let free = blocks::find(memory, &header, &census.spans, &pages, u64::MAX)?;
    table.retain(&header, &census, &free, &mut search.marks.live);
    search.leave_lost(header.key, before);
    let (library, hardened) = (symbol::shown(&copy.path), header.is_hardened());
    let build = build_id::of(memory, copy.base);
    let target = Target { library, build, hardened, ..Target::default() };
    let samples = samples.as_ref();
    let heap = Heap { samples, target, reachable, possibly, notes };
    Ok(tell(&mut search, &heap))
}

/// The report of a search.
fn tell(search: &mut Search<'_>, heap: &Heap<'_>) -> Leaks {
    let memory = search.reader.memory;
    let mut stacks = Stacks::new(memory, heap.samples);
    let told = stacks.of_lost(&|at| search.is_lost(at));
    let Lost { rows, direct, indirect, mut biggest } = search.count_lost();
    stacks.name(&mut biggest);
    for block in &mut biggest {
        let mut begins = vec![0; SHOWN.min(block.bytes as usize)];
        if memory.read(block.address, &mut begins) {
            block.begins = begins;
        }
    }
    let mut notes = heap.notes.clone();
    if heap.samples.is_none() {
        notes.push("there is no heap profile, which would know stacks: cairn run --profile".into());
    }
    Leaks {
        schema: SCHEMA,
        target: heap.target.clone(),
        reachable: heap.reachable,
        possibly: heap.possibly,
        direct,
        indirect,
        classes: rows.into_values().collect(),
        biggest,
        stacks: told,
        notes,
    }
}

/// What could not be known.
fn notes(swapped: u64, census: &walk::Census) -> Vec<String> {
    let mut notes = Vec::new();
    if swapped > 0 {
        notes.push(format!(
            "{swapped} bytes are swapped out and not read: what only they point to is told as lost"
        ));
    }
    if census.unsteady > 0 {
        notes.push(format!("{} spans changed while they were read", census.unsteady));
    }
    notes
}
