//! Makes the calls of a trace again, under an allocator (`cairn replay`).
//!
//! The process that makes them has memory of its own besides, none of it from the allocator: what it tells is the
//! allocator's alone.

use crate::process::Failure;
use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use cairn_workloads::case::Results;
use serde::Deserialize;

/// What `cairn replay --json` says, as far as it is needed.
#[derive(Deserialize)]
struct Report {
    allocators: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    milliseconds: f64,
    peak_resident: u64,
    faults: u64,
    /// Calls that have got no memory.
    failed: u64,
}

/// Makes the calls of a trace once, under the stage's allocator.
pub(crate) fn run(stage: &Stage, case: &str) -> Result<Results> {
    /// What the command calls it: any name that it does not know itself.
    const NAME: &str = "measured";
    let traces = stage.traces()?;
    let replay = stage.unloaded(&traces.cairn.to_string_lossy())?.with(|cairn| {
        cairn.args(["replay", "--json", "--runs", "1"]);
        match &stage.library {
            None => cairn.args(["--only", "system"]),
            Some(library) => {
                let library = library.display();
                cairn.args(["--only", NAME, "-a", &format!("{NAME}={library}")])
            }
        };
        cairn.arg("--").arg(traces.path(case))
    });
    results(&replay.success()?.text())
}

/// What a replay of one allocator says.
fn results(said: &str) -> Result<Results> {
    let report: Report = serde_json::from_str(said).context("unreadable replay")?;
    let [row] = &report.allocators[..] else {
        bail!("a replay of {} allocators", report.allocators.len())
    };
    ensure!(row.failed == 0, Failure::wrong(format!("{} calls have got no memory", row.failed)));
    let peak_mib = row.peak_resident as f64 / f64::from(1 << 20);
    let faults = row.faults as f64;
    Ok(Results::of([("ms", row.milliseconds), ("peak_mib", peak_mib), ("minor_faults", faults)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_tells_of_one_allocator() {
        let row = |failed: u32| {
            format!(
                "{{\"name\": \"measured\", \"milliseconds\": 12.5, \"peak_resident\": 3145728, \
                 \"fragmentation\": 1.5, \"faults\": 700, \"failed\": {failed}}}"
            )
        };
        let said = |rows: &str| results(&format!("{{\"schema\": 1, \"allocators\": [{rows}]}}"));
        let values = said(&row(0)).unwrap().values;
        assert_eq!((values["ms"], values["peak_mib"], values["minor_faults"]), (12.5, 3.0, 700.0));
        let error = |rows: &str| format!("{:#}", said(rows).unwrap_err());
        assert_eq!(error(&row(7)), "7 calls have got no memory");
        assert_eq!(error(""), "a replay of 0 allocators");
        assert!(error("7").starts_with("unreadable replay"));
    }
}
