//! Starts processes, waits for them with a limit, and keeps what they wrote.
//!
//! Outputs go to files, never through pipes: nothing can block on a full one, and the loop that
//! waits is free to look at the running processes.

use super::install::find;
use super::stage::{Account, Stage, kill_all};
use super::watch::descendants;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What processes find on their path: the system's own directories, no one's stand-ins.
pub(super) const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a process may take if nothing else is said.
const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// A process to be started.
pub(super) struct Process<'a> {
    stage: &'a Stage,
    command: Command,
    limit: Duration,
    name: String,
    stdout: Option<PathBuf>,
}

/// A process that has ended.
pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
    name: String,
}

/// A process that serves others until it is told to stop.
pub(super) struct Server<'a> {
    stage: &'a Stage,
    child: Child,
    name: String,
    log: PathBuf,
}

impl<'a> Process<'a> {
    pub(super) fn new(stage: &'a Stage, program: &Path, preload: Option<&Path>) -> Result<Self> {
        let path = find(&program.to_string_lossy())
            .with_context(|| format!("{} is not installed", program.display()))?;
        let mut command = Command::new(&path);
        command
            .env_clear()
            .env("PATH", SYSTEM_PATH)
            .env("HOME", &stage.work)
            .env("TMPDIR", stage.work.join("tmp"))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .current_dir(&stage.work)
            .stdin(Stdio::null());
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
            // The library's own settings are the caller's to choose.
            let settings = std::env::vars_os()
                .filter(|(name, _)| name.to_string_lossy().starts_with("CAIRN_"));
            command.envs(settings);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { stage, command, limit: DEFAULT_LIMIT, name, stdout: None })
    }

    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Adds arguments written as one line, separated by spaces.
    pub(super) fn line(self, line: &str) -> Self {
        self.args(line.split_whitespace())
    }

    pub(super) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(super) fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    pub(super) fn stdin(mut self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        self.command.stdin(file);
        Ok(self)
    }

    /// Sends standard output to a file, for outputs that are another program's input.
    pub(super) fn stdout(mut self, path: impl Into<PathBuf>) -> Self {
        self.stdout = Some(path.into());
        self
    }

    pub(super) fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    pub(super) fn account(mut self, account: Option<Account>) -> Self {
        if let Some(account) = account {
            self.command.uid(account.user).gid(account.group);
        }
        self
    }

    /// Runs to the end and insists on exit status zero.
    pub(super) fn success(self) -> Result<Finished> {
        let finished = self.run()?;
        ensure!(
            finished.status.success(),
            "{} ended with {}:\n{}{}",
            finished.name,
            finished.status,
            tail(&finished.text()),
            tail(&finished.stderr)
        );
        Ok(finished)
    }

    /// Runs to the end, whatever that is.
    pub(super) fn run(mut self) -> Result<Finished> {
        let out = match self.stdout.take() {
            Some(path) => path,
            None => new_log(self.stage, &self.name, "out"),
        };
        let err = new_log(self.stage, &self.name, "err");
        self.command.stdout(create(&out)?).stderr(create(&err)?);
        let mut child =
            self.command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        let start = Instant::now();
        let status = wait(self.stage, &mut child, self.limit)?;
        let finished = Finished {
            status: status.unwrap_or_default(),
            stdout: fs::read(&out)?,
            stderr: lossy(&err)?,
            name: self.name,
        };
        self.stage.listen(&finished.stderr);
        if status.is_none() {
            let seconds = start.elapsed().as_secs();
            bail!(
                "{} ran for {seconds} s and was killed:\n{}{}",
                finished.name,
                tail(&finished.text()),
                tail(&finished.stderr)
            );
        }
        Ok(finished)
    }

    /// Starts a server; what it writes goes to its log.
    pub(super) fn serve(mut self) -> Result<Server<'a>> {
        let log = new_log(self.stage, &self.name, "log");
        let file = create(&log)?;
        self.command.stdout(file.try_clone()?).stderr(file);
        let child = self.command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        Ok(Server { stage: self.stage, child, name: self.name, log })
    }
}

impl Finished {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Server<'_> {
    pub(super) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    pub(super) fn log(&self) -> Result<String> {
        lossy(&self.log)
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("a process has an id")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Sends `signal`, waits for the end and insists on exit status zero. Gives the log.
    pub(super) fn stop(mut self, signal: Signal) -> Result<String> {
        self.signal(signal)?;
        self.wait()
    }

    /// Waits for an end that was asked for by other means.
    pub(super) fn wait(&mut self) -> Result<String> {
        let status = wait(self.stage, &mut self.child, Duration::from_secs(60))?;
        let log = self.log()?;
        self.stage.listen(&log);
        let status = status.with_context(|| format!("{} does not stop", self.name))?;
        ensure!(status.success(), "{} ended with {status}:\n{}", self.name, tail(&log));
        Ok(log)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            end(&mut self.child);
        }
    }
}

/// Waits for `child`, looking at the processes meanwhile; kills it and gives `None` at the limit.
fn wait(stage: &Stage, child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    // Short programs are caught by early looks, long ones are not slowed down by many.
    let mut pause = Duration::from_millis(2);
    loop {
        stage.tick();
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            end(child);
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(20));
    }
}

/// Kills a child and everything below it.
fn end(child: &mut Child) {
    let below = descendants(child.id());
    let _ = child.kill();
    kill_all(below);
    let _ = child.wait();
}

fn new_log(stage: &Stage, name: &str, kind: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    stage.logs.join(format!("{:04}-{name}.{kind}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn lossy(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The end of an output, for messages.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = lines[lines.len().saturating_sub(20)..].join("\n");
    kept.push('\n');
    kept
}
