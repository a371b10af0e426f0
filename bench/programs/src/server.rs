//! A server, its clients beside it, and the account that it runs under.

use crate::process::{Failure, Limits, end, from_start, kib_of_family, tail, wait};
use crate::watch::Watch;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A user of the system, for servers that refuse to run as root.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Account {
    /// The first of these that exists, when this process is root; `None` when it is not.
    pub(crate) fn of_server(names: &[&str]) -> Result<Option<Account>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        let found = names.iter().find_map(|name| Account::listed(&accounts, name));
        found.map(Some).with_context(|| format!("none of the users {names:?} exists"))
    }

    fn listed(accounts: &str, name: &str) -> Option<Account> {
        let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2).map(str::parse);
        Some(Account { user: fields.next()?.ok()?, group: fields.next()?.ok()? })
    }
}

/// A process that serves others until it is told to stop; ends with its owner.
pub(crate) struct Server<'a> {
    pub(crate) child: Child,
    pub(crate) name: String,
    pub(crate) stop: Signal,
    pub(crate) log: File,
    pub(crate) watch: Option<&'a Watch>,
}

impl Server<'_> {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` says so, and sees to it that `library` is in it.
    pub(crate) fn wait_until(
        &mut self,
        limit: Duration,
        library: Option<&Path>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            self.watch.inspect(|watch| watch.tick());
            self.check("at start")?;
            if start.elapsed() > limit {
                bail!("{} does not answer:\n{}", self.name, tail(&self.log()?));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // The loader goes on without a library that it cannot load.
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.id()))?;
        let file = library.and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        if !maps.contains(&*file) {
            bail!(Failure::wrong("the library was not preloaded"));
        }
        Ok(())
    }

    /// Whether it has not ended.
    pub(crate) fn check(&mut self, when: &str) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let message = format!("{} ended {when}", self.name);
            let failure = Failure::Crash { status: status.to_string(), message };
            return Err(anyhow::Error::new(failure).context(tail(&self.log()?)));
        }
        Ok(())
    }

    pub(crate) fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&from_start(&self.log)?).into_owned())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Tells it to stop, waits for the end and insists on exit status zero. Gives the log.
    pub(crate) fn stop(mut self) -> Result<String> {
        self.signal(self.stop)?;
        self.wait()
    }

    /// Waits for an end that was asked for by other means.
    pub(crate) fn wait(&mut self) -> Result<String> {
        let limits = Limits { timeout: Duration::from_secs(60), memory_mib: f64::INFINITY };
        let end = wait(&mut self.child, &limits, [Duration::from_millis(10); 2], self.watch)?;
        let log = self.log()?;
        self.watch.inspect(|watch| watch.listen(&log));
        let status = end.with_context(|| format!("{} does not stop", self.name))?;
        if !status.success() {
            bail!("{} ended with {status}:\n{}", self.name, tail(&log));
        }
        Ok(log)
    }
    /// What `client` returns, and the most MiB that the server and its children had by then,
    /// shared pages counted once.
    pub(crate) fn under<T>(&mut self, client: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let (done, id) = (AtomicBool::new(false), self.id());
        let proportional = || kib_of_family(id, 2, "smaps_rollup", "Pss:");
        let (outcome, peak) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut peak = 0.0_f64;
                while !done.load(Ordering::Relaxed) {
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
        Ok((outcome?, peak.max(proportional()) / 1024.0))
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let start = Instant::now();
        if matches!(self.child.try_wait(), Ok(None)) && self.signal(self.stop).is_ok() {
            while start.elapsed() < Duration::from_secs(2) {
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            end(&mut self.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_their_names() {
        let text = "root:x:0:0::/:/bin/sh\npostgres:x:104:107::/var:/bin/sh\n";
        assert_eq!(Account::listed(text, "postgres"), Some(Account { user: 104, group: 107 }));
        assert_eq!(Account::listed(text, "post"), None);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(kib_of_family(std::process::id(), 1, "smaps_rollup", "Pss:") > 100.0);
    }
}
