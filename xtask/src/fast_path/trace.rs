//! Runs the subject under ptrace and counts what it executes between its marks.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stepper::{FlowControl, MapRange, Mnemonic, Step, Stop, Tracee, in_object};

/// What one call executed inside the library under test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub(super) struct Counts {
    /// Instructions of any kind; a `rep` string instruction is one.
    pub(super) instructions: u64,
    /// Instructions that read memory; `ret` apart.
    pub(super) loads: u64,
    /// Instructions that write memory; the return address a `call` pushes apart.
    pub(super) stores: u64,
    /// Jumps, conditional or not.
    pub(super) branches: u64,
    /// Calls.
    pub(super) calls: u64,
    /// Instructions in other libraries on the way: `memset`, the loader's TLS helper.
    #[serde(skip)]
    pub(super) outside: u64,
}

impl Counts {
    /// Those that the golden table has, by their names.
    pub(super) fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("instructions", self.instructions),
            ("loads", self.loads),
            ("stores", self.stores),
            ("branches", self.branches),
            ("calls", self.calls),
        ]
    }

    fn add(&mut self, step: &Step) {
        use FlowControl::{
            Call, ConditionalBranch, IndirectBranch, IndirectCall, Return, UnconditionalBranch,
        };
        let call = matches!(step.flow, Call | IndirectCall);
        let branch = matches!(step.flow, ConditionalBranch | UnconditionalBranch | IndirectBranch);
        self.instructions += 1;
        self.loads += u64::from(step.reads() && step.flow != Return);
        self.stores += u64::from(step.writes() && !call);
        self.branches += u64::from(branch);
        self.calls += u64::from(call);
    }
}

impl Display for Counts {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        let Counts { instructions, loads, stores, branches, calls, outside } = self;
        write!(text, "{instructions:>3} {loads}/{stores}/{branches}/{calls}")?;
        if *outside > 0 { write!(text, " +{outside}") } else { Ok(()) }
    }
}

/// The values of rax at the subject's marks.
const BEGIN: u64 = 1;
const END: u64 = 2;
/// The exit status of a subject that did not find one of its functions.
const ABSENT: i32 = 77;

/// Runs `subject` with `arguments` and returns what it executed between its marks, in order, for
/// each of its two series; nothing when the function called is not the library's own. The library is
/// preloaded, its path absolute and without symbolic links; without one it is the C library.
pub(super) fn run<'a>(
    subject: &Path,
    arguments: impl Iterator<Item = &'a str>,
    library: Option<&Path>,
) -> Result<[Vec<Counts>; 2]> {
    let mut command = Command::new(subject);
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    command.envs(library.map(|library| ("LD_PRELOAD", library)));
    let mut tracee = Tracee::start(&mut command)?;
    let mut map = Map { mappings: Vec::new(), library: PathBuf::new(), subject: subject.into() };
    let mut counted = [Vec::new(), Vec::new()];
    loop {
        match tracee.resume()? {
            Stop::Exited(0) => return Ok(counted),
            Stop::Exited(ABSENT) => return Ok(Default::default()),
            Stop::Exited(status) => bail!("the traced program exited with status {status}"),
            Stop::Breakpoint => {}
        }
        let registers = tracee.registers(0)?;
        if registers.rax != BEGIN {
            continue;
        }
        if map.mappings.is_empty() {
            map.mappings = tracee.mappings()?;
            let is_it = |path: &&Path| match library {
                None => path.ends_with("libc.so.6"),
                Some(library) => *path == library,
            };
            let found = map.mappings.iter().filter_map(MapRange::filename).find(is_it);
            map.library = found.context("the library under test was not loaded")?.to_owned();
        }
        if !in_object(&map.mappings, &map.library, registers.rsi) {
            return Ok(Default::default());
        }
        counted[registers.rdi as usize].push(count(&mut tracee, &map)?);
    }
}

/// What is mapped where, and the two files that matter.
struct Map {
    mappings: Vec<MapRange>,
    library: PathBuf,
    subject: PathBuf,
}

/// Counts from the present mark to the next.
fn count(tracee: &mut Tracee, map: &Map) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut registers = tracee.registers(0)?;
    let mut previous = 0;
    let in_library = |address| in_object(&map.mappings, &map.library, address);
    let in_subject = |address| in_object(&map.mappings, &map.subject, address);
    loop {
        let address = registers.rip;
        let step = tracee.decoded(address)?;
        if step.mnemonic == Mnemonic::Int3 && in_subject(address) {
            ensure!(registers.rax == END, "a mark inside a counted stretch");
            registers.rip += 1;
            tracee.set_registers(0, registers)?;
            return Ok(counts);
        }
        if !(step.repeated && address == previous) {
            if in_library(address) {
                counts.add(&step);
            } else if !in_subject(address) {
                counts.outside += 1;
            }
        }
        previous = address;
        registers = tracee.step(0, false)?.context("the program has stopped")?;
    }
}
