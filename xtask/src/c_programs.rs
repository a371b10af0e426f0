//! The C and C++ programs that the C layer's tests run, for runs of another kind: on another
//! machine, or under a tool.

use crate::library;
use crate::steps::{Ended, run};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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
    pub(crate) prefix: &'static str,
    /// Where libcairn.so and libcairn.a are.
    pub(crate) libraries: PathBuf,
    /// Where programs go.
    pub(crate) out: PathBuf,
}

impl Workshop {
    /// libcairn.so.
    pub(crate) fn library(&self) -> PathBuf {
        self.libraries.join("libcairn.so")
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
                command.arg("-Wl,--no-as-needed").arg(self.library());
                command.arg(format!("-Wl,-rpath,{}", self.libraries.display()));
            }
            Loading::Archive => _ = command.arg(self.libraries.join("libcairn.a")),
            Loading::Static => _ = command.arg(self.libraries.join("libcairn.a")).arg("-static"),
        }
        let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}\n{errors}");
        Ok(program)
    }
}

/// Runs those cases of a program that `left_out` does not name; an error names those that fail.
pub(crate) fn run_cases(
    program: &Path,
    cases: &[String],
    limit: Duration,
    command: impl Fn(&str) -> Command,
    judge: impl Fn(&str, &Ended) -> Result<()>,
) -> Result<String> {
    let (mut failed, mut measured) = (Vec::new(), 0);
    for case in cases {
        let log = program.with_extension(format!("{case}.log"));
        let ended = run(&mut command(case), &log, limit)?;
        match judge(case, &ended) {
            Ok(()) => measured += usize::from(is_only_memory(&ended)),
            Err(error) => failed.push(format!("{case} ({error}, see {})", log.display())),
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} cases: {}", failed.len(), cases.len(), failed.join("; "));
    }
    Ok(match measured {
        0 => format!("{} cases passed", cases.len()),
        _ => format!("{} cases passed, {measured} up to their measure of memory", cases.len()),
    })
}

/// Whether all that a case does was right, and then it looked at the memory of the process: under
/// a simulator or a tool that is mostly the tool's.
pub(crate) fn is_only_memory(ended: &Ended) -> bool {
    ended.output.contains("resident_kib() <")
}

/// The names in a program's table of cases, but for those left out.
pub(crate) fn cases(source: &str, left_out: &[&str]) -> Result<Vec<String>> {
    let path = folder().join(source);
    let text = std::fs::read_to_string(&path).context(path.display().to_string())?;
    let case = |line: &str| {
        let (name, function) = line.trim().strip_prefix("{\"")?.split_once("\", ")?;
        (function.strip_suffix("},")? == name).then(|| name.to_owned())
    };
    let mut cases: Vec<String> = text.lines().filter_map(case).collect();
    ensure!(!cases.is_empty(), "{source} has no table of cases");
    cases.retain(|case| !left_out.contains(&case.as_str()));
    Ok(cases)
}

fn folder() -> PathBuf {
    library::workspace().join("crates/cairn-c/tests/c")
}
