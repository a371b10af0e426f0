//! Programs that do nearly nothing: what remains is what loading the allocator costs.
//!
//! Each is started many times in a row; the system calls are the same every time and are
//! counted once.

use super::{Program, Subject, find, find_tool};
use crate::child::{self, Failure};
use cairn_workloads::case::{Case, Group, Results, Row, Table};
use cairn_workloads::process::parse_kib;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    case("start-true", "Starts and ends: what the allocator adds to any process.", run_true),
    case("start-ls", "Lists a directory of 20 files, as scripts do all day.", run_ls),
    Program {
        case: start("start-hello-c", "A C program that prints one line.", HELLO_ROWS),
        run: run_c,
    },
    case("start-hello-cxx", "A C++ program that prints one line to std::cout.", |s| {
        run_hello(s, "hello-cxx", |path| {
            s.compile(include_str!("scripts/hello.cc"), path, "g++", &["-O2"])
        })
    }),
    case("start-hello-rust", "A Rust program that prints one line.", |s| {
        run_hello(s, "hello-rust", |path| rust(s, path))
    }),
    case("start-python", "CPython as it comes, printing one line.", run_python),
];

const TIME: Row = Row::time("ms");
const FAULTS: Row = Row::new(" page faults", Table::Counts, "minor_faults", "faults");
const SYSTEM_CALLS: Row = Row::new(" system calls", Table::Counts, "system_calls", "calls");
/// The resident set says what the peak does, and is exact.
const RESIDENT: Row = Row::new("", Table::Memory, "rss_kib", "KiB");

const ROWS: &[Row] = &[TIME, Row::PEAK, FAULTS, SYSTEM_CALLS];
const HELLO_ROWS: &[Row] = &[TIME, RESIDENT, FAULTS, SYSTEM_CALLS];

type Run = fn(&Subject<'_>) -> Result<Results, Failure>;

const fn start(name: &'static str, about: &'static str, rows: &'static [Row]) -> Case {
    Case::new(name, Group::Startup, about, rows).quick(0.25)
}

const fn case(name: &'static str, about: &'static str, run: Run) -> Program {
    Program { case: start(name, about, ROWS), run }
}

/// How often each is started in a full run.
const TIMES: usize = 40;

/// Starts `program` many times; each time it must print `expected` lines.
fn repeat(
    subject: &Subject<'_>,
    program: &Path,
    set: impl Fn(&mut Command),
    lines: usize,
) -> Result<Results, Failure> {
    let times = subject.scaled(TIMES);
    let (output, usage) = subject.measure(program, times, &set)?;
    let found = output.stdout.lines().count();
    if found != lines * times {
        return Err(Failure::wrong(format!("{found} lines in {times} runs of {lines}")));
    }
    let mut results = usage.results();
    if let Some(calls) = system_calls(subject, program, &set)? {
        results.values.insert("system_calls".into(), calls);
    }
    Ok(results)
}

/// How many system calls it makes; none where nobody can count them.
fn system_calls(
    subject: &Subject<'_>,
    program: &Path,
    set: impl Fn(&mut Command),
) -> Result<Option<f64>, Failure> {
    let Ok(strace) = find("strace", "strace") else { return Ok(None) };
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let text = subject.cached(&format!("system-calls-{name}"), || {
        let summary = subject.scratch.join("strace");
        let mut command = Subject { preload: None, ..*subject }.command(&strace);
        command.args(["-f", "-c", "-o"]).arg(&summary);
        if let Some(library) = subject.preload {
            command.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
        }
        command.arg(program);
        set(&mut command);
        // Where tracing is forbidden, all the rest can still be measured.
        let _ = child::run(&mut command, subject.limits);
        Ok(std::fs::read_to_string(&summary).unwrap_or_default())
    })?;
    Ok(total(&text))
}

/// The number of calls in the last line of strace's summary.
fn total(summary: &str) -> Option<f64> {
    let line = summary.lines().find(|line| line.trim_end().ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn run_true(subject: &Subject<'_>) -> Result<Results, Failure> {
    repeat(subject, &find("true", "coreutils")?, |_| {}, 0)
}

fn run_ls(subject: &Subject<'_>) -> Result<Results, Failure> {
    const FILES: usize = 20;
    let directory = subject.made("list", |path| {
        std::fs::create_dir(path)?;
        Ok((0..FILES).try_for_each(|n| std::fs::write(path.join(format!("file-{n}")), "x"))?)
    })?;
    let long = |command: &mut Command| {
        command.arg("-l").arg("--numeric-uid-gid").arg(&directory);
    };
    repeat(subject, &find("ls", "coreutils")?, long, FILES + 1)
}

fn run_c(subject: &Subject<'_>) -> Result<Results, Failure> {
    let program = subject.made("hello-c", |path| {
        subject.compile(include_str!("scripts/hello.c"), path, "gcc", &["-O2"])
    })?;
    let mut results = repeat(subject, &program, |_| {}, 1)?;
    let mut once = subject.command(&program);
    let output = child::run(once.arg("resident"), subject.limits)?.stdout;
    let kib = parse_kib(&output, "Rss:").ok_or_else(|| Failure::wrong("no Rss line"))?;
    results.values.insert("rss_kib".into(), kib);
    Ok(results)
}

fn run_hello(
    subject: &Subject<'_>,
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<Results, Failure> {
    repeat(subject, &subject.made(name, make)?, |_| {}, 1)
}

fn rust(subject: &Subject<'_>, executable: &Path) -> Result<(), Failure> {
    let source: PathBuf =
        subject.prepared("hello.rs", || "fn main() { println!(\"hello\"); }\n")?;
    // Any compiler will do: it is not what is measured.
    let mut command = Command::new(find_tool("rustc", "rustc")?);
    command.args(["--edition", "2021", "-O", "-o"]).arg(executable).arg(source);
    child::run(&mut command, subject.limits).map(drop)
}

fn run_python(subject: &Subject<'_>) -> Result<Results, Failure> {
    let hello = |command: &mut Command| {
        command.args(["-S", "-B", "-c", "print(\"hello\")"]).env("PYTHONHASHSEED", "0");
    };
    repeat(subject, &find("python3", "python3")?, hello, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_a_summary_is_read() {
        let summary = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 50.00    0.000010           1         9           mmap
 50.00    0.000010           5         2         1 access
------ ----------- ----------- --------- --------- ----------------
100.00    0.000020           1        11         1 total
";
        assert_eq!(total(summary), Some(11.0));
        assert_eq!(total("strace: ptrace: Operation not permitted"), None);
    }
}
