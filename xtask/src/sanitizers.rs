//! Runs cairn under the tools that look for mistakes of memory and of threads: the compiler's
//! address and thread sanitizers (nightly), and valgrind's memcheck, helgrind and drd.
//!
//! Two questions are asked. Is cairn itself free of what the tool looks for? And does the tool
//! still find the mistakes of a program that runs on cairn? docs/guide/platforms.md has the answers.

use crate::c_programs::{self, Loading, Workshop};
use crate::kernel;
use crate::library;
use crate::library::target_dir;
use crate::steps::{Ended, Steps, not_run, passed, run};
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these tools.
    #[arg(value_enum)]
    only: Vec<Tool>,
    /// Seconds for which each of the random tests runs under a sanitizer.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only steps with this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    step: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tool {
    Address,
    Thread,
    Valgrind,
    Helgrind,
}

/// Far beyond what any step needs on a slow machine.
const LIMIT: Duration = Duration::from_secs(3600);
/// What valgrind is to end with if it has found something.
const FOUND: i32 = 99;
/// Has valgrind leave cairn's functions in place: cairn itself runs under the tool.
const CAIRN_RUNS: &str = "--soname-synonyms=somalloc=nouserintercepts";

/// A mistake, and what memcheck says of it.
const MISTAKES: [(&str, &str); 6] = [
    ("overrun", "0 bytes after a block of size 100 alloc'd"),
    ("underrun", "1 bytes before a block of size 100 alloc'd"),
    ("uninitialised", "depends on uninitialised value"),
    ("after_free", "10 bytes inside a block of size 100 free'd"),
    ("twice", "Invalid free()"),
    ("leak", "200 bytes in 1 blocks are definitely lost"),
];

/// Programs of the C layer's tests that run on cairn under memcheck, and cases left out: those
/// that measure memory, which is mostly the tool's there, those that take it many minutes, and
/// one that reaches the C++ runtime's operators, which valgrind replaces nevertheless.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("semantics.c", &["every_small_size", "trim_gives_back"]),
    (
        "process.c",
        &[
            "exec_while_busy",
            "short_threads",
            "cancel",
            "every_size",
            "fork_in_children",
            "fork_from_threads",
            "fork_handlers_may_allocate",
        ],
    ),
    ("cxx.cpp", &["shortage_of_small_blocks", "handler_is_called_until_it_gives_up"]),
    ("lifetime.cpp", &[]),
];

/// Real programs, each a line for a shell.
const REAL: [(&str, &str); 6] = [
    ("sort", "seq 1 60000 | rev | sort --parallel=4 | md5sum"),
    ("perl", "perl -e 'my %h; $h{$_} = [1..$_ % 9] for 1..20000; print scalar keys %h'"),
    (
        "python3",
        "PYTHONMALLOC=malloc python3 -c 'import json
print(len(json.dumps([{i: str(i)} for i in range(9999)])))'",
    ),
    (
        "sqlite3",
        "sqlite3 :memory: 'create table t(a, b);
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 9999)
            insert into t select x, hex(x) from c;
        create index i on t(b); select count(*), max(b) from t;'",
    ),
    ("git", "git -C . log -n 200 --stat"),
    ("xz", "seq 1 99999 | xz -T2 -3 | xz -d | md5sum"),
];

/// Runs the command.
pub(crate) fn run_all(args: &Args) -> Result<()> {
    let mut steps = Steps::new("sanitizers", LIMIT)?.only(&args.step);
    for &tool in Tool::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&tool) {
            continue;
        }
        match tool {
            Tool::Address => compiled("address", args.seconds, &mut steps),
            Tool::Thread => compiled("thread", args.seconds, &mut steps),
            Tool::Valgrind => memcheck(&mut steps)?,
            Tool::Helgrind => helgrind(&mut steps)?,
        }
    }
    steps.finish()?;
    not_run(match args.only.is_empty() && args.step.is_empty() {
        true => "other machines (cargo xtask targets), the models (cargo xtask models --full)",
        false => "the other tools and steps (cargo xtask sanitizers)",
    });
    Ok(())
}

/// Races that are meant, with the reason in the file.
const BY_DESIGN: &str =
    concat!("suppressions=", env!("CARGO_MANIFEST_DIR"), "/thread-sanitizer.txt");

/// The core's tests, and the standard library with them, built with a sanitizer of the compiler.
fn compiled(sanitizer: &str, seconds: u32, steps: &mut Steps) {
    for (what, selection) in
        [("the core's unit tests", &["--lib"][..]), ("its tests", &["--test", "*"][..])]
    {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut command = Command::new("rustup");
        command
            .args(["run", "nightly", "cargo", "test", "-Zbuild-std", "--target", &triple])
            .args(["-p", "cairn-malloc"])
            .args(selection)
            .current_dir(library::workspace())
            .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"))
            // Debug assertions stay; without optimisation a sanitizer crawls.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "2")
            .env("CARGO_TARGET_DIR", target_dir("sanitizers").join(sanitizer))
            .env("CAIRN_STRESS_SECONDS", seconds.to_string())
            .env("TSAN_OPTIONS", format!("halt_on_error=1 die_after_fork=0 {BY_DESIGN}"));
        steps.run(&format!("{sanitizer} sanitizer, {what}"), &mut command, |ended| {
            ended.ensure_success()?;
            Ok(format!("{} tests passed, nothing found", passed(&ended.output)))
        });
    }
}

/// Builds the library for the runs under valgrind.
fn workshop(steps: &mut Steps) -> Result<Workshop> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "-p", "cairn-c"]).current_dir(library::workspace());
    steps.build("libcairn.so and libcairn.a", &mut command)?;
    Ok(Workshop {
        prefix: "",
        libraries: target_dir("release"),
        out: target_dir("sanitizers/programs"),
    })
}

