//! nginx under wrk. In a proof two workers, a reload in the middle, every file fetched by curl; in
//! the lab one worker that is timed.

use crate::generate::fingerprint;
use crate::proof::Evidence;
use crate::server::Server;
use crate::stage::Stage;
use anyhow::{Context, Result, ensure};
use cairn_workloads::case::Results;
use rustix::process::Signal;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

pub(crate) fn prove(stage: &Stage) -> Result<Evidence> {
    let settings = "access_log access.log;";
    let pages = stage.input.join("pages");
    let (server, url) = start(stage, &stage.work, &pages, 2, settings, Signal::QUIT)?;
    let seconds = stage.pick(2, 5);
    load(stage, seconds, &format!("{url}/page2.txt"), "identity")?;
    server.signal(Signal::HUP)?;
    load(stage, seconds, &format!("{url}/page5.txt"), "gzip")?;
    let mut evidence = Evidence::default();
    let mut fetched = 0;
    for entry in fs::read_dir(&pages)? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let original = fingerprint(&fs::read(&path)?);
        for option in ["--no-keepalive", "--compressed"] {
            let curl = stage.process("curl")?.line("--silent --show-error --fail --max-time 20");
            let answer = curl.arg(option).arg(format!("{url}/{name}")).success()?;
            let got = fingerprint(&answer.stdout);
            ensure!(got == original, "{name} came back changed ({option})");
            fetched += 1;
        }
        evidence.facts.push((name, original));
    }
    server.stop()?;
    let log = healthy(&stage.work, &["[alert]", "[emerg]", "[crit]", "exited on signal"])?;
    stage.watch.as_ref().inspect(|watch| watch.listen(&log));
    evidence.summary = format!("{fetched} fetches intact, workers clean");
    Ok(evidence)
}

/// Small pages and compressed ones from 32 connections.
pub(crate) fn time(stage: &Stage) -> Result<Results> {
    let home = stage.work.join("nginx");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(home.join("tmp"))?;
    let (pages, settings) = (stage.input.join("pages"), "access_log off; keepalive_requests 100;");
    let (mut server, url) = start(stage, &home, &pages, 1, settings, Signal::TERM)?;
    let (output, peak_mib) = server.under(|| {
        let wrk = stage.client("wrk")?.line("-t1 -c32 -d1s -s");
        Ok(wrk.arg(stage.input.join("requests.lua")).arg(&url).success()?.text())
    })?;
    drop(server);
    healthy(&home, &["exited on signal"])?;
    let failed = output.contains("Non-2xx") || output.contains("Socket errors");
    ensure!(!failed, "requests failed: {output}");
    let rate = rate(&output).with_context(|| format!("unreadable result: {output}"))?;
    Ok(Results::of([("us/request", 1e6 / rate), ("peak_mib", peak_mib)]))
}

/// Requests per second.
fn rate(report: &str) -> Option<f64> {
    let rate = report.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?;
    rate.trim().parse().ok().filter(|&rate| rate > 0.0)
}

/// The server and its address.
fn start<'a>(
    stage: &'a Stage,
    home: &Path,
    pages: &Path,
    workers: usize,
    settings: &str,
    stop: Signal,
) -> Result<(Server<'a>, String)> {
    // Taken and let go again: the port is free, and nobody else is likely to want it.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    // As root the workers would become another user, who may not read or write here.
    let user = if rustix::process::geteuid().is_root() { "user root root;" } else { "" };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path tmp/{kind};\n"))
        .concat();
    let pages = pages.display();
    let config = format!(
        "daemon off;\n{user}\nworker_processes {workers};\npid nginx.pid;\n\
         error_log error.log notice;\nevents {{ worker_connections 256; }}\n\
         http {{\n{temporary}  {settings}\n  gzip on;\n  gzip_types text/plain;\n  \
         default_type text/plain;\n  \
         server {{\n    listen 127.0.0.1:{port};\n    root {pages};\n  }}\n}}\n"
    );
    fs::write(home.join("nginx.conf"), config)?;
    let server = stage.process("nginx")?.arg("-p").arg(home).line("-e error.log -c nginx.conf");
    let server = stage.serve(server, stop, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    Ok((server, format!("http://127.0.0.1:{port}")))
}

/// The server's log, in which none of these words may stand.
fn healthy(home: &Path, bad: &[&str]) -> Result<String> {
    let log = fs::read_to_string(home.join("error.log"))?;
    let line = log.lines().find(|line| bad.iter().any(|word| line.contains(word)));
    ensure!(line.is_none(), "the server logged: {}", line.unwrap_or_default());
    Ok(log)
}

fn load(stage: &Stage, seconds: u32, url: &str, encoding: &str) -> Result<()> {
    let wrk = stage.process("wrk")?.line("-t2 -c48").arg(format!("-d{seconds}s")).arg("-H");
    let wrk = wrk.arg(format!("Accept-Encoding: {encoding}")).arg(url).limit(60);
    let report = wrk.success()?.text();
    let served = report.contains("requests in") && !report.contains(" 0 requests in");
    ensure!(served && !report.contains("Non-2xx"), "the load failed:\n{report}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_read() {
        assert_eq!(super::rate("Running\nRequests/sec:  25000.50\n"), Some(25000.5));
        assert_eq!(super::rate("Requests/sec:      0.00\n"), None);
    }
}
