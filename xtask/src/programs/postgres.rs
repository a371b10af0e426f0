//! PostgreSQL: a fresh cluster, pgbench from four clients, sums that must agree, heavy queries.

use super::generate::fingerprint;
use super::install::Need;
use super::stage::{Account, Stage};
use super::{Evidence, Program};
use anyhow::{Result, ensure};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const INITDB: &str = "/usr/lib/postgresql/*/bin/initdb";
const SERVER: &str = "/usr/lib/postgresql/*/bin/postgres";
const PGBENCH: &str = "/usr/lib/postgresql/*/bin/pgbench";
const PSQL: &str = "/usr/lib/postgresql/*/bin/psql";
const DUMP: &str = "/usr/lib/postgresql/*/bin/pg_dump";

pub(super) const POSTGRES: Program = Program {
    name: "postgresql",
    quick: true,
    needs: &[Need::new(SERVER, "postgresql"), Need::new(PSQL, "postgresql-client")],
    version: &[SERVER, "--version"],
    what: "initdb, pgbench with 4 clients, balances against history, sorts and joins, pg_dump, \
           stop, restart",
    loaded_in: &["postgres", "pgbench"],
    prepare: |stage| stage.write_input("queries.sql", include_str!("scripts/postgres.sql")),
    run,
};

/// Every column must hold the same number: no transfer was lost or made up.
const BALANCES: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
    (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(tbalance) FROM pgbench_tellers), \
    (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)";

fn run(stage: &Stage) -> Result<Evidence> {
    let account = stage.account(&["postgres", "nobody"])?;
    let data = stage.directory_for("data", account)?;
    stage
        .process(INITDB)?
        .line("-U postgres -A trust --no-sync --data-checksums -E UTF8 --locale=C -D")
        .arg(&data)
        .account(account)
        .success()?;
    let transactions = stage.pick(1_000, 8_000);
    let server = start(stage, &data, account)?;
    client(stage, PGBENCH, &data)?.line("-i -q -s 4 postgres").success()?;
    let load = client(stage, PGBENCH, &data)?
        .line(&format!("-n -c 4 -j 2 -t {transactions} --random-seed=7 postgres"))
        .success()?;
    ensure!(!load.stderr.contains("aborted"), "clients were aborted:\n{}", load.stderr);
    client(stage, PGBENCH, &data)?
        .line(&format!("-n -S -M prepared -c 4 -j 2 -t {transactions} --random-seed=8 postgres"))
        .success()?;
    let balances = check_balances(stage, &data, 4 * transactions)?;
    let queries = client(stage, PSQL, &data)?
        .line("-X -q -t -A -v ON_ERROR_STOP=1 postgres -v")
        .arg(format!("rows={}", stage.pick(60_000, 500_000)))
        .arg("-f")
        .arg(stage.input.join("queries.sql"))
        .success()?;
    let dump = dump_of(stage, &data)?;
    let log = server.stop(Signal::INT)?;
    ensure!(!log.contains("terminated by signal"), "a backend crashed:\n{log}");

    let server = start(stage, &data, account)?;
    ensure!(dump_of(stage, &data)? == dump, "the data is not the same after a restart");
    let log = server.stop(Signal::INT)?;
    ensure!(!log.contains("terminated by signal"), "a backend crashed:\n{log}");
    Ok(Evidence::summary(format!("{} transactions, balances agree", 4 * transactions))
        .fact("balances", balances)
        .fact("queries", queries.text())
        .fact("dump", dump))
}

fn start<'a>(
    stage: &'a Stage,
    data: &Path,
    account: Option<Account>,
) -> Result<super::process::Server<'a>> {
    let mut server = stage
        .process(SERVER)?
        .arg("-D")
        .arg(data)
        .arg("-k")
        .arg(data)
        .line("-c listen_addresses= -c fsync=off -c shared_buffers=64MB -c jit=off")
        .line("-c max_parallel_workers_per_gather=2 -c min_parallel_table_scan_size=64kB")
        .line("-c parallel_setup_cost=10 -c parallel_tuple_cost=0.001")
        .directory(data)
        .account(account)
        .serve()?;
    stage.wait_until(Duration::from_secs(60), &mut server, || {
        let asked = client(stage, PSQL, data)
            .and_then(|psql| psql.line("-X -q postgres -c").arg("SELECT 1").success());
        asked.is_ok()
    })?;
    Ok(server)
}

fn client<'a>(stage: &'a Stage, program: &str, data: &Path) -> Result<super::process::Process<'a>> {
    Ok(stage.process(program)?.env("PGHOST", data).env("PGUSER", "postgres").limit(240))
}

fn check_balances(stage: &Stage, data: &Path, transactions: u32) -> Result<String> {
    let answer = client(stage, PSQL, data)?
        .line("-X -q -t -A postgres -c")
        .arg(BALANCES)
        .success()?
        .text()
        .trim()
        .to_owned();
    let columns: Vec<&str> = answer.split('|').collect();
    let agree = columns.len() == 5 && columns[..4].iter().all(|sum| *sum == columns[0]);
    ensure!(agree && columns[4] == transactions.to_string(), "the sums disagree: {answer}");
    Ok(answer)
}

/// What is in the tables whose content does not depend on the order of transactions.
fn dump_of(stage: &Stage, data: &Path) -> Result<String> {
    let dump = client(stage, DUMP, data)?
        .line("--inserts --no-comments -t pgbench_branches -t pgbench_tellers -t words postgres")
        .success()?;
    // Newer releases put a random word into `\restrict` lines.
    let text = dump.text();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('\\')).collect();
    lines.sort_unstable();
    Ok(fingerprint(lines.join("\n").as_bytes()))
}
