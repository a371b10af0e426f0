//! Starts workers, reads along what they run, and takes note of the first that fails.

use super::machine::{Counts, Kind};
use super::{corpus, random_program};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Programs that a worker runs at most: some meet a process that is new, some an old one.
pub(crate) const PROGRAMS: u64 = 400;
/// A program that takes longer hangs: the longest take a second or two on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(60);
/// Where programs that fail are kept.
pub(crate) const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/operations");

/// When to stop.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    /// After so many operations.
    Operations(u64),
    /// After so long, the corpus apart.
    Time(Duration),
}

/// A program that has failed.
pub(crate) struct Failure {
    /// How it is read.
    pub(crate) kind: Kind,
    /// The program.
    pub(crate) program: Vec<u8>,
    /// The order of the worker that ran it.
    pub(crate) order: String,
    /// How the worker ended.
    pub(crate) end: String,
    /// What it said.
    pub(crate) said: String,
}

/// Runs workers, one for each core, until the goal is reached or one fails.
pub(crate) struct Supervisor {
    seed: u64,
    goal: Goal,
    started: Instant,
    /// Minutes that progress has been told of.
    told: AtomicU64,
    lockstep: AtomicU64,
    parallel: AtomicU64,
    programs: AtomicU64,
    processes: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

impl Supervisor {
    /// Nothing has run yet.
    pub(crate) fn new(seed: u64, goal: Goal) -> Self {
        Self {
            seed,
            goal,
            started: Instant::now(),
            told: AtomicU64::new(0),
            lockstep: AtomicU64::new(0),
            parallel: AtomicU64::new(0),
            programs: AtomicU64::new(0),
            processes: AtomicU64::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Runs the corpus, then random programs; the first that fails.
    pub(crate) fn run(&self) -> Option<Failure> {
        std::fs::create_dir_all(FOLDER).expect("the target folder can be written");
        if !corpus().is_empty() {
            self.supervise("corpus");
        }
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let (next, begun) = (AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(left) = self.time_left(begun) {
                        let first = next.fetch_add(PROGRAMS, Ordering::Relaxed);
                        self.supervise(&format!("{} {first} {}", self.seed, left.as_millis()));
                    }
                });
            }
        });
        self.failure.lock().expect("nobody panics with it").take()
    }

    /// For how long the next worker may run; None if that was all.
    fn time_left(&self, begun: Instant) -> Option<Duration> {
        if self.failure.lock().expect("nobody panics with it").is_some() {
            return None;
        }
        match self.goal {
            Goal::Operations(goal) => {
                let done =
                    self.lockstep.load(Ordering::Relaxed) + self.parallel.load(Ordering::Relaxed);
                (done < goal).then_some(Duration::from_secs(3600))
            }
            Goal::Time(time) => time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()),
        }
    }

    /// Runs one worker to its end.
    fn supervise(&self, order: &str) {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let log = Path::new(FOLDER).join(format!("worker-{}-{number}.log", std::process::id()));
        let mut command = this_test();
        command.env("CAIRN_FUZZ_WORKER", order).stdout(Stdio::piped());
        command.stderr(File::create(&log).expect("the target folder can be written"));
        let mut child = command.spawn().expect("this program can be started");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (lines, inbox) = channel();
        let reader = std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| lines.send(line).is_ok())
        });
        let mut current: Option<String> = None;
        let hung = loop {
            match inbox.recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Some(name) = line.strip_prefix("@begin ") {
                        current = Some(name.to_owned());
                    } else if let Some(counts) = line.strip_prefix("@end ") {
                        self.add(parse_counts(counts));
                        current = None;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => {
                    child.kill().expect("it is this process's child");
                    break true;
                }
            }
        };
        let status = child.wait().expect("it is this process's child");
        let _ = reader.join();
        if hung || !status.success() {
            self.note(order, current, hung, status, &log);
        }
        let _ = std::fs::remove_file(&log);
        let minutes = self.started.elapsed().as_secs() / PROGRESS.as_secs();
        if self.told.fetch_max(minutes, Ordering::Relaxed) < minutes {
            println!("{}", self.summary());
        }
    }

    fn add(&self, counts: Counts) {
        self.lockstep.fetch_add(counts.lockstep, Ordering::Relaxed);
        self.parallel.fetch_add(counts.parallel, Ordering::Relaxed);
        self.programs.fetch_add(1, Ordering::Relaxed);
    }

    fn note(&self, order: &str, name: Option<String>, hung: bool, status: ExitStatus, log: &Path) {
        let name = name.unwrap_or_default();
        let line = name.strip_prefix("corpus ").and_then(|line| line.parse::<usize>().ok());
        let (kind, program) = match (line, name.parse()) {
            (Some(line), _) => corpus().swap_remove(line),
            (None, Ok(index)) => random_program(self.seed, index),
            (None, Err(_)) => (Kind::Single, Vec::new()),
        };
        let said = std::fs::read(log).unwrap_or_default();
        let end = if hung { "it hangs".to_owned() } else { status.to_string() };
        let failure = Failure {
            kind,
            program,
            order: order.to_owned(),
            end,
            said: String::from_utf8_lossy(&said).into_owned(),
        };
        self.failure.lock().expect("nobody panics with it").get_or_insert(failure);
    }

    /// One line: what has been done, in what time.
    pub(crate) fn summary(&self) -> String {
        let (lockstep, parallel) =
            (self.lockstep.load(Ordering::Relaxed), self.parallel.load(Ordering::Relaxed));
        let seconds = self.started.elapsed().as_secs_f64();
        format!(
            "operations: {} = {lockstep} lock-step + {parallel} parallel, {} programs, \
             {} processes, {seconds:.1} s, {:.0} per second, seed {}, debug assertions {}",
            lockstep + parallel,
            self.programs.load(Ordering::Relaxed),
            self.processes.load(Ordering::Relaxed),
            (lockstep + parallel) as f64 / seconds,
            self.seed,
            if cfg!(debug_assertions) { "on" } else { "off" },
        )
    }
}

fn parse_counts(text: &str) -> Counts {
    let mut numbers = text.split(' ').map(|word| word.parse().expect("workers write numbers"));
    let mut next = || numbers.next().expect("workers write two numbers");
    Counts { lockstep: next(), parallel: next() }
}

/// This test in another process.
fn this_test() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("it is running"));
    command.args(["--exact", "operations_agree_with_the_oracle", "--nocapture"]);
    command.args(["--test-threads", "1"]);
    command
}

/// Whether this program can be started from within itself.
pub(crate) fn can_start() -> bool {
    this_test().arg("--list").output().is_ok_and(|ended| ended.status.success())
}

/// Whether the program in `path` fails when it is replayed in a new process.
pub(crate) fn fails(path: &Path) -> bool {
    let mut command = this_test();
    // Backtraces take longer than most programs.
    command.env_remove("RUST_BACKTRACE").env("CAIRN_FUZZ_REPLAY", path);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("this program can be started");
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().expect("it is this process's child") {
            Some(status) => return !status.success(),
            None if Instant::now() >= end => {
                child.kill().expect("it is this process's child");
                let _ = child.wait();
                return true;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
