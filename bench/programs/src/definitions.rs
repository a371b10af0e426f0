//! The programs, as `programs.toml` defines them.
//!
//! A program is proven (`cargo xtask programs`), timed (`cargo lab`), or both. Most need no code:
//! their inputs are templates, their work is a list of steps. Command lines are split as a shell
//! splits them; `{name}` stands for a variable, `{*name}` for its words.

use crate::generate::{Numbers, Variables, render};
use crate::packages::Needs;
use crate::process::Process;
use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// Scripts that programs run, and templates.
pub(crate) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");

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

/// A real program.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) needs: Needs,
    /// The command whose output says the version.
    #[serde(default)]
    pub(crate) version: String,
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
    /// Variables of a quick and of a full run.
    #[serde(default)]
    vars: BTreeMap<String, [toml::Value; 2]>,
    #[serde(default)]
    pub(crate) inputs: Vec<Input>,
    /// Directories in which steps leave their outputs.
    #[serde(default)]
    pub(crate) folders: Vec<String>,
    /// None where there is code for it.
    #[serde(default)]
    pub(crate) steps: Vec<Step>,
    /// A few words for the table.
    #[serde(default)]
    pub(crate) summary: String,
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
    /// What is timed; none where there is code for it.
    pub(crate) step: Option<Step>,
    /// It starts many times in a row and prints so many lines each time.
    #[serde(default)]
    pub(crate) lines: usize,
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
    /// So many MiB that no compressor can shrink.
    noise: Option<String>,
    /// A directory of so many files of text, and of noise.
    files: Option<String>,
    /// Commands that make it, at `{file}`.
    #[serde(default)]
    make: Vec<Step>,
}

/// A process that runs to its end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) run: String,
    stdin: Option<String>,
    stdout: Option<String>,
    #[serde(default)]
    env: Variables,
    directory: Option<String>,
    limit: Option<u64>,
    /// It runs once for every combination of these.
    #[serde(default)]
    pub(crate) each: BTreeMap<String, Vec<String>>,
    /// What must be the same: `stdout`, `stderr`, or a file or directory.
    #[serde(default)]
    pub(crate) compare: Vec<String>,
    /// These two files or directories must be the same.
    pub(crate) equal: Option<[String; 2]>,
    /// The last line of its output.
    pub(crate) ends: Option<String>,
    /// What its output may not contain.
    pub(crate) lacks: Option<String>,
    /// Its output has so many bytes.
    #[serde(default)]
    pub(crate) least: usize,
}

/// Every program, in the order of the tables.
pub(crate) fn all() -> &'static [Program] {
    &TABLE.program
}

/// The Debian packages that the lab's programs, and the tools that measure them, come from.
pub fn packages() -> impl Iterator<Item = &'static str> {
    TABLE.lab_packages.iter().map(String::as_str)
}

/// The package that a program comes from.
pub(crate) fn package_of(program: &str) -> String {
    let path = Path::new(program);
    let is_it = |file: &Path| {
        // Beside another file of the same package, if it has a directory.
        file.ends_with(path) || (path.is_absolute() && file.parent() == path.parent())
    };
    let mut needs = TABLE.program.iter().flat_map(|program| &program.needs);
    let found = needs.find(|(file, _)| is_it(Path::new(file)));
    let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    found.map_or_else(name, |(_, package)| package.clone())
}

impl Program {
    /// The variables of a proof, or of a case of the lab.
    pub(crate) fn variables(&self, stage: &Stage, row: Option<&Row>) -> Result<Variables> {
        let mut variables = Variables::from([
            ("scripts".to_owned(), SCRIPTS.to_owned()),
            ("input".to_owned(), stage.input.display().to_string()),
            ("work".to_owned(), stage.work.display().to_string()),
        ]);
        for (name, command) in &self.shell {
            let answer = stage.bare().tool("sh")?.arg("-c").arg(command).success()?.text();
            variables.insert(name.clone(), answer.trim().to_owned());
        }
        if let Some(row) = row {
            let scaled = row.scaled.iter().map(|(name, n)| (name.clone(), stage.scaled(*n)));
            variables.extend(scaled.map(|(name, n)| (name, n.to_string())));
        } else if let Some(proof) = &self.proof {
            for (name, [quick, full]) in &proof.vars {
                let value = stage.pick(quick, full);
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                variables.insert(name.clone(), text);
            }
        }
        Ok(variables)
    }