/// One of valgrind's tools, about to run a program.
fn valgrind(tool: &str, options: &[&str], preload: Option<&Path>) -> Command {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}")).arg(format!("--error-exitcode={FOUND}")).args(options);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    command
}

fn memcheck(steps: &mut Steps) -> Result<()> {
    let workshop = workshop(steps)?;
    let library = workshop.libraries.join("libcairn.so");
    // In static programs memcheck knows no allocator's blocks, its own replacement is preloaded;
    // and glibc's start of them makes it report errors of its own.
    for loading in [Loading::Preloaded, Loading::Linked, Loading::Archive] {
        let preload = (loading == Loading::Preloaded).then_some(library.as_path());
        steps.step(&format!("memcheck, mistakes of a program, {}", loading.name()), |limit| {
            mistakes_are_found(&workshop, loading, preload, limit)
        });
    }
    for (source, left_out) in PROGRAMS {
        for loading in [Loading::Preloaded, Loading::Archive] {
            let name = format!("memcheck, cairn itself, {source}, {}", loading.name());
            steps.step(&name, |limit| {
                let program = workshop.build(source, loading)?;
                let preload = (loading == Loading::Preloaded).then_some(library.as_path());
                let mut cases = c_programs::cases(source)?;
                cases.retain(|case| !left_out.contains(&case.as_str()));
                for case in &cases {
                    let mut command = valgrind("memcheck", &[CAIRN_RUNS], preload);
                    command.arg(&program).arg(case).env("TEST_EXPECTS_CAIRN", "1");
                    kernel::small(&mut command);
                    if case == "fork_from_busy" {
                        command.arg("20");
                    }
                    let log = log_of(&workshop, source, case);
                    clean(&run(&mut command, &log, limit)?, &log)?;
                }
                Ok(format!("{} cases, no errors", cases.len()))
            });
        }
    }
    for (name, line) in REAL {
        let mut command = valgrind(
            "memcheck",
            &[CAIRN_RUNS, "--trace-children=yes", "--trace-children-skip=*/md5sum,*/seq,*/rev"],
            None,
        );
        // The shell itself is no part of it, the programs that it starts are.
        command.args(["/bin/sh", "-c", line]).env("LD_PRELOAD", &library);
        command.env("PATH", "/usr/bin:/bin");
        kernel::small(&mut command);
        steps.run(&format!("memcheck, cairn itself, {name}"), &mut command, |ended| {
            ensure!(!ended.output.contains("libcairn"), "errors in cairn");
            clean(ended, Path::new("the log"))?;
            Ok("no errors".to_owned())
        });
    }
    Ok(())
}

fn log_of(workshop: &Workshop, source: &str, case: &str) -> PathBuf {
    workshop.out.join(format!("{}-{case}.log", source.replace('.', "-")))
}

/// Valgrind's own heap takes cairn's place, and knows every block.
fn mistakes_are_found(
    workshop: &Workshop,
    loading: Loading,
    preload: Option<&Path>,
    limit: Duration,
) -> Result<String> {
    let source = library::workspace().join("xtask/src/sanitizers/faulty.c");
    let program = workshop.build_from(&source, loading)?;
    let leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite"];
    for (mistake, words) in [("none", "ERROR SUMMARY: 0 errors")].iter().chain(&MISTAKES) {
        let mut command = valgrind("memcheck", &leaks, preload);
        command.arg(&program).arg(mistake);
        let log = log_of(workshop, "faulty.c", mistake);
        let ended = run(&mut command, &log, limit)?;
        let code = ended.status.and_then(|status| status.code());
        let expected = if *mistake == "none" { 0 } else { FOUND };
        ensure!(code == Some(expected), "{mistake}: {:?}, see {}", ended.status, log.display());
        ensure!(ended.output.contains(words), "{mistake}: not named in {}", log.display());
    }
    Ok(format!("{} of {} found", MISTAKES.len(), MISTAKES.len()))
}

/// An error unless the tool has found nothing and the program has ended well.
fn clean(ended: &Ended, log: &Path) -> Result<()> {
    let lines = || ended.output.lines().filter(|line| line.contains("ERROR SUMMARY:"));
    let all_zero = lines().all(|line| line.contains("ERROR SUMMARY: 0 errors"));
    if lines().count() == 0 || !all_zero {
        bail!("errors in {}", log.display());
    }
    // A case that ends with a look at the process's memory sees the tool's.
    if ended.output.contains("resident_kib() <") {
        return Ok(());
    }
    ended.ensure_success()
}

/// A program with threads: valgrind's heap in place of cairn, so that what is reported is the
/// program's. Cairn itself is not for these tools: they know locks, not atomic words.
fn helgrind(steps: &mut Steps) -> Result<()> {
    let workshop = workshop(steps)?;
    let library = workshop.libraries.join("libcairn.so");
    let source = library::workspace().join("xtask/src/sanitizers/threads.c");
    let program = workshop.build_from(&source, Loading::Preloaded)?;
    for (tool, words) in [("helgrind", "Possible data race"), ("drd", "Conflicting")] {
        for case in ["clean", "race"] {
            let mut command = valgrind(tool, &[], Some(&library));
            command.arg(&program).arg(case);
            steps.run(&format!("{tool}, threads.c, {case}"), &mut command, |ended| {
                if case == "race" {
                    ensure!(ended.output.contains(words), "the race is not found");
                    return Ok("the race is found".to_owned());
                }
                clean(ended, Path::new("the log"))?;
                Ok("no errors".to_owned())
            });
        }
    }
    Ok(())
}
