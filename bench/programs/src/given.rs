//! Programs that a user has, timed as the lab's own are (`cargo lab --suite`).
//!
//! A suite is a TOML file with a `[[row]]` for each program. Whatever is wrong with it is told with its line,
//! before anything runs. `docs/results/public-suite.toml` says what the fields mean.

use crate::measure;
use crate::packages::find;
use crate::process::Failure;
use crate::stage::{Stage, fingerprint};
use crate::variables::Variables;
use anyhow::{Context, Result, bail, ensure};
use cairn_workloads::case::{Better, Case, Group, Results, Row, Table};
use cairn_workloads::cases;
use object::Endianness;
use object::elf::PT_INTERP;
use object::read::elf::{ElfFile64, ProgramHeader};
use regex_lite::Regex;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The file's name where a folder is given.
const FILE: &str = "suite.toml";

/// A figure, where a program prints one itself.
const FIGURE: &str = "figure";

/// Characters of a line in a message.
const LONGEST: usize = 200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defined {
    #[serde(default)]
    row: Vec<Definition>,
}

/// One `[[row]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    name: Spanned<String>,
    /// The program and its arguments, split as a shell splits them.
    command: Spanned<String>,
    /// Its first group is the figure in the output; without one the figure is the time from start to end.
    pattern: Option<Spanned<String>>,
    /// Which figures are better.
    better: Option<Spanned<Better>>,
    /// Shown beside the figure.
    unit: Option<Spanned<String>>,
    environment: Option<Spanned<Variables>>,
    /// Seconds after which a run is stopped.
    limit: Option<Spanned<f64>>,
}

/// A suite.
pub struct Suite {
    /// The file's name without its end, or its folder's if it is `suite.toml`.
    pub name: String,
    /// Its rows, in the order of the file.
    pub rows: Vec<Given>,
}

/// A program of a suite.
pub struct Given {
    /// What the tables know.
    pub case: Case,
    /// What stands in place of the usual time limit.
    pub limit: Option<Duration>,
    command: Vec<String>,
    /// Where the program is; none if the system does not have it.
    program: Option<PathBuf>,
    /// The suite's folder, in which it starts.
    folder: PathBuf,
    pattern: Option<Regex>,
    environment: Variables,
}

impl Suite {
    /// Reads a file, or the one called `suite.toml` in a folder.
    pub fn read(path: &Path) -> Result<Suite> {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let name = || path.display().to_string();
        let text = fs::read_to_string(&path).with_context(name)?;
        let path = path.canonicalize().with_context(name)?;
        let folder = path.parent().context("no folder")?;
        let named = if path.ends_with(FILE) { folder.file_name() } else { path.file_stem() };
        let rows = rows(&text, folder).map_err(|Fault { at, message }| {
            let before = text.get(..at).unwrap_or(&text);
            let line = 1 + before.matches('\n').count();
            anyhow::anyhow!("{}:{line}: {message}", name())
        })?;
        Ok(Suite { name: named.unwrap_or_default().to_string_lossy().into_owned(), rows })
    }
}

/// What is wrong with a suite, and where: how many bytes are before it.
struct Fault {
    at: usize,
    message: String,
}

impl Fault {
    fn new(span: Range<usize>, message: impl Into<String>) -> Fault {
        Fault { at: span.start, message: message.into() }
    }
}

fn rows(text: &str, folder: &Path) -> Result<Vec<Given>, Fault> {
    let defined: Defined = toml::from_str(text)
        .map_err(|error| Fault::new(error.span().unwrap_or_default(), error.message()))?;
    if defined.row.is_empty() {
        return Err(Fault::new(0..0, "no [[row]]: there is nothing to run"));
    }
    let mut names = BTreeSet::new();
    let mut given = Vec::new();
    for row in &defined.row {
        let fault = |message: &str| Err(Fault::new(row.name.span(), message));
        if row.name.as_ref().trim().is_empty() {
            return fault("a row needs a name");
        }
        if !names.insert(row.name.as_ref()) {
            return fault("a row of this name exists");
        }
        given.push(one(row, folder)?);
    }
    Ok(given)
}

