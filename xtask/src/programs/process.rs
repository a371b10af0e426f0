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
pub(crate) const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a process may take if nothing else is said.
const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// Short enough to see most of what runs.
const DEFAULT_PAUSE: Duration = Duration::from_millis(20);

/// A process to be started.
pub(crate) struct Process<'a> {
    stage: &'a Stage,
    command: Command,
    limit: Duration,
    /// The longest pause between two looks at the running processes.
    pause: Duration,
    name: String,
    stdout: Option<PathBuf>,
}

/// A process that has ended.
pub(crate) struct Finished {
    /// The time limit ended it; the status says nothing then.
    pub(crate) killed: bool,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    name: String,
}

/// A process that serves others until it is told to stop.
pub(crate) struct Server<'a> {
    stage: &'a Stage,
    child: Child,
    name: String,
    log: PathBuf,
}

impl<'a> Process<'a> {
    pub(crate) fn new(stage: &'a Stage, program: &Path, preload: Option<&Path>) -> Result<Self> {
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
        Ok(Self { stage, command, limit: DEFAULT_LIMIT, pause: DEFAULT_PAUSE, name, stdout: None })
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Adds arguments written as one line, separated by spaces.
    pub(crate) fn line(self, line: &str) -> Self {
        self.args(line.split_whitespace())
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.command.current_dir(path);
        self
    }

    pub(crate) fn stdin(mut self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        self.command.stdin(file);
        Ok(self)
    }

    /// Sends standard output to a file, for outputs that are another program's input.
    pub(crate) fn stdout(mut self, path: impl Into<PathBuf>) -> Self {
        self.stdout = Some(path.into());
        self
    }

    pub(crate) fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Looks at the running processes less often, where that would disturb them.
    pub(crate) fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    pub(crate) fn account(mut self, account: Option<Account>) -> Self {
        if let Some(account) = account {
            self.command.uid(account.user).gid(account.group);
        }
        self
    }

    /// Runs to the end and insists on exit status zero.
    pub(crate) fn success(self) -> Result<Finished> {
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

    /// Takes the caller's variables as they are, for tools that fetch and build.
    pub(crate) fn caller_env(mut self) -> Self {
        self.command.envs(std::env::vars_os());
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Runs to the end, whatever that is, and fails at the time limit.
    pub(crate) fn run(self) -> Result<Finished> {
        let limit = self.limit;
        let finished = self.run_to_limit()?;
        if finished.killed {
            bail!(
                "{} ran for {} s and was killed:\n{}{}",
                finished.name,
                limit.as_secs(),
                tail(&finished.text()),
                tail(&finished.stderr)
            );
        }
        Ok(finished)
    }

    /// Runs to the end or to the time limit, and gives what was written until then.
    pub(crate) fn run_to_limit(mut self) -> Result<Finished> {
        let out = match self.stdout.take() {
            Some(path) => path,
            None => new_log(self.stage, &self.name, "out"),
        };
        let err = new_log(self.stage, &self.name, "err");
        self.command.stdout(create(&out)?).stderr(create(&err)?);
        let mut child =
            self.command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        let status = wait(self.stage, &mut child, self.limit, self.pause)?;
        let finished = Finished {
            killed: status.is_none(),
            status: status.unwrap_or_default(),
            stdout: fs::read(&out)?,
            stderr: lossy(&err)?,
            name: self.name,
        };
        self.stage.listen(&finished.stderr);
        Ok(finished)
    }

    /// Starts a server; what it writes goes to its log.
    pub(crate) fn serve(mut self) -> Result<Server<'a>> {
        let log = new_log(self.stage, &self.name, "log");
        let file = create(&log)?;
        self.command.stdout(file.try_clone()?).stderr(file);
        let child = self.command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        Ok(Server { stage: self.stage, child, name: self.name, log })
    }
}

impl Finished {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Server<'_> {
    pub(crate) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    pub(crate) fn log(&self) -> Result<String> {
        lossy(&self.log)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("a process has an id")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Sends `signal`, waits for the end and insists on exit status zero. Gives the log.
    pub(crate) fn stop(mut self, signal: Signal) -> Result<String> {
        self.signal(signal)?;
        self.wait()
    }

    /// Waits for an end that was asked for by other means.
    pub(crate) fn wait(&mut self) -> Result<String> {
        let status = wait(self.stage, &mut self.child, Duration::from_secs(60), DEFAULT_PAUSE)?;
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
fn wait(
    stage: &Stage,
    child: &mut Child,
    limit: Duration,
    longest: Duration,
) -> Result<Option<ExitStatus>> {
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
        pause = (pause * 5 / 4).min(longest);
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
