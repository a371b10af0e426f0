//! One core per thread, each executing an instruction or a few in its turn.

use crate::coherence::{Directory, Line};
use crate::probe::{self, Order, Ready, Shape};
use anyhow::{Context, Result, ensure};
use rustc_hash::{FxHashMap, FxHashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stepper::{Mnemonic, Registers, Step, Tracee, in_object};

/// Instructions in a turn, at most.
const QUANTUM: u64 = 4;
/// Turns that a pause lasts: a spinning allocator looks again soon, a waiting program has nothing
/// to do until another core has gone on.
const PAUSE: [u64; 2] = [200, 16];
/// Turns between two looks at threads in the kernel, and at the clock.
const LOOK: u64 = 16;
/// When to stop in any case.
const LIMIT: Duration = Duration::from_secs(300);

/// What is counted in a run.
#[derive(Default)]
pub struct Account {
    calls: u64,
    /// Instructions inside malloc and free.
    instructions: u64,
    /// Those with a lock.
    locked: u64,
    /// Moves by the program: its own queues, and what it writes into its blocks.
    program: u64,
    /// The allocator's moves of each line.
    lines: FxHashMap<Line, u64>,
    /// Lines that hold or held blocks.
    blocks: FxHashSet<Line>,
}

impl Account {
    /// The names of the figures: instructions, and those with a lock; the allocator's moves of lines of its own, and of
    /// the one that moves most; its moves of lines of blocks, for links and headers; the program's moves.
    pub const COLUMNS: [&str; 6] =
        ["instructions", "locked", "own", "hottest", "blocks", "program"];

    /// Pairs of a malloc and a free.
    pub fn operations(&self) -> u64 {
        self.calls / 2
    }

    /// The figures per operation, in the order of [`Self::COLUMNS`].
    pub fn figures(&self) -> [f64; 6] {
        let of = |wanted: bool| {
            let is_block = |line: &Line| self.blocks.contains(line);
            let lines = self.lines.iter().filter(move |(line, _)| is_block(line) == wanted);
            lines.map(|(_, moves)| *moves)
        };
        let (own, hottest) = (of(false).sum(), of(false).max().unwrap_or(0));
        [self.instructions, self.locked, own, hottest, of(true).sum(), self.program]
            .map(|count| count as f64 / self.operations().max(1) as f64)
    }
}

/// Has the executable `probe` run an order on `library`; without one, on the C library. So many
/// pairs of malloc and free are counted; a third as many run before.
pub fn run(probe: &Path, order: Order, operations: u64, library: Option<&Path>) -> Result<Account> {
    let least = if order.shape == Shape::Local { 1 } else { 2 };
    ensure!((least..=4096).contains(&order.threads), "{} threads", order.threads);
    // As it is given: behind a link there may be a path with a space, which `LD_PRELOAD` cannot hold.
    let preloaded = library.map(std::path::absolute).transpose()?;
    let mut child = spawn(probe, order, preloaded.as_deref())?;
    let library = library.map(|path| path.canonicalize().context(path.display().to_string()));
    let library = library.transpose()?;
    // If this fails the child's input ends, and so does the child.
    let ready = greeting(&mut child)?;
    let tracee = Tracee::attach(child, &ready.threads)?;
    tracee.write(ready.traced, &[1])?;
    let code = tracee.mappings()?;
    let is_its_own = |library| in_object(&code, library, ready.malloc);
    ensure!(library.as_deref().is_none_or(is_its_own), "malloc is another object's");
    Simulation::new(tracee, ready)?.run(operations)
}

fn spawn(probe: &Path, order: Order, library: Option<&Path>) -> Result<Child> {
    let mut command = Command::new(probe);
    command.env_clear().env(probe::ORDER, serde_json::to_string(&order)?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // Two libraries ask how many cores there are; they are told what they would make of one for each thread.
    command.env("MALLOC_CONF", format!("narenas:{}", 4 * order.threads));
    command.env("GLIBC_TUNABLES", format!("glibc.malloc.arena_max={}", 8 * order.threads));
    // Time goes on while threads stand still: nothing is given back by it.
    command.env("CAIRN_PURGE_DELAY", "1000000000s");
    command.envs(library.map(|library| ("LD_PRELOAD", library)));
    command.spawn().with_context(|| format!("cannot start {}", probe.display()))
}

/// The probe's one line, which says that it is warm.
fn greeting(child: &mut Child) -> Result<Ready> {
    let output = child.stdout.as_mut().context("the probe's output is a pipe")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    serde_json::from_str(&line).context("the probe ended early")
}

/// A call of malloc or free under way.
#[derive(Clone, Copy)]
struct Call {
    malloc: bool,
    /// malloc's argument.
    size: u64,
    /// The stack pointer at its first instruction.
    stack: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Running,
    /// Until a round.
    Asleep(u64),
    /// In the kernel.
    Blocked,
}

/// One core with its thread.
struct Core {
    registers: Registers,
    call: Option<Call>,
    state: State,
    /// The address of the last instruction.
    last: u64,
}

struct Simulation {
    tracee: Tracee,
    ready: Ready,
    cores: Vec<Core>,
    directory: Directory,
    account: Account,
    round: u64,
}

impl Simulation {
    fn new(tracee: Tracee, ready: Ready) -> Result<Simulation> {
        let core = |at| {
            let registers = tracee.registers(at)?;
            Ok(Core { registers, call: None, state: State::Running, last: 0 })
        };
        let cores = (0..ready.threads.len()).map(core).collect::<Result<_>>()?;
        let (directory, account) = Default::default();
        Ok(Simulation { cores, tracee, ready, directory, account, round: 0 })
    }

    fn run(mut self, operations: u64) -> Result<Account> {
        let mut random = fastrand::Rng::with_seed(1);
        let start = Instant::now();
        // A thread may have been stopped inside a system call, which then begins again.
        for at in 0..self.cores.len() {
            let stepped = self.tracee.step(at, true)?;
            self.cores[at].arrive(stepped);
        }
        for (operations, part) in [(operations / 3, 0.4), (operations, 1.0)] {
            let end = start + LIMIT.mul_f64(part);
            let blocks = std::mem::take(&mut self.account.blocks);
            self.account = Account { blocks, ..Account::default() };
            while self.account.operations() < operations && Instant::now() < end {
                for _ in 0..LOOK {
                    self.round(&mut random)?;
                }
                for at in 0..self.cores.len() {
                    if self.cores[at].state == State::Blocked {
                        // The thread runs on this core, too.
                        std::thread::yield_now();
                        let polled = self.tracee.poll(at)?;
                        self.cores[at].arrive(polled);
                    }
                }
            }
        }
        Ok(self.account)
    }

    fn round(&mut self, random: &mut fastrand::Rng) -> Result<()> {
        self.round += 1;
        for at in 0..self.cores.len() {
            if matches!(self.cores[at].state, State::Asleep(until) if until <= self.round) {
                self.cores[at].state = State::Running;
            }
            for _ in 0..random.u64(1..=QUANTUM) {
                if self.cores[at].state != State::Running {
                    break;
                }
                self.step(at)?;
            }
        }
        Ok(())
    }

    /// One instruction of one core.
    fn step(&mut self, at: usize) -> Result<()> {
        self.follow_calls(at)?;
        let core = &self.cores[at];
        let (code, inside) = (core.registers.rip, core.call.is_some());
        let step = self.tracee.decoded(code)?;
        if inside {
            // Each turn of a repeated string instruction is a step, all of them are one.
            self.account.instructions += u64::from(core.last != code);
            self.account.locked += u64::from(step.locked);
        }
        self.access_memory(at, &step);
        let stepped = self.tracee.step(at, step.mnemonic == Mnemonic::Syscall)?;
        let core = &mut self.cores[at];
        core.arrive(stepped);
        core.last = code;
        if step.mnemonic == Mnemonic::Pause {
            core.state = State::Asleep(self.round + PAUSE[usize::from(inside)]);
        }
        Ok(())
    }

    fn access_memory(&mut self, at: usize, step: &Step) {
        let core = &self.cores[at];
        for access in step.accesses(&core.registers) {
            for line in Line::spanning(access.address, access.size) {
                if !self.directory.access(at, line, access.write) {
                    continue;
                }
                if core.call.is_some() {
                    *self.account.lines.entry(line).or_default() += 1;
                } else {
                    self.account.program += 1;
                }
            }
        }
    }

    /// Notes that a call begins or has ended before the next instruction.
    fn follow_calls(&mut self, at: usize) -> Result<()> {
        let core = &mut self.cores[at];
        let Registers { rip, rsp, rdi, rax, .. } = core.registers;
        if let Some(call) = core.call
            && rsp > call.stack
        {
            core.call = None;
            self.account.calls += 1;
            if call.malloc {
                self.account.blocks.extend(Line::spanning(rax, call.size));
            }
        }
        let malloc = rip == self.ready.malloc;
        if core.call.is_none() && (malloc || rip == self.ready.free) {
            core.call = Some(Call { malloc, size: rdi, stack: rsp });
            if !malloc {
                // The probe's blocks begin with their size.
                let mut size = [0; 8];
                self.tracee.read(rdi, &mut size)?;
                self.account.blocks.extend(Line::spanning(rdi, u64::from_ne_bytes(size)));
            }
        }
        Ok(())
    }
}

impl Core {
    fn arrive(&mut self, stepped: Option<Registers>) {
        self.state = match stepped {
            Some(_) => State::Running,
            None => State::Blocked,
        };
        self.registers = stepped.unwrap_or(self.registers);
    }
}
