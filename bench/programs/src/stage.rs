//! Where programs run: directories, an environment made from nothing, perhaps a library.
//!
//! The proof runs both of its sides in the same directory, emptied in between, so that paths that
//! find their way into outputs are equal. The lab keeps one directory over all its runs.

use crate::packages::{SYSTEM_PATH, find, find_anywhere};
use crate::process::{Failure, Limits, Process};
use crate::traces::Traces;
use crate::watch::Watch;
use anyhow::{Result, bail, ensure};
use runner::{descendants, kill_all};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How much work to ask for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Size {
    /// A few seconds a side.
    Quick,
    /// As long as it takes to be convincing.
    Full,
    /// This share of a full run of the lab.
    Share(f64),
}

/// Which run of a proof this is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Side {
    /// The preparation; nothing is compared.
    Bare,
    /// Without the library.
    Without,
    /// With the library preloaded.
    With,
}

/// The place where programs run.
#[derive(Clone)]
pub struct Stage {
    size: Size,
    /// What is made once and stays.
    pub(crate) input: PathBuf,
    /// Where processes start; in a proof empty at the beginning of each side.
    pub(crate) work: PathBuf,
    /// Where outputs are kept; the lab keeps none.
    logs: Option<PathBuf>,
    /// The library to preload; none for the C library's own malloc.
    pub(crate) library: Option<PathBuf>,
    environment: BTreeMap<String, OsString>,
    pub(crate) limits: Limits,
    watch: Option<Watch>,
    /// In the lab, if there are any.
    traces: Option<Traces>,
}

impl Stage {
    /// For a case of the lab: `scale` is its share of the full size, `scratch` a directory that is kept over all runs.
    pub fn of_lab(
        library: Option<&Path>,
        environment: &BTreeMap<String, String>,
        scale: f64,
        limits: &Limits,
        scratch: &Path,
    ) -> Stage {
        let fixed = [("PATH", "/usr/bin:/bin:/usr/local/bin"), ("LC_ALL", "C.UTF-8")];
        let own = environment.iter().map(|(name, value)| (name.clone(), value.into()));
        Stage {
            size: Size::Share(scale),
            input: scratch.to_owned(),
            work: scratch.to_owned(),
            logs: None,
            library: library.map(Path::to_owned),
            environment: fixed.map(|(n, v)| (n.into(), v.into())).into_iter().chain(own).collect(),
            limits: limits.clone(),
            watch: None,
            traces: None,
        }
    }

    /// The same place with these traces.
    pub fn with_traces(self, traces: Option<&Traces>) -> Stage {
        Stage { traces: traces.cloned(), ..self }
    }

    pub(crate) fn traces(&self) -> Result<&Traces> {
        let Some(traces) = &self.traces else { bail!(Failure::wrong("there are no traces")) };
        Ok(traces)
    }

    /// For one side of a proof, in `home`. The running processes are looked at after each `pause`.
    pub(crate) fn open(
        home: &Path,
        size: Size,
        side: Side,
        library: &Path,
        pause: Duration,
    ) -> Result<Stage> {
        let (input, work, logs) = (home.join("input"), home.join("work"), home.join("logs"));
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        for directory in [&input, &work, &work.join("tmp"), &logs] {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(work.join("tmp"), Permissions::from_mode(0o1777))?;
        let mut environment = BTreeMap::from([
            ("PATH".into(), SYSTEM_PATH.into()),
            ("HOME".into(), work.as_os_str().to_owned()),
            ("TMPDIR".into(), work.join("tmp").into()),
            ("LC_ALL".into(), "C.UTF-8".into()),
            ("TZ".into(), "UTC".into()),
        ]);
        if side == Side::With {
            // The library's own settings are the caller's to choose.
            let own = std::env::vars_os().map(|(name, value)| (name.into_string(), value));
            let own = own.filter_map(|(name, value)| Some((name.ok()?, value)));
            environment.extend(own.filter(|(name, _)| name.starts_with("CAIRN_")));
        }
        let minutes = if size == Size::Quick { 10 } else { 40 };
        let timeout = Duration::from_secs(60 * minutes);
        let wanted = side == Side::With;
        Ok(Stage {
            size,
            input,
            work,
            logs: Some(logs),
            library: wanted.then(|| library.to_owned()),
            environment,
            limits: Limits::of_time(timeout),
            watch: (side != Side::Bare).then(|| Watch::new(library, wanted, pause)),
            traces: None,
        })
    }

    /// The same place without the library, for what is made and what is compared with.
    pub(crate) fn bare(&self) -> Stage {
        Stage { library: None, watch: None, ..self.clone() }
    }

    fn is_lab(&self) -> bool {
        matches!(self.size, Size::Share(_))
    }

    /// One of two values, by size.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.size == Size::Quick { quick } else { full }
    }

