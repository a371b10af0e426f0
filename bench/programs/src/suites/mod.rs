//! Runs test suites that others wrote, with and without the library, and names the tests that
//! fail only with it.
//!
//! `suites.toml` says of each suite what it needs, how its sources come and are built, and into
//! which units it falls: processes whose status or output is turned into a tally. The story for
//! readers: docs/results/suites.md.

mod readers;
mod report;

use crate::definitions::{self, Sizes, fill};
use crate::generate::Variables;
use crate::packages::{self, Needs, install_missing, lacking};
use crate::process::Process;
use crate::stage::{Side, Size, Stage, private_copy};
use crate::tables;
use anyhow::{Context, Result, bail, ensure};
use glob::Pattern;
use readers::{Reader, Tally};
use report::{Outcome, Row, Suspect};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// A part of every suite, about an hour in all.
    #[arg(long)]
    quick: bool,
    /// Only these suites, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Only units whose name contains this.
    #[arg(long, value_name = "TEXT")]
    unit: Option<String>,
    /// A malloc library to try instead of a freshly built libcairn.so.
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Where sources, builds and results are kept from run to run, instead of target/suites.
    #[arg(long, value_name = "PATH")]
    scratch: Option<PathBuf>,
    /// Install nothing; suites that lack something are reported so.
    #[arg(long)]
    no_install: bool,
    /// Run nothing; make the table of the results that are kept.
    #[arg(long)]
    table: bool,
    /// Write the table to this file, between its markers if it has them.
    #[arg(long, value_name = "OUT")]
    markdown: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    suite: Vec<Suite>,
    reader: BTreeMap<String, Reader>,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| definitions::parsed("suites.toml", include_str!("../../suites.toml")));

/// A test suite.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    name: String,
    needs: Needs,
    /// What is run, for the table.
    what: String,
    /// What scripts/sources.sh has to bring.
    source: Option<String>,
    /// Or the command whose output says the version of what is installed.
    version: Option<String>,
    #[serde(default)]
    vars: Sizes,
    /// Variables that a shell finds out.
    #[serde(default)]
    shell: Variables,
    /// Done once, in the sources, by a shell.
    build: Option<String>,
    /// For all its processes, over what its groups say.
    #[serde(default)]
    env: Variables,
    #[serde(default)]
    group: Vec<Group>,
    /// The suite whose groups are this one's, too.
    groups_of: Option<String>,
    /// Failures with the library alone that are understood: the test (a `*` stands for anything)
    /// and why.
    #[serde(default)]
    explained: Vec<[String; 2]>,
}

/// Units of one kind. Their command lines know `{unit}`, its words `{1}` to `{4}`, all but the first
/// as `{rest}`, and `{stem}`, the name of a file without its folder and its end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[serde(default)]
    units: Vec<String>,
    /// Lists the units, a line each, by a shell in the sources.
    list: Option<String>,
    /// Those of a quick and of a full run, by their names or first words, if they are not all; a `*`
    /// stands for anything.
    quick: Option<String>,
    full: Option<String>,
    /// Of a unit, for the tables.
    #[serde(default = "unit_itself")]
    name: String,
    /// Makes `{program}` for a unit, once. Those that it makes none for are left out.
    compile: Option<String>,
    run: String,
    /// Another command for the side with the library, which has it linked in.
    run_with: Option<String>,
    directory: Option<String>,
    #[serde(default)]
    env: Variables,
    #[serde(default = "quarter_of_an_hour")]
    limit: u64,
    /// How its output tells of tests; without, the whole process is one test.
    reads: Option<String>,
    /// Statuses that say that a test does not apply.
    #[serde(default = "automake_skips")]
    skips: Vec<i32>,
}

fn unit_itself() -> String {
    "{unit}".to_owned()
}

fn quarter_of_an_hour() -> u64 {
    900
}

fn automake_skips() -> Vec<i32> {
    vec![77]
}

/// A part of a suite that runs in one process, on both sides.
struct Unit {
    name: String,
    group: &'static Group,
    variables: Variables,
}

/// How often a test that failed only with the library is run again, on both sides.
const AGAIN: usize = 2;

/// How long one step of a build may take.
const STEP_SECONDS: u64 = 3600;

