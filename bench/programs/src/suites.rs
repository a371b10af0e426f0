//! Runs real programs, and test suites that others wrote, with and without the library.
//!
//! `programs.toml` and `suites.toml` have one format. They say what a suite needs, how its sources
//! come and are built, and into which units it falls: processes whose status or output is turned
//! into a tally. A program is a suite of one unit, a script whose output must be the same on both
//! sides. The story for readers: docs/results/programs.md.

mod bench;
mod readers;
mod report;

use crate::definitions::{self, Input, Sizes, set};
use crate::packages::{self, Needs, install_missing, lacking};
use crate::process::Process;
use crate::stage::{Side, Size, Stage, private_copy};
use crate::tables;
use crate::variables::{Variables, fill};
use anyhow::{Context, Result, bail, ensure};
use bench::Bench;
use glob::Pattern;
use readers::Reader;
use report::Row;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// Which of the two tables.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Real programs.
    Programs,
    /// Test suites of others.
    Suites,
}

impl Kind {
    fn name(self) -> &'static str {
        if self == Kind::Programs { "programs" } else { "suites" }
    }

    fn all(self) -> &'static [Suite] {
        static ALL: LazyLock<[Vec<Suite>; 2]> = LazyLock::new(|| {
            let programs = include_str!("../programs.toml");
            let suites = include_str!("../suites.toml");
            [("programs.toml", programs), ("suites.toml", suites)].map(|(name, text)| {
                let table = definitions::parsed(name, text);
                let read = |suite: &String| Suite::read(&table, suite);
                let all: Result<_> = table.keys().map(read).collect();
                all.unwrap_or_else(|error| panic!("{name}: {error:#}"))
            })
        });
        &ALL[usize::from(self == Kind::Suites)]
    }
}

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// A part: fewer programs and smaller inputs, some units of each suite.
    #[arg(long)]
    quick: bool,
    /// Only these, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// A malloc library to try instead of a freshly built libcairn.so.
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Where sources, builds and results are kept from run to run. Without it those of programs go,
    /// and those of suites are in target/suites.
    #[arg(long, value_name = "PATH")]
    scratch: Option<PathBuf>,
    /// Install nothing; what lacks something is skipped.
    #[arg(long)]
    no_install: bool,
    /// Print the Debian packages that are needed, and stop.
    #[arg(long)]
    packages: bool,
    /// Run nothing; make the table of the results that are kept.
    #[arg(long)]
    table: bool,
    /// Write the table to this file, between its markers if it has them.
    #[arg(long, value_name = "OUT")]
    markdown: Option<PathBuf>,
}

/// How the outputs of suites tell of tests.
static READERS: LazyLock<BTreeMap<String, Reader>> =
    LazyLock::new(|| definitions::parsed("readers.toml", include_str!("../readers.toml")));

/// A test suite, or a program; or units of one kind, which have the fields of their suite but for those that they give
/// themselves. The command lines of units know `{unit}`, its words `{1}` to `{4}`, all but the first as `{rest}`, and
/// `{stem}`, the name of a file without its folder and its end.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Suite {
    /// What it is called in the file.
    name: String,
    /// Without any, a program of that name from a package of that name.
    needs: Needs,
    /// What is run, for the table.
    what: String,
    /// No part of a quick run.
    full_only: bool,
    /// What scripts/sources.sh has to bring.
    source: Option<String>,
    /// The command whose output says the version of what is installed, if it is not the program of
    /// that name with `--version`.
    version: Option<String>,
    vars: Sizes,
    /// Variables that a shell finds out.
    shell: Variables,
    inputs: Vec<Input>,
    /// Done once, in the sources, by a shell.
    build: Option<String>,
    /// For all its processes, over `test_env`.
    env: Variables,
    /// Of a program: what a shell runs, up to the first command that fails. What it prints must be
    /// the same on both sides.
    script: Option<String>,
    /// The executables (by prefix) of a program that must be seen with the library mapped; only
    /// those that live long enough to be seen for certain. Without any, the one of its name.
    loaded: Vec<String>,
    /// Failures with the library alone that are understood: the test (a `*` stands for anything) and why.
    explained: Vec<[String; 2]>,
    /// The units, of one kind or more. In the file these are `group`, and one alone is the suite.
    #[serde(skip)]
    groups: Vec<Suite>,
    units: Vec<String>,
    /// Lists the units, a line each, by a shell in the sources.
    list: Option<String>,
    /// Those of a quick and of a full run, by their names or first words, if they are not all; a `*`
    /// stands for anything.
    quick: Option<String>,
    full: Option<String>,
    /// What a unit is called in the tables, if not by its own name.
    called: Option<String>,
    /// Makes `{program}` for a unit, once. Those that it makes none for are left out.
    compile: Option<String>,
    run: String,
    /// Another command for the side with the library, which has it linked in.
    run_with: Option<String>,
    directory: Option<String>,
    /// For the units alone.
    test_env: Variables,
    limit: Option<u64>,
    /// How its output tells of tests; without, the whole process is one test.
    reads: Option<String>,
    /// Statuses that say that a test does not apply, if it is not automake's.
    skips: Option<Vec<i32>>,
}

