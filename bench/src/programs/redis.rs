//! redis-server over a unix socket: under redis-benchmark, and under a mixed load.
//!
//! Debian links its server with jemalloc, so the C library's malloc has to be preloaded
//! as well, in front of that. All columns carry the linked jemalloc's start-up cost.

use super::prepare::{Numbers, fingerprint};
use super::server::Server;
use super::{Program, Subject, find};
use crate::child::{self, Failure};
use crate::stats::geometric_mean;
use cairn_workloads::case::{Case, Group, Results, Row};
use cairn_workloads::process::peak_kib;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case("redis", "redis-server: set, get, lpush, lrange over a unix socket.")
            .from("mimalloc-bench, in the main")
            .quick(0.15),
        run: run_benchmark,
    },
    Program {
        case: case(
            "redis-mixed",
            "redis-server: strings of 8-2000 bytes, hashes, lists, sets and sorted sets, written, \
             read, lengthened and deleted in random order.",
        )
        .quick(0.0),
        run: run_mixed,
    },
];

const ROWS: &[Row] = &[Row::time("us/request"), Row::PEAK];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, ROWS)
}

/// Requests of redis-benchmark that are on their way at once, on each connection.
const PIPELINE: usize = 16;
/// Long enough for a block of its own beside the object that refers to it.
const VALUE_BYTES: &str = "100";

fn run_benchmark(subject: &Subject<'_>) -> Result<Results, Failure> {
    // redis-benchmark sends whole pipelines only.
    let requests = subject.scaled(500_000 / PIPELINE) * PIPELINE;
    let mut redis = Redis::start(subject)?;
    let mut times = bench(subject, &redis.socket, "set,get,lpush", requests)?;
    let pushed = redis.ask("LLEN mylist")?;
    if pushed != format!(":{requests}") {
        return Err(Failure::wrong(format!("pushed {requests}, but the list has {pushed}")));
    }
    times.extend(bench(subject, &redis.socket, "lrange_100", requests / 10)?);
    let us = geometric_mean(&times).ok_or_else(|| Failure::wrong("no tests ran"))?;
    Ok(Results::of([("us/request", us), ("peak_mib", redis.peak_mib())]))
}

/// Microseconds per request of each test.
fn bench(
    subject: &Subject<'_>,
    socket: &Path,
    tests: &str,
    requests: usize,
) -> Result<Vec<f64>, Failure> {
    // The client keeps the system's malloc: it is not what is measured.
    let mut command = Command::new(find("redis-benchmark", "redis-tools")?);
    command.arg("-s").arg(socket).args([
        "--csv",
        "-P",
        &PIPELINE.to_string(),
        "-c",
        "20",
        "-d",
        VALUE_BYTES,
    ]);
    command.args(["-t", tests, "-n", &requests.to_string(), "-r", "100000"]);
    let output = child::run(&mut command, subject.limits)?.stdout;
    // "SET","123456.79",... after a line of headers.
    let rate = |line: &str| line.split("\",\"").nth(1)?.trim_matches('"').parse::<f64>().ok();
    let times: Vec<f64> = output.lines().filter_map(rate).map(|rps| 1e6 / rps).collect();
    if times.len() < tests.split(',').count() {
        return Err(Failure::wrong(format!("unreadable result: {output}")));
    }
    Ok(times)
}

/// Requests that are sent before any answer is awaited.
const BATCH: usize = 16;
/// Asked at the end of each batch: the answer shows that all others have come.
const END: &str = "ECHO end-of-batch\r\n";
const ENDED: &[u8] = b"$12\r\nend-of-batch\r\n";

fn run_mixed(subject: &Subject<'_>) -> Result<Results, Failure> {
    let count = subject.scaled(200_000);
    let file = subject.prepared("redis-requests", || requests(count))?;
    let requests = std::fs::read(file)?;
    let (answers, us, peak_mib) = mixed(subject, &requests, count)?;
    subject.compare("redis-mixed", &answers, |bare| Ok(mixed(bare, &requests, count)?.0))?;
    Ok(Results::of([("us/request", us), ("peak_mib", peak_mib)]))
}

