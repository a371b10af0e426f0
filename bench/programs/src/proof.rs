//! Proves the drop-in malloc on real programs: each one runs with and without the library, and
//! everything it produced must be the same.
//!
//! The story for readers: docs/results/programs.md.

use crate::definitions::{self, Program, Proof, Step};
use crate::generate::{Variables, files_below, fingerprint, fingerprint_of};
use crate::packages::{self, install_missing, lacking, packages_of};
use crate::stage::{Side, Size, Stage, new_root, private_copy};
use crate::{mariadb, nginx, postgres, python, redis, tables};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// The subset for continuous integration: fewer programs, smaller inputs.
    #[arg(long)]
    quick: bool,
    /// Only the program of this name; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// A malloc library to prove instead of a freshly built libcairn.so.
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Install nothing; programs that are not there are skipped.
    #[arg(long)]
    no_install: bool,
    /// Print the Debian packages that the programs come from, and stop.
    #[arg(long)]
    packages: bool,
    /// Write the table of results to this file, between its markers if it has them.
    #[arg(long, value_name = "OUT")]
    markdown: Option<PathBuf>,
}

type Facts = Vec<(String, String)>;

/// What one side of a comparison produced.
#[derive(Default)]
pub(crate) struct Evidence {
    /// A few words for the table.
    pub(crate) summary: String,
    /// Named values that must be the same on both sides.
    pub(crate) facts: Facts,
}

impl Evidence {
    pub(crate) fn of<const N: usize>(summary: String, facts: [(&str, String); N]) -> Self {
        let facts = facts.into_iter().map(|(name, value)| (name.to_owned(), value));
        Self { summary, facts: facts.collect() }
    }
}

/// Runs the command; `build` makes the library. Gives what it did not run.
pub fn run(args: &Args, build: impl FnOnce() -> Result<PathBuf>) -> Result<Option<String>> {
    let chosen = choose(args)?;
    if args.packages {
        let packages = packages_of(chosen.iter().map(|program| &program.0.needs));
        println!("{}", packages.into_iter().collect::<Vec<_>>().join(" "));
        return Ok(None);
    }
    if !args.no_install {
        install_missing(chosen.iter().map(|program| &program.0.needs));
    }
    let root = new_root()?;
    let library = private_copy(&args.library.clone().map_or_else(build, Ok)?, &root)?;
    let size = if args.quick { Size::Quick } else { Size::Full };
    let mut rows = Vec::new();
    for (program, proof) in chosen {
        eprintln!("{}: {}", program.name, proof.what);
        let case = Case { program, proof, size, library: &library, home: root.join(&program.name) };
        let row = case.prove(args.no_install);
        eprintln!("{}", row.detail());
        rows.push(row);
    }
    let table = table(&rows, &library);
    println!("{table}");
    if let Some(out) = &args.markdown {
        tables::write(out, "programs", &table)?;
    }
    let bad = rows.iter().filter(|row| row.verdict.fails()).count();
    if bad > 0 {
        bail!("{bad} of {} programs failed; their files are in {}", rows.len(), root.display());
    }
    fs::remove_dir_all(&root).context("cannot remove the temporary files")?;
    let programs = match proofs().count() - rows.len() {
        0 => String::new(),
        others => format!("{others} more programs (cargo xtask programs), "),
    };
    let sizes = if args.quick { "full inputs (without --quick), " } else { "" };
    let suites = "the programs' own test suites (cargo xtask suites)";
    Ok(Some(format!("{programs}{sizes}{suites}")))
}

fn proofs() -> impl Iterator<Item = (&'static Program, &'static Proof)> {
    definitions::all().iter().filter_map(|program| Some((program, program.proof.as_ref()?)))
}

