//! Times programs from outside, for the lab (`cargo lab`).
//!
//! What a program does is said in `lab.toml`; here is how it is measured: the cost of a whole
//! run, of starting many times in a row, and instructions, counted by valgrind's callgrind: the
//! same in every run, on any machine, under any load.

use crate::definitions::{Input, Sizes, parsed, prepare, set, variables, words};
use crate::measure;
use crate::packages::{Needs, lacking};
use crate::process::{Ended, Failure, Limits, Process};
use crate::replay;
use crate::stage::{Stage, fingerprint, private_copy};
use crate::stats::geometric_mean;
use crate::traces::Traces;
use crate::variables::Variables;
use anyhow::{Context, Result, bail, ensure};
use cairn_workloads::case::{Case, Group, Results};
use cairn_workloads::cases;
use cairn_workloads::process::parse_kib;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

static TABLE: LazyLock<Defined> = LazyLock::new(|| parsed("lab.toml", include_str!("../lab.toml")));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defined {
    packages: Vec<String>,
    measures: BTreeMap<String, Measured>,
    program: Vec<Program>,
}

/// What cases of a kind have in common.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    group: Group,
    quick: f64,
    rows: Vec<String>,
}

/// A program, or some that need the same.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    needs: Needs,
    /// For all its processes.
    #[serde(default)]
    env: Variables,
    /// Variables that a shell finds out.
    #[serde(default)]
    shell: Variables,
    /// What all its cases need.
    #[serde(default)]
    inputs: Vec<Input>,
    row: Vec<Definition>,
}

/// A case of the lab.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Definition {
    name: String,
    about: String,
    origin: String,
    /// Share of the full size in a quick run, where it is not what its kind usually has.
    quick: Option<f64>,
    /// What it measures, one of the table's `measures`: `ms` if it does not say.
    measures: Option<String>,
    /// Variables of a full run, scaled.
    scaled: BTreeMap<String, usize>,
    inputs: Vec<Input>,
    /// The command that is timed, or whose calls are recorded and replayed.
    run: String,
    env: Variables,
    directory: Option<String>,
    /// Files that it makes, which must be the same under every allocator.
    compare: Vec<String>,
    /// It starts many times in a row and prints so many lines each time.
    lines: usize,
    /// Or a script that starts a server and a load, without the allocator itself: `{library}` is for
    /// the server. It prints `rate` and answers per second, of several the geometric mean, and
    /// `peak_kib`; what else it prints must be the same under every allocator.
    serves: Option<String>,
}

impl Definition {
    fn measures(&self) -> &str {
        self.measures.as_deref().unwrap_or("ms")
    }
}

/// The Debian packages that the programs, and the tools that measure them, come from.
pub fn packages() -> impl Iterator<Item = &'static str> {
    TABLE.packages.iter().map(String::as_str)
}

/// A case that starts programs.
pub struct Timed {
    /// What the tables know.
    pub case: Case,
    program: &'static Program,
    row: &'static Definition,
}

/// All cases, in the order of the tables.
pub fn all() -> &'static [Timed] {
    static ALL: LazyLock<Vec<Timed>> = LazyLock::new(|| {
        let rows = TABLE.program.iter().flat_map(|it| it.row.iter().map(move |row| (it, row)));
        rows.map(|(program, row)| Timed { case: case(row), program, row }).collect()
    });
    &ALL
}

/// The cases that replay a trace.
pub fn replays() -> impl Iterator<Item = &'static Timed> {
    all().iter().filter(|timed| timed.is_replay())
}

fn case(row: &Definition) -> Case {
    let (name, about, origin) = (row.name.clone(), row.about.clone(), row.origin.clone());
    assert!(!name.is_empty() && !about.is_empty(), "lab.toml: a row without a name or about");
    let measured = TABLE.measures.get(row.measures());
    let measured = measured.unwrap_or_else(|| panic!("lab.toml: {} is not known", row.measures()));
    let &Measured { group, quick, ref rows } = measured;
    let rows = rows.iter().map(|name| cases::row(name)).collect();
    let quick_scale = row.quick.unwrap_or(quick);
    Case { name, group, about, origin, rows, plots: Vec::new(), quick_scale, aged: false }
}

impl Timed {
    /// Runs it once.
    pub fn run(&self, stage: &Stage) -> Result<Results, Failure> {
        self.results(stage).map_err(Failure::from)
    }

    fn results(&self, stage: &Stage) -> Result<Results> {
        if self.is_replay() {
            return replay::run(stage, &self.row.name);
        }
        let variables = self.prepared(stage)?;
        match (self.row.measures(), &self.row.serves) {
            (_, Some(serves)) => self.served(stage, serves, &variables),
            ("instructions", _) => instructions(stage, &self.row.name),
            ("ms", _) => self.whole(stage, &variables),
            _ => self.starts(stage, &variables),
        }
    }