/// Sends all requests; a fingerprint of the answers, time per request, memory.
fn mixed(
    subject: &Subject<'_>,
    requests: &[u8],
    count: usize,
) -> Result<(String, f64, f64), Failure> {
    let mut redis = Redis::start(subject)?;
    let (mut answers, mut rest) = (Vec::new(), requests);
    let start = Instant::now();
    while let Some(at) = rest.windows(END.len()).position(|window| window == END.as_bytes()) {
        let (batch, others) = rest.split_at(at + END.len());
        rest = others;
        redis.exchange(batch, &mut answers)?;
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / count as f64;
    if answers.windows(5).any(|window| window == b"\r\n-ERR") {
        return Err(Failure::wrong("redis-server refused a request"));
    }
    Ok((fingerprint(&answers), us, redis.peak_mib()))
}

/// What is asked. No answer may depend on the order of a hash table, which is random.
fn requests(count: usize) -> String {
    let mut numbers = Numbers::new(6);
    let value = "0123456789abcdef".repeat(2000 / 16);
    let mut text = String::new();
    for n in 0..count {
        let (key, field) = (numbers.below(20_000), numbers.below(40));
        let small = &value[..numbers.length(8, 100)];
        let large = &value[..numbers.length(8, 2000)];
        text += &match numbers.below(20) {
            0..=5 => format!("SET s{key} {large}\r\n"),
            6..=7 => format!("GET s{key}\r\n"),
            8..=9 => format!("DEL s{key} l{}\r\n", key % 2000),
            10 => format!("APPEND s{key} {small}\r\n"),
            11..=12 => format!("HSET h{} f{field} {small}\r\n", key % 2000),
            13 => format!("HDEL h{} f{field}\r\n", key % 2000),
            14..=15 => format!("LPUSH l{} {small}\r\n", key % 2000),
            16 => format!("RPOP l{}\r\n", key % 2000),
            17 => format!("SADD m{} {small}{key}\r\n", key % 200),
            18 => format!("ZADD z{} {field} {small}{key}\r\n", key % 200),
            _ => format!("DEL z{} m{}\r\n", key % 200, field),
        };
        if n % BATCH == BATCH - 1 || n == count - 1 {
            text += END;
        }
    }
    text
}

/// A running redis-server.
struct Redis {
    server: Server,
    socket: PathBuf,
    connection: BufReader<UnixStream>,
}

impl Redis {
    fn start(subject: &Subject<'_>) -> Result<Redis, Failure> {
        let socket = subject.scratch.join("redis.socket");
        let _ = std::fs::remove_file(&socket);
        let mut command = subject.command(&find("redis-server", "redis-server")?);
        if subject.preload.is_none() {
            command.env("LD_PRELOAD", "libc.so.6");
        }
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(&socket).arg("--dir").arg(subject.scratch);
        let mut stream = None;
        // It holds no data worth a shutdown.
        let server = Server::start(subject, &mut command, Signal::KILL, || {
            stream = UnixStream::connect(&socket).ok();
            stream.is_some()
        })?;
        let stream = stream.ok_or_else(|| Failure::wrong("no connection"))?;
        stream.set_read_timeout(Some(subject.limits.timeout))?;
        Ok(Redis { server, socket, connection: BufReader::new(stream) })
    }

    /// Sends one command; the first line of the answer.
    fn ask(&mut self, command: &str) -> Result<String, Failure> {
        self.connection.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = String::new();
        self.connection.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    /// Sends a batch and appends what comes back.
    fn exchange(&mut self, batch: &[u8], answers: &mut Vec<u8>) -> Result<(), Failure> {
        let stream = self.connection.get_mut();
        stream.write_all(batch)?;
        let mut buffer = [0; 1 << 16];
        while !answers.ends_with(ENDED) {
            match stream.read(&mut buffer)? {
                0 => {
                    self.server.check()?;
                    return Err(Failure::wrong("redis-server closed the connection"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_ends() {
        let text = requests(40);
        assert_eq!(text.matches(END).count(), 3);
        assert!(text.ends_with(END));
        assert_eq!(text.lines().count(), 43);
    }
}
