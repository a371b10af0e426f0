//! Proves the drop-in malloc on real programs: each one runs with and without the library, and
//! everything it produced must be the same.
//!
//! A program is a [`Program`] value in its own file: what it needs, how its input is made, and one
//! function that does the work and returns the facts worth comparing. The runner knows nothing of
//! any program; a program knows nothing of the library, it only asks the [`Stage`] for processes.
//! The story for readers: docs/results/programs.md.

mod compilers;
mod generate;
mod git;
mod go;
pub(crate) mod install;
mod java;
mod languages;
mod mariadb;
mod media;
mod nginx;
mod postgres;
pub(crate) mod process;
pub(crate) mod python;
mod redis;
pub(crate) mod report;
mod rust;
mod solver;
mod sqlite;
pub(crate) mod stage;
mod tools;
pub(crate) mod watch;

use crate::library;
use crate::steps::not_run;
use anyhow::{Context, Result, bail, ensure};
use report::{Row, Verdict};
use stage::{Scale, Side, Stage};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
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

/// A real program and the work that is asked of it.
struct Program {
    name: &'static str,
    /// Belongs to the subset for continuous integration.
    quick: bool,
    /// The files it cannot do without, and the packages that bring them.
    needs: &'static [install::Need],
    /// The command whose output says the version.
    version: &'static [&'static str],
    /// What is run, for the table.
    what: &'static str,
    /// The executables (by prefix) that must be seen with the library mapped; only those that live
    /// long enough to be seen for certain.
    loaded_in: &'static [&'static str],
    /// Makes the input, without the library.
    prepare: fn(&Stage) -> Result<()>,
    /// Does the work and says what came out.
    run: fn(&Stage) -> Result<Evidence>,
}

/// What one side of a comparison produced.
#[derive(Default)]
struct Evidence {
    /// A few words for the table.
    summary: String,
    /// Named values that must be the same on both sides.
    facts: Vec<(String, String)>,
}

impl Evidence {
    fn summary(text: impl Into<String>) -> Self {
        Self { summary: text.into(), facts: Vec::new() }
    }

    fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push((name.into(), value.into()));
        self
    }
}

/// Every program, in the order of the table.
const PROGRAMS: [&Program; 26] = [
    &python::PYTHON,
    &redis::REDIS,
    &postgres::POSTGRES,
    &sqlite::SQLITE,
    &mariadb::MARIADB,
    &nginx::NGINX,
    &compilers::GCC,
    &compilers::GXX,
    &compilers::CLANG,
    &rust::RUSTC,
    &rust::RUST_PROGRAM,
    &solver::Z3,
    &languages::PERL,
    &languages::RUBY,
    &languages::LUA,
    &languages::NODE,
    &java::JAVAC,
    &java::JAVA,
    &go::CGO,
    &git::GIT,
    &media::FFMPEG,
    &media::IMAGEMAGICK,
    &media::GHOSTSCRIPT,
    &tools::SORT,
    &tools::COMPRESS,
    &tools::OPENSSL,
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = choose(args)?;
    if args.packages {
        println!("{}", install::packages_of(needs_of(&chosen)).join(" "));
        return Ok(());
    }
    let missing = install::missing(needs_of(&chosen));
    if !missing.is_empty() && !args.no_install {
        install::install(&missing);
    }
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let root = stage::new_root()?;
    let library = private_copy(args.library.as_deref(), &root)?;
    let mut rows = Vec::new();
    for program in chosen {
        eprintln!("{}: {}", program.name, program.what);
        let row = prove(program, scale, &library, &root, args.no_install);
        eprintln!("{}", row.detail());
        rows.push(row);
    }
    let table = report::table(&rows, &library);
    println!("{table}");
    if let Some(out) = &args.markdown {
        report::write(out, "programs", &table)?;
    }
    let bad = rows.iter().filter(|row| row.verdict.fails()).count();
    if bad > 0 {
        bail!("{bad} of {} programs failed; their files are in {}", rows.len(), root.display());
    }
    fs::remove_dir_all(&root).context("cannot remove the temporary files")?;
    let programs = match PROGRAMS.len() - rows.len() {
        0 => String::new(),
        others => format!("{others} more programs (cargo xtask programs), "),
    };
    let sizes = if args.quick { "full inputs (without --quick), " } else { "" };
    not_run(&format!("{programs}{sizes}the programs' own test suites (cargo xtask suites)"));
    Ok(())
}

