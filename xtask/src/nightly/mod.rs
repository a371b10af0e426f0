//! Runs everything that takes long, one step after the other, and writes one page of what became of
//! it. A run that was stopped goes on where it was: what has passed with these sources is not run again.

mod command;
mod page;
mod state;
mod table;
#[cfg(test)]
mod tests;

use crate::library::{target_dir, workspace};
use anyhow::{Context, Result, bail, ensure};
use command::{Ended, run_line};
use jiff::Timestamp;
use state::{Done, Outcome, State};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use table::Step;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Forget what has been done with these sources.
    #[arg(long)]
    fresh: bool,
    /// Only the steps of these names, separated by commas; a `*` at the end stands for anything.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Say what there is and what became of it, and run nothing.
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let night = Night {
        folder: target_dir("nightly"),
        steps: table::all(),
        sources: Box::new(sources),
        is_stopped: Box::new(command::is_stopped),
    };
    command::notice_signals();
    night.run(args)
}

/// What is run, and where what is known of it is kept.
struct Night {
    /// It has a folder for all sources that were run: state, logs, and the page.
    folder: PathBuf,
    steps: Vec<Step>,
    /// The commit, and more if there are changes.
    sources: Box<dyn Fn() -> Result<String>>,
    is_stopped: Box<dyn Fn() -> bool>,
}

impl Night {
    fn run(&self, args: &Args) -> Result<()> {
        let sources = (self.sources)()?;
        let folder = self.folder.join(&sources);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut state = State::open(&folder, args.fresh && !args.list)?;
        let chosen = self.chosen(&args.only)?;
        if args.list {
            self.steps.iter().for_each(|step| println!("{}", listed(step, &state)));
            return Ok(());
        }
        let ran = self.run_steps(&chosen, &folder, &sources, &mut state);
        let page = page::write(&folder, &sources, &self.steps, &state)?;
        println!("{}", page.display());
        ran?;
        self.judge(&state)
    }

    /// The steps of these names; all if there are none.
    fn chosen(&self, only: &[String]) -> Result<Vec<&Step>> {
        let is_meant = |step: &Step, name: &str| match name.strip_suffix('*') {
            Some(begin) => step.name.starts_with(begin),
            None => step.name == name,
        };
        for name in only {
            let known = self.steps.iter().any(|step| is_meant(step, name));
            ensure!(known, "no step is called {name}; --list has all of them");
        }
        let is_chosen =
            |step: &&Step| only.is_empty() || only.iter().any(|name| is_meant(step, name));
        Ok(self.steps.iter().filter(is_chosen).collect())
    }

    /// Runs those that have not passed; an error if the run is stopped, or makes no sense any more.
    fn run_steps(
        &self,
        chosen: &[&Step],
        folder: &Path,
        sources: &str,
        state: &mut State,
    ) -> Result<()> {
        for step in chosen {
            if state.has_passed(&step.name) {
                eprintln!("{} has passed", step.name);
                continue;
            }
            let done = match step.needs.iter().find_map(|need| need.is_missing()) {
                Some(missing) => Done::not_run(missing),
                None => self.run_step(step, folder)?,
            };
            let now = (self.sources)()?;
            ensure!(now == sources, "the sources have changed: {} does not count", step.name);
            eprintln!("| {} | {} | {} |", step.name, done.outcome.word(), done.evidence);
            state.keep(&step.name, done)?;
        }
        Ok(())
    }

    /// Runs one; what it writes is kept.
    fn run_step(&self, step: &Step, folder: &Path) -> Result<Done> {
        eprintln!("{}: {} ...", step.name, step.line);
        let (start, log) = (Instant::now(), folder.join(format!("{}.log", step.name)));
        let limit = Duration::from_secs(60 * step.minutes);
        let ended = run_line(&step.line, &log, limit, &*self.is_stopped)?;
        let Ended::Judged { is_good, evidence } = ended else {
            bail!("stopped at {}; the same command goes on there", step.name)
        };
        Ok(Done {
            outcome: if is_good { Outcome::Passed } else { Outcome::Failed },
            seconds: start.elapsed().as_secs(),
            evidence,
            ended: Timestamp::now().strftime("%Y-%m-%d %H:%M").to_string(),
        })
    }

    /// An error if a step has failed, now or earlier.
    fn judge(&self, state: &State) -> Result<()> {
        let counts = counts(&self.steps, state);
        println!("{}", told(&counts));
        let failed: Vec<&str> = self
            .steps
            .iter()
            .map(|step| step.name.as_str())
            .filter(|name| state.outcome(name) == Some(Outcome::Failed))
            .collect();
        ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
        Ok(())
    }
}

/// How many steps there are of each outcome; None: nothing is known.
fn counts(steps: &[Step], state: &State) -> BTreeMap<Option<Outcome>, usize> {
    let mut counts = BTreeMap::new();
    for step in steps {
        *counts.entry(state.outcome(&step.name)).or_default() += 1;
    }
    counts
}

/// The same in words.
fn told(counts: &BTreeMap<Option<Outcome>, usize>) -> String {
    let of = |outcome| counts.get(&outcome).copied().unwrap_or(0);
    let all = [Some(Outcome::Passed), Some(Outcome::Failed), Some(Outcome::NotRun)].map(of);
    let [passed, failed, not_run] = all;
    format!("{passed} passed, {failed} failed, {} not run", not_run + of(None))
}

fn listed(step: &Step, state: &State) -> String {
    let outcome = state.outcome(&step.name).map_or("-", Outcome::word);
    format!("{outcome:8} {:27} {}", step.name, step.line)
}

/// The commit; with changes, the tree that they make, too.
fn sources() -> Result<String> {
    let index = tempfile::tempdir()?;
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args(words).current_dir(workspace());
        command.env("GIT_INDEX_FILE", index.path().join("index"));
        let output = command.output().context("git is needed")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {error}");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let short = |name: String| name.chars().take(12).collect::<String>();
    let (commit, tree) = (git(&["rev-parse", "HEAD"])?, git(&["rev-parse", "HEAD^{tree}"])?);
    git(&["read-tree", "HEAD"])?;
    git(&["add", "--all"])?;
    let now = git(&["write-tree"])?;
    let commit = short(commit);
    Ok(if now == tree { commit } else { format!("{commit}-changed-{}", short(now)) })
}