fn choose(args: &Args) -> Result<Vec<(&'static Program, &'static Proof)>> {
    for name in &args.only {
        let names: Vec<&str> = proofs().map(|(program, _)| program.name.as_str()).collect();
        let all = names.join(", ");
        ensure!(names.contains(&name.as_str()), "no program is called {name}; there are {all}");
    }
    let wanted = |(program, proof): &(&Program, &Proof)| match args.only.is_empty() {
        true => proof.quick || !args.quick,
        false => args.only.contains(&program.name),
    };
    Ok(proofs().filter(wanted).collect())
}

/// A program that is to be proven.
struct Case<'a> {
    program: &'static Program,
    proof: &'static Proof,
    size: Size,
    library: &'a Path,
    home: PathBuf,
}

impl Case<'_> {
    /// Both sides, one row.
    fn prove(&self, skip_missing: bool) -> Row {
        let mut row = Row { name: &self.program.name, what: &self.proof.what, ..Row::default() };
        if let Some(lacking) = lacking(&self.program.needs) {
            let verdict = if skip_missing { Verdict::Skipped } else { Verdict::Missing };
            row.verdict = verdict(lacking);
            return row;
        }
        row.version = packages::version(&self.program.version);
        let prepared = self.stage(Side::Bare).and_then(|stage| {
            let variables = self.program.variables(&stage, None)?;
            self.program.prepare(&stage, &self.proof.inputs, &variables)?;
            stage.close()
        });
        if let Err(error) = prepared {
            row.verdict = Verdict::Broken(format!("preparation: {error:#}"));
            return row;
        }
        let mut sides = Vec::new();
        for (number, side) in [Side::Without, Side::With].into_iter().enumerate() {
            let start = Instant::now();
            let outcome = self.side(side);
            row.seconds[number] = start.elapsed().as_secs_f64();
            match outcome {
                Ok((evidence, loaded)) => {
                    row.summaries[number].clone_from(&evidence.summary);
                    row.loaded = loaded;
                    sides.push(evidence);
                }
                Err(error) if side == Side::With => {
                    row.verdict = Verdict::Fails(format!("{error:#}"))
                }
                Err(error) => {
                    row.verdict = Verdict::Broken(format!("without the library: {error:#}"));
                    return row;
                }
            }
        }
        if let [without, with] = &sides[..] {
            row.verdict = compare(without, with);
        }
        if !row.verdict.fails() {
            // What differs is kept for whoever has to find out why.
            let _ = fs::remove_dir_all(&self.home);
        }
        row
    }

    fn stage(&self, side: Side) -> Result<Stage> {
        Stage::open(&self.home, self.size, side, self.library)
    }

    /// Runs one side and checks where the library was and was not mapped.
    fn side(&self, side: Side) -> Result<(Evidence, String)> {
        let stage = self.stage(side)?;
        for folder in &self.proof.folders {
            fs::create_dir_all(stage.work.join(folder))?;
        }
        let variables = self.program.variables(&stage, None)?;
        let evidence = match self.program.name.as_str() {
            _ if !self.proof.steps.is_empty() => self.steps(&stage, variables)?,
            "python" => python::prove(&stage, &variables)?,
            "redis" => redis::prove(&stage)?,
            "postgresql" => postgres::prove(&stage)?,
            "mariadb" => mariadb::prove(&stage)?,
            "nginx" => nginx::prove(&stage)?,
            name => bail!("nobody knows how {name} is proven"),
        };
        let loaded = match &stage.watch {
            Some(watch) => watch.check(&self.proof.loaded)?,
            None => String::new(),
        };
        stage.close()?;
        Ok((evidence, loaded))
    }

    /// Takes the steps of a program without code, each for all combinations of its `each`.
    fn steps(&self, stage: &Stage, mut variables: Variables) -> Result<Evidence> {
        let mut evidence = Evidence::default();
        for (number, step) in (1..).zip(&self.proof.steps) {
            for (nth, combination) in (0..).zip(combinations(&step.each)) {
                let label = combination.values().cloned().collect::<Vec<_>>().join(" ");
                variables.extend(combination);
                variables.insert("nth".to_owned(), nth.to_string());
                let (facts, said) = self.step(stage, step, &variables)?;
                let name = |item: &str| format!("{number} {label} {item}");
                let facts = facts.into_iter().map(|(item, value)| (name(&item), value));
                evidence.facts.extend(facts);
                let said = said.into_iter().map(|(word, value)| (format!("{word}{number}"), value));
                variables.extend(said);
            }
        }
        variables.insert("facts".to_owned(), evidence.facts.len().to_string());
        evidence.summary = definitions::fill(&self.proof.summary, &variables);
        Ok(evidence)
    }

    /// One process: its facts, and what a summary can say of it.
    fn step(
        &self,
        stage: &Stage,
        step: &Step,
        variables: &Variables,
    ) -> Result<(Facts, BTreeMap<&'static str, String>)> {
        let ended = self.program.process(stage, step, variables)?.success()?;
        let (text, fill) = (ended.text(), |text: &str| definitions::fill(text, variables));
        ensure!(ended.stdout.len() >= step.least, "`{}` says too little:\n{text}", step.run);
        let last = text.lines().last().unwrap_or_default();
        if let Some(end) = &step.ends {
            ensure!(last == end, "`{}` ends with {last}", step.run);
        }
        if let Some(bad) = &step.lacks {
            ensure!(!text.contains(bad), "`{}` complains:\n{text}", step.run);
        }
        if let Some([one, two]) = &step.equal {
            let [one, two] = [fill(one), fill(two)];
            let same =
                fingerprint_of(&stage.work.join(&one))? == fingerprint_of(&stage.work.join(&two))?;
            ensure!(same, "{one} is not as {two}");
        }
        let mut said = BTreeMap::from([
            ("answer", last.chars().take(16).collect()),
            ("line", text.lines().next().unwrap_or_default().to_owned()),
            ("lines", text.lines().count().to_string()),
        ]);
        let mut facts = Vec::new();
        for item in step.compare.iter().map(|item| fill(item)) {
            match item.as_str() {
                "stdout" if ended.stdout.len() < 400 => facts.push((item, text.clone())),
                "stdout" => facts.push((item, fingerprint(&ended.stdout))),
                "stderr" => facts.push((item, ended.stderr.clone())),
                _ => {
                    let path = stage.work.join(&item);
                    let files =
                        if path.is_dir() { files_below(&path)? } else { vec![path.clone()] };
                    said.insert("files", files.len().to_string());
                    said.insert("kib", (path.metadata()?.len() / 1024).to_string());
                    for file in files {
                        let name = file.strip_prefix(&stage.work)?.display().to_string();
                        facts.push((name, fingerprint_of(&file)?));
                    }
                }
            }
        }
        Ok((facts, said))
    }
}

