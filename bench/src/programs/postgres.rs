//! PostgreSQL under its own load generator.

use super::prepare::fingerprint;
use super::server::Server;
use super::{Program, Subject};
use crate::child::{self, Failure};
use cairn_workloads::case::{Case, Group, Results, Row};
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
pub const PROGRAMS: &[Program] = &[Program {
    case: Case::new(
        "postgresql",
        Group::Programs,
        "PostgreSQL: pgbench's short transactions from four clients. Processes, each with its own \
         heap of regions.",
        const { &[Row::time("us/transaction"), Row::PEAK] },
    )
    .from("pgbench, PostgreSQL's TPC-B like benchmark")
    .quick(0.0),
    run,
}];

const CLIENTS: usize = 4;

fn run(subject: &Subject<'_>) -> Result<Results, Failure> {
    let account = Account::for_server()?;
    let template = template(subject, account)?;
    let data = subject.scratch.join("postgres-data");
    let _ = fs::remove_dir_all(&data);
    let mut copy = Command::new("/bin/cp");
    child::run(copy.arg("-a").arg(&template).arg(&data), subject.limits)?;
    // The server's account may not be able to read where the library is.
    let library = subject.preload.map(|library| readable(subject, library)).transpose()?;
    let subject = &Subject { preload: library.as_deref(), ..*subject };

    let transactions = subject.scaled(1000);
    let mut server = start(subject, &data, account)?;
    let (output, peak_mib) = server.under(|| {
        let mut load = client("pgbench", &data)?;
        load.args(["-n", "-j", "1", "-c", &CLIENTS.to_string(), "-t", &transactions.to_string()]);
        child::run(load.args(["--random-seed=7", "postgres"]), subject.limits)
    })?;
    let all = CLIENTS * transactions;
    if !output.stdout.contains(&format!("actually processed: {all}/{all}")) {
        return Err(Failure::wrong(format!("not all processed: {}", output.stdout)));
    }
    let rate = rate(&output.stdout)
        .ok_or_else(|| Failure::wrong(format!("unreadable result: {}", output.stdout)))?;
    check(subject, &data, all)?;
    drop(server);
    fs::remove_dir_all(&data)?;
    Ok(Results::of([("us/transaction", 1e6 / rate), ("peak_mib", peak_mib)]))
}

/// Transactions per second.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split(' ').next()?.parse().ok()
}

/// No transfer was lost or made up.
fn check(subject: &Subject<'_>, data: &Path, transactions: usize) -> Result<(), Failure> {
    const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = sum(delta) AND \
        (SELECT sum(bbalance) FROM pgbench_branches) = sum(delta) AND \
        (SELECT sum(tbalance) FROM pgbench_tellers) = sum(delta), count(*) FROM pgbench_history";
    let mut question = client("psql", data)?;
    question.args(["-X", "-q", "-t", "-A", "postgres", "-c", SUMS]);
    let answer = child::run(&mut question, subject.limits)?.stdout;
    match answer.trim() == format!("t|{transactions}") {
        true => Ok(()),
        false => Err(Failure::wrong(format!("the sums disagree: {answer}"))),
    }
}

/// A cluster with pgbench's tables, made without the allocator.
fn template(subject: &Subject<'_>, account: Option<Account>) -> Result<PathBuf, Failure> {
    let bare = &Subject { preload: None, ..*subject };
    subject.made("postgres-template", |path| {
        // The account has to pass through to its own directory.
        fs::set_permissions(subject.scratch, Permissions::from_mode(0o711))?;
        fs::create_dir(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
        let mut make = bare.command(&tool("initdb")?);
        make.args(["-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"]);
        make.args(["--wal-segsize=1", "-D"]).arg(path);
        if let Some(account) = account {
            chown(path, Some(account.user), Some(account.group))?;
            account.take(&mut make);
        }
        child::run(make.current_dir(path), subject.limits)?;
        let server = start(bare, path, account)?;
        let mut fill = client("pgbench", path)?;
        child::run(fill.args(["-i", "-q", "-s", "2", "postgres"]), subject.limits)?;
        server.finish()
    })
}

fn start(subject: &Subject<'_>, data: &Path, account: Option<Account>) -> Result<Server, Failure> {
    let mut command = subject.command(&tool("postgres")?);
    command.arg("-D").arg(data).arg("-k").arg(data).current_dir(data);
    let settings = "listen_addresses= fsync=off synchronous_commit=off full_page_writes=off \
                    shared_buffers=64MB max_wal_size=1GB autovacuum=off jit=off";
    command.args(settings.split_whitespace().flat_map(|setting| ["-c", setting]));
    if let Some(account) = account {
        account.take(&mut command);
    }
    // Fast shutdown.
    Server::start(subject, &mut command, Signal::INT, || {
        let asked = client("pg_isready", data).and_then(|mut ask| Ok(ask.arg("-q").status()?));
        asked.is_ok_and(|status| status.success())
    })
}

/// A client keeps the system's malloc.
fn client(name: &str, data: &Path) -> Result<Command, Failure> {
    let mut command = Command::new(tool(name)?);
    command.env("PGHOST", data).env("PGUSER", "postgres");
    Ok(command)
}

/// One of the newest version's own programs.
fn tool(name: &str) -> Result<PathBuf, Failure> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| {
        let directory = path.parent()?.parent()?.file_name()?;
        directory.to_str()?.parse::<u32>().ok()
    };
    let tools = versions.map(|entry| entry.path().join("bin").join(name));
    tools.filter(|path| path.exists()).max_by_key(|path| version(path)).ok_or_else(|| {
        Failure::Absent { what: name.into(), hint: "apt-get install postgresql".into() }
    })
}

/// A copy of the library that every account can read.
fn readable(subject: &Subject<'_>, library: &Path) -> Result<PathBuf, Failure> {
    let path = subject.cached("readable", || {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        let unique = fingerprint(library.as_os_str().as_encoded_bytes());
        let copy = subject.scratch.join(format!("copy-{unique}-{name}"));
        fs::copy(library, &copy)?;
        fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
        Ok(copy.display().to_string())
    })?;
    Ok(path.into())
}

/// Whom the server runs as: it refuses to be root.
#[derive(Clone, Copy)]
struct Account {
    user: u32,
    group: u32,
}

impl Account {
    /// None where this process is not root.
    fn for_server() -> Result<Option<Account>, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        let found = ["postgres", "nobody"].iter().find_map(|name| Account::of(&accounts, name));
        match found {
            Some(account) => Ok(Some(account)),
            None => Err(Failure::wrong("no account for the server")),
        }
    }

    fn of(accounts: &str, name: &str) -> Option<Account> {
        let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2).map(str::parse);
        Some(Account { user: fields.next()?.ok()?, group: fields.next()?.ok()? })
    }

    fn take(self, command: &mut Command) {
        command.uid(self.user).gid(self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_their_names() {
        let text = "root:x:0:0::/:/bin/sh\npostgres:x:104:107::/var:/bin/sh\n";
        let account = Account::of(text, "postgres").expect("listed");
        assert_eq!((account.user, account.group), (104, 107));
        assert!(Account::of(text, "post").is_none());
    }

    #[test]
    fn the_rate_is_read() {
        let text = "latency average = 1 ms\ntps = 1234.5 (without initial connection time)\n";
        assert_eq!(rate(text), Some(1234.5));
        assert_eq!(rate(""), None);
    }
}
