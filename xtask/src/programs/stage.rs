//! Where one side of one program runs: its directories, its environment, its processes.
//!
//! Both sides work in the same directory, emptied in between, so that paths that find their way
//! into outputs are equal. The environment is made from nothing for the same reason.

use super::install::find;
use super::process::{Process, Server};
use super::watch::{Watch, descendants};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much work to ask for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// A few seconds a side.
    Quick,
    /// As long as it takes to be convincing.
    Full,
}

/// Which run this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The preparation; nothing is compared.
    Bare,
    /// Without the library.
    Baseline,
    /// With the library preloaded.
    Preloaded,
}

/// A user of the system, for servers that refuse to run as root.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The place where one side runs.
pub(crate) struct Stage {
    pub(crate) scale: Scale,
    /// What `prepare` leaves for both sides.
    pub(crate) input: PathBuf,
    /// Where processes start; empty at the beginning of each side.
    pub(crate) work: PathBuf,
    pub(crate) logs: PathBuf,
    library: PathBuf,
    side: Side,
    watch: RefCell<Watch>,
    /// Lines of the library itself, which should have nothing to say.
    messages: RefCell<Vec<String>>,
}

/// Makes the temporary directory for everything, readable by every user.
pub(crate) fn new_root() -> Result<PathBuf> {
    // Short, because sockets live in it and their paths end at 107 bytes.
    let root = std::env::temp_dir().join(format!("cairn-programs-{}", std::process::id()));
    fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
    Ok(root)
}

impl Stage {
    pub(crate) fn open(home: &Path, scale: Scale, side: Side, library: &Path) -> Result<Self> {
        let (input, work, logs) = (home.join("input"), home.join("work"), home.join("logs"));
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        for directory in [&input, &work, &work.join("tmp"), &logs] {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(work.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        Ok(Self {
            scale,
            input,
            work,
            logs,
            library: library.to_owned(),
            side,
            watch: RefCell::new(Watch::new(library)),
            messages: RefCell::default(),
        })
    }

    /// One of two values, by scale.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        match self.scale {
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }

    /// A process of this side, not yet started.
    pub(crate) fn process(&self, program: impl AsRef<Path>) -> Result<Process<'_>> {
        let preload = (self.side == Side::Preloaded).then_some(self.library.as_path());
        Process::new(self, program.as_ref(), preload)
    }

    /// Writes an input file, during `prepare`.
    pub(crate) fn write_input(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        assert!(self.side == Side::Bare, "input is made before the sides run");
        fs::write(self.input.join(name), text).with_context(|| format!("cannot write {name}"))
    }

    /// Looks at the processes once.
    pub(crate) fn tick(&self) {
        if self.side != Side::Bare {
            self.watch.borrow_mut().tick();
        }
    }

    /// Remembers what the library said on some output.
    pub(crate) fn listen(&self, output: &str) {
        let said = output.lines().filter(|line| line.starts_with("cairn:")).map(str::to_owned);
        self.messages.borrow_mut().extend(said);
    }

    /// Waits until `ready` says so, looking at the processes meanwhile.
    pub(crate) fn wait_until(
        &self,
        limit: Duration,
        server: &mut Server<'_>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            self.tick();
            if let Some(status) = server.exited()? {
                bail!("the server ended at start with {status}:\n{}", server.log()?);
            }
            ensure!(start.elapsed() < limit, "the server is not ready:\n{}", server.log()?);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The account to run a server under, when this process is root; `None` when it is not.
    pub(crate) fn account(&self, names: &[&str]) -> Result<Option<Account>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd")?;
        for wanted in names {
            for line in passwd.lines() {
                let fields: Vec<&str> = line.split(':').collect();
                if let [name, _, user, group, ..] = fields[..]
                    && name == *wanted
                {
                    return Ok(Some(Account { user: user.parse()?, group: group.parse()? }));
                }
            }
        }
        bail!("none of the users {names:?} exists")
    }

    /// Makes a directory in the working directory that belongs to `account`.
    pub(crate) fn directory_for(&self, name: &str, account: Option<Account>) -> Result<PathBuf> {
        let path = self.work.join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        if let Some(account) = account {
            chown(&path, Some(account.user), Some(account.group))?;
        }
        Ok(path)
    }

    /// Whether this side has the library.
    pub(crate) fn has_library(&self) -> bool {
        self.side == Side::Preloaded
    }

    /// How many processes of each executable were seen with the library mapped.
    pub(crate) fn loaded(&self) -> BTreeMap<String, usize> {
        let watch = self.watch.borrow();
        watch.loaded().into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// What the library has said so far; forgotten here, so that it can be expected.
    pub(crate) fn said(&self) -> Vec<String> {
        self.messages.take()
    }

    /// Says where the library was mapped, or what is wrong about that.
    pub(crate) fn check_loaded(&self, expected: &[&str]) -> Result<String> {
        let watch = self.watch.borrow();
        let loaded = watch.loaded();
        if self.side != Side::Preloaded {
            ensure!(loaded.is_empty(), "the library is mapped although nobody asked: {loaded:?}");
            return Ok(String::new());
        }
        let mut found = Vec::new();
        for name in expected {
            // What is called by one name may be a link to a file of another.
            let file = find(name).and_then(|path| path.canonicalize().ok());
            let file = file.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
            let count: usize = loaded
                .iter()
                .filter(|(seen, _)| seen.starts_with(name) || Some(**seen) == file)
                .map(|(_, count)| count)
                .sum();
            ensure!(count > 0, "{name} was not seen with the library mapped, only {loaded:?}");
            found.push(format!("{name} x{count}"));
        }
        Ok(found.join(", "))
    }

    /// Ends the side: nothing may still run, and the library may have said nothing.
    pub(crate) fn close(&self) -> Result<()> {
        kill_all(descendants(std::process::id()));
        let messages = self.messages.borrow();
        ensure!(messages.is_empty(), "the library complained:\n{}", messages.join("\n"));
        Ok(())
    }
}

/// Kills processes that this one started.
pub(crate) fn kill_all(pids: Vec<u32>) {
    for pid in pids.into_iter().filter_map(|pid| Pid::from_raw(pid.try_into().ok()?)) {
        // It may have ended by itself meanwhile.
        let _ = kill_process(pid, Signal::KILL);
    }
}
