//! The page: what was run, where, and what became of it.

use super::state::{Outcome, State};
use super::table::Step;
use super::{counts, told};
use anyhow::Result;
use jiff::Timestamp;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Writes it into the folder; its path.
pub(super) fn write(
    folder: &Path,
    sources: &str,
    steps: &[Step],
    state: &State,
) -> Result<PathBuf> {
    let mut text = format!(
        "# Nightly run\n\nSources {sources}, {}, {} UTC.\n{}.\n\n",
        machine(),
        Timestamp::now().strftime("%Y-%m-%d %H:%M"),
        told(&counts(steps, state)),
    );
    text += "| step | outcome | seconds | ended | what it said | command |\n";
    text += "| --- | --- | ---: | --- | --- | --- |\n";
    for Step { name, line, .. } in steps {
        let done = state.get(name);
        let outcome = done.map_or(Outcome::NotRun, |done| done.outcome).word();
        let (seconds, ended, evidence) = done.map_or((0, "", "not yet"), |done| {
            (done.seconds, done.ended.as_str(), done.evidence.as_str())
        });
        writeln!(text, "| {name} | {outcome} | {seconds} | {ended} | {evidence} | `{line}` |")?;
    }
    let page = folder.join("page.md");
    std::fs::write(&page, text)?;
    Ok(page)
}

/// The processor, how many cores can be used, the kernel.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let of_name = |line: &str| {
            Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned())
        };
        text.lines().find_map(of_name)
    };
    let mut processor = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    // In virtual machines several generations have one name.
    if let (Some(family), Some(model)) = (field("cpu family"), field("model")) {
        processor += &format!(" (family {family}, model {model})");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = rustix::system::uname();
    format!("{processor}, {cores} cores, Linux {}", system.release().to_string_lossy())
}
