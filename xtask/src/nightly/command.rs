//! Runs one line of a shell to its end, under a limit of time, and finds in what it wrote the line
//! that says most.

use anyhow::{Context, Result};
use runner::{End, Limits, Outputs};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a line ended.
pub(super) enum Ended {
    /// By itself, or it took too long.
    Judged { is_good: bool, evidence: String },
    /// Somebody wants the run to end.
    Stopped,
}

/// How often a look is taken at who wants what.
const LOOK: Duration = Duration::from_millis(200);
/// Longer evidence makes no table.
const LONGEST: usize = 160;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on the signals that ask for an end are noticed, and nothing else comes of them.
pub(super) fn notice_signals() {
    extern "C" fn note(_: libc::c_int) {
        // Relaxed: nothing else is said by it.
        STOPPED.store(true, Ordering::Relaxed);
    }
    let note: extern "C" fn(libc::c_int) = note;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler writes one atomic byte.
        unsafe { libc::signal(signal, note as libc::sighandler_t) };
    }
}

pub(super) fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Runs it, with everything that it writes in `log`. All that it has started ends with it if it is stopped or
/// takes longer than `limit`.
pub(super) fn run_line(
    line: &str,
    log: &Path,
    limit: Duration,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Ended> {
    let outputs = Outputs::together(log).with_context(|| log.display().to_string())?;
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(crate::library::workspace());
    runner::alone(&mut command);
    let ended = runner::run(&mut command, &outputs, &Limits::of_time(limit), LOOK, is_stopped);
    let ended = ended.context("cannot start a shell")?;
    if ended.end == End::Stopped {
        return Ok(Ended::Stopped);
    }
    let (status, text) = (ended.end.status(), String::from_utf8_lossy(&ended.stdout));
    let is_good = status.is_some_and(|status| status.success());
    let evidence = match status {
        None => format!("no end within {} minutes: {}", limit.as_secs() / 60, last(&text)),
        Some(_) if is_good => of_success(&text),
        Some(status) => format!("{status}: {}", of_failure(&text)),
    };
    let evidence = evidence.replace('|', "/").chars().take(LONGEST).collect();
    Ok(Ended::Judged { is_good, evidence })
}

/// How many tests have passed, and what is left out of them; or how many rows the last table has.
fn of_success(text: &str) -> String {
    let results = text.lines().filter_map(|line| line.split_once("test result: ok. "));
    let parts = results.flat_map(|(_, counts)| counts.split(';'));
    let counts = parts.filter_map(|part| part.trim().split_once(' '));
    let sum = |what: &str| -> usize {
        let meant = counts.clone().filter(|(_, name)| *name == what);
        meant.filter_map(|(number, _)| number.parse::<usize>().ok()).sum()
    };
    let skipped = text.lines().filter(|line| line.starts_with("skipped ")).count();
    let rows = text.lines().rev().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|') && !line.starts_with("| ---")).count();
    let counts = [
        (sum("passed"), "tests passed"),
        (sum("ignored"), "ignored"),
        (skipped, "skipped"),
        (rows, "rows in the table"),
    ];
    let told = counts.iter().filter(|(number, _)| *number > 0);
    let told: Vec<String> = told.map(|(number, what)| format!("{number} {what}")).collect();
    if told.is_empty() { last(text).to_owned() } else { told.join(", ") }
}

/// What failed first.
fn of_failure(text: &str) -> String {
    let is_telling = |line: &&str| {
        line.contains("FAILED") && !line.contains("test result") || line.starts_with("error")
    };
    text.lines().find(is_telling).unwrap_or_else(|| last(text)).trim().to_owned()
}

/// The last line that says something; what else there is to run is not that.
fn last(text: &str) -> &str {
    let is_told = |line: &&str| !line.trim().is_empty() && !line.starts_with("not run here:");
    text.lines().rfind(is_told).unwrap_or("nothing was said").trim()
}