fn needs_of(programs: &[&'static Program]) -> impl Iterator<Item = &'static install::Need> {
    programs.iter().flat_map(|program| program.needs)
}

fn choose(args: &Args) -> Result<Vec<&'static Program>> {
    for name in &args.only {
        let known = PROGRAMS.iter().any(|program| program.name == name);
        let names = PROGRAMS.map(|program| program.name).join(", ");
        ensure!(known, "no program is called {name}; there are {names}");
    }
    let wanted = |program: &&Program| {
        if args.only.is_empty() {
            program.quick || !args.quick
        } else {
            args.only.iter().any(|name| name == program.name)
        }
    };
    Ok(PROGRAMS.into_iter().filter(wanted).collect())
}

/// Copies the library to where every user can read it and no later build replaces it.
pub(crate) fn private_copy(given: Option<&Path>, root: &Path) -> Result<PathBuf> {
    let original = match given {
        Some(path) => path.to_owned(),
        None => library::build()?.shared,
    };
    let name = original.file_name().context("the library has no file name")?;
    let copy = root.join(name);
    fs::copy(&original, &copy).with_context(|| format!("cannot read {}", original.display()))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    Ok(copy.canonicalize()?)
}

/// One program, both sides, one row.
fn prove(
    program: &'static Program,
    scale: Scale,
    library: &Path,
    root: &Path,
    skip_missing: bool,
) -> Row {
    let mut row = Row::new(program);
    if let Some(need) = program.needs.iter().find(|need| !need.present()) {
        let lacking = format!("needs {} (package {})", need.file, need.package);
        row.verdict =
            if skip_missing { Verdict::Skipped(lacking) } else { Verdict::Missing(lacking) };
        return row;
    }
    let home = root.join(program.name);
    row.version = install::version(program.version);
    let prepared = Stage::open(&home, scale, Side::Bare, library)
        .and_then(|stage| (program.prepare)(&stage).and_then(|()| stage.close()));
    if let Err(error) = prepared {
        row.verdict = Verdict::Broken(format!("preparation: {error:#}"));
        return row;
    }
    let (baseline, seconds) = one_side(program, &home, scale, Side::Baseline, library);
    row.baseline_seconds = seconds.as_secs_f64();
    let baseline = match baseline {
        Ok((evidence, _)) => evidence,
        Err(error) => {
            row.verdict = Verdict::Broken(format!("without the library: {error:#}"));
            return row;
        }
    };
    row.baseline = baseline.summary.clone();
    let (preloaded, seconds) = one_side(program, &home, scale, Side::Preloaded, library);
    row.preloaded_seconds = seconds.as_secs_f64();
    match preloaded {
        Ok((evidence, loaded)) => {
            row.preloaded = evidence.summary.clone();
            row.loaded = loaded;
            row.verdict = report::compare(&baseline, &evidence);
        }
        Err(error) => row.verdict = Verdict::Fails(format!("{error:#}")),
    }
    if !row.verdict.fails() {
        // What differs is kept for whoever has to find out why.
        let _ = fs::remove_dir_all(&home);
    }
    row
}

/// Runs one side and checks where the library was and was not mapped.
fn one_side(
    program: &Program,
    home: &Path,
    scale: Scale,
    side: Side,
    library: &Path,
) -> (Result<(Evidence, String)>, Duration) {
    let start = Instant::now();
    let outcome = (|| {
        let stage = Stage::open(home, scale, side, library)?;
        let evidence = (program.run)(&stage)?;
        let loaded = stage.check_loaded(program.loaded_in)?;
        stage.close()?;
        Ok((evidence, loaded))
    })();
    (outcome, start.elapsed())
}
