//! nginx under wrk.

use super::prepare::Numbers;
use super::server::Server;
use super::{Program, Subject, find};
use crate::child::{self, Failure};
use cairn_workloads::case::{Case, Group, Results, Row};
use rustix::process::Signal;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

/// The program.
pub const PROGRAMS: &[Program] = &[Program {
    case: Case::new(
        "nginx",
        Group::Programs,
        "nginx, one worker: small pages and compressed ones from 32 connections. A pool for every \
         request, and 256 KiB for a compression.",
        const { &[Row::time("us/request"), Row::PEAK] },
    )
    .quick(0.0),
    run,
}];

/// Every eighth page is compressed.
const REQUESTS: &str = "\
local n = 0
request = function()
  n = n + 1
  if n % 8 == 0 then
    return wrk.format('GET', '/large.txt', { ['Accept-Encoding'] = 'gzip' })
  end
  return wrk.format('GET', '/small.txt')
end
";

fn run(subject: &Subject<'_>) -> Result<Results, Failure> {
    let (nginx, wrk) = (find("nginx", "nginx-light")?, find("wrk", "wrk")?);
    let script = subject.prepared("requests.lua", || REQUESTS)?;
    let pages = subject.made("pages", |path| {
        let mut numbers = Numbers::new(7);
        fs::create_dir(path)?;
        fs::write(path.join("small.txt"), numbers.text(400))?;
        Ok(fs::write(path.join("large.txt"), numbers.text(3000))?)
    })?;
    let home = subject.scratch.join("nginx");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir(&home)?;
    // Taken and let go again: the port is free, and nobody else is likely to want it.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    fs::write(home.join("nginx.conf"), configuration(&pages, port))?;

    let mut command = subject.command(&nginx);
    command.arg("-p").arg(&home).args(["-e", "error.log", "-c", "nginx.conf"]);
    let mut server = Server::start(subject, &mut command, Signal::TERM, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })?;
    let (output, peak_mib) = server.under(|| {
        let mut load = Command::new(&wrk);
        load.args(["-t1", "-c32", "-d1s", "-s"]).arg(&script);
        child::run(load.arg(format!("http://127.0.0.1:{port}")), subject.limits)
    })?;
    drop(server);
    let log = fs::read_to_string(home.join("error.log"))?;
    if let Some(line) = log.lines().find(|line| line.contains("exited on signal")) {
        return Err(Failure::wrong(line));
    }
    if output.stdout.contains("Non-2xx") || output.stdout.contains("Socket errors") {
        return Err(Failure::wrong(format!("requests failed: {}", output.stdout)));
    }
    let rate = rate(&output.stdout)
        .ok_or_else(|| Failure::wrong(format!("unreadable result: {}", output.stdout)))?;
    Ok(Results::of([("us/request", 1e6 / rate), ("peak_mib", peak_mib)]))
}

/// Requests per second.
fn rate(report: &str) -> Option<f64> {
    let rate = report.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?;
    rate.trim().parse().ok().filter(|&rate| rate > 0.0)
}

fn configuration(pages: &Path, port: u16) -> String {
    // As root the workers would become another user, who may not read here.
    let user = if rustix::process::geteuid().is_root() { "user root root;" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {kind};\n"))
        .collect();
    format!(
        "daemon off;\n{user}\nworker_processes 1;\npid nginx.pid;\nerror_log error.log notice;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n{temporary}  access_log off;\n  gzip on;\n  gzip_types text/plain;\n  \
         keepalive_requests 100;\n  default_type text/plain;\n  \
         server {{\n    listen 127.0.0.1:{port};\n    root {};\n  }}\n}}\n",
        pages.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read() {
        assert_eq!(rate("Running\nRequests/sec:  25000.50\n"), Some(25000.5));
        assert_eq!(rate("Requests/sec:      0.00\n"), None);
    }
}
