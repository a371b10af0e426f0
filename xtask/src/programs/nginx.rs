//! nginx with wrk: load on generated files, a reload in the middle, every file fetched by curl.

use super::generate::{Numbers, fingerprint};
use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

pub(super) const NGINX: Program = Program {
    name: "nginx",
    quick: true,
    needs: &[Need::new("nginx", "nginx-light"), Need::new("wrk", "wrk"), Need::new("curl", "curl")],
    version: &["nginx", "-v"],
    what: "2 workers with gzip under wrk, a reload, more wrk; all files by curl, plain and \
           compressed",
    loaded_in: &["nginx", "wrk"],
    prepare,
    run,
};

fn prepare(stage: &Stage) -> Result<()> {
    let mut numbers = Numbers::new(4);
    for file in 0..24_usize {
        let size = [300, 4_000, 60_000, 900_000][file % 4] * (1 + file / 8);
        stage.write_input(&format!("page{file}.txt"), numbers.text(size))?;
    }
    Ok(())
}

fn run(stage: &Stage) -> Result<Evidence> {
    // Taken and let go again: the port is free, and nobody else is likely to want it.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = configuration(stage, port);
    fs::write(stage.work.join("nginx.conf"), config)?;
    let mut server = stage
        .process("nginx")?
        .arg("-p")
        .arg(&stage.work)
        .line("-e error.log -c nginx.conf")
        .serve()?;
    stage.wait_until(Duration::from_secs(20), &mut server, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })?;
    let seconds = stage.pick(2, 5);
    let url = format!("http://127.0.0.1:{port}");
    load(stage, seconds, &format!("{url}/page2.txt"), "identity")?;
    server.signal(Signal::HUP)?;
    load(stage, seconds, &format!("{url}/page5.txt"), "gzip")?;
    let mut evidence = Evidence::default();
    let mut fetched = 0;
    for entry in fs::read_dir(&stage.input)? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let original = fingerprint(&fs::read(&path)?);
        for option in ["--no-keepalive", "--compressed"] {
            let answer = stage
                .process("curl")?
                .line("--silent --show-error --fail --max-time 20")
                .arg(option)
                .arg(format!("{url}/{name}"))
                .success()?;
            let got = fingerprint(&answer.stdout);
            ensure!(got == original, "{name} came back changed ({option})");
            fetched += 1;
        }
        evidence = evidence.fact(name, original);
    }
    server.stop(Signal::QUIT)?;
    let log = fs::read_to_string(stage.work.join("error.log"))?;
    stage.listen(&log);
    let bad = log.lines().find(|line| {
        ["[alert]", "[emerg]", "[crit]", "exited on signal"].iter().any(|it| line.contains(it))
    });
    ensure!(bad.is_none(), "the server logged: {}", bad.unwrap_or_default());
    evidence.summary = format!("{fetched} fetches intact, workers clean");
    Ok(evidence)
}

fn load(stage: &Stage, seconds: u32, url: &str, encoding: &str) -> Result<()> {
    let report = stage
        .process("wrk")?
        .line("-t2 -c48 -H")
        .arg(format!("Accept-Encoding: {encoding}"))
        .arg(format!("-d{seconds}s"))
        .arg(url)
        .limit(60)
        .success()?
        .text();
    let served = report.contains("requests in") && !report.contains(" 0 requests in");
    ensure!(served && !report.contains("Non-2xx"), "the load failed:\n{report}");
    Ok(())
}

fn configuration(stage: &Stage, port: u16) -> String {
    // As root the workers would become another user, who may not write here.
    let user = if rustix::process::geteuid().is_root() { "user root root;" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path tmp/{kind};\n"))
        .collect();
    format!(
        "daemon off;\n{user}\nworker_processes 2;\npid nginx.pid;\nerror_log error.log info;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n{temporary}  access_log access.log;\n  gzip on;\n  gzip_types text/plain;\n  \
         default_type text/plain;\n  server {{\n    listen 127.0.0.1:{port};\n    root {};\n  }}\n}}\n",
        stage.input.display()
    )
}