/// Runs the command; `build` makes the library. Gives what it did not run.
pub fn run(args: &Args, build: impl FnOnce() -> Result<PathBuf>) -> Result<String> {
    let chosen = choose(args)?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scratch = args.scratch.clone().unwrap_or_else(|| workspace.join("target/suites"));
    fs::create_dir_all(scratch.join("results"))?;
    let scratch = scratch.canonicalize()?;
    fs::set_permissions(&scratch, Permissions::from_mode(0o755))?;
    let mut bad = Vec::new();
    if !args.table {
        if !args.no_install {
            install_missing(chosen.iter().map(|suite| &suite.needs));
        }
        // Of this run alone: another must not write into a library that is mapped.
        let copy = tempfile::tempdir_in(&scratch)?;
        let library = private_copy(&args.library.clone().map_or_else(build, Ok)?, copy.path())?;
        for suite in &chosen {
            eprintln!("{}: {}", suite.name, suite.what);
            let row = judge(suite, args, &library, &scratch)?;
            eprint!("{}", row.detail(suite));
            if args.unit.is_none() {
                row.save(suite, &scratch)?;
            }
            if row.fails(suite) {
                bad.push(suite.name.as_str());
            }
        }
    }
    let table = report::table(&TABLE.suite, &scratch)?;
    println!("{table}");
    if let Some(out) = &args.markdown {
        tables::write(out, "suites", &table)?;
    }
    if !bad.is_empty() {
        bail!("look into {}; logs are in {}", bad.join(", "), scratch.display());
    }
    Ok(match (args.table, TABLE.suite.len() - chosen.len()) {
        (true, _) => "the suites themselves (cargo xtask suites)".to_owned(),
        (false, _) if args.quick => "the rest of each suite (cargo xtask suites)".to_owned(),
        (false, 0) => "the real programs (cargo xtask programs)".to_owned(),
        (false, others) => format!("{others} more suites (cargo xtask suites)"),
    })
}

fn choose(args: &Args) -> Result<Vec<&'static Suite>> {
    let names: Vec<&str> = TABLE.suite.iter().map(|suite| suite.name.as_str()).collect();
    for name in &args.only {
        let all = names.join(", ");
        ensure!(names.contains(&name.as_str()), "no suite is called {name}; there are {all}");
    }
    let wanted = |suite: &&Suite| args.only.is_empty() || args.only.contains(&suite.name);
    Ok(TABLE.suite.iter().filter(wanted).collect())
}

/// Prepares and runs one suite. What cannot be prepared is a row too: it says why.
fn judge(suite: &'static Suite, args: &Args, library: &Path, scratch: &Path) -> Result<Row> {
    let size = if args.quick { Size::Quick } else { Size::Full };
    let mut row = Row { quick: args.quick && suite.varies(), ..Row::default() };
    if let Some(lacking) = lacking([&suite.needs]) {
        row.problem = Some(lacking.to_string());
        return Ok(row);
    }
    let home = scratch.join(&suite.name);
    // Looking at `/proc` costs time that busy tests want.
    let stage =
        |home: &Path, side| Stage::open(home, size, side, library, Duration::from_millis(250));
    let bare = stage(&home, Side::Bare)?;
    let prepared = suite.prepare(&bare, scratch);
    bare.close(&[])?;
    let mut units = match prepared {
        Ok((version, units)) => {
            row.version = version;
            units
        }
        Err(error) => {
            row.problem = Some(format!("{error:#}"));
            return Ok(row);
        }
    };
    if let Some(part) = &args.unit {
        units.retain(|unit| unit.name.contains(part.as_str()));
    }
    ensure!(!units.is_empty(), "{} has nothing to run", suite.name);
    let without = stage(&home.join("without"), Side::Without)?;
    let bench = Bench { suite, without, with: stage(&home.join("with"), Side::With)? };
    for unit in &units {
        bench.run(unit, &mut row)?;
    }
    bench.without.close(&[])?;
    eprintln!("  library in {:?}", bench.with.close(&[])?);
    Ok(row)
}

impl Suite {
    /// Whether a quick run is another one than a full run.
    fn varies(&self) -> bool {
        let parted = |group: &Group| group.quick.is_some();
        !self.vars.is_empty() || self.groups().iter().any(parted)
    }

