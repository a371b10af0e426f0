//! What a command costs, seen from outside: time, processor time, page faults, peak memory.

use crate::process::{Ended, Process};
use crate::stage::Stage;
use crate::stats::median;
use crate::variables::SCRIPTS;
use anyhow::{Result, ensure};
use cairn_workloads::case::Results;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Runs a program under the stage's allocator `times` times, one after the other, and measures it, descendants
/// included; of several runs the medians. `set` gives the process what it needs beside its arguments.
pub(crate) fn runs<'a>(
    stage: &'a Stage,
    times: usize,
    program: &Path,
    arguments: &[String],
    set: impl FnOnce(Process<'a>) -> Process<'a>,
) -> Result<(Ended, Results)> {
    let launcher = stage.made("launch", |path| {
        let gcc = format!("gcc -O2 -static -o {} {{scripts}}/launch.c", path.display());
        let variables = [("scripts".to_owned(), SCRIPTS.to_owned())].into();
        stage.tool("sh")?.script(&gcc, &variables).success().map(drop)
    })?;
    let report = stage.work.join("usage");
    let preload = stage.library.as_deref().map_or(OsStr::new(""), Path::as_os_str);
    let process = stage.unloaded(&launcher.to_string_lossy())?;
    let process = process.with(|launcher| {
        launcher.arg(&report).arg(times.to_string()).args([preload, program.as_os_str()])
    });
    let process = process.with(|launcher| launcher.args(arguments));
    let ended = set(process).success()?;
    Ok((ended, medians(&fs::read_to_string(&report)?, times)?))
}

/// The medians of what the launcher reports, a line a run.
fn medians(report: &str, times: usize) -> Result<Results> {
    let numbers = |line: &str| line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let runs: Vec<Vec<f64>> = report.lines().map(numbers).collect();
    let readable = runs.len() == times && runs.iter().all(|run| run.len() == 5);
    ensure!(readable, "unreadable report: {report}");
    let columns = [
        ("ms", 1e6),
        ("user_ms", 1e3),
        ("system_ms", 1e3),
        ("minor_faults", 1.0),
        ("peak_mib", 1024.0),
    ];
    let mut results = Results::default();
    for (at, (name, unit)) in columns.into_iter().enumerate() {
        let values: Vec<f64> = runs.iter().map(|run| run[at] / unit).collect();
        results.values.extend(median(&values).map(|value| (name.to_owned(), value)));
    }
    Ok(results)
}
