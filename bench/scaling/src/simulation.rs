//! One core per thread, each executing an instruction or a few in its turn.

use crate::account::{self, Account, Cause};
use crate::coherence::{Directory, Line, Outcome};
use crate::places::Places;
use crate::probe::{Order, Ready, Shape, Users};
use anyhow::{Context, Result, ensure};
use rustc_hash::FxHashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stepper::{Registers, Step, Tracee};

/// Instructions in a turn, at most.
const QUANTUM: u64 = 4;
/// Turns that a pause in the allocator lasts.
const PAUSE: u64 = 16;
/// Turns that a waiting program sleeps at most, if nobody writes what it waits for.
const PATIENCE: u64 = 1000;
/// Turns between two looks at threads asleep in the kernel, and at the clock.
const LOOK: u64 = 16;

/// What to simulate, and how long.
pub struct Plan {
    /// The executable that is the probe.
    pub probe: PathBuf,
    /// Who frees what.
    pub shape: Shape,
    /// How many threads.
    pub threads: usize,
    /// Bytes in a block.
    pub size: usize,
    /// Pairs of malloc and free before the count.
    pub settle: u64,
    /// Pairs that are counted.
    pub operations: u64,
    /// When to stop in any case.
    pub limit: Duration,
    /// Seed of the turns' lengths.
    pub seed: u64,
}

/// Runs a simulation of `library`; without one, of the C library. The counts, and where the
/// addresses in them are.
pub fn run(plan: &Plan, library: Option<&Path>) -> Result<(Account, Places)> {
    let least = if plan.shape == Shape::Local { 1 } else { 2 };
    ensure!((least..=4096).contains(&plan.threads), "{} threads", plan.threads);
    let library = library.map(|path| path.canonicalize().context(path.display().to_string()));
    let library = library.transpose()?;
    let mut child = spawn(plan, library.as_deref())?;
    let ready = match greeting(&mut child) {
        Ok(ready) => ready,
        Err(error) => {
            // Without its greeting there is nothing to be traced.
            child.kill().and_then(|()| child.wait())?;
            return Err(error);
        }
    };
    let tracee = Tracee::attach(child, &ready.threads)?;
    tracee.write(ready.noting, &[0])?;
    let places = Places::new(tracee.mappings()?);
    let is_its_own = |library| places.object(ready.malloc) == Some(library);
    ensure!(library.as_deref().is_none_or(is_its_own), "malloc is another object's");
    Ok((Simulation::new(tracee, ready, plan)?.run(plan)?, places))
}

fn spawn(plan: &Plan, library: Option<&Path>) -> Result<Child> {
    let warm_up = (200_000 / plan.threads as u64).max(4_000);
    let order = Order { shape: plan.shape, threads: plan.threads, size: plan.size, warm_up };
    let mut command = Command::new(&plan.probe);
    command.arg("probe").args(order.words());
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    // Two libraries ask how many cores there are; they are told what they would make of one
    // for each thread.
    command.env("MALLOC_CONF", format!("narenas:{}", 4 * plan.threads));
    command.env("GLIBC_TUNABLES", format!("glibc.malloc.arena_max={}", 8 * plan.threads));
    // Time goes on while threads stand still: nothing is given back by it.
    command.env("CAIRN_PURGE_DELAY", "1000000000s");
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command.spawn().with_context(|| format!("cannot start {}", plan.probe.display()))
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
    /// Until a round, or until another core writes the line.
    Asleep(u64, Option<Line>),
    /// In the kernel.
    Blocked,
}

/// One core with its thread.
struct Core {
    registers: Registers,
    call: Option<Call>,
    state: State,
    /// The last instruction, and the line it read or wrote.
    last: (u64, Option<Line>),
}

struct Simulation {
    tracee: Tracee,
    ready: Ready,
    cores: Vec<Core>,
    directory: Directory,
    /// Lines that hold or held blocks.
    blocks: FxHashSet<Line>,
    account: Account,
    round: u64,
}

impl Simulation {
    fn new(tracee: Tracee, ready: Ready, plan: &Plan) -> Result<Simulation> {
        let core = |at| {
            let registers = tracee.registers(at)?;
            Ok(Core { registers, call: None, state: State::Running, last: (0, None) })
        };
        Ok(Simulation {
            cores: (0..plan.threads).map(core).collect::<Result<_>>()?,
            tracee,
            ready,
            directory: Directory::default(),
            blocks: FxHashSet::default(),
            account: Account::default(),
            round: 0,
        })
    }

    fn run(mut self, plan: &Plan) -> Result<Account> {
        let mut random = fastrand::Rng::with_seed(plan.seed);
        let start = Instant::now();
        // A thread may have been stopped inside a system call, which then begins again.
        for at in 0..self.cores.len() {
            let stepped = self.tracee.step(at, true)?;
            self.cores[at].arrive(stepped);
        }
        for (goal, part) in [(plan.settle, 0.4), (plan.operations, 1.0)] {
            let end = start + plan.limit.mul_f64(part);
            self.account = Account::default();
            while self.account.operations() < goal && Instant::now() < end {
                for _ in 0..LOOK {
                    self.round(&mut random)?;
                }
                self.look_at_blocked()?;
            }
        }
        Ok(self.account)
    }

