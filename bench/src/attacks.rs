//! What becomes of attacks on the heap under each allocator: the attack suite of the C layer, by its names.

use crate::allocators::Candidate;
use anyhow::{Context, Result, ensure};
use programs::process::{Limits, Process};
use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Chance decides some ends: each attack runs so often, and the best end for the attacker counts.
const RUNS: usize = 5;

/// An end, the best one for the attacker last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Stopped,
    Crashes,
    Harmless,
    Succeeds,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Stopped => "stopped",
            End::Crashes => "crashes",
            End::Harmless => "harmless",
            End::Succeeds => "succeeds",
        }
    }
}

/// Runs every attack under every allocator that can be preloaded; the table, as Markdown.
pub fn table(project: &Path, candidates: &[Candidate], scratch: &Path) -> Result<String> {
    let program = compile(project, scratch)?;
    let listed = Command::new(&program).arg("--list").output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let candidates: Vec<_> =
        candidates.iter().filter(|candidate| candidate.public.no_preload.is_none()).collect();
    let names: Vec<&str> = candidates.iter().map(|it| &*it.public.name).collect();
    let mut table =
        format!("| attack | {} |\n|{}\n", names.join(" | "), " --- |".repeat(names.len() + 1));
    let mut successes = vec![0; names.len()];
    for attack in listed.lines() {
        write!(table, "| {} |", attack.replace('_', " "))?;
        for (candidate, count) in candidates.iter().zip(&mut successes) {
            let ends: Result<Vec<End>> =
                (0..RUNS).map(|_| end_of(&program, attack, candidate)).collect();
            let best = ends?.into_iter().max().context("no run")?;
            *count += usize::from(best == End::Succeeds);
            write!(table, " {} |", best.name())?;
        }
        table.push('\n');
    }
    let successes: Vec<String> = successes.iter().map(usize::to_string).collect();
    writeln!(table, "| succeed | {} |", successes.join(" | "))?;
    Ok(table)
}

/// As the tests of the C layer compile it.
fn compile(project: &Path, scratch: &Path) -> Result<PathBuf> {
    let (source, program) =
        (project.join("crates/cairn-c/tests/c/attacks.c"), scratch.join("attacks"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source);
    ensure!(compiler.status().context("cannot start cc")?.success(), "the attacks do not compile");
    Ok(program)
}

fn end_of(program: &Path, attack: &str, candidate: &Candidate) -> Result<End> {
    let mut command = Command::new(program);
    command.arg(attack).envs(&candidate.environment);
    if let Some(library) = &candidate.library {
        command.env("LD_PRELOAD", library);
    }
    let limits = Limits { timeout: Duration::from_secs(30), memory_mib: 4096.0 };
    // One that never ends has not come to anything, either.
    let ended = Process::alone(command, &limits).run()?;
    let Ok(status) = &ended.end else { return Ok(End::Harmless) };
    Ok(match status.signal() {
        Some(libc::SIGABRT) => End::Stopped,
        Some(_) => End::Crashes,
        None if ended.text().trim() == "succeeds" => End::Succeeds,
        None => End::Harmless,
    })
}
