//! Runs test suites that others wrote, with and without the library, and names the tests that
//! fail only with it.
//!
//! `suites.toml` says of each suite what it needs, how its sources come and are built, and into
//! which units it falls: processes whose output a reader turns into a tally. The story for readers:
//! docs/results/suites.md.

mod crates;
mod readers;
mod report;
mod sources;

use crate::definitions::{self, fill};
use crate::generate::Variables;
use crate::packages::{self, Needs, install_missing, lacking};
use crate::server::Account;
use crate::stage::{Side, Size, Stage, private_copy};
use crate::tables;
use anyhow::{Context, Result, bail, ensure};
use readers::Tally;
use report::{Outcome, Row, Suspect};
use serde::Deserialize;
use sources::Shop;
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
    reader: BTreeMap<String, readers::Pattern>,
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
    /// Debian's source package, unpacked and patched as Debian builds it.
    source: Option<String>,
    /// Or a crate, written as in a manifest.
    #[serde(rename = "crate")]
    krate: Option<String>,
    /// Or the command whose output says the version of what is installed.
    version: Option<String>,
    /// Variables of a quick and of a full run, and those that a shell finds out.
    #[serde(default)]
    vars: BTreeMap<String, [String; 2]>,
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
    note: Option<String>,
    /// Failures with the library alone that are understood: the test (a `*` stands for anything)
    /// and why.
    #[serde(default)]
    explained: Vec<[String; 2]>,
}

/// Units of one kind. Their command lines know `{unit}`, its words `{first}` and `{rest}`, and
/// `{stem}`, the name of a file without its folder and its end.
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
    /// Makes `{program}` for a unit, once.
    compile: Option<String>,
    /// What is said of the `{count}` and the `{names}` of those that it makes none for.
    #[serde(default)]
    left_out: String,
    run: String,
    directory: Option<String>,
    #[serde(default)]
    env: Variables,
    /// Whom it runs as, in a directory of that account's own.
    account: Option<String>,
    #[serde(default = "quarter_of_an_hour")]
    limit: u64,
    reads: String,
}

fn unit_itself() -> String {
    "{unit}".to_owned()
}

fn quarter_of_an_hour() -> u64 {
    900
}

/// What a suite has made ready.
struct Prepared {
    version: String,
    units: Vec<Unit>,
    /// What a reader of the table should know, such as what was left out and why.
    notes: Vec<String>,
}

/// A part of a suite that runs in one process, on both sides.
struct Unit {
    name: String,
    /// The program and its arguments, in which `{work}` is still open.
    words: Vec<String>,
    /// Another program for the side with the library, which has it already.
    linked: Option<PathBuf>,
    env: Variables,
    directory: Option<String>,
    account: Option<String>,
    limit: u64,
    reads: String,
}

/// How often a test that failed only with the library is run again, on both sides.
const AGAIN: usize = 2;

