//! One child process, with a time limit and a memory limit.
//!
//! Some allocators never finish some workloads, or take all memory of the machine for
//! them. Both are results: the child is killed and the limit is what gets reported.

use cairn_workloads::process::parse_kib;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// When to give up on a child.
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

/// What a child that ended well has printed.
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Wall time from start to end.
    pub wall: Duration,
}

/// How often the resident set is looked at.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// Runs `command` to its end or to a limit.
pub fn run(command: &mut Command, limits: &Limits) -> Result<Output, Failure> {
    // Files, not pipes: a child that writes a lot must not block, nor need a reader thread.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    // A group of its own: what a program starts must end with it.
    command.process_group(0);
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| {
        Failure::wrong(format!("cannot start {}: {error}", command.get_program().display()))
    })?;
    let status = match watch(&mut child, start, limits) {
        Ok(status) => status,
        Err(failure) => {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            child.wait()?;
            return Err(failure);
        }
    };
    let wall = start.elapsed();
    let message = from_start(&mut stderr)?;
    if !status.success() {
        return Err(Failure::Crash { status: describe(status), message: last_lines(&message) });
    }
    // The loader only warns about a library it cannot preload, and goes on without.
    if message.contains("cannot be preloaded") {
        return Err(Failure::wrong(last_lines(&message)));
    }
    Ok(Output { stdout: from_start(&mut stdout)?, wall })
}

fn watch(child: &mut Child, start: Instant, limits: &Limits) -> Result<ExitStatus, Failure> {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(std::io::Error::from)?;
    let tick = Timespec { tv_sec: 0, tv_nsec: WATCH_EVERY.as_nanos() as i64 };
    loop {
        // Ready when the child has ended; an interrupted poll is only a short tick.
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&tick));
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let resident = resident_kib(child.id(), 3) / 1024.0;
        if start.elapsed() > limits.timeout {
            return Err(Failure::Timeout { seconds: limits.timeout.as_secs_f64(), mib: resident });
        }
        if resident > limits.memory_mib {
            return Err(Failure::Memory { mib: resident });
        }
    }
}

/// The resident sets of a process and of its children, so many generations of them.
fn resident_kib(process: u32, generations: usize) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let own = status.ok().and_then(|status| parse_kib(&status, "VmRSS:")).unwrap_or(0.0);
    if generations == 0 {
        return own;
    }
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    own + children.map(|child| resident_kib(child, generations - 1)).sum::<f64>()
}

fn from_start(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit status {}", status.code().unwrap_or(-1)),
    }
}

fn last_lines(message: &str) -> String {
    let lines: Vec<&str> = message.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ").chars().take(300).collect()
}
