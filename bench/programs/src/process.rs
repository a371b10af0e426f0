//! One process, from its start to its end: its limits, and what it wrote.
//!
//! Outputs go to files, never through pipes: nothing can block on a full one, and the loop that
//! waits is free to look at the running processes.

use crate::variables::{Variables, fill};
use crate::watch::{Watch, descendants};
use anyhow::{Context, Result, bail};
use cairn_workloads::process::field_kib;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// When to give up on a process.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Wall time.
    pub timeout: Duration,
    /// Resident set.
    pub memory_mib: f64,
}

/// Why there is no result.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Failure {
    /// Killed at the time limit.
    #[error("not done after {seconds} s, at {mib:.0} MiB resident")]
    Timeout {
        /// The limit.
        seconds: f64,
        /// The resident set by then.
        mib: f64,
    },
    /// Killed at the memory limit.
    #[error("killed at {mib:.0} MiB resident")]
    Memory {
        /// The resident set seen.
        mib: f64,
    },
    /// Ended by a signal or with an error.
    #[error("{status}: {message}")]
    Crash {
        /// How it ended, e.g. `signal 11`.
        status: String,
        /// The end of what it wrote to stderr.
        message: String,
    },
    /// The program is not on this machine.
    #[error("{what} is missing ({hint})")]
    Absent {
        /// The program.
        what: String,
        /// How to get it.
        hint: String,
    },
    /// It ran, but not as it should have.
    #[error("{message}")]
    Wrong {
        /// What was wrong.
        message: String,
    },
}

impl Failure {
    /// For results that cannot be right.
    pub fn wrong(message: impl Into<String>) -> Failure {
        Failure::Wrong { message: message.into() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::wrong(error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        error.downcast().unwrap_or_else(|error| Failure::wrong(format!("{error:#}")))
    }
}

/// A process to be started.
pub struct Process<'a> {
    command: Command,
    name: String,
    limits: Limits,
    watch: Option<&'a Watch>,
    /// Where outputs are kept; nowhere if there is no such directory.
    logs: Option<&'a Path>,
}

/// A process that has ended.
pub struct Ended {
    name: String,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// Its status, or the limit that ended it.
    pub end: Result<ExitStatus, Failure>,
}

/// How often the resident set is looked at.
const WATCH_EVERY: Duration = Duration::from_millis(50);

impl<'a> Process<'a> {
    /// Of a command, in a group of its own: what it starts ends with it.
    pub fn alone(mut command: Command, limits: &Limits) -> Process<'a> {
        command.process_group(0);
        Process::new(command, limits)
    }

