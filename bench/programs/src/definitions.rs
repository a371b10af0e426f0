//! The programs, as `programs.toml` defines them.
//!
//! A program is proven (`cargo xtask programs`), timed (`cargo lab`), or both. None needs code: its
//! inputs are templates, its work is a script or a command line. `{name}` stands for a variable;
//! in a command line, which is split as a shell splits it, `{*name}` stands for its words.

use crate::generate::{Variables, render};
use crate::packages::Needs;
use crate::process::Process;
use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

static TABLE: LazyLock<Table> =
    LazyLock::new(|| parsed("programs.toml", include_str!("../programs.toml")));
static TEMPLATES: LazyLock<Variables> =
    LazyLock::new(|| parsed("templates.toml", include_str!("../templates.toml")));

/// What a file of this package says.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> T {
    toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {}", error.message()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    lab_packages: Vec<String>,
    program: Vec<Program>,
}

/// Variables of a quick and of a full run.
pub(crate) type Sizes = BTreeMap<String, [toml::Value; 2]>;

/// A real program.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) needs: Needs,
    /// The command whose output says the version, where it is not the program with `--version`.
    pub(crate) version: Option<String>,
    /// For all its processes.
    #[serde(default)]
    env: Variables,
    /// Variables that a shell finds out.
    #[serde(default)]
    shell: Variables,
    pub(crate) proof: Option<Proof>,
    /// What all its cases of the lab need.
    #[serde(default)]
    pub(crate) inputs: Vec<Input>,
    #[serde(default)]
    pub(crate) lab: Vec<Row>,
}

/// How a program is run with and without the library.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Proof {
    /// Belongs to the subset for continuous integration.
    #[serde(default)]
    pub(crate) quick: bool,
    /// What is run, for the table.
    pub(crate) what: String,
    /// The executables (by prefix) that must be seen with the library mapped; only those that live
    /// long enough to be seen for certain.
    pub(crate) loaded: Vec<String>,
    /// What the lab can do without.
    #[serde(default)]
    pub(crate) needs: Needs,
    #[serde(default)]
    vars: Sizes,
    #[serde(default)]
    pub(crate) inputs: Vec<Input>,
    /// A shell's. It ends with the first command that fails, and what it prints must be the same on
    /// both sides.
    pub(crate) script: String,
}

/// A case of the lab.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) about: String,
    #[serde(default)]
    pub(crate) origin: String,
    /// Share of the full size in a quick run, where it is not what its kind usually has.
    pub(crate) quick: Option<f64>,
    /// The rows of the tables that it fills.
    #[serde(default)]
    pub(crate) measures: Measures,
    /// Variables of a full run, scaled.
    #[serde(default)]
    scaled: BTreeMap<String, usize>,
    #[serde(default)]
    pub(crate) inputs: Vec<Input>,
    /// The command that is timed, or the server whose answers are. None for a count.
    #[serde(default)]
    pub(crate) run: String,
    #[serde(default)]
    env: Variables,
    directory: Option<String>,
    /// Files that it makes, which must be the same under every allocator.
    #[serde(default)]
    pub(crate) compare: Vec<String>,
    /// It starts many times in a row and prints so many lines each time.
    #[serde(default)]
    pub(crate) lines: usize,
    pub(crate) serves: Option<Serves>,
}

/// What is asked of a server. Scripts run without the allocator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Serves {
    /// Before it starts.
    #[serde(default)]
    pub(crate) setup: String,
    /// Succeeds once it answers.
    pub(crate) ready: String,
    /// Its load; or the file of requests that are sent to its socket in batches.
    #[serde(default)]
    pub(crate) load: String,
    pub(crate) batches: Option<String>,
    /// Reads answers per second from what the load prints; of several the geometric mean.
    #[serde(default)]
    pub(crate) rate: String,
    /// After the load.
    #[serde(default)]
    pub(crate) check: String,
}

/// What a case of the lab measures.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
pub(crate) enum Measures {
    #[default]
    #[serde(rename = "ms")]
    Time,
    #[serde(rename = "starts")]
    Starts,
    /// Starts, of a program that knows its own resident set.
    #[serde(rename = "starts resident")]
    StartsResident,
    #[serde(rename = "us/request")]
    Requests,
    #[serde(rename = "us/transaction")]
    Transactions,
    #[serde(rename = "instructions")]
    Instructions,
}

/// A file that is made once, before anything is compared or timed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    file: String,
    #[serde(default)]
    seed: u64,
    /// Its template, as it is, or by its name in `templates.toml` or among the scripts.
    text: Option<String>,
    template: Option<String>,
    /// Or the script that makes it, at `{file}`.
    #[serde(default)]
    make: String,
}

/// Every program, in the order of the tables.
pub(crate) fn all() -> &'static [Program] {
    &TABLE.program
}

/// The Debian packages that the lab's programs, and the tools that measure them, come from.
pub fn packages() -> impl Iterator<Item = &'static str> {
    TABLE.lab_packages.iter().map(String::as_str)
}

