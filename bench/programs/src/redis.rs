//! redis-server: proven by digests of all keys, timed under redis-benchmark and a mixed load.
//!
//! Debian links its server with jemalloc, so in the lab the C library's malloc has to be preloaded
//! as well, in front of that. All columns carry the linked jemalloc's start-up cost.

use crate::generate::fingerprint;
use crate::process::Process;
use crate::proof::Evidence;
use crate::server::Server;
use crate::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use cairn_workloads::case::Results;
use cairn_workloads::process::peak_kib;
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

const SOCKET: &str = "redis.sock";

/// What the load beside the data does; each of these keeps or drops data of another shape.
const LOAD: &str = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";

/// Generated data, a load beside it, lazy frees, save and restart.
pub(crate) fn prove(stage: &Stage) -> Result<Evidence> {
    let options = "--lazyfree-lazy-user-del yes --enable-debug-command yes --io-threads 2 --save";
    let start = || start(stage, options, Signal::KILL);
    let server = start()?;
    let load = client(stage, "--pipe")?.stdin(stage.input.join("requests"))?.success()?;
    ensure!(load.text().contains("errors: 0"), "commands failed:\n{}", load.text());
    let loaded = ask(stage, "DEBUG DIGEST")?;
    let keys = ask(stage, "DBSIZE")?;
    let requests = stage.pick("30000", "300000");
    let load = stage.process("redis-benchmark")?.arg("-s").arg(SOCKET);
    let load = load.line("--dbnum 1 -c 40 -P 8 -r 20000 -d 300 -q -n").arg(requests);
    let load = load.arg("-t").arg(LOAD).success()?;
    ensure!(!load.text().contains("rror"), "the load failed:\n{}", load.text());
    ask(stage, "-n 1 FLUSHDB ASYNC")?;
    let after_load = ask(stage, "DEBUG DIGEST")?;
    ask(stage, "BGSAVE")?;
    stop(stage, server)?;

    let server = start()?;
    let restarted = ask(stage, "DEBUG DIGEST")?;
    // Rebuilds every value inside the running server.
    ask(stage, "DEBUG RELOAD")?;
    let reloaded = ask(stage, "DEBUG DIGEST")?;
    stop(stage, server)?;
    for digest in [&after_load, &restarted, &reloaded] {
        ensure!(*digest == loaded, "the data changed from {loaded} to {digest}");
    }
    let summary = format!("{keys} keys, digest {}", &loaded[..8.min(loaded.len())]);
    Ok(Evidence::of(summary, [("keys", keys), ("digest", loaded)]))
}

fn start<'a>(stage: &'a Stage, options: &str, stop: Signal) -> Result<Server<'a>> {
    let socket = stage.work.join(SOCKET);
    let _ = fs::remove_file(&socket);
    let mut server = stage.process("redis-server")?.line("--port 0 --appendonly no --unixsocket");
    server = server.arg(&socket).arg("--dir").arg(&stage.work).line(options);
    if stage.is_lab() {
        // Without an argument it would save at times.
        server = server.arg("");
        if stage.library.is_none() {
            server = server.env("LD_PRELOAD", "libc.so.6");
        }
    }
    stage.serve(server, stop, || UnixStream::connect(&socket).is_ok())
}

fn stop(stage: &Stage, mut server: Server<'_>) -> Result<()> {
    let _ = client(stage, "SHUTDOWN SAVE")?.run()?;
    let log = server.wait()?;
    let end = log.lines().last().context("the server logs its end")?;
    ensure!(end.contains("bye bye"), "the server ended otherwise: {end}");
    Ok(())
}

fn client<'a>(stage: &'a Stage, command: &str) -> Result<Process<'a>> {
    Ok(stage.process("redis-cli")?.arg("-s").arg(SOCKET).line(command).limit(120))
}

fn ask(stage: &Stage, command: &str) -> Result<String> {
    Ok(client(stage, command)?.success()?.text().trim().to_owned())
}

/// Requests of redis-benchmark that are on their way at once, on each connection.
const PIPELINE: usize = 16;

