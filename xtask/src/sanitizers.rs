//! Runs cairn under the tools that look for mistakes of memory and of threads: the compiler's
//! address and thread sanitizers (nightly), and valgrind's memcheck, helgrind and drd.
//!
//! Two questions are asked. Is cairn itself free of what the tool looks for? And does the tool
//! still find the mistakes of a program that runs on cairn? CONTRIBUTING.md has the answers.

use crate::c_programs::{Loading, Workshop, is_only_memory, run_cases};
use crate::kernel;
use crate::library::{Build, shell};
use crate::steps::{Ended, LIMIT, Steps, not_run_with};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;
use xshell::cmd;

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these tools.
    #[arg(value_parser = TOOLS)]
    only: Vec<String>,
    /// Seconds for which each of the random tests runs under a sanitizer.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only steps with this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    step: String,
    #[command(flatten)]
    build: Build,
}

const TOOLS: [&str; 4] = ["address", "thread", "valgrind", "helgrind"];
/// What valgrind is to end with if it has found something.
const FOUND: i32 = 99;
/// Has valgrind leave cairn's functions in place: cairn itself runs under the tool.
const CAIRN_RUNS: &str = "--soname-synonyms=somalloc=nouserintercepts";

/// A program of our own, seen from the folder of the C layer's tests.
const FAULTY: &str = "../../../../xtask/src/faulty.c";

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
const PROGRAMS: [(&str, &str); 4] = [
    ("semantics.c", "every_small_size trim_gives_back"),
    (
        "process.c",
        "exec_while_busy short_threads cancel every_size fork_in_children fork_from_threads \
         fork_handlers_may_allocate",
    ),
    ("cxx.cpp", "shortage_of_small_blocks handler_is_called_until_it_gives_up"),
    ("lifetime.cpp", ""),
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
    let folder = args.build.target_dir("sanitizers");
    let mut steps = Steps::new(&folder, LIMIT, &args.step)?;
    for tool in TOOLS {
        if !args.only.is_empty() && args.only.iter().all(|only| only != tool) {
            continue;
        }
        match tool {
            "valgrind" => memcheck(&workshop(args.build)?, &mut steps),
            "helgrind" => helgrind(&workshop(args.build)?, &mut steps)?,
            compiler => compiled(compiler, args, &mut steps)?,
        }
    }
    steps.finish()?;
    let left_out = match args.only.is_empty() && args.step.is_empty() {
        true => "other machines (cargo xtask targets), the models (cargo xtask models --full)",
        false => "the other tools and steps (cargo xtask sanitizers)",
    };
    not_run_with(args.build, left_out);
    Ok(())
}

/// Races that are meant, with the reason in the file.
const BY_DESIGN: &str =
    concat!("suppressions=", env!("CARGO_MANIFEST_DIR"), "/thread-sanitizer.txt");

/// Tests of the core that make no sense under a sanitizer. With addresses, who looks for the caller of a guarded block reads
/// other functions' frames, between whose variables the tool has walls. With threads, the memory resident is the tool's,
/// and it has the kernel map memory where a region has no place: right behind the reservation.
const LEFT_OUT: [(&str, &str); 6] = [
    ("address", "tests::guards::"),
    ("thread", "tests::nursery::small_heaps_are_small"),
    ("thread", "an_idle_program_gives_back"),
    ("thread", "tests::faults_in_regions"),
    ("thread", "tests::sample::profile::heaps_that_come_and_go_lose_no_page"),
    ("thread", "tests::region::what_cannot_be_a_region_is_told_apart"),
];

/// The core's tests, and the standard library with them, built with a sanitizer of the compiler.
fn compiled(sanitizer: &str, args: &Args, steps: &mut Steps) -> Result<()> {
    let shell = shell()?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    steps.core_tests(&format!("{sanitizer} sanitizer"), args.build, |tests| {
        let skipped = LEFT_OUT.iter().filter(|(tool, _)| *tool == sanitizer);
        let skipped = skipped.flat_map(|&(_, tests)| ["--skip", tests]);
        cmd!(shell, "rustup run nightly cargo test -Zbuild-std --target {triple} {tests...}")
            .arg("--")
            .args(skipped)
            .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"))
            // Debug assertions stay; without optimisation a sanitizer crawls.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "2")
            .env("CARGO_TARGET_DIR", args.build.target_dir("sanitizers").join(sanitizer))
            .env("CAIRN_STRESS_SECONDS", args.seconds.to_string())
            .env("TSAN_OPTIONS", format!("halt_on_error=1 die_after_fork=0 {BY_DESIGN}"))
            .into()
    });
    Ok(())
}

/// Builds the library for the runs under valgrind.
fn workshop(build: Build) -> Result<Workshop> {
    let out = build.target_dir("sanitizers/programs");
    Ok(Workshop { prefix: String::new(), library: build.library()?, out })
}

