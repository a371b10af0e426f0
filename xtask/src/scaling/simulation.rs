//! One core per thread, each executing an instruction or a few in its turn.

use super::directory::{Directory, Line};
use anyhow::{Context, Result, ensure};
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stepper::{Mnemonic, Registers, Step, Tracee, in_object};

/// Instructions in a turn, at most.
const QUANTUM: u64 = 4;
/// Turns that a pause lasts: a spinning allocator looks again soon, a waiting program has nothing to do until another
/// core has gone on.
const PAUSE: [u64; 2] = [200, 16];
/// Turns between two looks at threads in the kernel, and at the clock.
const LOOK: u64 = 16;
/// Far beyond what a run takes, on a busy machine, too.
const LIMIT: Duration = Duration::from_secs(1800);

/// What was counted, for each pair of a malloc and a free.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Instructions with a lock.
    pub(super) locked: f64,
    /// Moves of the allocator's own lines.
    pub(super) own: f64,
    /// Those of the line that moves most.
    pub(super) hottest: f64,
    /// Moves by the allocator of lines of blocks, for links and headers.
    pub(super) blocks: f64,
}

/// What is counted in a run.
#[derive(Default)]
struct Account {
    calls: u64,
    locked: u64,
    /// The allocator's moves of each line.
    lines: HashMap<Line, u64>,
    /// Lines that hold or held blocks.
    blocks: HashSet<Line>,
}

impl Account {
    fn pairs(&self) -> u64 {
        self.calls / 2
    }

    fn figures(&self) -> Figures {
        let of = |wanted: bool| {
            let is_block = |line: &Line| self.blocks.contains(line);
            let lines = self.lines.iter().filter(move |(line, _)| is_block(line) == wanted);
            lines.map(|(_, moves)| *moves)
        };
        let each = |count: u64| count as f64 / self.pairs().max(1) as f64;
        Figures {
            locked: each(self.locked),
            own: each(of(false).sum()),
            hottest: each(of(false).max().unwrap_or(0)),
            blocks: each(of(true).sum()),
        }
    }
}

/// What the subject says of itself when it is warm.
struct Greeting {
    malloc: u64,
    free: u64,
    /// A byte that is to be 1 while it is traced.
    traced: u64,
    threads: Vec<i32>,
}

/// Has the subject run on `library`, an absolute path; without one, on the C library. So many pairs of malloc and free
/// are counted; a third as many run before.
pub(super) fn run(
    subject: &Path,
    (shape, threads): (&str, usize),
    pairs: u64,
    library: Option<&Path>,
) -> Result<Figures> {
    let mut child = spawn(subject, (shape, threads), library)?;
    // If this fails the child's input ends, and so does the child.
    let greeting = greeting(&mut child)?;
    let tracee = Tracee::attach(child, &greeting.threads)?;
    tracee.write(greeting.traced, &[1])?;
    let code = tracee.mappings()?;
    let library = library.map(Path::canonicalize).transpose()?;
    let is_its_own = |library| in_object(&code, library, greeting.malloc);
    ensure!(library.as_deref().is_none_or(is_its_own), "malloc is another object's");
    Simulation::new(tracee, greeting)?.run(pairs)
}

fn spawn(subject: &Path, (shape, threads): (&str, usize), library: Option<&Path>) -> Result<Child> {
    let mut command = Command::new(subject);
    command.args([shape, &threads.to_string()]).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // Two libraries ask how many cores there are; they are told what they would make of one for each thread.
    command.env("MALLOC_CONF", format!("narenas:{}", 4 * threads));
    command.env("GLIBC_TUNABLES", format!("glibc.malloc.arena_max={}", 8 * threads));
    // Time goes on while threads stand still: nothing is given back by it.
    command.env("CAIRN_PURGE_DELAY", "1000000000s");
    command.envs(library.map(|library| ("LD_PRELOAD", library)));
    command.spawn().with_context(|| format!("cannot start {}", subject.display()))
}

