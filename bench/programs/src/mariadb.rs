//! MariaDB: transfers from four clients, sums that must agree, checksums after a restart.

use crate::generate::fingerprint;
use crate::process::Process;
use crate::proof::Evidence;
use crate::server::{Account, Server};
use crate::stage::Stage;
use anyhow::{Result, ensure};
use rustix::process::Signal;
use std::path::Path;

/// The rows of the table of accounts, each with a balance of 1000.
const ACCOUNTS: u64 = 200;

pub(crate) fn prove(stage: &Stage) -> Result<Evidence> {
    let account = Account::of_server(&["mysql", "nobody"])?;
    let data = stage.directory_for("data", account)?;
    let init = stage.process("mariadb-install-db")?.arg("--no-defaults").arg(datadir(&data));
    let init = init.line("--auth-root-authentication-method=normal --skip-test-db");
    init.account(account).success()?;
    let server = start(stage, &data, account)?;
    client(stage, &data, "mariadb")?.stdin(stage.input.join("load.sql"))?.success()?;
    let answers = client(stage, &data, "mariadb")?.line("-N -B shop");
    let answers = answers.stdin(stage.input.join("queries.sql"))?.success()?;
    client(stage, &data, "mariadb-slap")?
        .line("--create-schema=shop --no-drop --concurrency=4 --iterations=1")
        .arg(format!("--number-of-queries={}", stage.pick(4_000, 200_000)))
        .arg("--query=CALL transfer()")
        .success()?;
    let sum = ask(stage, &data, "SELECT sum(balance) FROM account")?;
    ensure!(sum == (1000 * ACCOUNTS).to_string(), "money was lost or made up: {sum}");
    let transfers = ask(stage, &data, "SELECT count(*) FROM history")?;
    let drift = "SELECT count(*) FROM account a WHERE balance <> 1000 \
        + (SELECT coalesce(sum(amount), 0) FROM history WHERE payee = a.id) \
        - (SELECT coalesce(sum(amount), 0) FROM history WHERE payer = a.id)";
    let drifted = ask(stage, &data, drift)?;
    ensure!(drifted == "0", "{drifted} balances disagree with the history");
    let checksum = ask(stage, &data, "CHECKSUM TABLE item")?;
    let before = ask(stage, &data, "CHECKSUM TABLE account, history, item")?;
    stop(server)?;

    let server = start(stage, &data, account)?;
    let after = ask(stage, &data, "CHECKSUM TABLE account, history, item")?;
    ensure!(before == after, "the data is not the same after a restart: {before} and {after}");
    stop(server)?;
    let summary = format!("{transfers} transfers, balances agree");
    let answers = fingerprint(&answers.stdout);
    let facts = [("answers", answers), ("items", checksum), ("transfers", transfers)];
    Ok(Evidence::of(summary, facts))
}

fn datadir(data: &Path) -> String {
    format!("--datadir={}", data.display())
}

fn start<'a>(stage: &'a Stage, data: &Path, account: Option<Account>) -> Result<Server<'a>> {
    let server = stage
        .process("mariadbd")?
        .line("--no-defaults --skip-networking --innodb-flush-log-at-trx-commit=0")
        .line("--innodb-buffer-pool-size=64M --query-cache-type=0")
        .arg(datadir(data))
        .arg(format!("--socket={}", data.join("sock").display()))
        .arg(format!("--pid-file={}", data.join("pid").display()))
        .account(account);
    stage.serve(server, Signal::TERM, || ask(stage, data, "SELECT 1").is_ok())
}

fn stop(server: Server<'_>) -> Result<()> {
    let log = server.stop()?;
    let bad = log.lines().find(|line| line.contains("got signal") || line.contains("[ERROR]"));
    ensure!(bad.is_none(), "the server complained: {}", bad.unwrap_or_default());
    Ok(())
}

fn client<'a>(stage: &'a Stage, data: &Path, program: &str) -> Result<Process<'a>> {
    let socket = format!("--socket={}", data.join("sock").display());
    Ok(stage.process(program)?.arg("--no-defaults").arg(socket).arg("--user=root").limit(240))
}

fn ask(stage: &Stage, data: &Path, statement: &str) -> Result<String> {
    let ask = |database: &str| {
        let client = client(stage, data, "mariadb")?.line("-N -B").line(database);
        client.arg("-e").arg(statement).success()
    };
    // Before the first script has run there is no database of that name.
    Ok(ask("shop").or_else(|_| ask(""))?.text().trim().to_owned())
}
