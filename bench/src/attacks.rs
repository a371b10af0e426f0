//! What becomes of attacks on the heap under each allocator: the attack suite of the C layer, by its names.

use crate::allocators::Candidate;
use anyhow::{Context, Result, ensure};
use programs::process::{Limits, Process};
use programs::tables::markdown;
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

/// Runs every attack under every allocator that can be preloaded; the table, as Markdown. Attacks with the same ends
/// share a row.
pub fn table(project: &Path, candidates: &[Candidate], scratch: &Path) -> Result<String> {
    let program = compile(project, scratch)?;
    let listed = Command::new(&program).arg("--list").output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let candidates: Vec<_> =
        candidates.iter().filter(|candidate| candidate.public.no_preload.is_none()).collect();
    let mut rows: Vec<(String, Vec<End>)> = Vec::new();
    let mut successes = vec![0; candidates.len()];
    for attack in listed.lines() {
        let worst = |candidate: &&Candidate| {
            let ends: Result<Vec<End>> =
                (0..RUNS).map(|_| end_of(&program, attack, candidate)).collect();
            ends?.into_iter().max().context("no run")
        };
        let ends: Vec<End> = candidates.iter().map(worst).collect::<Result<_>>()?;
        for (end, count) in ends.iter().zip(&mut successes) {
            *count += usize::from(*end == End::Succeeds);
        }
        let name = attack.replace('_', " ");
        match rows.iter_mut().find(|(_, same)| *same == ends) {
            Some((names, _)) => *names += &format!("; {name}"),
            None => rows.push((name, ends)),
        }
    }
    let cells = |(names, ends): (String, Vec<End>)| {
        [names].into_iter().chain(ends.iter().map(|end| end.name().to_owned())).collect()
    };
    let last = ["succeed".to_owned()].into_iter().chain(successes.iter().map(usize::to_string));
    let rows = rows.into_iter().map(cells).chain([last.collect()]);
    let names = candidates.iter().map(|it| &*it.public.name);
    let columns: Vec<&str> = ["attack"].into_iter().chain(names).collect();
    Ok(markdown(&columns, |_| false, rows))
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