    /// Whether it makes the calls of a trace.
    pub fn is_replay(&self) -> bool {
        self.row.measures() == "replay"
    }

    /// The trace of its calls. If it is not there, the program runs, on what it finds or puts into `scratch`.
    pub fn trace(&self, traces: &Traces, scratch: &Path) -> Result<PathBuf> {
        /// To record one takes seconds; this long means that it hangs.
        const LIMIT: Duration = Duration::from_secs(300);
        let trace = traces.path(&self.row.name);
        if trace.exists() {
            return Ok(trace);
        }
        fs::create_dir_all(traces.folder())?;
        let limits = Limits::of_time(LIMIT);
        let stage = Stage::of_lab(None, &Variables::new(), 1.0, &limits, scratch);
        let variables = self.prepared(&stage)?;
        let line = words(&self.row.run, &variables)?;
        // What is left half done must not be taken for the whole.
        let part = trace.with_extension("part");
        let recorder = stage.unloaded(&traces.cairn.to_string_lossy())?;
        let recorder =
            recorder.with(|cairn| cairn.args(["record", "-o"]).arg(&part).arg("--").args(line));
        self.set(recorder, &stage, &variables).success()?;
        fs::rename(&part, &trace)?;
        Ok(trace)
    }

    /// Makes the inputs that are not there; what command lines can name.
    fn prepared(&self, stage: &Stage) -> Result<Variables> {
        if let Some(absent) = lacking([&self.program.needs]) {
            bail!(absent);
        }
        let mut variables = variables(stage, &self.program.shell, &Sizes::new())?;
        let scaled = self.row.scaled.iter().map(|(name, n)| (name.clone(), stage.scaled(*n)));
        variables.extend(scaled.map(|(name, n)| (name, n.to_string())));
        let inputs = self.program.inputs.iter().chain(&self.row.inputs);
        prepare(stage, inputs, &self.program.env, &variables)?;
        Ok(variables)
    }

    /// Gives a process what the table says beside its command line.
    fn set<'b>(&self, process: Process<'b>, stage: &Stage, variables: &Variables) -> Process<'b> {
        let process = set(process, &self.program.env, variables);
        let process = set(process, &self.row.env, variables);
        match &self.row.directory {
            Some(path) => process.with(|command| command.current_dir(stage.work.join(path))),
            None => process,
        }
    }

    /// A server under a load that is not its own.
    fn served(&self, stage: &Stage, script: &str, variables: &Variables) -> Result<Results> {
        let once = |stage: &Stage| {
            let mut variables = variables.clone();
            // The server's account may not be able to read where the library is.
            let library = stage.library.as_deref().map_or(Ok(String::new()), |library| {
                stage.cached("readable", || {
                    let unique = fingerprint(library.as_os_str().as_encoded_bytes());
                    let directory = stage.input.join(format!("copy-{unique}"));
                    fs::create_dir_all(&directory)?;
                    Ok(private_copy(library, &directory)?.display().to_string())
                })
            })?;
            variables.insert("library".to_owned(), library);
            let script = format!(". {{scripts}}/prelude.sh\n{script}");
            let shell = stage.bare();
            let shell = self.set(shell.process("sh")?, stage, &variables);
            anyhow::Ok(shell.script(&script, &variables).success()?.text())
        };
        let others = |said: &str| {
            let is_other =
                |line: &&str| number(line, "rate").or(number(line, "peak_kib")).is_none();
            said.lines().filter(is_other).collect::<String>()
        };
        let said = once(stage)?;
        stage.compare(&self.row.name, &others(&said), |bare| Ok(others(&once(bare)?)))?;
        let rates: Vec<f64> = said.lines().filter_map(|line| number(line, "rate")).collect();
        let rate = geometric_mean(&rates).with_context(|| format!("no rate in {said}"))?;
        let peak_kib = said.lines().filter_map(|line| number(line, "peak_kib")).fold(0.0, f64::max);
        Ok(Results::of([(self.row.measures(), 1e6 / rate), ("peak_mib", peak_kib / 1024.0)]))
    }

    /// A program that runs to its end and must say and make the same under every allocator.
    fn whole(&self, stage: &Stage, variables: &Variables) -> Result<Results> {
        let once = |stage: &Stage| {
            let made = || self.row.compare.iter().map(|file| stage.work.join(file));
            made().for_each(|file| drop(fs::remove_file(file)));
            let (ended, results) = self.measure(stage, 1, variables)?;
            let mut outcome = fingerprint(&ended.stdout);
            for file in made() {
                outcome += &fingerprint(&fs::read(file)?);
            }
            anyhow::Ok((outcome, results))
        };
        let (outcome, results) = once(stage)?;
        stage.compare(&self.row.name, &outcome, |bare| Ok(once(bare)?.0))?;
        Ok(results)
    }

    /// A program that does nearly nothing: what remains is what loading the allocator costs. It is
    /// started many times; the system calls are the same every time and are counted once.
    fn starts(&self, stage: &Stage, variables: &Variables) -> Result<Results> {
        const TIMES: usize = 40;
        let (times, lines) = (stage.scaled(TIMES), self.row.lines);
        let (ended, mut results) = self.measure(stage, times, variables)?;
        let found = ended.text().lines().count();
        ensure!(found == lines * times, "{found} lines in {times} runs of {lines}");
        if let Some(calls) = self.system_calls(stage, variables)? {
            results.values.insert("system_calls".into(), calls);
        }
        if self.row.measures() == "starts resident" {
            let line = words(&self.row.run, variables)?;
            let once = stage.process(&line[0])?;
            let once = once.with(|command| command.args(&line[1..]).arg("resident"));
            let once = self.set(once, stage, variables).success()?;
            let kib = parse_kib(&once.text(), "Rss:").context("no Rss line")?;
            results.values.insert("rss_kib".into(), kib);
        }
        Ok(results)
    }

    /// How many system calls it makes; none where nobody can count them.
    fn system_calls(&self, stage: &Stage, variables: &Variables) -> Result<Option<f64>> {
        let calls = stage.cached(&format!("system-calls-{}", self.row.name), || {
            let bare = stage.bare();
            let library = stage.library.as_deref().unwrap_or(Path::new(""));
            let script = format!(
                "strace -f -c -o calls -E LD_PRELOAD={} {} >said && awk '$NF == \"total\" {{ print $4 }}' calls",
                library.display(),
                self.row.run
            );
            let shell = self.set(bare.process("sh")?.script(&script, variables), &bare, variables);
            // Where tracing is forbidden, all the rest can still be measured.
            Ok(shell.success().map_or_else(|_| String::new(), |ended| ended.text()))
        })?;
        Ok(calls.trim().parse().ok())
    }

    /// Runs the command under the allocator `times` times and measures it.
    fn measure(
        &self,
        stage: &Stage,
        times: usize,
        variables: &Variables,
    ) -> Result<(Ended, Results)> {
        let line = words(&self.row.run, variables)?;
        let (program, arguments) = (stage.find(&line[0])?, &line[1..]);
        measure::runs(stage, times, &program, arguments, |launcher| {
            self.set(launcher, stage, variables)
        })
    }
}

