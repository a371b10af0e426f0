//! PostgreSQL under pgbench, its own load generator: balances against history, on both sides of a
//! proof and in the lab; heavy queries, dumps and a restart in a proof.

use crate::generate::fingerprint;
use crate::process::Process;
use crate::proof::Evidence;
use crate::server::{Account, Server};
use crate::stage::{Stage, own, private_copy};
use anyhow::{Context, Result, ensure};
use cairn_workloads::case::Results;
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Of the load.
const CLIENTS: usize = 4;

/// A cluster and the account that it belongs to.
struct Cluster<'a> {
    stage: &'a Stage,
    data: PathBuf,
    account: Option<Account>,
}

/// A fresh cluster, transfers, sums that must agree, heavy queries, a dump, a restart, a dump.
pub(crate) fn prove(stage: &Stage) -> Result<Evidence> {
    let account = account()?;
    let cluster = Cluster { stage, data: stage.directory_for("data", account)?, account };
    cluster.init("--data-checksums")?;
    let transactions = stage.pick(1_000, 8_000);
    let settings = "fsync=off max_parallel_workers_per_gather=2 min_parallel_table_scan_size=64kB \
        parallel_setup_cost=10 parallel_tuple_cost=0.001";
    let server = cluster.start(settings)?;
    cluster.client("pgbench")?.line("-i -q -s 4 postgres").success()?;
    let load = |options: &str| {
        let line = format!("-n -c {CLIENTS} -j 2 -t {transactions} {options} postgres");
        cluster.client("pgbench")?.line(&line).success()
    };
    let said = load("--random-seed=7")?.stderr;
    ensure!(!said.contains("aborted"), "clients were aborted:\n{said}");
    load("--random-seed=8 -S -M prepared")?;
    let balances = cluster.check_balances(CLIENTS * transactions)?;
    let queries = cluster
        .client("psql")?
        .line("-X -q -t -A -v ON_ERROR_STOP=1 postgres -v")
        .arg(format!("rows={}", stage.pick(60_000, 500_000)))
        .arg("-f")
        .arg(stage.input.join("queries.sql"))
        .success()?;
    let dump = cluster.dump()?;
    healthy(&server.stop()?)?;

    let server = cluster.start(settings)?;
    ensure!(cluster.dump()? == dump, "the data is not the same after a restart");
    healthy(&server.stop()?)?;
    let summary = format!("{} transactions, balances agree", CLIENTS * transactions);
    let facts = [("balances", balances), ("queries", queries.text()), ("dump", dump)];
    Ok(Evidence::of(summary, facts))
}

/// pgbench's short transactions, on a copy of a cluster that was made without the allocator.
pub(crate) fn time(stage: &Stage) -> Result<Results> {
    let account = account()?;
    let template = template(stage, account)?;
    let data = stage.work.join("postgres-data");
    let _ = fs::remove_dir_all(&data);
    stage.tool("cp")?.arg("-a").args([&template, &data]).success()?;
    // The server's account may not be able to read where the library is.
    let library = stage.library.as_deref().map(|library| readable(stage, library)).transpose()?;
    let mut stage = stage.clone();
    stage.library = library;
    let cluster = Cluster { stage: &stage, data, account };

    let transactions = stage.scaled(1000);
    let mut server = cluster.start(LAB_SETTINGS)?;
    let (output, peak_mib) = server.under(|| {
        let line = format!("-n -j 1 -c {CLIENTS} -t {transactions} --random-seed=7 postgres");
        Ok(cluster.client("pgbench")?.line(&line).success()?.text())
    })?;
    let all = CLIENTS * transactions;
    let processed = format!("actually processed: {all}/{all}");
    ensure!(output.contains(&processed), "not all processed: {output}");
    let rate = rate(&output).with_context(|| format!("unreadable result: {output}"))?;
    cluster.check_balances(all)?;
    drop(server);
    fs::remove_dir_all(&cluster.data)?;
    Ok(Results::of([("us/transaction", 1e6 / rate), ("peak_mib", peak_mib)]))
}

const LAB_SETTINGS: &str = "fsync=off synchronous_commit=off full_page_writes=off \
    max_wal_size=1GB autovacuum=off";

fn account() -> Result<Option<Account>> {
    Account::of_server(&["postgres", "nobody"])
}