fn one(row: &Definition, folder: &Path) -> Result<Given, Fault> {
    let at_command = |message| Fault::new(row.command.span(), message);
    let command = shlex::split(row.command.as_ref()).filter(|words| !words.is_empty());
    let command = command.ok_or_else(|| {
        at_command("no program and its arguments, as a shell splits them".to_owned())
    })?;
    let program = program(&command[0], folder)
        .map_err(|error| at_command(format!("{}: {error}", command[0])))?;
    let pattern = row.pattern.as_ref().map(pattern).transpose()?;
    if pattern.is_none() {
        let spans = [row.better.as_ref().map(Spanned::span), row.unit.as_ref().map(Spanned::span)];
        if let Some(span) = spans.into_iter().flatten().next() {
            return Err(Fault::new(span, "without a pattern the figure is the time in ms"));
        }
    }
    let limit = row.limit.as_ref().map(limit).transpose()?;
    let environment = row.environment.as_ref().map(|it| it.as_ref().clone()).unwrap_or_default();
    if let (Some(it), true) = (&row.environment, environment.contains_key("LD_PRELOAD")) {
        return Err(Fault::new(it.span(), "LD_PRELOAD is how the lab brings the allocators in"));
    }
    let folder = folder.to_owned();
    Ok(Given { case: case(row), limit, command, program, folder, pattern, environment })
}

/// What the tables know of a row.
fn case(row: &Definition) -> Case {
    let time = match &row.pattern {
        None => cases::row("ms"),
        Some(_) => Row {
            suffix: String::new(),
            table: Table::Time,
            key: FIGURE.to_owned(),
            unit: row.unit.as_ref().map_or(String::new(), |unit| unit.as_ref().clone()),
            per: None,
            floor: 0.0,
            better: row.better.as_ref().map_or(Better::Less, |better| *better.as_ref()),
        },
    };
    Case {
        name: row.name.as_ref().clone(),
        group: Group::Programs,
        about: row.command.as_ref().clone(),
        origin: String::new(),
        rows: vec![time, cases::row("peak")],
        plots: Vec::new(),
        quick_scale: 1.0,
        aged: false,
    }
}

fn limit(seconds: &Spanned<f64>) -> Result<Duration, Fault> {
    let limit = Duration::try_from_secs_f64(*seconds.as_ref()).ok();
    let limit = limit.filter(|limit| !limit.is_zero());
    limit.ok_or_else(|| Fault::new(seconds.span(), "not a number of seconds"))
}

fn pattern(pattern: &Spanned<String>) -> Result<Regex, Fault> {
    let fault = |message: String| Fault::new(pattern.span(), message);
    let regex = Regex::new(pattern.as_ref()).map_err(|error| fault(error.to_string()))?;
    match regex.captures_len() {
        1 => Err(fault("the pattern has no group around the figure".to_owned())),
        _ => Ok(regex),
    }
}

