//! Real programs, started with the allocator preloaded.
//!
//! To add one: a file with a `PROGRAMS` list and one line in [`ALL`].

pub mod compilers;
pub mod ghostscript;
pub mod git;
pub mod images;
pub mod instructions;
pub mod languages;
pub mod nginx;
pub mod postgres;
pub mod prepare;
pub mod python;
pub mod redis;
pub mod rust;
pub mod server;
pub mod sqlite;
pub mod startup;
pub mod task;
pub mod z3;

use crate::child::{self, Failure, Limits, Output};
use crate::stats::Summary;
use cairn_workloads::case::{Case, Results};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A case that starts programs.
pub struct Program {
    /// What the tables know.
    pub case: Case,
    /// Runs it once.
    pub run: fn(&Subject<'_>) -> Result<Results, Failure>,
}

/// All programs, in the order of the tables.
pub static ALL: &[&[Program]] = &[
    startup::PROGRAMS,
    python::PROGRAMS,
    languages::PROGRAMS,
    redis::PROGRAMS,
    sqlite::PROGRAMS,
    postgres::PROGRAMS,
    nginx::PROGRAMS,
    compilers::PROGRAMS,
    rust::PROGRAMS,
    z3::PROGRAMS,
    git::PROGRAMS,
    ghostscript::PROGRAMS,
    images::PROGRAMS,
    instructions::PROGRAMS,
];

/// The Debian packages that the programs, and the tools that measure them, come from. A case
/// whose program is missing says so and is left out.
pub const PACKAGES: &[&str] = &[
    "clang",
    "coreutils",
    "g++",
    "gcc",
    "ghostscript",
    "git",
    "imagemagick",
    "libc6-dev",
    "lua5.4",
    "nginx-light",
    "nodejs",
    "perl",
    "postgresql",
    "python3",
    "redis-server",
    "redis-tools",
    "ruby",
    "rustc",
    "rustfmt",
    "sqlite3",
    "strace",
    "valgrind",
    "wrk",
    "z3",
];

/// All programs, flat.
pub fn all() -> impl Iterator<Item = &'static Program> {
    ALL.iter().copied().flatten()
}

/// An allocator under a program.
pub struct Subject<'a> {
    /// Library to preload; none for the C library's own malloc.
    pub preload: Option<&'a Path>,
    /// What else the allocator needs in the environment.
    pub environment: &'a BTreeMap<String, String>,
    /// Size or duration, 1.0 being the full run.
    pub scale: f64,
    /// When to give up.
    pub limits: &'a Limits,
    /// A directory to write to, kept over all runs: prepared inputs can stay there.
    pub scratch: &'a Path,
}

/// What a program cost, its descendants included; medians when it ran several times.
pub struct Usage {
    /// From start to end.
    pub ms: f64,
    /// Processor time in user code.
    pub user_ms: f64,
    /// Processor time in the kernel.
    pub system_ms: f64,
    /// Page faults that needed no reading.
    pub minor_faults: f64,
    /// The largest resident set of any one of its processes.
    pub peak_mib: f64,
}

impl Usage {
    /// As the values `ms`, `user_ms`, `system_ms`, `minor_faults` and `peak_mib`.
    pub fn results(&self) -> Results {
        Results::of([
            ("ms", self.ms),
            ("user_ms", self.user_ms),
            ("system_ms", self.system_ms),
            ("minor_faults", self.minor_faults),
            ("peak_mib", self.peak_mib),
        ])
    }
}

impl Subject<'_> {
    /// A command that runs `program` under the allocator, its environment otherwise fixed.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = environment(program);
        command.envs(self.environment);
        if let Some(library) = self.preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }

    /// Runs `program` under the allocator `times` times and measures it from outside. What
    /// `set` adds to the command, arguments and environment, goes to the program.
    pub fn measure(
        &self,
        program: &Path,
        times: usize,
        set: impl FnOnce(&mut Command),
    ) -> Result<(Output, Usage), Failure> {
        let launcher = self.made("launch", |path| {
            self.compile(include_str!("scripts/launch.c"), path, "gcc", &["-O2", "-static"])
        })?;
        let report = self.scratch.join("usage");
        let mut command = environment(&launcher);
        command.envs(self.environment);
        command.arg(&report).arg(times.to_string());
        command.arg(self.preload.map_or(OsStr::new(""), Path::as_os_str)).arg(program);
        set(&mut command);
        let output = child::run(&mut command, self.limits)?;
        let text = std::fs::read_to_string(&report)?;
        let runs: Vec<Vec<f64>> = text
            .lines()
            .map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect())
            .collect();
        if runs.len() != times || runs.iter().any(|run| run.len() != 5) {
            return Err(Failure::wrong(format!("unreadable report: {text}")));
        }
        let median = |at: usize, unit: f64| {
            let values = runs.iter().map(|run| run[at] / unit).collect();
            Summary::of(values).map_or(0.0, |summary| summary.median)
        };
        let usage = Usage {
            ms: median(0, 1e6),
            user_ms: median(1, 1e3),
            system_ms: median(2, 1e3),
            minor_faults: median(3, 1.0),
            peak_mib: median(4, 1024.0),
        };
        Ok((output, usage))
    }

    /// Compiles one source text, without the allocator, to `executable`.
    pub fn compile(
        &self,
        source: &str,
        executable: &Path,
        compiler: &str,
        flags: &[&str],
    ) -> Result<(), Failure> {
        let extension = if compiler.contains("++") { "cc" } else { "c" };
        let file = executable.with_extension(extension);
        std::fs::write(&file, source)?;
        let mut command = Command::new(find(compiler, compiler)?);
        command.args(flags).arg("-o").arg(executable).arg(&file);
        child::run(&mut command, self.limits).map(drop)
    }

    /// `n` scaled, at least 1.
    pub fn scaled(&self, n: usize) -> usize {
        ((n as f64 * self.scale) as usize).max(1)
    }
}

/// Nothing of the caller's environment: results must not depend on it.
fn environment(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin:/usr/local/bin").env("LC_ALL", "C.UTF-8");
    command
}

/// Finds a tool that is not itself measured: in PATH where the system's directories lack it.
pub fn find_tool(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    find(name, package).or_else(|absent| {
        let mut found = std::env::split_paths(&path).map(|directory| directory.join(name));
        found.find(|path| path.is_file()).ok_or(absent)
    })
}

/// Finds a program in the system's directories: not in PATH, which may hold wrappers.
pub fn find(name: &str, package: &str) -> Result<PathBuf, Failure> {
    ["/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin"]
        .iter()
        .map(|directory| PathBuf::from(directory).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| Failure::Absent {
            what: name.into(),
            hint: format!("apt-get install {package}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = all().map(|program| &*program.case.name).collect();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn packages_are_in_order() {
        assert!(PACKAGES.is_sorted());
    }
}
