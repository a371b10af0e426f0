//! MariaDB: transfers from four clients, sums that must agree, checksums after a restart.

use super::generate::{Numbers, fingerprint};
use super::install::Need;
use super::process::{Process, Server};
use super::stage::{Account, Stage};
use super::{Evidence, Program};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

pub(super) const MARIADB: Program = Program {
    name: "mariadb",
    quick: false,
    needs: &[
        Need::new("mariadbd", "mariadb-server-core"),
        Need::new("mariadb-install-db", "mariadb-server-core"),
        Need::new("mariadb", "mariadb-client-core"),
        Need::new("mariadb-slap", "mariadb-client"),
    ],
    version: &["mariadbd", "--version"],
    what: "own data directory, generated rows and queries, transfers by mariadb-slap with 4 \
           clients, restart, table checksums",
    loaded_in: &["mariadbd", "mariadb-slap"],
    prepare,
    run,
};

const ACCOUNTS: u64 = 200;

fn prepare(stage: &Stage) -> Result<()> {
    let mut numbers = Numbers::new(3);
    let mut script = include_str!("scripts/mariadb.sql").to_owned();
    for _ in 0..60 {
        script.push_str("INSERT INTO item(name, shelf, note) VALUES");
        for row in 0..500 {
            let words = numbers.below(20);
            let (name, shelf, note) = (numbers.word(), numbers.below(100), numbers.words(words));
            let comma = if row == 0 { "" } else { "," };
            script.push_str(&format!("{comma}('{name}',{shelf},'{note}')"));
        }
        script.push_str(";\n");
    }
    for id in 0..ACCOUNTS {
        script.push_str(&format!("INSERT INTO account VALUES({id}, 1000);\n"));
    }
    stage.write_input("load.sql", script)?;
    stage.write_input("queries.sql", include_str!("scripts/mariadb-queries.sql"))
}

fn run(stage: &Stage) -> Result<Evidence> {
    let account = stage.account(&["mysql", "nobody"])?;
    let data = stage.directory_for("data", account)?;
    stage
        .process("mariadb-install-db")?
        .line("--no-defaults --auth-root-authentication-method=normal --skip-test-db")
        .arg(datadir(&data))
        .account(account)
        .success()?;
    let server = start(stage, &data, account)?;
    client(stage, &data, "mariadb")?.stdin(stage.input.join("load.sql"))?.success()?;
    let answers = client(stage, &data, "mariadb")?
        .line("-N -B shop")
        .stdin(stage.input.join("queries.sql"))?
        .success()?;
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
    healthy(&server.stop(Signal::TERM)?)?;

    let server = start(stage, &data, account)?;
    let after = ask(stage, &data, "CHECKSUM TABLE account, history, item")?;
    ensure!(before == after, "the data is not the same after a restart: {before} and {after}");
    healthy(&server.stop(Signal::TERM)?)?;
    Ok(Evidence::summary(format!("{transfers} transfers, balances agree"))
        .fact("answers", fingerprint(&answers.stdout))
        .fact("items", checksum)
        .fact("transfers", transfers))
}

fn datadir(data: &Path) -> String {
    format!("--datadir={}", data.display())
}

fn start<'a>(stage: &'a Stage, data: &Path, account: Option<Account>) -> Result<Server<'a>> {
    let mut server = stage
        .process("mariadbd")?
        .line("--no-defaults --skip-networking --innodb-flush-log-at-trx-commit=0")
        .line("--innodb-buffer-pool-size=64M --query-cache-type=0")
        .arg(datadir(data))
        .arg(format!("--socket={}", data.join("sock").display()))
        .arg(format!("--pid-file={}", data.join("pid").display()))
        .account(account)
        .serve()?;
    stage.wait_until(Duration::from_secs(90), &mut server, || {
        ask(stage, data, "SELECT 1").is_ok()
    })?;
    Ok(server)
}

fn client<'a>(stage: &'a Stage, data: &Path, program: &str) -> Result<Process<'a>> {
    let socket = format!("--socket={}", data.join("sock").display());
    Ok(stage.process(program)?.arg("--no-defaults").arg(socket).line("--user=root").limit(240))
}

fn ask(stage: &Stage, data: &Path, statement: &str) -> Result<String> {
    let answer = client(stage, data, "mariadb")?.line("-N -B shop -e").arg(statement).success();
    // Before the first script has run there is no database of that name.
    let answer = answer
        .or_else(|_| client(stage, data, "mariadb")?.line("-N -B -e").arg(statement).success());
    Ok(answer?.text().trim().to_owned())
}

fn healthy(log: &str) -> Result<()> {
    let bad = log.lines().find(|line| line.contains("got signal") || line.contains("[ERROR]"));
    bad.map_or(Ok(()), |line| Err(anyhow::anyhow!("{line}"))).context("the server complained")
}