    /// The process of a step.
    pub(crate) fn process<'a>(
        &self,
        stage: &'a Stage,
        step: &Step,
        variables: &Variables,
    ) -> Result<Process<'a>> {
        let (program, arguments) = step.words(variables)?;
        self.set(stage.process(&program)?.args(arguments), stage, step, variables)
    }

    /// Gives a process what a step says beside its command line.
    pub(crate) fn set<'a>(
        &self,
        mut process: Process<'a>,
        stage: &Stage,
        step: &Step,
        variables: &Variables,
    ) -> Result<Process<'a>> {
        for (name, value) in self.env.iter().chain(&step.env) {
            process = process.env(name, fill(value, variables));
        }
        if let Some(path) = &step.stdin {
            process = process.stdin(stage.work.join(fill(path, variables)))?;
        }
        if let Some(path) = &step.stdout {
            process = process.stdout(stage.work.join(fill(path, variables)));
        }
        if let Some(path) = &step.directory {
            process = process.directory(stage.work.join(fill(path, variables)));
        }
        Ok(match step.limit {
            Some(seconds) => process.limit(seconds),
            None => process,
        })
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
        let mut numbers = Numbers::new(input.seed);
        if let Some(template) = &input.text {
            fs::write(path, render(template, input.seed, variables)?)?;
        } else if let Some(name) = &input.template {
            let template = match TEMPLATES.get(name) {
                Some(template) => template.clone(),
                None => fs::read_to_string(Path::new(SCRIPTS).join(name)).context("no template")?,
            };
            fs::write(path, render(&template, input.seed, variables)?)?;
        } else if let Some(mib) = &input.noise {
            fs::write(path, numbers.noise(fill(mib, variables).parse::<usize>()? << 20))?;
        } else if let Some(count) = &input.files {
            fs::create_dir(path)?;
            for file in 0..fill(count, variables).parse::<usize>()? {
                fs::write(path.join(format!("text{file}")), numbers.text(1 << (10 + file % 10)))?;
                fs::write(path.join(format!("noise{file}")), numbers.noise(1 << (8 + file % 10)))?;
            }
        }
        let mut variables = variables.clone();
        variables.insert("file".to_owned(), path.display().to_string());
        let bare = stage.bare();
        for step in &input.make {
            let (program, arguments) = step.words(&variables)?;
            let process = bare.tool(&program)?.args(arguments);
            self.set(process, &bare, step, &variables)?.success()?;
        }
        Ok(())
    }
}

impl Step {
    /// The program and its arguments.
    pub(crate) fn words(&self, variables: &Variables) -> Result<(String, Vec<String>)> {
        let mut words = words(&self.run, variables)?;
        let program = words.remove(0);
        Ok((program, words))
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
    fn every_proof_compares_something_and_says_so() {
        for proof in all().iter().filter_map(|program| program.proof.as_ref()) {
            let compares = proof.steps.iter().any(|step| !step.compare.is_empty());
            let coded = proof.steps.is_empty() && proof.summary.is_empty();
            assert!(coded || (compares && !proof.summary.is_empty()), "{}", proof.what);
        }
    }

    #[test]
    fn packages_are_in_order() {
        assert!(packages().is_sorted());
    }

    #[test]
    fn programs_have_packages() {
        let of = |program| package_of(program);
        assert_eq!(of("redis-cli"), "redis-tools");
        assert_eq!(of("/usr/lib/postgresql/*/bin/initdb"), "postgresql");
        assert_eq!(of("/home/bin/rustfmt"), "rustfmt");
    }

    #[test]
    fn variables_are_replaced() {
        let variables = Variables::from([("a".to_owned(), "1 2".to_owned())]);
        let step: Step = toml::from_str("run = \"x {a} {*a} '{b} ${c}'\"").unwrap();
        let (program, arguments) = step.words(&variables).unwrap();
        assert_eq!(
            (program.as_str(), arguments),
            ("x", ["1 2", "1", "2", "{b} ${c}"].map(String::from).to_vec())
        );
    }
}