/// The number of a line that begins with this word.
fn number(line: &str, word: &str) -> Option<f64> {
    line.strip_prefix(word)?.split_whitespace().next()?.parse().ok()
}

/// The instructions of one operation. One process does all patterns, each once before it counts; what the loops
/// themselves cost is counted on functions that do nothing, and subtracted. The kernel is not counted.
fn instructions(stage: &Stage, case: &str) -> Result<Results> {
    /// Operations in each count; the C source has the same number.
    const OPERATIONS: f64 = 20_000.0;
    let pattern = case.trim_start_matches("instr-");
    let counts = stage.cached("instructions", || {
        // Each dump tells its name and, below, its total; the one at the end has no name.
        const SCRIPT: &str = "
rm -rf dumps
mkdir dumps
LD_PRELOAD={library} valgrind --quiet --tool=callgrind --callgrind-out-file=dumps/dump {program}
awk '/^desc: Trigger: Client Request: / { name = $NF } /^totals: / && name { print name, $2; name = \"\" }' \\
    dumps/*";
        let library = stage.library.as_deref().map_or(String::new(), |it| it.display().to_string());
        let program = stage.input.join("instructions-program").display().to_string();
        let variables = [("library".to_owned(), library), ("program".to_owned(), program)].into();
        let bare = stage.bare();
        Ok(bare.process("sh")?.script(SCRIPT, &variables).success()?.text())
    })?;
    let count = |name: &str| {
        let line = counts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|count| count.parse::<f64>().ok())
    };
    let both = count(pattern).zip(count(&format!("{pattern}-loop")));
    let (all, loops) = both.with_context(|| format!("no count for {pattern}: {counts}"))?;
    Ok(Results::of([("instructions", (all - loops) / OPERATIONS)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_packages_in_order() {
        let mut names: Vec<&str> = all().iter().map(|timed| &*timed.row.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(packages().is_sorted());
    }

    #[test]
    fn each_trace_has_a_file_of_its_own() {
        let traces = Traces::new("cairn".into(), "folder".into());
        let mut paths: Vec<_> = replays().map(|it| traces.path(&it.case.name)).collect();
        assert!(paths.contains(&"folder/compiler.trace".into()));
        let count = paths.len();
        paths.sort();
        paths.dedup();
        assert_eq!((count, paths.len()), (3, 3));
    }
}
