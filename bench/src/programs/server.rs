//! A server under the allocator, with a client on it.

use super::Subject;
use crate::child::Failure;
use cairn_workloads::process::parse_kib;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A running server; ends with its owner.
pub struct Server {
    process: Child,
    stop: Signal,
}

impl Server {
    /// Starts it and waits until `ready`. `stop` is the signal that ends it and whatever it
    /// started; it gets little time for that.
    pub fn start(
        subject: &Subject<'_>,
        command: &mut Command,
        stop: Signal,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Server, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let name = Path::new(command.get_program()).to_owned();
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        let mut server = Server { process: command.spawn()?, stop };
        let start = Instant::now();
        while !ready() {
            if let Some(status) = server.process.try_wait()? {
                let status = status.to_string();
                return Err(Failure::Crash { status, message: format!("{name} at start") });
            }
            if start.elapsed() > subject.limits.timeout {
                return Err(Failure::wrong(format!("{name} does not answer")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The loader goes on without a library that it cannot load.
        if let Some(library) = subject.preload {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.id()))?;
            let file = library.file_name().unwrap_or_default().to_string_lossy();
            if !maps.contains(&*file) {
                return Err(Failure::wrong("the library was not preloaded"));
            }
        }
        Ok(server)
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends it, and waits until it has.
    pub fn finish(mut self) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.process), self.stop).map_err(std::io::Error::from)?;
        self.process.wait()?;
        Ok(())
    }

    /// Whether it has not ended.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.process.try_wait()? {
            Some(status) => Err(Failure::Crash {
                status: status.to_string(),
                message: "the server ended under its load".into(),
            }),
            None => Ok(()),
        }
    }

    /// What `client` returns, and the most MiB that the server and its children had by then,
    /// shared pages counted once.
    pub fn under<T>(
        &mut self,
        client: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(T, f64), Failure> {
        let (done, id) = (AtomicBool::new(false), self.id());
        let (outcome, peak) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut peak = 0.0_f64;
                while !done.load(Ordering::Relaxed) {
                    peak = peak.max(proportional_kib(id, 2));
                    std::thread::sleep(Duration::from_millis(40));
                }
                peak
            });
            let outcome = client();
            done.store(true, Ordering::Relaxed);
            (outcome, watcher.join().expect("no panic"))
        });
        self.check()?;
        Ok((outcome?, peak.max(proportional_kib(id, 2)) / 1024.0))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            let _ = kill_process(Pid::from_child(&self.process), self.stop);
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(2) {
                if let Ok(Some(_)) = self.process.try_wait() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The memory of a process and its descendants, so many generations of them; a page that
/// several processes share counts once over all of them.
fn proportional_kib(process: u32, generations: usize) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"));
    let own = rollup.ok().and_then(|rollup| parse_kib(&rollup, "Pss:")).unwrap_or(0.0);
    if generations == 0 {
        return own;
    }
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    own + children.map(|child| proportional_kib(child, generations - 1)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        assert!(proportional_kib(std::process::id(), 1) > 100.0);
    }
}
