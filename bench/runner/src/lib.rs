//! Runs a process to its end or to a limit, with all that it starts.
//!
//! Outputs go to files, never through pipes: nothing can block on a full one, and the loop that waits is free to look
//! at the running processes.

mod family;

pub use family::{descendants, kill_all};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, setsid};
use std::fs::{self, File};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// When to give up on a process.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Wall time.
    pub timeout: Duration,
    /// Resident set, of the process and three generations below it.
    pub memory_mib: f64,
}

impl Limits {
    /// Of time alone.
    pub fn of_time(timeout: Duration) -> Limits {
        Limits { timeout, memory_mib: f64::INFINITY }
    }
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// By itself, or by a signal of another's.
    Itself(ExitStatus),
    /// Killed at the limit of time, with this resident set.
    Late(f64),
    /// Killed at the limit of memory, with this resident set.
    Large(f64),
    /// Killed for whoever looked wanted it.
    Stopped,
}

impl End {
    /// Its status, if it ended by itself.
    pub fn status(self) -> Option<ExitStatus> {
        if let End::Itself(status) = self { Some(status) } else { None }
    }
}

/// Where outputs go: files that can be read, too.
pub struct Outputs {
    out: File,
    err: File,
}

impl Outputs {
    /// Each to a file of its own.
    pub fn apart(out: File, err: File) -> Outputs {
        Outputs { out, err }
    }

    /// Both to one file, which is made anew.
    pub fn together(log: &Path) -> Result<Outputs> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(log)?;
        Ok(Outputs { err: file.try_clone()?, out: file })
    }
}

/// A process that has ended.
pub struct Ended {
    /// How.
    pub end: End,
    /// Standard output, or both if they went together.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// How often the resident set is looked at.
pub const PAUSE: Duration = Duration::from_millis(50);

/// Puts what a command starts into a session of its own. What is pressed at the terminal comes to this process alone,
/// and at a limit all that it has started is found, in whichever process group it is.
pub fn alone(command: &mut Command) {
    let begin = || Ok(setsid().map(drop)?);
    // SAFETY: between fork and exec one system call is made.
    unsafe { command.pre_exec(begin) };
}

/// Runs a command, without an input, to its end or to a limit. Meanwhile `look` is called before each pause; the
/// process is ended if it answers true.
pub fn run(
    command: &mut Command,
    outputs: &Outputs,
    limits: &Limits,
    pause: Duration,
    look: impl FnMut() -> bool,
) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(outputs.out.try_clone()?).stderr(outputs.err.try_clone()?);
    let end = wait(&mut command.spawn()?, limits, pause, look)?;
    Ok(Ended { end, stdout: from_start(&outputs.out)?, stderr: from_start(&outputs.err)? })
}

/// Waits for a child; ends it, and all that it has started, at a limit.
fn wait(
    child: &mut Child,
    limits: &Limits,
    pause: Duration,
    mut look: impl FnMut() -> bool,
) -> Result<End> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let start = Instant::now();
    loop {
        let is_unwanted = look();
        let left = limits.timeout.saturating_sub(start.elapsed()).min(pause);
        let tick = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // Ready when the child has ended; an interrupted poll is only a short tick.
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&tick));
        if let Some(status) = child.try_wait()? {
            return Ok(End::Itself(status));
        }
        let is_late = start.elapsed() >= limits.timeout;
        if !is_unwanted && !is_late && limits.memory_mib.is_infinite() {
            continue;
        }
        let mib = family::resident_mib(child.id(), 3);
        if is_unwanted || is_late || mib > limits.memory_mib {
            family::end(child)?;
            return Ok(match (is_unwanted, is_late) {
                (true, _) => End::Stopped,
                (_, true) => End::Late(mib),
                _ => End::Large(mib),
            });
        }
    }
}

/// All of a file that a process may still write: opened anew, for its place is shared.
fn from_start(file: &File) -> Result<Vec<u8>> {
    fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
