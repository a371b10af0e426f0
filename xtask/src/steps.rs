//! Runs one command after the other, each under a limit of time and into a log of its own, and
//! tells in a table what became of them.

use crate::library::target_dir;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at a running command.
const LOOK: Duration = Duration::from_millis(50);

/// What has been run.
pub(crate) struct Steps {
    logs: PathBuf,
    limit: Duration,
    /// Only steps with this in their names are run.
    only: String,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    result: Result<String>,
    took: Duration,
}

/// A command that has ended.
pub(crate) struct Ended {
    /// How; None if it had to be stopped for it took too long.
    pub(crate) status: Option<ExitStatus>,
    /// Everything it wrote, to both its outputs.
    pub(crate) output: String,
}

impl Ended {
    /// An error unless the command ended well.
    pub(crate) fn ensure_success(&self) -> Result<()> {
        match self.status {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{status}"),
            None => bail!("it takes too long"),
        }
    }
}

impl Steps {
    /// Logs go to a folder of that name in the target directory; each step may take `limit`.
    pub(crate) fn new(name: &str, limit: Duration) -> Result<Steps> {
        let logs = target_dir(name).join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        Ok(Steps { logs, limit, only: String::new(), rows: Vec::new() })
    }

    /// Leaves out the steps without `text` in their names.
    pub(crate) fn only(mut self, text: &str) -> Steps {
        self.only = text.to_owned();
        self
    }

    /// Runs a command that makes what the next steps need.
    pub(crate) fn build(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let log = self.log_of(name);
        eprintln!("{name} ...");
        let ended = run(command, &log, self.limit)?;
        let built = ended.ensure_success();
        built.with_context(|| format!("{}\n  see {}", shell(command), log.display()))
    }

    fn log_of(&self, name: &str) -> PathBuf {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        self.logs.join(format!("{name}.log"))
    }

    /// Runs a command; `judge` looks at what it did and says what the table is to say. A
    /// step that fails does not keep the next ones from being run.
    pub(crate) fn run(
        &mut self,
        name: &str,
        command: &mut Command,
        judge: impl FnOnce(&Ended) -> Result<String>,
    ) {
        let log = self.log_of(name);
        self.step(name, |limit| {
            let ended = run(command, &log, limit)?;
            judge(&ended).with_context(|| format!("{}\n  see {}", shell(command), log.display()))
        });
    }

    /// Does something that is more than a command.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce(Duration) -> Result<String>) {
        if !name.contains(&self.only) {
            return;
        }
        eprintln!("{name} ...");
        let start = Instant::now();
        let result = work(self.limit);
        let row = Row { name: name.to_owned(), result, took: start.elapsed() };
        eprintln!("{}", row.line());
        self.rows.push(row);
    }

    /// Prints the table; an error if a step has failed.
    pub(crate) fn finish(self) -> Result<()> {
        println!("| what ran | result | seconds |\n| --- | --- | ---: |");
        for row in &self.rows {
            println!("{}", row.line());
        }
        let failed = self.rows.iter().filter(|row| row.result.is_err()).count();
        if failed > 0 {
            bail!("{failed} of {} steps failed", self.rows.len());
        }
        Ok(())
    }
}

impl Row {
    fn line(&self) -> String {
        let result = match &self.result {
            Ok(text) => text.clone(),
            Err(error) => format!("FAILED: {error:#}"),
        };
        format!("| {} | {result} | {:.0} |", self.name, self.took.as_secs_f64())
    }
}

/// Runs a command to its end, or stops it, with all that it has started, after `limit`.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", shell(command)))?;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if start.elapsed() > limit => {
                // The group may be gone just now.
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(LOOK),
        }
    };
    let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    Ok(Ended { status, output })
}

/// A command as a shell would take it, its own settings in front.
fn shell(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        words.push(format!("{}='{value}'", name.to_string_lossy()));
    }
    words.push(command.get_program().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// A command's last line: what it has left out, and the command that runs it.
pub(crate) fn not_run(what: &str) {
    println!("not run here: {what}");
}

/// How many tests a run of `cargo test` says have passed.
pub(crate) fn passed(output: &str) -> usize {
    let counts = output.lines().filter_map(|line| {
        let (_, rest) = line.split_once("test result: ok. ")?;
        rest.split_once(" passed")?.0.parse::<usize>().ok()
    });
    counts.sum()
}
