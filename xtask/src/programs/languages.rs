//! Interpreters, each with one script that allocates in every way the language has.

use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::Result;

pub(super) const PERL: Program = Program {
    name: "perl",
    quick: true,
    needs: &[Need::new("perl", "perl")],
    version: &["perl", "--version"],
    what: "hashes, strings, regular expressions, closures, threads, fork",
    loaded_in: &["perl"],
    prepare: |stage| stage.write_input("script", include_str!("scripts/workload.pl")),
    run: |stage| script(stage, "perl", stage.pick("8", "60")),
};

pub(super) const RUBY: Program = Program {
    name: "ruby",
    quick: false,
    needs: &[Need::new("ruby", "ruby")],
    version: &["ruby", "--version"],
    what: "strings, hashes, threads, fibers, marshal, zlib, heap compaction",
    loaded_in: &["ruby"],
    prepare: |stage| stage.write_input("script", include_str!("scripts/workload.rb")),
    run: |stage| script(stage, "ruby", stage.pick("8", "60")),
};

pub(super) const LUA: Program = Program {
    name: "lua",
    quick: true,
    needs: &[Need::new("lua5.4", "lua5.4")],
    version: &["lua5.4", "-v"],
    what: "tables, strings, closures, coroutines, both collectors",
    loaded_in: &["lua5.4"],
    prepare: |stage| stage.write_input("script", include_str!("scripts/workload.lua")),
    run: |stage| script(stage, "lua5.4", stage.pick("12", "120")),
};

pub(super) const NODE: Program = Program {
    name: "node",
    quick: true,
    needs: &[Need::new("node", "nodejs")],
    version: &["node", "--version"],
    what: "JSON, buffers, zlib, hashes, worker threads",
    loaded_in: &["node"],
    prepare: |stage| stage.write_input("script", include_str!("scripts/workload.js")),
    run: |stage| script(stage, "node", stage.pick("6", "50")),
};

/// Runs the script with the number of its rounds; every line of its output counts.
fn script(stage: &Stage, program: &str, rounds: &str) -> Result<Evidence> {
    let finished = stage
        .process(program)?
        .arg(stage.input.join("script"))
        .arg(rounds)
        // Hash orders that change from run to run would hide real differences.
        .env("PERL_HASH_SEED", "1")
        .env("PERL_PERTURB_KEYS", "0")
        .success()?;
    let text = finished.text();
    let digest: String = text.lines().last().unwrap_or_default().chars().take(16).collect();
    Ok(Evidence::summary(digest).fact("output", text).fact("stderr", finished.stderr))
}