/// One value for each name, in every way.
fn combinations(each: &BTreeMap<String, Vec<String>>) -> Vec<Variables> {
    let mut all = vec![Variables::new()];
    for (name, values) in each {
        let with = |before: &Variables, value: &String| {
            let own = [(name.clone(), value.clone())];
            before.clone().into_iter().chain(own).collect()
        };
        let longer = all.iter().flat_map(|before| values.iter().map(move |it| with(before, it)));
        all = longer.collect();
    }
    all
}

/// What became of a program.
#[derive(Default)]
enum Verdict {
    #[default]
    Same,
    /// Both sides ran, and some facts are not the same.
    Differs(String),
    /// Only the side with the library failed.
    Fails(String),
    /// It does not work here without the library either, so nothing is proven.
    Broken(String),
    Missing(String),
    /// Not there, and that was allowed.
    Skipped(String),
}

impl Verdict {
    fn fails(&self) -> bool {
        !matches!(self, Self::Same | Self::Skipped(_))
    }

    /// Its name and its reason.
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Same => ("same", ""),
            Self::Differs(why) => ("DIFFERS", why),
            Self::Fails(why) => ("FAILS", why),
            Self::Broken(why) => ("BROKEN", why),
            Self::Missing(why) => ("MISSING", why),
            Self::Skipped(why) => ("skipped", why),
        }
    }
}