fn greeting(child: &mut Child) -> Result<Greeting> {
    let output = child.stdout.as_mut().context("the subject's output is a pipe")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let numbers = line.split_whitespace().map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
    let [malloc, free, traced, ref threads @ ..] = numbers[..] else {
        anyhow::bail!("the subject ended early")
    };
    let threads = threads.iter().map(|&thread| i32::try_from(thread)).collect::<Result<_, _>>()?;
    Ok(Greeting { malloc, free, traced, threads })
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
}

struct Simulation {
    tracee: Tracee,
    greeting: Greeting,
    cores: Vec<Core>,
    directory: Directory,
    account: Account,
    round: u64,
    /// How many instructions are in a core's next turn: a generator of the kind xorshift.
    random: u64,
}

impl Simulation {
    fn new(tracee: Tracee, greeting: Greeting) -> Result<Simulation> {
        let core = |at| {
            let registers = tracee.registers(at)?;
            Ok(Core { registers, call: None, state: State::Running })
        };
        let cores = (0..greeting.threads.len()).map(core).collect::<Result<_>>()?;
        let (directory, account) = Default::default();
        Ok(Simulation { cores, tracee, greeting, directory, account, round: 0, random: 1 })
    }

    fn run(mut self, pairs: u64) -> Result<Figures> {
        let start = Instant::now();
        // A thread may have been stopped inside a system call, which then begins again.
        for at in 0..self.cores.len() {
            let stepped = self.tracee.step(at, true)?;
            self.cores[at].arrive(stepped);
        }
        for pairs in [pairs / 3, pairs] {
            let blocks = std::mem::take(&mut self.account.blocks);
            self.account = Account { blocks, ..Account::default() };
            while self.account.pairs() < pairs {
                ensure!(start.elapsed() < LIMIT, "no end within {LIMIT:?}");
                for _ in 0..LOOK {
                    self.round()?;
                }
                self.look_at_the_blocked()?;
            }
        }
        Ok(self.account.figures())
    }

    fn look_at_the_blocked(&mut self) -> Result<()> {
        for at in 0..self.cores.len() {
            if self.cores[at].state == State::Blocked {
                // The thread runs on this core, too.
                std::thread::yield_now();
                let polled = self.tracee.poll(at)?;
                self.cores[at].arrive(polled);
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        self.round += 1;
        for at in 0..self.cores.len() {
            if matches!(self.cores[at].state, State::Asleep(until) if until <= self.round) {
                self.cores[at].state = State::Running;
            }
            for _ in 0..self.turn() {
                if self.cores[at].state != State::Running {
                    break;
                }
                self.step(at)?;
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + self.random % QUANTUM
    }

    /// One instruction of one core.
    fn step(&mut self, at: usize) -> Result<()> {
        self.follow_calls(at)?;
        let core = &self.cores[at];
        let inside = core.call.is_some();
        let step = self.tracee.decoded(core.registers.rip)?;
        self.account.locked += u64::from(inside && step.locked);
        self.access_memory(at, &step);
        let stepped = self.tracee.step(at, step.mnemonic == Mnemonic::Syscall)?;
        let core = &mut self.cores[at];
        core.arrive(stepped);
        if step.mnemonic == Mnemonic::Pause {
            core.state = State::Asleep(self.round + PAUSE[usize::from(inside)]);
        }
        Ok(())
    }

    /// The program's accesses matter, too: its own queues, and what it writes into its blocks.
    fn access_memory(&mut self, at: usize, step: &Step) {
        let core = &self.cores[at];
        for access in step.accesses(&core.registers) {
            for line in Line::spanning(access.address, access.size) {
                if self.directory.access(at, line, access.write) && core.call.is_some() {
                    *self.account.lines.entry(line).or_default() += 1;
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
        let malloc = rip == self.greeting.malloc;
        if core.call.is_none() && (malloc || rip == self.greeting.free) {
            core.call = Some(Call { malloc, size: rdi, stack: rsp });
            if !malloc {
                // The subject's blocks begin with their size.
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