    pub(crate) fn new(mut command: Command, limits: &Limits) -> Process<'a> {
        command.stdin(Stdio::null());
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        Process {
            name: name.to_string_lossy().into_owned(),
            command,
            limits: limits.clone(),
            watch: None,
            logs: None,
        }
    }

    pub(crate) fn observed(mut self, watch: Option<&'a Watch>, logs: Option<&'a Path>) -> Self {
        (self.watch, self.logs) = (watch, logs);
        self
    }

    /// With arguments, variables or another directory.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        change(&mut self.command);
        self
    }

    pub(crate) fn limit(mut self, seconds: u64) -> Self {
        self.limits.timeout = Duration::from_secs(seconds);
        self
    }

    /// Makes a shell run a script up to the first command that fails.
    pub(crate) fn script(self, text: &str, variables: &Variables) -> Self {
        self.with(|sh| sh.arg("-ec").arg(fill(text, variables)))
    }

    /// Runs to the end and insists on exit status zero.
    pub fn success(self) -> Result<Ended> {
        let ended = self.run()?;
        match &ended.end {
            Ok(status) if status.success() => {}
            Ok(status) => {
                let failure = Failure::Crash { status: how(*status), message: ended.last_lines() };
                return Err(ended.explain(failure));
            }
            Err(failure) => return Err(ended.explain(failure.clone())),
        }
        // The loader only warns about a library it cannot preload, and goes on without.
        if ended.stderr.contains("cannot be preloaded") {
            bail!(Failure::wrong(ended.last_lines()));
        }
        Ok(ended)
    }

    /// Runs to the end or to a limit, and gives what was written until then.
    pub fn run(mut self) -> Result<Ended> {
        let (stdout, stderr) = (self.output("out")?, self.output("err")?);
        self.command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
        let child = self.command.spawn();
        let mut child = child.with_context(|| format!("cannot start {}", self.name))?;
        let end = wait(&mut child, &self.limits, self.watch)?;
        let stdout = from_start(&stdout)?;
        let stderr = String::from_utf8_lossy(&from_start(&stderr)?).into_owned();
        Ok(Ended { name: self.name, stdout, stderr, end })
    }

    fn output(&self, kind: &str) -> Result<File> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some(logs) = self.logs else { return Ok(tempfile::tempfile()?) };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = logs.join(format!("{number:04}-{}.{kind}", self.name));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        file.with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Ended {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// `None` if a limit or a signal ended it.
    pub(crate) fn code(&self) -> Option<i32> {
        self.end.as_ref().ok()?.code()
    }

    /// How it ended, in words.
    pub(crate) fn how(&self) -> String {
        match &self.end {
            Ok(status) => how(*status),
            Err(failure) => failure.to_string(),
        }
    }

    fn explain(&self, failure: Failure) -> anyhow::Error {
        let outputs = tail(&self.text()) + &tail(&self.stderr);
        anyhow::Error::new(failure).context(format!("{}: {}\n{outputs}", self.name, self.how()))
    }

    fn last_lines(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" / ").chars().take(300).collect()
    }
}

/// Waits for `child`; kills it at a limit.
fn wait(
    child: &mut Child,
    limits: &Limits,
    watch: Option<&Watch>,
) -> Result<Result<ExitStatus, Failure>> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let pause = watch.map_or(WATCH_EVERY, |watch| watch.pause);
    let tick = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
    let start = Instant::now();
    loop {
        watch.inspect(|watch| watch.tick());
        // Ready when the child has ended; an interrupted poll is only a short tick.
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&tick));
        if let Some(status) = child.try_wait()? {
            return Ok(Ok(status));
        }
        let late = start.elapsed() > limits.timeout;
        if !late && limits.memory_mib.is_infinite() {
            continue;
        }
        let mib = kib_of_family(child.id(), 3) / 1024.0;
        if late || mib > limits.memory_mib {
            end(child);
            let seconds = limits.timeout.as_secs_f64();
            let timeout = Failure::Timeout { seconds, mib };
            return Ok(Err(if late { timeout } else { Failure::Memory { mib } }));
        }
    }
}

/// The resident set of a process and so many generations below it.
fn kib_of_family(process: u32, generations: usize) -> f64 {
    let own = field_kib(format!("/proc/{process}/status"), "VmRSS:").unwrap_or(0.0);
    if generations == 0 {
        return own;
    }
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    own + children.map(|child| kib_of_family(child, generations - 1)).sum::<f64>()
}

/// Kills a child, its group if it leads one, and everything below it.
fn end(child: &mut Child) {
    let below = descendants(child.id());
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.kill();
    kill_all(below);
    let _ = child.wait();
}

/// Kills processes that this one started.
pub(crate) fn kill_all(pids: Vec<u32>) {
    for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)) {
        // It may have ended by itself meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// All of a file that a process may still write: opened anew, for its place is shared.
fn from_start(file: &File) -> Result<Vec<u8>> {
    Ok(fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

fn how(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit status {}", status.code().unwrap_or(-1)),
    }
}

/// The end of an output, for messages.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_end_a_process() {
        let limits = Limits { timeout: Duration::from_millis(100), memory_mib: 1e3 };
        let sleep = Process::alone(Command::new("sleep"), &limits).with(|sleep| sleep.arg("60"));
        let ended = sleep.run().unwrap();
        assert!(matches!(ended.end, Err(Failure::Timeout { .. })));
        let failed = Process::alone(Command::new("false"), &limits).success();
        let failure = Failure::from(failed.err().unwrap());
        assert_eq!(failure.to_string(), "exit status 1: ");
    }
}
