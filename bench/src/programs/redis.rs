//! redis-server under redis-benchmark, over a unix socket.
//!
//! Debian links its server with jemalloc, so the C library's malloc has to be preloaded
//! as well, in front of that. All columns carry the linked jemalloc's start-up cost.

use super::find;
use crate::case::{Case, Row, Run, Subject, Values};
use crate::child::{self, Failure};
use crate::process::peak_kib;
use crate::stats::geometric_mean;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The case.
pub const CASES: &[Case] = &[Case {
    name: "redis",
    about: "redis-server: set, get, lpush, lrange over a unix socket",
    rows: &[Row::time("us/request"), Row::PEAK],
    quick_scale: 0.3,
    run: Run::Program(run),
}];

/// Long enough for a block of its own beside the object that refers to it.
const VALUE_BYTES: &str = "100";

fn run(subject: &Subject<'_>) -> Result<Values, Failure> {
    let requests = subject.scaled(500_000);
    let socket = subject.scratch.join("redis.socket");
    let mut server = Server::start(subject, &socket)?;
    if let Some(library) = subject.preload {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.process.id()))?;
        if !maps.contains(&*library.to_string_lossy()) {
            return Err(Failure::wrong("the library was not preloaded"));
        }
    }

    let mut times = bench(subject, &socket, "set,get,lpush", requests)?;
    let pushed = server.ask("LLEN mylist")?;
    if pushed != format!(":{requests}") {
        return Err(Failure::wrong(format!("pushed {requests}, but the list has {pushed}")));
    }
    times.extend(bench(subject, &socket, "lrange_100", requests / 10)?);
    let peak_mib = peak_kib(Some(server.process.id())) / 1024.0;
    let us = geometric_mean(&times).ok_or_else(|| Failure::wrong("no tests ran"))?;
    Ok(Values::from([("us/request".to_owned(), us), ("peak_mib".to_owned(), peak_mib)]))
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
    command.arg("-s").arg(socket).args(["--csv", "-P", "16", "-c", "20", "-d", VALUE_BYTES]);
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

/// A running server; ends with its owner.
struct Server {
    process: Child,
    connection: BufReader<UnixStream>,
}

impl Server {
    fn start(subject: &Subject<'_>, socket: &Path) -> Result<Server, Failure> {
        let program = find("redis-server", "redis-server")?;
        let mut command = subject.command(&program);
        if subject.preload.is_none() {
            command.env("LD_PRELOAD", "libc.so.6");
        }
        let _ = std::fs::remove_file(socket);
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(socket).arg("--dir").arg(subject.scratch);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;

        let start = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                stream.set_read_timeout(Some(subject.limits.timeout))?;
                return Ok(Server { process, connection: BufReader::new(stream) });
            }
            if let Some(status) = process.try_wait()? {
                let status = status.to_string();
                return Err(Failure::Crash { status, message: "redis-server at start".into() });
            }
            if start.elapsed() > subject.limits.timeout {
                process.kill()?;
                process.wait()?;
                return Err(Failure::wrong("redis-server does not answer"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends one command; the first line of the answer.
    fn ask(&mut self, command: &str) -> Result<String, Failure> {
        self.connection.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = String::new();
        self.connection.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It holds no data worth a shutdown.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
