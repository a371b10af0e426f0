//! Runs one line of a shell to its end, under a limit of time, and finds in what it wrote the line
//! that says most.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wait_timeout::ChildExt;

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
    let file = File::create(log).with_context(|| log.display().to_string())?;
    // In a session of its own: what is pressed at the terminal comes to this process alone, and what it has
    // started is found, in whichever process group it is.
    let mut command = Command::new("setsid");
    command.args(["--wait", "sh", "-c", line]).current_dir(crate::library::workspace());
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.spawn().context("cannot start setsid")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.wait_timeout(LOOK)? {
            break Some(status);
        }
        if is_stopped() {
            end_session(&mut child)?;
            return Ok(Ended::Stopped);
        }
        if start.elapsed() >= limit {
            end_session(&mut child)?;
            break None;
        }
    };
    let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    let is_good = status.is_some_and(|status| status.success());
    let evidence = match status {
        None => format!("no end within {} minutes: {}", limit.as_secs() / 60, last(&text)),
        Some(_) if is_good => of_success(&text),
        Some(status) => format!("{status}: {}", of_failure(&text)),
    };
    let evidence = evidence.replace('|', "/").chars().take(LONGEST).collect();
    Ok(Ended::Judged { is_good, evidence })
}

/// Ends all processes of a session. What is about to fork may need a second look.
fn end_session(child: &mut Child) -> Result<()> {
    let leader = Pid::from_child(child);
    let members = || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        let numbers = processes.filter_map(number).filter(|&number| number != leader.as_raw_pid());
        let ids = numbers.filter(|&number| session(number) == Some(leader.as_raw_pid()));
        ids.filter_map(Pid::from_raw).collect::<Vec<_>>()
    };
    // The leader first: it goes on to nothing else. It is waited for last: until then its number is no other's.
    let _ = kill_process(leader, Signal::KILL);
    for _ in 0..50 {
        let found = members();
        if found.is_empty() {
            break;
        }
        for id in found {
            // It may be gone just now.
            let _ = kill_process(id, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait()?;
    Ok(())
}

/// The session of a process that has not ended. The system call has an answer that is none for those of the kernel.
fn session(process: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may have anything in it: state, parent, group, session.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let has_ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(2)?.parse().ok().filter(|_| !has_ended)
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
