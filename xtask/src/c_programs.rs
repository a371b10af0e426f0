//! The C and C++ programs that the C layer's tests run, for runs of another kind: on another
//! machine, or under a tool.

use crate::library;
use anyhow::{Context, Result, bail};
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
    /// The three that users meet most.
    pub(crate) const USUAL: [Loading; 3] = [Loading::Preloaded, Loading::Linked, Loading::Static];

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
    /// Compiles a source of the C layer's tests.
    pub(crate) fn build(&self, source: &str, loading: Loading) -> Result<PathBuf> {
        self.build_from(&folder().join(source), loading)
    }

    /// Compiles any source.
    pub(crate) fn build_from(&self, source: &Path, loading: Loading) -> Result<PathBuf> {
        let name = source.file_name().context("a file")?.to_string_lossy().replace('.', "-");
        let program = self.out.join(format!("{name}-{}", loading.name().replace(' ', "-")));
        std::fs::create_dir_all(&self.out)?;
        let is_cxx = source.extension().is_some_and(|end| end == "cpp");
        let compiler = format!("{}{}", self.prefix, if is_cxx { "g++" } else { "gcc" });
        let mut command = Command::new(&compiler);
        command.arg(if is_cxx { "-std=c++17" } else { "-std=gnu11" });
        // As the tests do: the compiler must not leave out what is tested.
        command.args(["-O1", "-g", "-pthread", "-fno-builtin", "-I"]);
        command.arg(folder().join("../../include"));
        command.arg("-o").arg(&program).arg(source);
        match loading {
            Loading::Preloaded => {}
            Loading::Linked => {
                command.args(["-DCAIRN_IS_LINKED", "-Wl,--no-as-needed"]);
                command.arg(self.libraries.join("libcairn.so"));
                command.arg(format!("-Wl,-rpath,{}", self.libraries.display()));
            }
            Loading::Archive | Loading::Static => {
                command.arg("-DCAIRN_IS_LINKED").arg(self.libraries.join("libcairn.a"));
                if loading == Loading::Static {
                    command.arg("-static");
                }
            }
        }
        let output = command.output().with_context(|| format!("{compiler} is needed"))?;
        if !output.status.success() {
            bail!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(program)
    }
}

/// The names in a program's table of cases.
pub(crate) fn cases(source: &str) -> Result<Vec<String>> {
    let path = folder().join(source);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let case = |line: &str| {
        let (name, function) = line.trim().strip_prefix("{\"")?.split_once("\", ")?;
        (function.strip_suffix("},")? == name).then(|| name.to_owned())
    };
    let cases: Vec<String> = text.lines().filter_map(case).collect();
    anyhow::ensure!(!cases.is_empty(), "{source} has no table of cases");
    Ok(cases)
}

fn folder() -> PathBuf {
    library::workspace().join("crates/cairn-c/tests/c")
}
