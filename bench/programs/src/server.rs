//! A server of the lab, with its clients beside it.

use crate::process::{Failure, end, from_start, kib_of_family, tail};
use anyhow::{Result, bail, ensure};
use cairn_workloads::process::peak_kib;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A process that serves others; ends with its owner.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) name: String,
    pub(crate) log: File,
}

impl Server {
    /// Waits until `ready` says so, and sees to it that `library` is in it.
    pub(crate) fn wait_until(
        &mut self,
        limit: Duration,
        library: Option<&Path>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            self.check("at start")?;
            if start.elapsed() > limit {
                bail!("{} does not answer:\n{}", self.name, self.last_lines()?);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The loader goes on without a library that it cannot load.
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        let file = library.and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        if !maps.contains(&*file) {
            bail!(Failure::wrong("the library was not preloaded"));
        }
        Ok(())
    }

    /// Whether it has not ended.
    fn check(&mut self, when: &str) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let message = format!("{} ended {when}", self.name);
            let failure = Failure::Crash { status: status.to_string(), message };
            return Err(anyhow::Error::new(failure).context(self.last_lines()?));
        }
        Ok(())
    }

    fn last_lines(&self) -> Result<String> {
        Ok(tail(&String::from_utf8_lossy(&from_start(&self.log)?)))
    }

    /// What `client` returns, and the most MiB that the server had by then: its own peak, which the
    /// kernel knows exactly, or what it had with its children, shared pages counted once.
    pub(crate) fn under<T>(&mut self, client: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let (done, id) = (AtomicBool::new(false), self.child.id());
        let alone = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?.is_empty();
        let proportional = || kib_of_family(id, 2, "smaps_rollup", "Pss:");
        let (outcome, polled) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut peak = 0.0_f64;
                while !alone && !done.load(Ordering::Relaxed) {
                    peak = peak.max(proportional());
                    std::thread::sleep(Duration::from_millis(40));
                }
                peak
            });
            let outcome = client();
            done.store(true, Ordering::Relaxed);
            (outcome, watcher.join().expect("no panic"))
        });
        self.check("under its load")?;
        let peak = if alone { peak_kib(Some(id)) } else { polled.max(proportional()) };
        Ok((outcome?, peak / 1024.0))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(2) {
                return end(&mut self.child);
            }
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Asked at the end of each batch of requests, which are sent before any answer is awaited: the
/// answer shows that all others have come.
const END: &[u8] = b"ECHO end-of-batch\r\n";
const ENDED: &[u8] = b"$12\r\nend-of-batch\r\n";

/// Sends all requests to redis-server at `socket`: the answers, and how many came in a second.
pub(crate) fn exchange(socket: &Path, requests: &[u8], limit: Duration) -> Result<(Vec<u8>, f64)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    let is_end = |line: &&[u8]| line.is_empty() || *line == END.trim_ascii_end();
    let lines = requests.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let count = lines.filter(|line| !is_end(line)).count();
    let (mut rest, mut answers, mut buffer) = (requests, Vec::new(), vec![0; 1 << 16]);
    let start = Instant::now();
    while let Some(at) = rest.windows(END.len()).position(|window| window == END) {
        let (batch, others) = rest.split_at(at + END.len());
        rest = others;
        stream.write_all(batch)?;
        while !answers.ends_with(ENDED) {
            let length = stream.read(&mut buffer)?;
            ensure!(length > 0, "redis-server closed the connection");
            answers.extend_from_slice(&buffer[..length]);
        }
        answers.truncate(answers.len() - ENDED.len());
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    ensure!(!answers.windows(5).any(|window| window == b"\r\n-ERR"), "a request was refused");
    Ok((answers, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        assert!(kib_of_family(std::process::id(), 1, "smaps_rollup", "Pss:") > 100.0);
    }
}
