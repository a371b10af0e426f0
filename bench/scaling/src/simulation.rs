//! One core per thread, each executing an instruction or a few in its turn.

use crate::account::{self, Account, Cause};
use crate::coherence::{Directory, Line, Outcome};
use crate::decode::{LONGEST, Step};
use crate::interpret::{Check, execute};
use crate::places::Places;
use crate::probe::{Order, Shape};
use crate::tracee::Tracee;
use anyhow::{Context, Result, ensure};
use iced_x86::InstructionInfoFactory;
use libc::user_regs_struct as Registers;
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

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
    /// Compare every instruction that is executed here with the processor's.
    pub check: bool,
}

/// What came of it.
pub struct Simulated {
    /// The counts.
    pub account: Account,
    /// Where the addresses in it are.
    pub places: Places,
    /// The object that malloc is in.
    pub provider: PathBuf,
    /// Instructions in all, the program's and the settling's included, and how many of
    /// them the processor executed.
    pub steps: [u64; 2],
}

/// Runs a simulation of `library`; without one, of the C library.
pub fn run(plan: &Plan, library: Option<&Path>) -> Result<Simulated> {
    let least = if plan.shape == Shape::Local { 1 } else { 2 };
    ensure!((least..=4096).contains(&plan.threads), "{} threads", plan.threads);
    let warm_up = (200_000 / plan.threads as u64).max(4_000);
    let (shape, threads, size) = (plan.shape, plan.threads, plan.size);
    let order = Order { shape, threads, size, warm_up };
    let library = library.map(|path| path.canonicalize().context(path.display().to_string()));
    let library = library.transpose()?;
    let tracee = Tracee::start(&plan.probe, &order, library.as_deref())?;
    let provider = tracee.ready.provider.canonicalize()?;
    ensure!(library.is_none_or(|library| library == provider), "malloc is another object's");
    let places = Places::new(tracee.maps()?);
    let (account, steps) = Simulation::new(tracee, plan)?.run(plan)?;
    Ok(Simulated { account, places, provider, steps })
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
    /// The thread's own registers are older than these.
    ahead: bool,
    call: Option<Call>,
    state: State,
    /// The last instruction, and the line it read or wrote.
    last: (u64, Option<Line>),
}

struct Simulation {
    tracee: Tracee,
    cores: Vec<Core>,
    directory: Directory,
    /// Lines that hold or held blocks.
    blocks: FxHashSet<Line>,
    code: FxHashMap<u64, Rc<Step>>,
    factory: InstructionInfoFactory,
    account: Account,
    round: u64,
    steps: u64,
    stepped: u64,
    check: bool,
}

impl Simulation {
    fn new(tracee: Tracee, plan: &Plan) -> Result<Simulation> {
        let core = |at| {
            let registers = tracee.registers(at)?;
            Ok(Core { registers, ahead: false, call: None, state: State::Running, last: (0, None) })
        };
        Ok(Simulation {
            cores: (0..plan.threads).map(core).collect::<Result<_>>()?,
            tracee,
            directory: Directory::default(),
            blocks: FxHashSet::default(),
            code: FxHashMap::default(),
            factory: InstructionInfoFactory::new(),
            account: Account::default(),
            round: 0,
            steps: 0,
            stepped: 0,
            check: plan.check,
        })
    }

    fn run(mut self, plan: &Plan) -> Result<(Account, [u64; 2])> {
        let mut random = fastrand::Rng::with_seed(plan.seed);
        let start = Instant::now();
        self.first_steps()?;
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
        Ok((self.account, [self.steps, self.stepped]))
    }

    /// A thread may have been stopped inside a system call, which then begins again.
    fn first_steps(&mut self) -> Result<()> {
        for at in 0..self.cores.len() {
            let stepped = self.tracee.step(at, true)?;
            self.cores[at].arrive(stepped);
        }
        Ok(())
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
        let step = self.decoded(code)?;
        self.steps += 1;
        if inside {
            // Each turn of a repeated string instruction is a step, all of them are one.
            self.account.instructions += u64::from(self.cores[at].last.0 != code);
            self.account.locked += u64::from(step.locked);
            self.account.system_calls += u64::from(step.system_call);
            self.account.pauses += u64::from(step.pause);
        }
        self.access_memory(at, code, &step);
        self.execute(at, &step)?;
        let core = &mut self.cores[at];
        core.last.0 = code;
        if core.state == State::Blocked {
            self.account.blocked += u64::from(inside);
        } else if step.pause {
            self.pause(at, inside);
        }
        Ok(())
    }

    /// Executes an instruction here or, if it is not known here, on the processor; both,
    /// to compare, if asked to.
    fn execute(&mut self, at: usize, step: &Step) -> Result<()> {
        let (core, mut memory) = (&mut self.cores[at], &self.tracee);
        let mut check = None;
        if self.check {
            check = Check::new(&step.instruction, core.registers, &memory);
        } else if execute(&step.instruction, &mut core.registers, &mut memory).is_some() {
            core.ahead = true;
            return Ok(());
        }
        if std::mem::take(&mut core.ahead) {
            self.tracee.set_registers(at, &core.registers)?;
        }
        self.stepped += 1;
        core.arrive(self.tracee.step(at, step.system_call)?);
        let agreed = check.is_none_or(|check| check.agrees(&core.registers, &memory));
        ensure!(agreed, "the processor executes {} otherwise", mnemonic(step));
        Ok(())
    }

    fn access_memory(&mut self, at: usize, code: u64, step: &Step) {
        let registers = self.cores[at].registers;
        let inside = self.cores[at].call.is_some();
        for access in step.accesses(&registers) {
            for line in Line::spanning(access.address, access.size) {
                let outcome = self.directory.access(at, line, access.write, |line| {
                    let user = self.tracee.last_user(line)?;
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
        let ready = &self.tracee.ready;
        if core.call.is_none() && (rip == ready.malloc || rip == ready.free) {
            core.call = Some(Call { malloc: rip == ready.malloc, size: rdi, stack: rsp });
        }
    }

    fn decoded(&mut self, address: u64) -> Result<Rc<Step>> {
        if let Some(step) = self.code.get(&address) {
            return Ok(Rc::clone(step));
        }
        let mut bytes = [0; LONGEST];
        let read = self.tracee.read(address, &mut bytes)?;
        let step = Rc::new(Step::decode(&bytes[..read], address, &mut self.factory));
        self.code.insert(address, Rc::clone(&step));
        Ok(step)
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

fn mnemonic(step: &Step) -> String {
    format!("{:?} at {:#x}", step.instruction.code(), step.instruction.ip())
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