    /// `n` scaled, at least 1.
    pub(crate) fn scaled(&self, n: usize) -> usize {
        match self.size {
            Size::Share(scale) => ((n as f64 * scale) as usize).max(1),
            _ => n,
        }
    }

    /// Where a program is. The lab takes those of the system alone: PATH may hold wrappers.
    pub(crate) fn find(&self, name: &str) -> Result<PathBuf> {
        let found = if self.is_lab() { find(name) } else { find_anywhere(name) };
        let Some(path) = found else { bail!(Failure::wrong(format!("there is no {name}"))) };
        Ok(path)
    }

    /// A process in this place, not yet started.
    pub(crate) fn process(&self, program: &str) -> Result<Process<'_>> {
        let process = self.unloaded(program)?;
        let Some(library) = &self.library else { return Ok(process) };
        Ok(process.with(|command| command.env("LD_PRELOAD", library)))
    }

    /// The same without the library.
    pub(crate) fn unloaded(&self, program: &str) -> Result<Process<'_>> {
        let mut command = Command::new(self.find(program)?);
        command.env_clear().envs(&self.environment).current_dir(&self.work);
        Ok(self.of_command(command))
    }

    /// A tool that fetches or builds: without the library, in the caller's environment.
    pub(crate) fn tool(&self, program: &str) -> Result<Process<'_>> {
        let path = find_anywhere(program).map_or_else(|| self.find(program), Ok)?;
        let mut command = Command::new(path);
        command.current_dir(&self.work).env_remove("LD_PRELOAD");
        Ok(self.of_command(command))
    }

    fn of_command(&self, command: Command) -> Process<'_> {
        let process = match self.is_lab() {
            true => Process::alone(command, &self.limits),
            false => Process::new(command, &self.limits),
        };
        process.observed(self.watch.as_ref(), self.logs.as_deref())
    }

    /// The file or directory of this name among the inputs. At first use `make` makes it, at the path that it is given.
    pub(crate) fn made(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = self.input.join(name);
        if !path.exists() {
            // What is left half done must not be taken for the whole. The extension stays: compilers go by it.
            let part = path.with_file_name(format!("part-{name}"));
            let _ = fs::remove_dir_all(&part);
            make(&part)?;
            fs::rename(&part, &path)?;
        }
        Ok(path)
    }

    /// What `find` found out of this library with these settings by this name when it was first asked. For what does not
    /// change from run to run.
    pub(crate) fn cached(
        &self,
        name: &str,
        find: impl FnOnce() -> Result<String>,
    ) -> Result<String> {
        let asked = format!("{:?} {:?}", self.library, self.environment);
        let name = format!("{name}-{}", fingerprint(asked.as_bytes()));
        Ok(fs::read_to_string(self.made(&name, |path| Ok(fs::write(path, find()?)?))?)?)
    }

    /// Whether `outcome`, of the run called `name`, is what the C library's malloc gives; `run`
    /// runs it so, when this place has a library.
    pub(crate) fn compare(
        &self,
        name: &str,
        outcome: &str,
        run: impl FnOnce(&Stage) -> Result<String>,
    ) -> Result<()> {
        let reference = self.made(&format!("{name}.expected"), |path| {
            let expected = match self.library {
                None => outcome.to_owned(),
                Some(_) => run(&self.bare())?,
            };
            Ok(fs::write(path, expected)?)
        })?;
        let same = fs::read_to_string(reference)? == outcome;
        ensure!(same, "the output is not what it is on the C library's malloc");
        Ok(())
    }

    /// Ends a side of a proof: nothing may still run. Gives how many processes of each executable
    /// had the library mapped.
    pub(crate) fn close(&self) -> Result<BTreeMap<String, usize>> {
        kill_all(&descendants(std::process::id()));
        self.watch.as_ref().map_or_else(|| Ok(BTreeMap::new()), Watch::loaded)
    }
}

/// A short name for content: equal content, equal name.
pub(crate) fn fingerprint(content: &[u8]) -> String {
    // `DefaultHasher::new` has fixed keys, unlike the one inside `HashMap`.
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016x}", hasher.finish())
}

/// Copies the library to where every user can read it and no later build replaces it.
pub(crate) fn private_copy(library: &Path, directory: &Path) -> Result<PathBuf> {
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let copy = directory.join(library.file_name().unwrap_or_default());
    let copied = fs::copy(library, &copy);
    ensure!(copied.is_ok(), "cannot read {}", library.display());
    fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
    Ok(copy.canonicalize()?)
}