/// What scripts and command lines on a stage can name.
pub(crate) fn variables(stage: &Stage, shell: &Variables, sizes: &Sizes) -> Result<Variables> {
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts").to_owned();
    let [input, work] = [&stage.input, &stage.work].map(|path| path.display().to_string());
    let places = [("scripts", scripts), ("input", input), ("work", work)];
    let mut variables = Variables::from(places.map(|(name, value)| (name.to_owned(), value)));
    for (name, [quick, full]) in sizes {
        let value = stage.pick(quick, full);
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        variables.insert(name.clone(), text);
    }
    for (name, script) in shell {
        let answer = stage.tool("sh")?.script(script, &variables).success()?.text();
        variables.insert(name.clone(), answer.trim().to_owned());
    }
    Ok(variables)
}

impl Program {
    /// The variables of a proof.
    pub(crate) fn of_proof(&self, proof: &Proof, stage: &Stage) -> Result<Variables> {
        variables(stage, &self.shell, &proof.vars)
    }

    /// The variables of a case of the lab.
    pub(crate) fn of_row(&self, row: &Row, stage: &Stage) -> Result<Variables> {
        let mut variables = variables(stage, &self.shell, &Sizes::new())?;
        let scaled = row.scaled.iter().map(|(name, n)| (name.clone(), stage.scaled(*n)));
        variables.extend(scaled.map(|(name, n)| (name, n.to_string())));
        Ok(variables)
    }

    /// Gives a process the program's environment.
    pub(crate) fn set<'a>(&self, process: Process<'a>, variables: &Variables) -> Process<'a> {
        let set = |process: Process<'a>, (name, value): (&String, &String)| {
            process.env(name, fill(value, variables))
        };
        self.env.iter().fold(process, set)
    }

    /// Gives a process what a case says beside its command line.
    pub(crate) fn set_row<'a>(
        &self,
        row: &Row,
        process: Process<'a>,
        stage: &Stage,
        variables: &Variables,
    ) -> Process<'a> {
        let mut process = self.set(process, variables);
        for (name, value) in &row.env {
            process = process.env(name, fill(value, variables));
        }
        match &row.directory {
            Some(path) => process.directory(stage.work.join(path)),
            None => process,
        }
    }

    /// Makes the inputs that are not there yet.
    pub(crate) fn prepare<'a>(
        &self,
        stage: &Stage,
        inputs: impl IntoIterator<Item = &'a Input>,
        variables: &Variables,
    ) -> Result<()> {
        for input in inputs {
            let made = stage.made(&input.file, |path| self.make(stage, input, path, variables));
            made.with_context(|| input.file.clone())?;
        }
        Ok(())
    }

    fn make(&self, stage: &Stage, input: &Input, path: &Path, variables: &Variables) -> Result<()> {
        let template = match (&input.text, &input.template) {
            (Some(text), _) => text.clone(),
            (_, Some(name)) => match TEMPLATES.get(name) {
                Some(template) => template.clone(),
                None => fs::read_to_string(Path::new(&variables["scripts"]).join(name))?,
            },
            (None, None) => {
                let mut variables = variables.clone();
                variables.insert("file".to_owned(), path.display().to_string());
                let shell = stage.tool("sh")?.script(&input.make, &variables);
                return self.set(shell, &variables).success().map(drop);
            }
        };
        Ok(fs::write(path, render(&template, input.seed, variables)?)?)
    }
}

/// A command line, split as a shell does it and its variables replaced.
pub(crate) fn words(line: &str, variables: &Variables) -> Result<Vec<String>> {
    let mut filled = Vec::new();
    for word in shlex::split(line).with_context(|| format!("in `{line}`"))? {
        match word.strip_prefix("{*").and_then(|name| name.strip_suffix('}')) {
            Some(name) => {
                let Some(value) = variables.get(name) else { bail!("nothing for {word}") };
                filled.extend(value.split_whitespace().map(str::to_owned));
            }
            None => filled.push(fill(&word, variables)),
        }
    }
    ensure!(!filled.is_empty(), "no program in `{line}`");
    Ok(filled)
}

/// The text with its variables replaced; other braces stay.
pub(crate) fn fill(text: &str, variables: &Variables) -> String {
    let mut filled = text.to_owned();
    for (name, value) in variables {
        filled = filled.replace(&format!("{{{name}}}"), value);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names = || all().iter().map(|program| &program.name);
        assert_eq!(names().collect::<BTreeSet<_>>().len(), names().count());
        let rows = || all().iter().flat_map(|program| &program.lab).map(|row| &row.name);
        assert_eq!(rows().collect::<BTreeSet<_>>().len(), rows().count());
    }

    #[test]
    fn packages_are_in_order() {
        assert!(packages().is_sorted());
    }

    #[test]
    fn variables_are_replaced() {
        let variables = Variables::from([("a".to_owned(), "1 2".to_owned())]);
        let filled = words("x {a} {*a} '{b} ${c}'", &variables).unwrap();
        assert_eq!(filled, ["x", "1 2", "1", "2", "{b} ${c}"]);
    }
}