/// Runs the command; `build` makes the library. Gives what it did not run.
pub fn run(args: &Args, build: impl FnOnce() -> Result<PathBuf>) -> Result<String> {
    let chosen = choose(args)?;
    let scratch = args.scratch.clone().unwrap_or_else(|| workspace().join("target/suites"));
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
        fs::set_permissions(copy.path(), Permissions::from_mode(0o755))?;
        let library = private_copy(&args.library.clone().map_or_else(build, Ok)?, copy.path())?;
        for suite in &chosen {
            eprintln!("{}: {}", suite.name, suite.what);
            let row = judge(suite, args, &library, &scratch)?;
            eprint!("{}", row.detail(&suite.explained));
            if args.unit.is_none() {
                row.save(&scratch)?;
            }
            if row.fails(&suite.explained) {
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

fn workspace() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.nth(2).expect("this package is two folders below the workspace")
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
    let mut row = Row::new(suite, args.quick && suite.varies());
    row.problem = lacking(&suite.needs);
    if row.problem.is_some() {
        return Ok(row);
    }
    let home = scratch.join(&suite.name);
    let stage = Stage::open(&home, size, Side::Bare, library)?;
    let prepared = suite.prepare(&Shop { stage: &stage, scratch });
    stage.close()?;
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            row.problem = Some(format!("{error:#}"));
            return Ok(row);
        }
    };
    if let Some(part) = &args.unit {
        prepared.units.retain(|unit| unit.name.contains(part.as_str()));
    }
    ensure!(!prepared.units.is_empty(), "{} has nothing to run", suite.name);
    (row.version, row.notes) = (prepared.version, prepared.notes);
    let side = |name: &str, side: Side| {
        let mut stage = Stage::open(&home.join(name), size, side, library)?;
        // Looking at `/proc` costs time that busy tests want.
        stage.pause = Duration::from_millis(250);
        anyhow::Ok(stage)
    };
    let bench = Bench { without: side("without", Side::Without)?, with: side("with", Side::With)? };
    for unit in &prepared.units {
        bench.run(unit, &mut row)?;
    }
    row.loaded = bench.with.watch.as_ref().map_or_else(BTreeMap::new, |watch| watch.loaded());
    for stage in [&bench.without, &bench.with] {
        stage.watch.as_ref().map_or(Ok(String::new()), |watch| watch.check(&[]))?;
        stage.close()?;
    }
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
    fn prepare(&self, shop: &Shop<'_>) -> Result<Prepared> {
        let mut variables = shop.variables()?;
        for (name, [quick, full]) in &self.vars {
            variables.insert(name.clone(), shop.stage.pick(quick, full).clone());
        }
        match self.name.as_str() {
            "rust-library" => return crates::library(shop),
            "rust-crates" => return crates::crates(shop, &variables, false),
            "rust-crates-linked" => return crates::crates(shop, &variables, true),
            _ => {}
        }
        for (name, command) in &self.shell {
            let answer = shop.shell(command, &shop.stage.work, &variables)?.success()?.text();
            variables.insert(name.clone(), answer.trim().to_owned());
        }
        let source = match (&self.source, &self.krate) {
            (Some(package), _) => Some(shop.debian_source(&fill(package, &variables))?),
            (_, Some(krate)) => shop.crates(&[krate])?.pop(),
            _ => None,
        };
        let version = match (&source, &self.version) {
            (Some(source), _) => source.version.clone(),
            (None, command) => packages::version(command.as_deref().unwrap_or_default()),
        };
        let directory = source.map_or_else(|| shop.stage.work.clone(), |source| source.directory);
        variables.insert("source".to_owned(), directory.display().to_string());
        if let Some(build) = &self.build {
            shop.once(&shop.stage.input, "build", || {
                shop.shell(&format!("set -e\n{build}"), &directory, &variables)?.success().map(drop)
            })?;
        }
        let mut notes: Vec<String> = self.note.iter().map(|it| fill(it, &variables)).collect();
        let mut units = Vec::new();
        for group in self.groups() {
            let (more, left_out) = self.units(group, shop, &directory, &variables)?;
            units.extend(more);
            notes.extend(left_out);
        }
        Ok(Prepared { version, units, notes })
    }

    /// The units of a group, and a note on those that it makes no program for.
    fn units(
        &self,
        group: &Group,
        shop: &Shop<'_>,
        source: &Path,
        variables: &Variables,
    ) -> Result<(Vec<Unit>, Option<String>)> {
        let mut names = group.units.clone();
        if let Some(list) = &group.list {
            let listed = shop.shell(list, source, variables)?.success()?.text();
            names.extend(
                listed.split('\n').map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()),
            );
        }
        if let Some(wanted) = shop.stage.pick(&group.quick, &group.full) {
            let is_wanted = |name: &String| {
                let first = name.split(' ').next().unwrap_or(name);
                let fits = |it: &str| report::fits(it, name) || report::fits(it, first);
                wanted.split_whitespace().any(fits)
            };
            names.retain(is_wanted);
        }
        let (mut units, mut left_out) = (Vec::new(), Vec::new());
        for name in names {
            let mut variables = variables.clone();
            let (first, rest) = name.split_once(' ').unwrap_or((&name, ""));
            let file = first.rsplit('/').next().unwrap_or(first);
            let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
            let program = first.strip_suffix(".c").unwrap_or(first).replace('/', "-");
            let program = shop.directory("bin")?.join(program);
            let program = program.display().to_string();
            let own = [("unit", &*name), ("first", first), ("rest", rest), ("stem", stem)];
            variables.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
            variables.insert("program".to_owned(), program.clone());
            let shown = fill(&group.name, &variables);
            if let Some(compile) = &group.compile
                && !shop.compiled(compile, &program, source, &self.env, &variables)?
            {
                left_out.push(shown);
                continue;
            }
            units.push(self.unit(group, shown, &variables)?);
        }
        let count = left_out.len().to_string();
        let said =
            Variables::from([("count".into(), count), ("names".into(), left_out.join(", "))]);
        Ok((units, (!left_out.is_empty()).then(|| fill(&group.left_out, &said))))
    }

    fn unit(&self, group: &Group, name: String, variables: &Variables) -> Result<Unit> {
        let words = definitions::words(&group.run, variables)?;
        let env = group.env.iter().chain(&self.env);
        let env = env.map(|(name, value)| (name.clone(), fill(value, variables)));
        Ok(Unit {
            name,
            words,
            linked: None,
            env: env.collect(),
            directory: group.directory.as_ref().map(|directory| fill(directory, variables)),
            account: group.account.clone(),
            limit: group.limit,
            reads: group.reads.clone(),
        })
    }
}