/// One line of the table; of two values the first is without the library.
#[derive(Default)]
struct Row {
    name: &'static str,
    what: &'static str,
    version: String,
    summaries: [String; 2],
    /// The processes that were seen with the library mapped.
    loaded: String,
    seconds: [f64; 2],
    verdict: Verdict,
}

impl Row {
    /// The line for whoever watches.
    fn detail(&self) -> String {
        let ((name, why), [without, with]) = (self.verdict.words(), self.seconds);
        let mut line = format!("  {name} ({without:.1} s, {with:.1} s)");
        if !self.loaded.is_empty() {
            let _ = write!(line, ", library in {}", self.loaded);
        }
        for reason in why.lines() {
            let _ = write!(line, "\n    {reason}");
        }
        line
    }

    fn cells(&self) -> [String; 9] {
        let (name, why) = self.verdict.words();
        let [without, with] = self.summaries.clone();
        [
            self.name.to_owned(),
            self.version.clone(),
            self.what.to_owned(),
            without,
            with,
            self.loaded.clone(),
            format!("{:.1}", self.seconds[0]),
            format!("{:.1}", self.seconds[1]),
            why.lines().next().map_or(name.to_owned(), |reason| format!("{name}: {reason}")),
        ]
    }
}

/// The verdict on two sides that both came to their end.
fn compare(without: &Evidence, with: &Evidence) -> Verdict {
    let mut differences = String::new();
    for (name, before) in &without.facts {
        let _ = match with.facts.iter().find(|(other, _)| other == name) {
            Some((_, after)) if after == before => Ok(()),
            Some((_, after)) => writeln!(differences, "{name}: {before} became {after}"),
            None => writeln!(differences, "{name}: missing with the library"),
        };
    }
    for (name, _) in &with.facts {
        if !without.facts.iter().any(|(other, _)| other == name) {
            let _ = writeln!(differences, "{name}: only with the library");
        }
    }
    if differences.is_empty() { Verdict::Same } else { Verdict::Differs(differences) }
}

/// The whole table, with the machine it comes from.
fn table(rows: &[Row], library: &Path) -> String {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    let seconds: f64 = rows.iter().flat_map(|row| row.seconds).sum();
    let machine = tables::machine();
    let head = format!("With {name}, on {machine}; {} programs in {seconds:.0} s.", rows.len());
    let columns = [
        "program",
        "version",
        "what was run",
        "baseline",
        "with cairn",
        "library mapped in",
        "s",
        "s with cairn",
        "verdict",
    ];
    head + "\n\n" + &tables::markdown(columns, &[6, 7], rows.iter().map(Row::cells))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let facts = |facts: &[(&str, &str)]| Evidence {
            facts: facts.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            ..Evidence::default()
        };
        let one = facts(&[("a", "1"), ("b", "2")]);
        let two = facts(&[("a", "1"), ("b", "3"), ("c", "4")]);
        assert!(matches!(compare(&one, &one), Verdict::Same));
        let Verdict::Differs(why) = compare(&one, &two) else { panic!("these differ") };
        assert_eq!(why, "b: 2 became 3\nc: only with the library\n");
    }

    #[test]
    fn every_combination_comes_once() {
        let list = |words: &str| words.split(' ').map(str::to_owned).collect();
        let each = BTreeMap::from([("a".to_owned(), list("1 2")), ("b".to_owned(), list("x y z"))]);
        let all = combinations(&each);
        assert_eq!((all.len(), all[3]["a"].as_str(), all[3]["b"].as_str()), (6, "2", "x"));
        assert_eq!(combinations(&BTreeMap::new()).len(), 1);
    }
}