/// One of valgrind's tools, about to run a program.
fn valgrind(tool: &str, options: &[&str], preload: Option<&Path>) -> Command {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}")).arg(format!("--error-exitcode={FOUND}")).args(options);
    command.envs(preload.map(|library| ("LD_PRELOAD", library)));
    command
}

fn memcheck(workshop: &Workshop, steps: &mut Steps) {
    // In static programs memcheck knows no allocator's blocks, its own replacement is preloaded;
    // and glibc's start of them makes it report errors of its own.
    for loading in [Loading::Preloaded, Loading::Linked, Loading::Archive] {
        let name = format!("memcheck, mistakes of a program, {}", loading.name());
        steps.step(&name, || mistakes_are_found(workshop, loading));
    }
    let tool = |program: &Path, preload: Option<&Path>| {
        let mut command = valgrind("memcheck", &[CAIRN_RUNS], preload);
        command.arg(program);
        kernel::small(&mut command);
        command
    };
    for test in PROGRAMS {
        for loading in [Loading::Preloaded, Loading::Archive] {
            let name = format!("memcheck, cairn itself, {}, {}", test.0, loading.name());
            steps.step(&name, || workshop.test(test, loading, "20", tool, |_, ended| clean(ended)));
        }
    }
    for (name, line) in REAL {
        let skipped = "--trace-children-skip=*/md5sum,*/seq,*/rev";
        let options = [CAIRN_RUNS, "--trace-children=yes", skipped];
        // The shell itself is no part of it, the programs that it starts are.
        let mut command = valgrind("memcheck", &options, Some(&workshop.library));
        command.args(["/bin/sh", "-c", line]).env("PATH", "/usr/bin:/bin");
        kernel::small(&mut command);
        steps.run(&format!("memcheck, cairn itself, {name}"), command, |ended| {
            // The tool's lines, and the loader's. The program may write the name, too: git does, of files.
            let is_told = |line: &str| line.starts_with("==") || line.starts_with("ERROR: ld.so");
            let mut told = ended.output.lines().filter(|line| is_told(line));
            ensure!(!told.any(|line| line.contains("libcairn")), "errors in cairn");
            clean(ended).map(|()| "no errors".to_owned())
        });
    }
}

/// Valgrind's own heap takes cairn's place, and knows every block.
fn mistakes_are_found(workshop: &Workshop, loading: Loading) -> Result<String> {
    let program = workshop.build(FAULTY, loading)?;
    let preload = workshop.preload(loading);
    let command = |mistake: &str| {
        let leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite"];
        let mut command = valgrind("memcheck", &leaks, preload);
        command.arg(&program).arg(mistake);
        command
    };
    let judge = |mistake: &str, ended: &Ended| {
        let words = MISTAKES.iter().find(|(name, _)| *name == mistake);
        let Some((_, words)) = words else { return clean(ended) };
        let code = ended.status.and_then(|status| status.code());
        ensure!(code == Some(FOUND) && ended.output.contains(words), "not found, or not named");
        Ok(())
    };
    let cases = ["none"].into_iter().chain(MISTAKES.map(|(name, _)| name)).map(str::to_owned);
    run_cases(&program, &cases.collect::<Vec<_>>(), command, judge)?;
    Ok(format!("{} of {} found", MISTAKES.len(), MISTAKES.len()))
}

/// An error unless the tool has found nothing and the program has ended well.
fn clean(ended: &Ended) -> Result<()> {
    let mut summaries = ended.output.lines().filter(|line| line.contains("ERROR SUMMARY:"));
    let all_zero = |line: &str| line.contains("ERROR SUMMARY: 0 errors");
    ensure!(summaries.next().is_some_and(all_zero) && summaries.all(all_zero), "errors");
    if is_only_memory(ended) { Ok(()) } else { ended.ensure_success() }
}

/// A program with threads: valgrind's heap in place of cairn, so that what is reported is the
/// program's. Cairn itself is not for these tools: they know locks, not atomic words.
fn helgrind(workshop: &Workshop, steps: &mut Steps) -> Result<()> {
    let program = workshop.build(FAULTY, Loading::Preloaded)?;
    for (tool, words) in [("helgrind", "Possible data race"), ("drd", "Conflicting")] {
        for case in ["threads", "race"] {
            let mut command = valgrind(tool, &[], Some(&workshop.library));
            command.arg(&program).arg(case);
            steps.run(&format!("{tool}, faulty.c, {case}"), command, |ended| {
                if case == "race" {
                    ensure!(ended.output.contains(words), "the race is not found");
                    return Ok("the race is found".to_owned());
                }
                clean(ended).map(|()| "no errors".to_owned())
            });
        }
    }
    Ok(())
}
