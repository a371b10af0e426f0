//! The C and C++ programs that the C layer's tests run, for runs of another kind: on another
//! machine, or under a tool.

use crate::library;
use crate::steps::{Ended, LIMIT, run};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How a program comes to use the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loading {
    /// `LD_PRELOAD`.
    Preloaded,
    /// Linked with the shared library.
    Linked,
    /// Linked with the archive, otherwise dynamic.
    Archive,
    /// `-static`, with the archive.
    Static,
}

impl Loading {
    /// For tables and file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Loading::Preloaded => "preloaded",
            Loading::Linked => "linked",
            Loading::Archive => "with the archive",
            Loading::Static => "static",
        }
    }
}

/// Where a program is built, and for whom.
pub(crate) struct Workshop {
    /// What to call before `gcc` and `g++`: nothing, or a triple and a dash.
    pub(crate) prefix: String,
    /// The shared library, beside which its archive lies.
    pub(crate) library: PathBuf,
    /// Where programs go.
    pub(crate) out: PathBuf,
}

impl Workshop {
    /// What a program that is loaded so needs in `LD_PRELOAD`.
    pub(crate) fn preload(&self, loading: Loading) -> Option<&Path> {
        (loading == Loading::Preloaded).then_some(&*self.library)
    }

    /// Compiles a source of the C layer's tests, or one that is seen from their folder.
    pub(crate) fn build(&self, source: &str, loading: Loading) -> Result<PathBuf> {
        let source = folder().join(source);
        let name = source.file_name().context("a file")?.to_string_lossy().replace('.', "-");
        let program = self.out.join(format!("{name}-{}", loading.name().replace(' ', "-")));
        std::fs::create_dir_all(&self.out)?;
        let is_cxx = source.extension().is_some_and(|end| end == "cpp");
        let (compiler, standard) =
            if is_cxx { ("g++", "-std=c++17") } else { ("gcc", "-std=gnu11") };
        let mut command = Command::new(format!("{}{compiler}", self.prefix));
        // As the tests do: the compiler must not leave out what is tested.
        command.args([standard, "-O1", "-g", "-pthread", "-fno-builtin", "-I"]);
        command.arg(folder().join("../../include")).arg("-o").arg(&program).arg(source);
        if loading != Loading::Preloaded {
            command.arg("-DCAIRN_IS_LINKED");
        }
        match loading {
            Loading::Preloaded => {}
            Loading::Linked => {
                let folder = self.library.parent().context("a file lies in a folder")?;
                command.arg("-Wl,--no-as-needed").arg(&self.library);
                command.arg(format!("-Wl,-rpath,{}", folder.display()));
            }
            Loading::Archive | Loading::Static => {
                command.arg(self.library.with_extension("a"));
                command.args((loading == Loading::Static).then_some("-static"));
            }
        }
        let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}\n{errors}");
        Ok(program)
    }

    /// Builds a program and runs its cases but those left out, with the library that it needs.
    /// `tool` starts what is to run it, with a library to preload; `forks` is for the case that
    /// forks often, which takes a tool long.
    pub(crate) fn test(
        &self,
        (source, left_out): (&str, &str),
        loading: Loading,
        forks: &str,
        tool: impl Fn(&Path, Option<&Path>) -> Command,
        judge: impl Fn(&str, &Ended) -> Result<()>,
    ) -> Result<String> {
        let program = self.build(source, loading)?;
        let preload = self.preload(loading);
        let command = |case: &str| {
            let fewer = (case == "fork_from_busy").then_some(forks);
            let mut command = tool(&program, preload);
            command.arg(case).args(fewer).env("TEST_EXPECTS_CAIRN", "1");
            command
        };
        // Asked the program: some cases are there only where it is linked with the library.
        let output = command("--list").output().context("cannot start the program")?;
        let names = String::from_utf8_lossy(&output.stdout);
        let is_meant = |case: &&str| left_out.split(' ').all(|left_out| left_out != *case);
        let cases: Vec<_> = names.lines().filter(is_meant).map(str::to_owned).collect();
        ensure!(output.status.success() && !cases.is_empty(), "{source} lists no cases");
        run_cases(&program, &cases, command, judge)
    }
}

/// Runs cases of a program; an error names those that fail.
pub(crate) fn run_cases(
    program: &Path,
    cases: &[String],
    command: impl Fn(&str) -> Command,
    judge: impl Fn(&str, &Ended) -> Result<()>,
) -> Result<String> {
    let (mut failed, mut measured) = (Vec::new(), 0);
    for case in cases {
        let log = program.with_extension(format!("{case}.log"));
        let ended = run(&mut command(case), &log, LIMIT)?;
        match judge(case, &ended) {
            Ok(()) => measured += usize::from(is_only_memory(&ended)),
            Err(error) => failed.push(format!("{case} ({error}, see {})", log.display())),
        }
    }
    let (all, bad) = (cases.len(), failed.len());
    ensure!(bad == 0, "{bad} of {all} cases: {}", failed.join("; "));
    let measured = match measured {
        0 => String::new(),
        _ => format!(", {measured} up to their measure of memory"),
    };
    Ok(format!("{all} cases passed{measured}"))
}

/// Whether all that a case does was right, and then it looked at the memory of the process: under
/// a simulator or a tool that is mostly the tool's.
pub(crate) fn is_only_memory(ended: &Ended) -> bool {
    ended.output.contains("resident_kib() <")
}

/// The names in a program's table of cases, but for those left out.
pub(crate) fn cases(source: &str, left_out: &str) -> Result<Vec<String>> {
    let path = folder().join(source);
    let text = std::fs::read_to_string(&path).context(path.display().to_string())?;
    let case = |line: &str| {
        let (name, function) = line.trim().strip_prefix("{\"")?.split_once("\", ")?;
        (function.strip_suffix("},")? == name).then(|| name.to_owned())
    };
    let mut cases: Vec<String> = text.lines().filter_map(case).collect();
    ensure!(!cases.is_empty(), "{source} has no table of cases");
    cases.retain(|case| left_out.split(' ').all(|left_out| left_out != case));
    Ok(cases)
}

fn folder() -> PathBuf {
    library::workspace().join("crates/cairn-c/tests/c")
}
