//! What the tables of programs, of suites and of the lab have in common: variables, inputs, command lines.
//!
//! `{name}` stands for a variable; in a command line, which is split as a shell splits it, `{*name}`
//! stands for its words.

use crate::process::Process;
use crate::stage::Stage;
use crate::variables::{SCRIPTS, Variables, fill};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What a file of this package says.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> T {
    toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {}", error.message()))
}

/// Variables of a quick and of a full run.
pub(crate) type Sizes = BTreeMap<String, [toml::Value; 2]>;

/// A file that is made once, before anything is compared or timed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    file: String,
    /// The script that makes it, at `{file}`.
    make: String,
}

/// What scripts and command lines on a stage can name.
pub(crate) fn variables(stage: &Stage, shell: &Variables, sizes: &Sizes) -> Result<Variables> {
    let [input, work] = [&stage.input, &stage.work].map(|path| path.display().to_string());
    let places = [("scripts", SCRIPTS.to_owned()), ("input", input), ("work", work)];
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

/// Gives a process an environment.
pub(crate) fn set<'a>(
    process: Process<'a>,
    environment: &Variables,
    variables: &Variables,
) -> Process<'a> {
    let filled = environment.iter().map(|(name, value)| (name, fill(value, variables)));
    process.with(|command| command.envs(filled))
}

/// Makes the inputs that are not there yet.
pub(crate) fn prepare<'a>(
    stage: &Stage,
    inputs: impl IntoIterator<Item = &'a Input>,
    environment: &Variables,
    variables: &Variables,
) -> Result<()> {
    for input in inputs {
        let make = |path: &Path| {
            let mut variables = variables.clone();
            variables.insert("file".to_owned(), path.display().to_string());
            let shell = stage.tool("sh")?.script(&input.make, &variables);
            set(shell, environment, &variables).success().map(drop)
        };
        stage.made(&input.file, make).with_context(|| input.file.clone())?;
    }
    Ok(())
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