/// A part of a suite that runs in one process, on both sides.
struct Unit {
    name: String,
    /// None of a program.
    group: Option<&'static Suite>,
    variables: Variables,
}

/// How long one step of a build may take.
const STEP_SECONDS: u64 = 3600;

/// Runs the command; `build` makes the library, with these features of cairn's. Gives what it did
/// not run.
pub fn run(
    kind: Kind,
    args: &Args,
    features: &'static str,
    build: impl FnOnce() -> Result<PathBuf>,
) -> Result<String> {
    let chosen = choose(kind, args)?;
    let needs: Vec<Needs> = chosen.iter().map(|suite| suite.needs()).collect();
    if args.packages {
        let packages: BTreeSet<&String> = needs.iter().flat_map(Needs::values).collect();
        packages.iter().for_each(|package| println!("{package}"));
        return Ok("anything".to_owned());
    }
    // Sockets live in it, whose paths end at 107 bytes, and every user has to get there.
    let short = std::env::temp_dir().join(format!("cairn-programs-{}", std::process::id()));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let default = if kind == Kind::Programs { short } else { workspace.join("target/suites") };
    let scratch = args.scratch.clone().unwrap_or(default);
    fs::create_dir_all(&scratch)?;
    let scratch = scratch.canonicalize()?;
    let results = scratch.join("results").join(features);
    fs::create_dir_all(&results)?;
    fs::set_permissions(&scratch, Permissions::from_mode(0o755))?;
    let mut bad = Vec::new();
    if !args.table {
        if !args.no_install {
            install_missing(&needs);
        }
        // Of this run alone: another must not write into a library that is mapped.
        let copy = tempfile::tempdir_in(&scratch)?;
        let library = private_copy(&args.library.clone().map_or_else(build, Ok)?, copy.path())?;
        for suite in &chosen {
            eprintln!("{}: {}", suite.name, suite.what);
            let row = judge(kind, suite, args, (&library, features), &scratch)?;
            eprint!("{}", row.detail(suite));
            row.save(suite, &results)?;
            if row.fails(suite) && !(args.no_install && row.version.is_empty()) {
                bad.push(suite.name.as_str());
            }
        }
    }
    let table = report::table(kind, &results)?;
    println!("{table}");
    if let Some(out) = &args.markdown {
        tables::write(out, kind.name(), &table)?;
    }
    if !bad.is_empty() {
        bail!("look into {}; logs are in {}", bad.join(", "), scratch.display());
    }
    if kind == Kind::Programs && args.scratch.is_none() {
        fs::remove_dir_all(&scratch).context("cannot remove the temporary files")?;
    }
    let (others, name) = (kind.all().len() - chosen.len(), kind.name());
    let other = if kind == Kind::Programs { "suites" } else { "programs" };
    let rest = if args.quick { "full sizes (without --quick), " } else { "" };
    Ok(format!("{others} more {name}, {rest}{other} (cargo xtask {other})"))
}

fn choose(kind: Kind, args: &Args) -> Result<Vec<&'static Suite>> {
    let names: Vec<&str> = kind.all().iter().map(|suite| suite.name.as_str()).collect();
    for name in &args.only {
        let all = names.join(", ");
        ensure!(names.contains(&name.as_str()), "nothing is called {name}; there are {all}");
    }
    let wanted = |suite: &&Suite| match args.only.is_empty() {
        true => !(suite.full_only && args.quick),
        false => args.only.contains(&suite.name),
    };
    Ok(kind.all().iter().filter(wanted).collect())
}

/// Prepares and runs one suite. What cannot be prepared is a row too: it says why.
fn judge(
    kind: Kind,
    suite: &'static Suite,
    args: &Args,
    (library, features): (&Path, &str),
    scratch: &Path,
) -> Result<Row> {
    let size = if args.quick { Size::Quick } else { Size::Full };
    let mut row = Row { quick: args.quick && suite.varies(), ..Row::default() };
    if let Some(lacking) = lacking([&suite.needs()]) {
        row.problem = Some(lacking.to_string());
        return Ok(row);
    }
    // Looking at `/proc` costs time that busy tests want.
    let pause = Duration::from_millis(if kind == Kind::Programs { 5 } else { 250 });
    let bench = Bench { suite, size, library, pause, home: scratch.join(&suite.name) };
    let bare = bench.stage(Side::Bare)?;
    let prepared = suite.prepare(&bare, scratch, features);
    bare.close()?;
    match prepared {
        Ok((version, units)) => {
            row.version = version;
            ensure!(!units.is_empty(), "{} has nothing to run", suite.name);
            for unit in &units {
                bench.run(unit, &mut row)?;
            }
        }
        Err(error) => row.problem = Some(format!("{error:#}")),
    }
    if suite.script.is_some() && row.problem.is_none() {
        row.problem = suite.unproven(&row);
    }
    Ok(row)
}