/// A cluster with pgbench's tables.
fn template(stage: &Stage, account: Option<Account>) -> Result<PathBuf> {
    stage.made("postgres-template", |path| {
        // The account has to pass through to its own directory.
        fs::set_permissions(&stage.input, Permissions::from_mode(0o711))?;
        fs::create_dir(path)?;
        own(path, account)?;
        let cluster = Cluster { stage: &stage.bare(), data: path.to_owned(), account };
        cluster.init("--wal-segsize=1")?;
        let server = cluster.start(LAB_SETTINGS)?;
        cluster.client("pgbench")?.line("-i -q -s 2 postgres").success()?;
        server.stop().map(drop)
    })
}

/// A copy of the library that every account can read.
fn readable(stage: &Stage, library: &Path) -> Result<PathBuf> {
    let path = stage.cached("readable", || {
        let unique = fingerprint(library.as_os_str().as_encoded_bytes());
        let directory = stage.input.join(format!("copy-{unique}"));
        fs::create_dir_all(&directory)?;
        Ok(private_copy(library, &directory)?.display().to_string())
    })?;
    Ok(path.into())
}

fn healthy(log: &str) -> Result<()> {
    ensure!(!log.contains("terminated by signal"), "a backend crashed:\n{log}");
    Ok(())
}

/// Transactions per second.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split(' ').next()?.parse().ok()
}

impl<'a> Cluster<'a> {
    /// One of the newest version's own programs.
    fn program(&self, name: &str) -> Result<Process<'a>> {
        self.stage.process(&format!("/usr/lib/postgresql/*/bin/{name}"))
    }

    fn client(&self, name: &str) -> Result<Process<'a>> {
        let client = self.stage.client(&format!("/usr/lib/postgresql/*/bin/{name}"))?;
        let client = client.env("PGHOST", &self.data).env("PGUSER", "postgres");
        Ok(if self.stage.is_lab() { client } else { client.limit(240) })
    }

    fn init(&self, options: &str) -> Result<()> {
        let init = self.program("initdb")?.line("-U postgres -A trust --no-sync -E UTF8");
        let init = init.line("--locale=C").line(options).arg("-D").arg(&self.data);
        init.directory(&self.data).account(self.account).success().map(drop)
    }

    fn start(&self, settings: &str) -> Result<Server<'a>> {
        let mut server = self.program("postgres")?.arg("-D").arg(&self.data).arg("-k");
        server = server.arg(&self.data).directory(&self.data).account(self.account);
        for setting in "listen_addresses= shared_buffers=64MB jit=off".split(' ') {
            server = server.arg("-c").arg(setting);
        }
        for setting in settings.split_whitespace() {
            server = server.arg("-c").arg(setting);
        }
        // Fast shutdown.
        self.stage.serve(server, Signal::INT, || {
            let asked = self.client("pg_isready").and_then(|ask| ask.arg("-q").success());
            asked.is_ok()
        })
    }

    /// No transfer was lost or made up: every column but the last holds the same number.
    fn check_balances(&self, transactions: usize) -> Result<String> {
        const BALANCES: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
            (SELECT sum(bbalance) FROM pgbench_branches), \
            (SELECT sum(tbalance) FROM pgbench_tellers), sum(delta), count(*) FROM pgbench_history";
        let ask = self.client("psql")?.line("-X -q -t -A postgres -c").arg(BALANCES);
        let answer = ask.success()?.text().trim().to_owned();
        let columns: Vec<&str> = answer.split('|').collect();
        let agree = columns.len() == 5 && columns[..4].iter().all(|sum| *sum == columns[0]);
        ensure!(agree && columns[4] == transactions.to_string(), "the sums disagree: {answer}");
        Ok(answer)
    }

    /// What is in the tables whose content does not depend on the order of transactions.
    fn dump(&self) -> Result<String> {
        let dump = self.client("pg_dump")?.line("--inserts --no-comments -t pgbench_branches");
        // Newer releases put a random word into `\restrict` lines.
        let text = dump.line("-t pgbench_tellers -t words postgres").success()?.text();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('\\')).collect();
        lines.sort_unstable();
        Ok(fingerprint(lines.join("\n").as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_read() {
        let text = "latency average = 1 ms\ntps = 1234.5 (without initial connection time)\n";
        assert_eq!((super::rate(text), super::rate("")), (Some(1234.5), None));
    }
}
