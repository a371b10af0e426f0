//! One process, from its start to its end: its limits, what it wrote, and why that is no result.

use crate::variables::{Variables, fill};
use crate::watch::Watch;
use anyhow::{Context, Result, bail};
pub use runner::Limits;
use runner::{End, Outputs};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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

impl<'a> Process<'a> {
    /// Of a command, in a session of its own: what it starts ends with it.
    pub fn alone(mut command: Command, limits: &Limits) -> Process<'a> {
        runner::alone(&mut command);
        Process::new(command, limits)
    }

    pub(crate) fn new(command: Command, limits: &Limits) -> Process<'a> {
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
        let outputs = Outputs::apart(self.output("out")?, self.output("err")?);
        let pause = self.watch.map_or(runner::PAUSE, |watch| watch.pause);
        let look = || {
            self.watch.inspect(|watch| watch.tick());
            false
        };
        let ended = runner::run(&mut self.command, &outputs, &self.limits, pause, look);
        let ended = ended.with_context(|| format!("cannot run {}", self.name))?;
        let end = match ended.end {
            End::Itself(status) => Ok(status),
            End::Late(mib) => {
                Err(Failure::Timeout { seconds: self.limits.timeout.as_secs_f64(), mib })
            }
            End::Large(mib) => Err(Failure::Memory { mib }),
            End::Stopped => Err(Failure::wrong("it was stopped")),
        };
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        Ok(Ended { name: self.name, stdout: ended.stdout, stderr, end })
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
        let limits = Limits::of_time(Duration::from_millis(100));
        let sleep = Process::alone(Command::new("sleep"), &limits).with(|sleep| sleep.arg("60"));
        let ended = sleep.run().unwrap();
        assert!(matches!(ended.end, Err(Failure::Timeout { .. })));
        let failed = Process::alone(Command::new("false"), &limits).success();
        let failure = Failure::from(failed.err().unwrap());
        assert_eq!(failure.to_string(), "exit status 1: ");
    }
}
