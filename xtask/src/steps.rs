//! Runs one command after the other, each under a limit of time and into a log of its own, and
//! tells in a table what became of them.

use crate::library::Build;
use anyhow::{Context, Result, bail, ensure};
use runner::{Limits, Outputs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Far beyond what most steps need, on a slow machine and under a tool.
pub(crate) const LIMIT: Duration = Duration::from_secs(3600);

/// What has been run.
pub(crate) struct Steps {
    logs: PathBuf,
    limit: Duration,
    /// Only steps with this in their names are run.
    only: String,
    rows: Vec<String>,
    failed: usize,
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
        let status = self.status.context("it takes too long")?;
        ensure!(status.success(), "{status}");
        Ok(())
    }

    /// How many tests a run of `cargo test` says have passed; an error if it failed.
    pub(crate) fn passed(&self) -> Result<usize> {
        self.ensure_success()?;
        let counts = self.output.lines().filter_map(|line| {
            let (_, rest) = line.split_once("test result: ok. ")?;
            rest.split_once(" passed")?.0.parse::<usize>().ok()
        });
        Ok(counts.sum())
    }
}

impl Steps {
    /// Logs go to a folder in this one. Each step may take `limit`, and those without `only` in
    /// their names are left out.
    pub(crate) fn new(folder: &Path, limit: Duration, only: &str) -> Result<Steps> {
        let logs = folder.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        Ok(Steps { logs, limit, only: only.to_owned(), rows: Vec::new(), failed: 0 })
    }

    /// Runs a command that makes what the next steps need.
    pub(crate) fn build(&mut self, name: &str, command: impl Into<Command>) -> Result<()> {
        eprintln!("{name} ...");
        let (mut command, log) = (command.into(), self.log(name));
        let built = run(&mut command, &log, self.limit)?.ensure_success();
        built.with_context(|| format!("{command:?}\n  see {}", log.display()))
    }

    /// Where a step of that name may write.
    fn log(&self, name: &str) -> PathBuf {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        self.logs.join(format!("{name}.log"))
    }

    /// Runs a command; `judge` looks at what it did and says what the table is to say. A
    /// step that fails does not keep the next ones from being run.
    pub(crate) fn run(
        &mut self,
        name: &str,
        command: impl Into<Command>,
        judge: impl FnOnce(&Ended) -> Result<String>,
    ) {
        let (mut command, log) = (command.into(), self.log(name));
        let limit = self.limit;
        self.step(name, || {
            let ended = run(&mut command, &log, limit)?;
            judge(&ended).with_context(|| format!("{command:?}\n  see {}", log.display()))
        });
    }

    /// Runs the core's unit tests, and then its others; `cargo` gives the command that they are run
    /// by, but for what they are.
    pub(crate) fn core_tests(
        &mut self,
        whose: &str,
        build: Build,
        mut cargo: impl FnMut(&[&str]) -> Command,
    ) {
        for (what, selection) in [("unit tests", &["--lib"][..]), ("tests", &["--test", "*"])] {
            let arguments =
                [&["-p", "cairn-malloc", "--features", build.features()], selection].concat();
            self.run(&format!("{whose}, the core's {what}"), cargo(&arguments), |ended| {
                Ok(format!("{} tests passed", ended.passed()?))
            });
        }
    }

    /// Does something that is more than a command.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<String>) {
        if !name.contains(&self.only) {
            return;
        }
        eprintln!("{name} ...");
        let start = Instant::now();
        let result = work().unwrap_or_else(|error| {
            self.failed += 1;
            format!("FAILED: {error:#}")
        });
        let row = format!("| {name} | {result} | {:.0} |", start.elapsed().as_secs_f64());
        eprintln!("{row}");
        self.rows.push(row);
    }

    /// Prints the table; an error if a step has failed.
    pub(crate) fn finish(self) -> Result<()> {
        println!("| what ran | result | seconds |\n| --- | --- | ---: |");
        self.rows.iter().for_each(|row| println!("{row}"));
        if self.failed > 0 {
            bail!("{} of {} steps failed", self.failed, self.rows.len());
        }
        Ok(())
    }
}

/// Runs a command to its end, or stops it, with all that it has started, after `limit`.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended> {
    let outputs = Outputs::together(log);
    let outputs = outputs.with_context(|| format!("cannot write {}", log.display()))?;
    runner::alone(command);
    let ended = runner::run(command, &outputs, &Limits::of_time(limit), runner::PAUSE, || false);
    let ended = ended.with_context(|| format!("cannot run {command:?}"))?;
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    Ok(Ended { status: ended.end.status(), output })
}

/// A command's last line: what it has left out, and the command that runs it.
pub(crate) fn not_run(what: &str) {
    println!("not run here: {what}");
}

/// The same of a command that runs with either build.
pub(crate) fn not_run_with(build: Build, what: &str) {
    not_run(&format!("{what}, {}", build.other()));
}