    fn groups(&self) -> &[Group] {
        let of = |name: &String| TABLE.suite.iter().find(|suite| suite.name == *name);
        self.groups_of.as_ref().and_then(of).map_or(&self.group, |suite| &suite.group)
    }

    /// Brings the sources, builds without the library, and says what there is to run.
    fn prepare(&'static self, stage: &Stage, scratch: &Path) -> Result<(String, Vec<Unit>)> {
        let (bin, shared) = (stage.input.join("bin"), scratch.join("shared"));
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(&shared)?;
        let mut variables = definitions::variables(stage, &self.shell, &self.vars)?;
        for (name, path) in [("bin", bin), ("shared", shared)] {
            variables.insert(name.to_owned(), path.display().to_string());
        }
        let mut version = packages::version(self.version.as_deref().unwrap_or_default());
        variables.insert("source".to_owned(), variables["work"].clone());
        if let Some(source) = &self.source {
            let script = format!("sh {{scripts}}/sources.sh {{shared}} {source}");
            let told = self.shell(stage, &script, &variables)?.success()?.text();
            let last = told.lines().last().and_then(|line| line.split_once(' '));
            let (directory, own) = last.context("no sources")?;
            variables.insert("source".to_owned(), directory.to_owned());
            own.clone_into(&mut version);
        }
        if let Some(build) = &self.build {
            stage.made("built", |path| {
                self.shell(stage, build, &variables)?.success()?;
                Ok(fs::write(path, "")?)
            })?;
        }
        let mut units = Vec::new();
        for group in self.groups() {
            units.extend(self.units(group, stage, &variables)?);
        }
        Ok((version, units))
    }

    /// A shell in the sources.
    fn shell<'a>(
        &self,
        stage: &'a Stage,
        script: &str,
        variables: &Variables,
    ) -> Result<Process<'a>> {
        let shell = stage.tool("sh")?.limit(STEP_SECONDS).directory(&variables["source"]);
        let shell = shell.script(script, variables);
        let set = |shell: Process<'a>, (name, value): (&String, &String)| {
            shell.env(name, fill(value, variables))
        };
        Ok(self.env.iter().fold(shell, set))
    }

    /// The units of a group that there are programs for.
    fn units(
        &self,
        group: &'static Group,
        stage: &Stage,
        variables: &Variables,
    ) -> Result<Vec<Unit>> {
        let mut names = group.units.clone();
        if let Some(list) = &group.list {
            let listed = self.shell(stage, list, variables)?.success()?.text();
            let listed = listed.lines().map(str::trim).filter(|it| !it.is_empty());
            names.extend(listed.map(str::to_owned));
        }
        if let Some(wanted) = stage.pick(&group.quick, &group.full) {
            let patterns: Vec<_> =
                wanted.split_whitespace().map(Pattern::new).collect::<Result<_, _>>()?;
            let first = |name: &str| name.split(' ').next().map(str::to_owned).unwrap_or_default();
            names.retain(|name| {
                patterns.iter().any(|it| it.matches(name) || it.matches(&first(name)))
            });
        }
        let (mut units, mut left_out) = (Vec::new(), Vec::new());
        for name in names {
            let mut variables = variables.clone();
            let (first, rest) = name.split_once(' ').unwrap_or((&name, ""));
            let stem = Path::new(first).file_stem().unwrap_or_default().to_string_lossy();
            let program = first.strip_suffix(".c").unwrap_or(first).replace('/', "-");
            let program = format!("{}/{program}", variables["bin"]);
            let own = [("unit", &*name), ("rest", rest), ("stem", &*stem), ("program", &*program)];
            variables.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
            let words = (1..).zip(name.split(' '));
            variables.extend(words.map(|(nth, word): (u32, _)| (nth.to_string(), word.to_owned())));
            let unit = Unit { name: fill(&group.name, &variables), group, variables };
            match self.compiled(&unit, stage)? {
                true => units.push(unit),
                false => left_out.push(unit.name),
            }
        }
        if !left_out.is_empty() {
            eprintln!("  {} do not build: {}", left_out.len(), left_out.join(", "));
        }
        Ok(units)
    }

    /// Builds the program of a unit, once, and says whether it is there. Both are remembered.
    fn compiled(&self, unit: &Unit, stage: &Stage) -> Result<bool> {
        let Some(compile) = &unit.group.compile else { return Ok(true) };
        let program = Path::new(&unit.variables["program"]);
        let failed = program.with_extension("failed");
        if !program.exists() && !failed.exists() {
            let ended = self.shell(stage, compile, &unit.variables)?.run()?;
            if ended.code() != Some(0) {
                fs::write(failed, ended.stderr)?;
            }
        }
        Ok(program.exists())
    }
}