/// Where a program is: beside the file, or a plain name on the system's path, where it may be missing.
fn program(word: &str, folder: &Path) -> Result<Option<PathBuf>> {
    let beside = folder.join(word);
    let path = match word.contains('/') || beside.is_file() {
        true => beside,
        false => match find(word) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let metadata = fs::metadata(&path).context("there is no such program")?;
    let runs = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    ensure!(runs, "not a program that can be run");
    let text = fs::read(&path)?;
    ensure!(!is_static(&text), "linked statically, so nothing can be preloaded");
    Ok(Some(path))
}

/// Whether this is an executable that starts without the loader. A script is none.
fn is_static(file: &[u8]) -> bool {
    let Ok(elf) = ElfFile64::<Endianness>::parse(file) else { return false };
    !elf.elf_program_headers().iter().any(|part| part.p_type(elf.endian()) == PT_INTERP)
}

impl Given {
    /// Runs it once.
    pub fn run(&self, stage: &Stage) -> Result<Results, Failure> {
        self.results(stage).map_err(Failure::from)
    }

    fn results(&self, stage: &Stage) -> Result<Results> {
        let Some(program) = &self.program else {
            let what = self.command[0].clone();
            bail!(Failure::Absent { what, hint: "neither beside the file nor on the path".into() });
        };
        let (ended, mut results) =
            measure::runs(stage, 1, program, &self.command[1..], |launcher| {
                launcher.with(|command| command.current_dir(&self.folder).envs(&self.environment))
            })?;
        if let Some(pattern) = &self.pattern {
            let figure = figure(pattern, [&ended.text(), &ended.stderr])?;
            results.values.insert(FIGURE.to_owned(), figure);
        }
        Ok(results)
    }

    /// Says the same of two rows only if they run the same file in the same way.
    pub fn identity(&self) -> String {
        let file = self.program.as_ref().map(|path| fs::read(path).unwrap_or_default());
        let file = file.map_or(String::new(), |file| fingerprint(&file));
        let Given { command, folder, pattern, environment, limit, case, .. } = self;
        let rows = &case.rows;
        format!("{command:?} {file} {folder:?} {pattern:?} {environment:?} {limit:?} {rows:?}")
    }
}

/// The figure in an output: the last match in the first of these texts that has one.
fn figure(pattern: &Regex, texts: [&str; 2]) -> Result<f64> {
    let last = |text: &&str| {
        pattern.captures_iter(text).last().and_then(|found| Some(found.get(1)?.as_str().to_owned()))
    };
    let Some(found) = texts.iter().find_map(last) else {
        let mut lines = texts.iter().flat_map(|text| text.lines().rev());
        let end = lines.find(|line| !line.trim().is_empty()).unwrap_or_default();
        let end: String = end.chars().take(LONGEST).collect();
        bail!(Failure::wrong(format!("no figure in its output, which ends with `{end}`")));
    };
    let number = found.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.with_context(|| format!("the figure is no positive number: `{found}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Limits;

    /// A folder with a script and a text.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8], mode: u32| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        write("bin/script", b"#!/bin/sh\n", 0o755);
        write("text", b"", 0o644);
        folder
    }

    fn written(folder: &Path, text: &str) -> Result<Suite> {
        fs::write(folder.join(FILE), text).unwrap();
        Suite::read(folder)
    }

    #[test]
    fn a_suite_is_read() {
        let folder = folder();
        let suite = written(
            folder.path(),
            r#"
            [[row]]
            name = "script"
            command = "bin/script 'two words'"
            pattern = '([\d.]+) s'
            better = "more"
            unit = "ops"
            environment = { PLACE = "here" }
            limit = 2.5

            [[row]]
            name = "system"
            command = "sh -c true"

            [[row]]
            name = "missing"
            command = "no-such-program-anywhere"
            "#,
        )
        .unwrap();
        assert_eq!(suite.name, folder.path().file_name().unwrap().to_str().unwrap());
        let [script, system, missing] = &suite.rows[..] else { panic!("three rows") };
        assert_eq!(script.command, ["bin/script", "two words"]);
        assert_eq!(script.program.as_deref().unwrap(), script.folder.join("bin/script"));
        assert_eq!(script.limit, Some(Duration::from_millis(2500)));
        assert_eq!(script.environment["PLACE"], "here");
        let rows = |given: &Given| {
            let row = |row: &Row| (row.table, row.key.clone(), row.unit.clone(), row.better);
            given.case.rows.iter().map(row).collect::<Vec<_>>()
        };
        let peak = (Table::Memory, "peak_mib".to_owned(), "MiB".to_owned(), Better::Less);
        let time = |key: &str, unit: &str, better| (Table::Time, key.into(), unit.into(), better);
        assert_eq!(rows(script), [time(FIGURE, "ops", Better::More), peak.clone()]);
        assert_eq!(rows(system), [time("ms", "ms", Better::Less), peak]);
        assert!(system.program.as_deref().unwrap().is_absolute() && system.limit.is_none());
        let limits = Limits::of_time(Duration::from_secs(60));
        let stage = Stage::of_lab(None, &Variables::new(), 1.0, &limits, folder.path());
        let failure = missing.run(&stage).unwrap_err();
        assert!(matches!(failure, Failure::Absent { .. }), "{failure}");
        assert_ne!(script.identity(), system.identity());
    }

    #[test]
    fn a_file_has_its_own_name_and_its_folder() {
        let folder = folder();
        let path = folder.path().join("mine.toml");
        fs::write(&path, "[[row]]\nname = 'a'\ncommand = 'bin/script'\n").unwrap();
        let suite = Suite::read(&path).unwrap();
        assert_eq!(suite.name, "mine");
        assert_eq!(suite.rows[0].folder, folder.path().canonicalize().unwrap());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let folder = folder();
        let row = "[[row]]\nname = 'a'\ncommand = 'true'\n";
        for (text, line, message) in [
            ("", 1, "no [[row]]"),
            ("[[row]]\nname = 'a\n", 2, "literal string"),
            ("[[row]]\nname = 'a'\n", 1, "missing field `command`"),
            ("[[row]]\nname = ' '\ncommand = 'true'\n", 2, "needs a name"),
            ("[[row]]\nname = 'a'\ncommand = 7\n", 3, "invalid type"),
            ("[[row]]\nname = 'a'\ncommand = \"'\"\n", 3, "as a shell splits them"),
            ("[[row]]\nname = 'a'\ncommand = ''\n", 3, "no program"),
            (
                "[[row]]\nname = 'a'\ncommand = 'bin/none'\n",
                3,
                "bin/none: there is no such program",
            ),
            ("[[row]]\nname = 'a'\ncommand = './text'\n", 3, "can be run"),
            (&format!("{row}{row}"), 5, "of this name"),
            (&format!("{row}rounds = 7\n"), 4, "unknown field `rounds`"),
            (&format!("{row}pattern = '([0-9]+'\n"), 4, "group"),
            (&format!("{row}pattern = '[0-9]+'\n"), 4, "no group"),
            (&format!("{row}pattern = '(a)'\nbetter = 'fewer'\n"), 5, "unknown variant `fewer`"),
            (&format!("{row}better = 'more'\n"), 4, "without a pattern"),
            (&format!("{row}unit = 's'\n"), 4, "without a pattern"),
            (&format!("{row}limit = -1\n"), 4, "not a number"),
            (&format!("{row}limit = 0.0\n"), 4, "not a number"),
            (&format!("{row}environment.LD_PRELOAD = 'x.so'\n"), 4, "LD_PRELOAD"),
        ] {
            let error = format!("{:#}", written(folder.path(), text).err().expect(text));
            let place = format!("{}:{line}: ", folder.path().join(FILE).display());
            assert!(error.starts_with(&place) && error.contains(message), "{text}\n{error}");
        }
        assert!(Suite::read(&folder.path().join("none.toml")).is_err());
    }

    #[test]
    fn figures_come_from_the_last_match() {
        let find = |pattern: &str, out: &str, err: &str| {
            figure(&Regex::new(pattern).unwrap(), [out, err]).map_err(|error| error.to_string())
        };
        assert_eq!(find(r"time: ([\d.]+)", "time: 1.5\ntime: 0.25 s\n", "time: 9"), Ok(0.25));
        assert_eq!(find(r"(\d+)\s*$", "8 of\n 100 \n", ""), Ok(100.0));
        assert_eq!(find(r"(\d+) ops", "", "70 ops"), Ok(70.0));
        assert!(find("([a-z]+) ops", "no ops", "").unwrap_err().contains("`no`"));
        assert!(find(r"(\d+)", "0", "").unwrap_err().contains("`0`"));
        assert!(find(r"(\d+)", "a\nb\n\n", "").unwrap_err().ends_with("ends with `b`"));
    }

    #[test]
    fn static_programs_are_known() {
        let shell = fs::read(find("sh").unwrap()).unwrap();
        assert!(!is_static(&shell) && !is_static(b"#!/bin/sh\n"));
        // Without its loader's name it is one that needs none.
        let elf = ElfFile64::<Endianness>::parse(&*shell).unwrap();
        let headers = elf.elf_program_headers();
        let at = headers.iter().position(|part| part.p_type(elf.endian()) == PT_INTERP).unwrap();
        let at = size_of_val(elf.elf_header()) + at * size_of_val(&headers[0]);
        let mut bare = shell.clone();
        bare[at..at + 4].fill(0);
        assert!(is_static(&bare));
    }
}
