//! Proves the drop-in malloc on real programs: each one runs with and without the library, and
//! everything it printed must be the same.
//!
//! The story for readers: docs/results/programs.md.

use crate::definitions::{self, Program, Proof};
use crate::packages::{self, install_missing, lacking};
use crate::stage::{Side, Size, Stage, private_copy};
use crate::tables;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// Runs the command; `build` makes the library. Gives what it did not run.
pub fn run(args: &Args, build: impl FnOnce() -> Result<PathBuf>) -> Result<Option<String>> {
    let chosen = choose(args)?;
    let needs = || chosen.iter().flat_map(|(program, proof)| [&program.needs, &proof.needs]);
    if args.packages {
        let packages: BTreeSet<&str> =
            needs().flat_map(|needs| needs.values().map(String::as_str)).collect();
        println!("{}", packages.into_iter().collect::<Vec<_>>().join(" "));
        return Ok(None);
    }
    if !args.no_install {
        install_missing(needs());
    }
    // Short, because sockets live in it and their paths end at 107 bytes.
    let root = std::env::temp_dir().join(format!("cairn-programs-{}", std::process::id()));
    fs::create_dir(&root)?;
    let library = private_copy(&args.library.clone().map_or_else(build, Ok)?, &root)?;
    let size = if args.quick { Size::Quick } else { Size::Full };
    let mut rows = Vec::new();
    for (program, proof) in &chosen {
        eprintln!("{}: {}", program.name, proof.what);
        let case = Case { program, proof, size, library: &library, home: root.join(&program.name) };
        let row = case.prove(args.no_install);
        eprintln!("{}", row.detail());
        rows.push(row);
    }
    let table = table(&rows);
    println!("{table}");
    if let Some(out) = &args.markdown {
        tables::write(out, "programs", &table)?;
    }
    let bad = rows.iter().filter(|row| row.verdict.is_err()).count();
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
        if let Some(lacking) = lacking([&self.program.needs, &self.proof.needs]) {
            row.verdict = if skip_missing { Ok("skipped") } else { Err(lacking.to_string()) };
            return row;
        }
        let default = format!("{} --version", self.program.name);
        row.version = packages::version(self.program.version.as_ref().unwrap_or(&default));
        row.verdict = self.compare(&mut row).map_err(|error| format!("{error:#}"));
        if row.verdict.is_ok() {
            // What differs is kept for whoever has to find out why.
            let _ = fs::remove_dir_all(&self.home);
        }
        row
    }

    fn compare(&self, row: &mut Row) -> Result<&'static str> {
        self.prepare().context("preparation")?;
        let (without, _) = self.side(Side::Without, &mut row.seconds[0])?;
        let with = self.side(Side::With, &mut row.seconds[1]);
        let (with, loaded) = with.context("only with the library")?;
        row.loaded = loaded;
        ensure!(!without.is_empty(), "it prints nothing, so nothing is compared");
        match difference(&without, &with) {
            None => Ok("same"),
            Some(difference) => bail!("the output differs\n{difference}"),
        }
    }

    fn prepare(&self) -> Result<()> {
        let stage = self.stage(Side::Bare)?;
        let variables = self.program.of_proof(self.proof, &stage)?;
        self.program.prepare(&stage, &self.proof.inputs, &variables)?;
        stage.close(&[]).map(drop)
    }

    fn stage(&self, side: Side) -> Result<Stage> {
        Stage::open(&self.home, self.size, side, self.library, Duration::from_millis(5))
    }

    /// What one side prints, and where the library was mapped.
    fn side(&self, side: Side, seconds: &mut f64) -> Result<(String, BTreeMap<String, usize>)> {
        let start = Instant::now();
        let stage = self.stage(side)?;
        let variables = self.program.of_proof(self.proof, &stage)?;
        // Each command stands in the log, and at the end of it the one that failed.
        let script = format!(". {{scripts}}/prelude.sh\nset -x\n{}", self.proof.script);
        let shell = self.program.set(stage.process("sh")?, &variables);
        let ended = shell.script(&script, &variables).success()?;
        let loaded = stage.close(&self.proof.loaded)?;
        *seconds = start.elapsed().as_secs_f64();
        Ok((ended.text(), loaded))
    }
}

/// One line of the table; of two values the first is without the library.
struct Row {
    name: &'static str,
    what: &'static str,
    version: String,
    /// The processes that were seen with the library mapped.
    loaded: BTreeMap<String, usize>,
    seconds: [f64; 2],
    verdict: Result<&'static str, String>,
}

impl Default for Row {
    fn default() -> Row {
        Row {
            name: "",
            what: "",
            version: String::new(),
            loaded: BTreeMap::new(),
            seconds: [0.0; 2],
            verdict: Ok(""),
        }
    }
}

impl Row {
    /// The line for whoever watches.
    fn detail(&self) -> String {
        let [without, with] = self.seconds;
        let verdict = match &self.verdict {
            Ok(word) => (*word).to_owned(),
            Err(why) => format!("FAILS: {}", why.replace('\n', "\n    ")),
        };
        let seen: Vec<String> =
            self.loaded.iter().map(|(name, count)| format!("{name} x{count}")).collect();
        format!("  {verdict} ({without:.1} s, {with:.1} s), library in {}", seen.join(", "))
    }

    fn cells(&self) -> [String; 6] {
        let [without, with] = self.seconds.map(|seconds| format!("{seconds:.1}"));
        let processes = self.loaded.values().sum::<usize>().to_string();
        [self.name.to_owned(), self.version.clone(), self.what.to_owned(), processes, without, with]
    }
}

/// Where two outputs differ.
fn difference(without: &str, with: &str) -> Option<String> {
    let (mut without, mut with) = (without.lines(), with.lines());
    for line in 1.. {
        match (without.next(), with.next()) {
            (None, None) => return None,
            (before, after) if before == after => {}
            (before, after) => {
                let [before, after] = [before, after].map(|text| text.unwrap_or("nothing"));
                return Some(format!("line {line}: {before}\nwith the library: {after}"));
            }
        }
    }
    None
}

/// The whole table, with the machine it comes from.
fn table(rows: &[Row]) -> String {
    let seconds: f64 = rows.iter().flat_map(|row| row.seconds).sum();
    let same = rows.iter().filter(|row| row.verdict == Ok("same")).count();
    let machine = tables::machine();
    let mut text = format!("{machine}: {same} programs print the same, in {seconds:.0} s.\n\n");
    let columns = ["program", "version", "what it ran", "processes on cairn", "s", "s with cairn"];
    text += &tables::markdown(columns, &[3, 4, 5], rows.iter().map(Row::cells));
    for row in rows {
        match &row.verdict {
            Ok("same") => {}
            Ok(word) => text += &format!("\n{}: {word}\n", row.name),
            Err(why) => {
                text += &format!("\n**{}**: {}\n", row.name, why.lines().next().unwrap_or_default())
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        let of = |with| difference("a\nb\n", with).unwrap();
        assert_eq!(of("a\nc\n"), "line 2: b\nwith the library: c");
        assert_eq!(of("a\nb\nd\n"), "line 3: nothing\nwith the library: d");
    }
}