/// The two sides of a suite.
struct Bench {
    suite: &'static Suite,
    without: Stage,
    with: Stage,
}

impl Bench {
    /// Runs one unit on both sides, one right after the other, so that both meet the same weather.
    fn run(&self, unit: &Unit, row: &mut Row) -> Result<()> {
        let without = self.side(unit, &self.without, &mut row.without)?;
        let mut with = self.side(unit, &self.with, &mut row.with)?;
        if with.tests == 0 && without.tests > 0 && with.failed.is_empty() {
            with.failed.insert(String::new(), "no test was seen".to_owned());
        }
        eprintln!(
            "  {}: {} and {} tests, {} and {} failures",
            unit.name,
            without.tests,
            with.tests,
            without.failed.len(),
            with.failed.len()
        );
        // Once more alone: a test that minds a busy machine fails on either side, sooner or later.
        let only = with.failed.keys().filter(|it| !without.failed.contains_key(*it));
        let mut failures: BTreeMap<&String, (usize, usize)> = only.map(|it| (it, (0, 1))).collect();
        for _ in 0..if failures.is_empty() { 0 } else { AGAIN } {
            let mut ignored = Outcome::default();
            let without = self.side(unit, &self.without, &mut ignored)?;
            let with = self.side(unit, &self.with, &mut ignored)?;
            for (name, (before, after)) in &mut failures {
                *before += usize::from(without.failed.contains_key(*name));
                *after += usize::from(with.failed.contains_key(*name));
            }
        }
        // Misuse that a suite provokes is reported, and no failure.
        let said = self.with.watch.as_ref().map_or_else(Vec::new, |watch| watch.said());
        said.iter().for_each(|line| eprintln!("  it said: {line}"));
        row.suspects.extend(failures.into_iter().map(|(name, (before, after))| Suspect {
            test: unit.full_name(name),
            without: before,
            with: after,
            message: with.failed[name].clone(),
        }));
        Ok(())
    }

    /// Runs one unit on one side.
    fn side(&self, unit: &Unit, stage: &Stage, outcome: &mut Outcome) -> Result<Tally> {
        let start = Instant::now();
        let (group, mut variables) = (unit.group, unit.variables.clone());
        variables.insert("work".to_owned(), stage.work.display().to_string());
        let linked = group.run_with.as_ref().filter(|_| stage.library.is_some());
        let words = definitions::words(linked.unwrap_or(&group.run), &variables)?;
        let mut process = stage.process(&words[0])?.args(&words[1..]);
        if linked.is_some() {
            process = process.without_env("LD_PRELOAD");
        }
        for (name, value) in group.env.iter().chain(&self.suite.env) {
            process = process.env(name, fill(value, &variables));
        }
        if let Some(directory) = &group.directory {
            process = process.directory(fill(directory, &variables));
        }
        let ended = process.limit(group.limit).run()?;
        let reader = match &group.reads {
            Some(name) => Some(TABLE.reader.get(name).context("no such reader")?),
            None => None,
        };
        let tally = readers::read(reader, &group.skips, &ended)?;
        outcome.seconds += start.elapsed().as_secs_f64();
        outcome.tests += tally.tests;
        outcome.failed.extend(tally.failed.keys().map(|name| unit.full_name(name)));
        Ok(tally)
    }
}

impl Unit {
    fn full_name(&self, test: &str) -> String {
        if test.is_empty() { self.name.clone() } else { format!("{}: {test}", self.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_a_name_of_its_own_and_readers_that_exist() {
        let names: std::collections::BTreeSet<&str> =
            TABLE.suite.iter().map(|suite| suite.name.as_str()).collect();
        assert_eq!(names.len(), TABLE.suite.len());
        for group in TABLE.suite.iter().flat_map(Suite::groups) {
            let known = group.reads.as_ref().is_none_or(|name| TABLE.reader.contains_key(name));
            assert!(known, "{:?}", group.reads);
        }
    }
}