/// Set, get, lpush and lrange by redis-benchmark.
pub(crate) fn time_benchmark(stage: &Stage) -> Result<Results> {
    // redis-benchmark sends whole pipelines only.
    let requests = stage.scaled(500_000 / PIPELINE) * PIPELINE;
    let mut redis = Redis::start(stage)?;
    let mut times = benchmark(stage, "set,get,lpush", requests)?;
    let pushed = redis.ask("LLEN mylist")?;
    ensure!(pushed == format!(":{requests}"), "pushed {requests}, but the list has {pushed}");
    times.extend(benchmark(stage, "lrange_100", requests / 10)?);
    // The geometric mean.
    let us = (times.iter().map(|us| us.ln()).sum::<f64>() / times.len() as f64).exp();
    Ok(Results::of([("us/request", us), ("peak_mib", redis.peak_mib())]))
}

/// Microseconds per request of each test.
fn benchmark(stage: &Stage, tests: &str, requests: usize) -> Result<Vec<f64>> {
    let client = stage.client("redis-benchmark")?.arg("-s").arg(SOCKET);
    // Values long enough for a block of their own beside the object that refers to them.
    let client = client.line(&format!("--csv -c 20 -d 100 -r 100000 -P {PIPELINE}"));
    let output = client.line(&format!("-t {tests} -n {requests}")).success()?.text();
    // "SET","123456.79",... after a line of headers.
    let rate = |line: &str| line.split("\",\"").nth(1)?.trim_matches('"').parse::<f64>().ok();
    let times: Vec<f64> = output.lines().filter_map(rate).map(|rps| 1e6 / rps).collect();
    ensure!(times.len() >= tests.split(',').count(), "unreadable result: {output}");
    Ok(times)
}

/// Asked at the end of each batch of requests, which are sent before any answer is awaited: the
/// answer shows that all others have come.
const END: &[u8] = b"ECHO end-of-batch\r\n";
const ENDED: &[u8] = b"$12\r\nend-of-batch\r\n";

/// All kinds of values, written, read, lengthened and deleted in random order.
pub(crate) fn time_mixed(stage: &Stage) -> Result<Results> {
    let requests = fs::read(stage.input.join("redis-requests"))?;
    let (answers, us, peak_mib) = mixed(stage, &requests)?;
    stage.compare("redis-mixed", &answers, |bare| Ok(mixed(bare, &requests)?.0))?;
    Ok(Results::of([("us/request", us), ("peak_mib", peak_mib)]))
}

/// Sends all requests; a fingerprint of the answers, time per request, memory.
fn mixed(stage: &Stage, mut requests: &[u8]) -> Result<(String, f64, f64)> {
    let is_end = |line: &&[u8]| line.is_empty() || *line == END.trim_ascii_end();
    let lines = requests.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let count = lines.filter(|line| !is_end(line)).count();
    let mut redis = Redis::start(stage)?;
    let mut answers = Vec::new();
    let start = Instant::now();
    while let Some(at) = requests.windows(END.len()).position(|window| window == END) {
        let (batch, others) = requests.split_at(at + END.len());
        requests = others;
        redis.exchange(batch, &mut answers)?;
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / count as f64;
    let refused = answers.windows(5).any(|window| window == b"\r\n-ERR");
    ensure!(!refused, "redis-server refused a request");
    Ok((fingerprint(&answers), us, redis.peak_mib()))
}

/// A running redis-server and a connection to it.
struct Redis<'a> {
    server: Server<'a>,
    connection: BufReader<UnixStream>,
}

impl<'a> Redis<'a> {
    fn start(stage: &'a Stage) -> Result<Redis<'a>> {
        // It holds no data worth a shutdown.
        let server = start(stage, "--save", Signal::KILL)?;
        let stream = UnixStream::connect(stage.work.join(SOCKET)).context("no connection")?;
        stream.set_read_timeout(Some(stage.limits.timeout))?;
        Ok(Redis { server, connection: BufReader::new(stream) })
    }

    /// Sends one command; the first line of the answer.
    fn ask(&mut self, command: &str) -> Result<String> {
        self.connection.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = String::new();
        self.connection.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    /// Sends a batch and appends what comes back.
    fn exchange(&mut self, batch: &[u8], answers: &mut Vec<u8>) -> Result<()> {
        let stream = self.connection.get_mut();
        stream.write_all(batch)?;
        let mut buffer = [0; 1 << 16];
        while !answers.ends_with(ENDED) {
            match stream.read(&mut buffer)? {
                0 => {
                    self.server.check("under its load")?;
                    bail!("redis-server closed the connection");
                }
                length => answers.extend_from_slice(&buffer[..length]),
            }
        }
        answers.truncate(answers.len() - ENDED.len());
        Ok(())
    }

    fn peak_mib(&self) -> f64 {
        peak_kib(Some(self.server.id())) / 1024.0
    }
}
