//! A program that runs to its end and must say and make the same under every allocator.

use super::prepare::fingerprint;
use super::{Subject, Usage};
use crate::child::Failure;
use cairn_workloads::case::Results;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to run.
pub struct Task<'a> {
    name: &'a str,
    program: PathBuf,
    arguments: Vec<&'a OsStr>,
    environment: Vec<(&'a str, &'a str)>,
    directory: Option<&'a Path>,
    makes: Option<&'a Path>,
}

impl<'a> Task<'a> {
    /// A program without arguments; `name` is unique among the tasks.
    pub fn new(name: &'a str, program: PathBuf) -> Task<'a> {
        Task {
            name,
            program,
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            makes: None,
        }
    }

    /// With one more argument.
    pub fn arg(mut self, argument: &'a (impl AsRef<OsStr> + ?Sized)) -> Task<'a> {
        self.arguments.push(argument.as_ref());
        self
    }

    /// With more arguments, split at white space.
    pub fn line(mut self, line: &'a str) -> Task<'a> {
        self.arguments.extend(line.split_whitespace().map(OsStr::new));
        self
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &'a str, value: &'a str) -> Task<'a> {
        self.environment.push((name, value));
        self
    }

    /// In this directory.
    pub fn directory(mut self, directory: &'a Path) -> Task<'a> {
        self.directory = Some(directory);
        self
    }

    /// This file comes out of it.
    pub fn makes(mut self, file: &'a Path) -> Task<'a> {
        self.makes = Some(file);
        self
    }

    /// Runs it and checks what came out.
    pub fn run(&self, subject: &Subject<'_>) -> Result<Results, Failure> {
        let (outcome, usage) = self.once(subject)?;
        subject.compare(self.name, &outcome, |bare| Ok(self.once(bare)?.0))?;
        Ok(usage.results())
    }

    /// A fingerprint of what came out, and what it cost.
    fn once(&self, subject: &Subject<'_>) -> Result<(String, Usage), Failure> {
        if let Some(file) = self.makes {
            let _ = fs::remove_file(file);
        }
        let (output, usage) = subject.measure(&self.program, 1, |command| self.set(command))?;
        let mut outcome = fingerprint(output.stdout.as_bytes());
        if let Some(file) = self.makes {
            outcome += &fingerprint(&fs::read(file)?);
        }
        Ok((outcome, usage))
    }

    fn set(&self, command: &mut Command) {
        command.args(&self.arguments).envs(self.environment.iter().copied());
        if let Some(directory) = self.directory {
            command.current_dir(directory);
        }
    }
}