    fn round(&mut self, random: &mut fastrand::Rng) -> Result<()> {
        self.round += 1;
        let mut idle = true;
        for at in 0..self.cores.len() {
            if let State::Asleep(until, _) = self.cores[at].state
                && until <= self.round
            {
                self.cores[at].state = State::Running;
            }
            for _ in 0..random.u64(1..=QUANTUM) {
                if self.cores[at].state != State::Running {
                    break;
                }
                idle = false;
                self.step(at)?;
            }
        }
        if idle {
            self.skip_idle_rounds();
        }
        Ok(())
    }

    fn skip_idle_rounds(&mut self) {
        let ends = self.cores.iter().filter_map(|core| match core.state {
            State::Asleep(until, _) => Some(until),
            State::Running | State::Blocked => None,
        });
        match ends.min() {
            Some(first) => self.round = self.round.max(first.saturating_sub(1)),
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    fn look_at_blocked(&mut self) -> Result<()> {
        for (at, core) in self.cores.iter_mut().enumerate() {
            if core.state == State::Blocked {
                core.arrive(self.tracee.poll(at)?);
            }
        }
        Ok(())
    }

    /// One instruction of one core.
    fn step(&mut self, at: usize) -> Result<()> {
        self.follow_calls(at);
        let core = &self.cores[at];
        let (code, inside) = (core.registers.rip, core.call.is_some());
        let step = self.tracee.decoded(code)?;
        if inside {
            // Each turn of a repeated string instruction is a step, all of them are one.
            self.account.instructions += u64::from(core.last.0 != code);
            self.account.locked += u64::from(step.locked);
            self.account.system_calls += u64::from(step.is_system_call());
        }
        self.access_memory(at, code, &step);
        let stepped = self.tracee.step(at, step.is_system_call())?;
        let core = &mut self.cores[at];
        core.arrive(stepped);
        core.last.0 = code;
        if core.state == State::Blocked {
            self.account.blocked += u64::from(inside);
        } else if step.is_pause() {
            self.pause(at, inside);
        }
        Ok(())
    }

    fn access_memory(&mut self, at: usize, code: u64, step: &Step) {
        let registers = self.cores[at].registers;
        let inside = self.cores[at].call.is_some();
        for access in step.accesses(&registers) {
            for line in Line::spanning(access.address, access.size) {
                let outcome = self.directory.access(at, line, access.write, |line| {
                    let mut entry = [0; 2];
                    let address = self.ready.users + Users::offset(line);
                    let read = self.tracee.read(address, &mut entry).ok()?;
                    let user = Users::user(entry).filter(|_| read == entry.len())?;
                    self.blocks.insert(line);
                    Some(user)
                });
                let cause = match inside {
                    false => Cause::Program,
                    true if self.blocks.contains(&line) => Cause::Block,
                    true => Cause::Metadata,
                };
                let word = (access.address.max(line.address()) - line.address()) as usize / 8;
                let access = account::Access { core: at, code, line, word };
                self.account.access(access, cause, outcome);
                self.cores[at].last.1 = Some(line);
                if let Outcome::Write { .. } = outcome {
                    self.wake(line);
                }
            }
        }
    }

    /// Notes that a call begins or has ended before the next instruction.
    fn follow_calls(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let Registers { rip, rsp, rdi, rax, .. } = core.registers;
        if let Some(call) = core.call
            && rsp > call.stack
        {
            core.call = None;
            if call.malloc {
                self.account.mallocs += 1;
                self.blocks.extend(Line::spanning(rax, call.size));
            } else {
                self.account.frees += 1;
            }
        }
        let malloc = rip == self.ready.malloc;
        if core.call.is_none() && (malloc || rip == self.ready.free) {
            core.call = Some(Call { malloc, size: rdi, stack: rsp });
        }
    }

    /// A spinning allocator looks again soon. A waiting program has nothing to look at
    /// until another core writes the line that it read; only its steps are saved.
    fn pause(&mut self, at: usize, inside: bool) {
        let line = self.cores[at].last.1.filter(|&line| self.directory.holds(at, line));
        self.cores[at].state = match line {
            Some(line) if !inside => State::Asleep(self.round + PATIENCE, Some(line)),
            _ => State::Asleep(self.round + PAUSE, None),
        };
    }

    fn wake(&mut self, line: Line) {
        for core in &mut self.cores {
            if matches!(core.state, State::Asleep(_, Some(watched)) if watched == line) {
                core.state = State::Running;
            }
        }
    }
}

impl Core {
    fn arrive(&mut self, stepped: Option<Registers>) {
        match stepped {
            Some(registers) => {
                self.registers = registers;
                self.state = State::Running;
            }
            None => self.state = State::Blocked,
        }
    }
}