/// The two sides of a suite.
struct Bench {
    without: Stage,
    with: Stage,
}

impl Bench {
    /// Runs one unit on both sides, one right after the other, so that both meet the same weather.
    fn run(&self, unit: &Unit, row: &mut Row) -> Result<()> {
        let without = side(unit, &self.without, &mut row.without)?;
        let with = side(unit, &self.with, &mut row.with)?;
        row.units += 1;
        row.said.extend(self.said());
        if without.tests != with.tests {
            row.counts.push(format!("{}: {} and {}", unit.name, without.tests, with.tests));
        }
        let failed = (without.failed.len(), with.failed.len());
        eprintln!(
            "  {}: {} tests, {} and {} failures",
            unit.name, without.tests, failed.0, failed.1
        );
        // Once more alone: a test that minds a busy machine fails on either side, sooner or later.
        let only = with.failed.keys().filter(|it| !without.failed.contains_key(*it));
        let mut failures: BTreeMap<&String, (usize, usize)> = only.map(|it| (it, (0, 1))).collect();
        for _ in 0..if failures.is_empty() { 0 } else { AGAIN } {
            let mut ignored = Outcome::default();
            let without = side(unit, &self.without, &mut ignored)?;
            let with = side(unit, &self.with, &mut ignored)?;
            row.said.extend(self.said());
            for (name, (before, after)) in &mut failures {
                *before += usize::from(without.failed.contains_key(*name));
                *after += usize::from(with.failed.contains_key(*name));
            }
        }
        row.suspects.extend(failures.into_iter().map(|(name, (before, after))| Suspect {
            test: unit.full_name(name),
            without: before,
            with: after,
            message: with.failed[name].clone(),
        }));
        Ok(())
    }

    fn said(&self) -> Vec<String> {
        self.with.watch.as_ref().map_or_else(Vec::new, |watch| watch.said())
    }
}

impl Unit {
    fn full_name(&self, test: &str) -> String {
        if test.is_empty() { self.name.clone() } else { format!("{}: {test}", self.name) }
    }
}

/// Runs one unit on one side.
fn side(unit: &Unit, stage: &Stage, outcome: &mut Outcome) -> Result<Tally> {
    let start = Instant::now();
    let work = Variables::from([("work".to_owned(), stage.work.display().to_string())]);
    let words: Vec<String> = unit.words.iter().map(|word| fill(word, &work)).collect();
    let linked = unit.linked.as_ref().filter(|_| stage.library.is_some());
    let mut process = match linked {
        Some(program) => stage.process(&program.to_string_lossy())?.without_env("LD_PRELOAD"),
        None => stage.process(words.first().context("a unit has a program")?)?,
    };
    if let Some(account) = &unit.account {
        let account = Account::of_server(&[account, "nobody"])?;
        stage.directory_for("regress", account)?;
        process = process.account(account);
    }
    for (name, value) in &unit.env {
        process = process.env(name, fill(value, &work));
    }
    if let Some(directory) = &unit.directory {
        process = process.directory(fill(directory, &work));
    }
    let ended = process.args(&words[1..]).limit(unit.limit).run()?;
    let mut tally = readers::read(&unit.reads, &TABLE.reader, &ended)?;
    if !tally.skipped && ended.code() != Some(0) && tally.failed.is_empty() {
        tally.failed.insert(String::new(), format!("ended with {}", ended.how()));
    }
    outcome.seconds += start.elapsed().as_secs_f64();
    outcome.tests += tally.tests;
    outcome.failed.extend(tally.failed.keys().map(|name| unit.full_name(name)));
    Ok(tally)
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
            let known = ["status", "posix", "tap"].contains(&group.reads.as_str());
            assert!(known || TABLE.reader.contains_key(&group.reads), "{}", group.reads);
        }
    }
}