impl Suite {
    /// The one of this name in a file, with what it has from the suite that it is `like`.
    fn read(file: &toml::Table, name: &str) -> Result<Suite> {
        let own = file[name].as_table().with_context(|| format!("{name} is no table"))?;
        let mut whole = match own.get("like").and_then(toml::Value::as_str) {
            Some(like) => file.get(like).and_then(toml::Value::as_table).cloned(),
            None => Some(toml::Table::new()),
        }
        .with_context(|| format!("{name} is like nothing here"))?;
        whole.extend(own.clone());
        whole.insert("name".to_owned(), name.into());
        whole.remove("like");
        let groups = whole.remove("group").unwrap_or_else(|| vec![toml::Table::new()].into());
        let mut suite: Suite = whole.clone().try_into().with_context(|| name.to_owned())?;
        ensure!(!suite.what.is_empty(), "nobody says what {name} is");
        for group in Vec::<toml::Table>::deserialize(groups)? {
            let part = whole.clone().into_iter().chain(group).collect::<toml::Table>();
            suite.groups.push(part.try_into().with_context(|| name.to_owned())?);
        }
        let runs = suite.script.is_some() || suite.groups.iter().all(|part| !part.run.is_empty());
        ensure!(runs, "{name} runs nothing");
        Ok(suite)
    }

    fn needs(&self) -> Needs {
        match self.needs.is_empty() {
            true => Needs::from([(self.name.clone(), self.name.clone())]),
            false => self.needs.clone(),
        }
    }

    /// Why the run of a program proves nothing.
    fn unproven(&self, row: &Row) -> Option<String> {
        if let Some(failed) = row.without.failed.first() {
            return Some(format!("without the library, too: {failed}"));
        }
        let own = [self.name.clone()];
        let expected = if self.loaded.is_empty() { &own[..] } else { &self.loaded };
        let seen = |name: &&String| {
            // What is called by one name may be a link to a file of another.
            let file = packages::find_anywhere(name).and_then(|path| path.canonicalize().ok());
            let file = file.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
            row.loaded.keys().any(|it| it.starts_with(*name) || Some(it) == file.as_ref())
        };
        let unseen = expected.iter().find(|name| !seen(name))?;
        Some(format!("{unseen} was not seen with the library mapped, only {:?}", row.loaded))
    }

    /// Whether a quick run is another one than a full run.
    fn varies(&self) -> bool {
        !self.vars.is_empty() || self.groups.iter().any(|group| group.quick.is_some())
    }

    /// Brings the sources, builds without the library, and says what there is to run.
    fn prepare(
        &'static self,
        stage: &Stage,
        scratch: &Path,
        features: &str,
    ) -> Result<(String, Vec<Unit>)> {
        let (bin, shared) = (stage.input.join("bin"), scratch.join("shared"));
        fs::create_dir_all(&bin)?;
        fs::create_dir_all(&shared)?;
        let mut variables = definitions::variables(stage, &self.shell, &self.vars)?;
        for (name, path) in [("bin", bin), ("shared", shared)] {
            variables.insert(name.to_owned(), path.display().to_string());
        }
        variables.insert("source".to_owned(), variables["work"].clone());
        variables.insert("features".to_owned(), features.to_owned());
        let version = match &self.source {
            None => {
                let default = format!("{} --version", self.name);
                packages::version(self.version.as_ref().unwrap_or(&default))
            }
            Some(source) => {
                let script = format!("sh {{scripts}}/sources.sh {{shared}} {source}");
                let told = self.shell(stage, &script, &variables)?.success()?.text();
                let last = told.lines().last().and_then(|line| line.split_once(' '));
                let (directory, version) = last.context("no sources")?;
                variables.insert("source".to_owned(), directory.to_owned());
                version.to_owned()
            }
        };
        definitions::prepare(stage, &self.inputs, &self.env, &variables)?;
        if let Some(build) = &self.build {
            stage.made("built", |path| {
                self.shell(stage, build, &variables)?.success()?;
                Ok(fs::write(path, "")?)
            })?;
        }
        if self.script.is_some() {
            return Ok((version, vec![Unit { name: self.name.clone(), group: None, variables }]));
        }
        let mut units = Vec::new();
        for group in &self.groups {
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
        let shell = stage.tool("sh")?.limit(STEP_SECONDS);
        let shell = shell.with(|shell| shell.current_dir(&variables["source"]));
        Ok(set(shell.script(script, variables), &self.env, variables))
    }

    /// The units of a group that there are programs for.
    fn units(
        &self,
        group: &'static Suite,
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
            let unit = {
                let called = group.called.as_deref().unwrap_or("{unit}");
                Unit { name: fill(called, &variables), group: Some(group), variables }
            };
            match self.compiled(group, &unit, stage)? {
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
    fn compiled(&self, group: &Suite, unit: &Unit, stage: &Stage) -> Result<bool> {
        let Some(compile) = &group.compile else { return Ok(true) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_can_be_read_and_readers_exist() {
        assert_eq!([Kind::Programs, Kind::Suites].map(|kind| kind.all().len()), [26, 19]);
        for group in Kind::Suites.all().iter().flat_map(|suite| &suite.groups) {
            let known = group.reads.as_ref().is_none_or(|name| READERS.contains_key(name));
            assert!(known, "{:?}", group.reads);
        }
    }
}
