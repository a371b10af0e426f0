//! Which allocators there are: built from their crates, found in Debian's packages, or given
//! by path. One that cannot be had stays in the tables, with the reason.

use crate::named::Named;
use crate::progress::Progress;
use crate::result::{Allocator, Form, HARDENED, SUBJECT};
use anyhow::{Context, Result, ensure};
use cairn_workloads::case::{Line, Results, Settings};
use object::{Object, ObjectSymbol};
use programs::process::{Failure, Limits, Process};
use programs::traces::Traces;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An allocator, and its files as far as they are here.
#[derive(Clone, Default)]
pub struct Candidate {
    /// What the result tells of it.
    pub public: Allocator,
    /// Library to preload; none for the C library's own malloc, and where there is none.
    pub library: Option<PathBuf>,
    /// Executable with the workloads and the allocator linked in.
    pub engine: Option<PathBuf>,
    /// What a program under it needs in its environment.
    pub environment: BTreeMap<String, String>,
}

impl Candidate {
    fn new(name: &str, version: &str, source: &str, about: &str) -> Candidate {
        let public = Allocator {
            name: name.into(),
            version: version.into(),
            source: source.into(),
            about: about.into(),
            ..Allocator::default()
        };
        Candidate { public, ..Candidate::default() }
    }

    /// Takes the file at `path` as the library, or notes that it is not there.
    fn with_library(mut self, path: &Path, hint: &str) -> Candidate {
        match path.canonicalize() {
            Ok(path) => self.library = Some(path),
            Err(_) => self.public.no_preload = Some(format!("no {}: {hint}", file_name(path))),
        }
        self
    }

    /// Whether it is the cairn of this checkout, of which a result names the core.
    pub fn is_of_tree(&self) -> bool {
        self.public.name == SUBJECT && self.public.source == CHECKOUT
    }

    /// Whether it can run in this form.
    pub fn runs(&self, form: Form) -> bool {
        match form {
            Form::Preloaded => self.public.no_preload.is_none(),
            Form::Linked => self.engine.is_some(),
        }
    }
}

/// Where cairn's own builds come from.
const CHECKOUT: &str = "this checkout";

/// The C library's own malloc.
const GLIBC: &str = "glibc";

/// Those whose answers to attacks are compared.
pub const CHECKED: [&str; 7] =
    [SUBJECT, HARDENED, "mimalloc-secure", "snmalloc-checked", "hardened", "scudo", "glibc"];

/// Ends the names of allocators that Debian builds too: a check on the lab's own builds.
pub const AGAIN: &str = "-deb";

/// Debian's packages of allocators, and of what builds the others.
pub fn packages() -> Result<Vec<String>> {
    let packaged = Peers::read()?.packaged.into_iter().map(|peer| peer.package);
    Ok(packaged.chain(["clang", "cmake", "make"].map(str::to_owned)).collect())
}

/// One `[[peer]]` of `peers.toml`.
#[derive(Deserialize)]
struct Peer {
    name: String,
    #[serde(rename = "crate")]
    package: String,
    project: String,
    about: String,
    flags: String,
    problem: Option<String>,
    /// What a program under it needs.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// What Cargo needs to build it.
    #[serde(default)]
    build_environment: BTreeMap<String, String>,
}

/// One `[[packaged]]`.
#[derive(Deserialize)]
struct Packaged {
    name: String,
    package: String,
    library: String,
    about: String,
}

#[derive(Deserialize)]
struct Peers {
    peer: Vec<Peer>,
    packaged: Vec<Packaged>,
}

impl Peers {
    fn read() -> Result<Peers> {
        toml::from_str(include_str!("../peers/peers.toml")).context("peers.toml")
    }
}

/// The two forms' packages in `peers/`, and what each makes.
const PRELOAD: (&str, &str) = ("cairn-peers-preload", "libcairn_peers.so");
const ENGINE: (&str, &str) = ("cairn-peers-engine", "engine");

/// Where things are and go.
pub struct Workshop {
    /// This package's folder.
    bench: PathBuf,
    /// Cargo's target directory.
    target: PathBuf,
}

impl Workshop {
    /// The one that this executable was built in.
    pub fn new() -> Result<Workshop> {
        let executable = std::env::current_exe()?;
        let target = executable.parent().and_then(Path::parent).context("no target directory")?;
        let target = target.to_owned();
        Ok(Workshop { bench: PathBuf::from(env!("CARGO_MANIFEST_DIR")), target })
    }

    /// Where results and journals go unless told otherwise.
    pub fn results(&self) -> PathBuf {
        self.target.join("lab")
    }

    /// Builds cairn's library and the workloads; the path of the latter.
    pub fn build_own(&self) -> Result<PathBuf> {
        let mut progress = Progress::of_runs(0);
        progress.step("building cairn-c");
        self.build_library("libcairn", &[])?;
        progress.step("building cairn-workloads");
        let arguments = ["-p", "cairn-workloads"];
        build(&self.bench.with_file_name("Cargo.toml"), "release", &self.target, &arguments, [])?;
        Ok(self.target.join("release/cairn-workload"))
    }

    /// The command that records and replays calls, and where its traces are.
    pub fn traces(&self) -> Result<Traces> {
        Progress::of_runs(0).step("building cairn-malloc-cli");
        let arguments = ["-p", "cairn-malloc-cli"];
        build(&self.bench.with_file_name("Cargo.toml"), "release", &self.target, &arguments, [])?;
        Ok(Traces::new(self.target.join("release/cairn"), self.target.join("traces")))
    }

    /// Builds one of cairn's libraries as users have it. Cargo gives both builds' archives the same name.
    fn build_library(&self, name: &str, features: &[&str]) -> Result<()> {
        let target =
            if features.is_empty() { self.target.clone() } else { self.target.join("hardened") };
        let arguments = [&["-p", "cairn-c"], features].concat();
        build(&self.bench.with_file_name("Cargo.toml"), "library", &target, &arguments, [])?;
        let mut link = Command::new("sh");
        link.arg(self.bench.with_file_name("crates/cairn-c/link.sh"));
        link.arg(target.join("library/libcairn_archive.a")).arg(self.target.join("release/lib"));
        let status = link.args([name, env!("CARGO_PKG_VERSION")]).status().context("no shell")?;
        ensure!(status.success(), "{name}.so does not link");
        Ok(())
    }

    /// All allocators: glibc, cairn, the peers from crates, the packaged ones, and at the end those named on the command
    /// line, of which each stands for the one of the same name. Those that `wanted` refuses are neither built nor
    /// listed, and nothing is built for a form that no case has.
    pub fn all(
        &self,
        named: &[Named],
        forms: &[Form],
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Candidate>> {
        let Peers { peer: peers, packaged: from_debian } = Peers::read()?;
        let wanted = |name: &str| wanted(name) && named.iter().all(|given| given.name != name);
        let mut all = Vec::new();
        let mut progress = Progress::of_runs(0);
        let mut add = |candidate: Candidate, needs: &BTreeMap<String, String>| {
            let is_linked = forms.contains(&Form::Linked);
            all.push(if is_linked { self.engine(candidate, needs) } else { candidate });
        };
        for name in [SUBJECT, HARDENED, GLIBC].into_iter().filter(|name| wanted(name)) {
            progress.step(&format!("building {name}"));
            add(self.own(name)?, &BTreeMap::new());
        }
        let needed: Vec<&Peer> = peers.iter().filter(|peer| wanted(&peer.name)).collect();
        for (before, peer) in needed.iter().enumerate() {
            let (number, count) = (before + 1, needed.len());
            progress.step(&format!("building {}, peer {number} of {count}", peer.name));
            add(self.peer(peer), &peer.build_environment);
        }
        all.extend(from_debian.iter().filter(|peer| wanted(&peer.name)).map(packaged));
        for (at, one) in named.iter().enumerate() {
            let Named { name, environment, .. } = one;
            let is_other = |other: &Named| other.name != *name;
            ensure!(named[..at].iter().all(is_other), "{name} has two libraries");
            let mut given = given(one);
            // A known allocator needs the same in any version.
            let known = peers.iter().find(|peer| peer.name == *name);
            given.environment = known.map(|peer| peer.environment.clone()).unwrap_or_default();
            given.environment.extend(environment.clone());
            all.push(given);
        }
        Ok(all)
    }

    /// The C library's malloc, and cairn's two builds.
    fn own(&self, name: &str) -> Result<Candidate> {
        let (library, about) = match name {
            GLIBC => return Ok(glibc()),
            HARDENED => ("libcairn-hardened", "cairn's hardened build."),
            _ => ("libcairn", "The allocator that this lab belongs to."),
        };
        if name == HARDENED {
            self.build_library(library, &["--features", "hardened"])?;
        }
        let path = self.target.join("release/lib").join(format!("{library}.so"));
        let candidate = Candidate::new(name, env!("CARGO_PKG_VERSION"), CHECKOUT, about);
        Ok(candidate.with_library(&path, "cargo xtask library"))
    }

    fn peer(&self, peer: &Peer) -> Candidate {
        let source = format!("crate {} {}", peer.package, pinned(&peer.package));
        let mut candidate = Candidate::new(&peer.name, &peer.project, &source, &peer.about);
        candidate.public.flags.clone_from(&peer.flags);
        candidate.environment.clone_from(&peer.environment);
        let needs = &peer.build_environment;
        if let Some(problem) = &peer.problem {
            candidate.public.about.push_str(&format!(" Known problem: {problem}"));
        }
        match self.build_peer(&peer.name, PRELOAD, &format!("lib{}.so", peer.name), needs) {
            Ok(library) => candidate.library = Some(library),
            Err(error) => candidate.public.no_preload = Some(format!("{error:#}")),
        }
        candidate
    }

    fn engine(&self, mut candidate: Candidate, needs: &BTreeMap<String, String>) -> Candidate {
        match self.build_peer(&candidate.public.name, ENGINE, "engine", needs) {
            Ok(engine) => candidate.engine = Some(engine),
            Err(error) => candidate.public.no_engine = Some(format!("{error:#}")),
        }
        candidate
    }

    /// Builds one peer in one form; cargo knows what has changed.
    fn build_peer(
        &self,
        name: &str,
        (package, made): (&str, &str),
        keep: &str,
        needs: &BTreeMap<String, String>,
    ) -> Result<PathBuf> {
        let directory = self.target.join("peers").join(name);
        let kept = directory.join(keep);
        // Another environment builds everything anew: not in the place of all others.
        let target = match needs.is_empty() {
            true => self.target.join("peers/build"),
            false => directory.join("build"),
        };
        let arguments = ["--locked", "-p", package, "--features", name];
        build(&self.bench.join("peers/Cargo.toml"), "release", &target, &arguments, needs)?;
        std::fs::create_dir_all(&directory)?;
        // A new file, not new contents: the old one may be mapped somewhere.
        let fresh = directory.join("fresh");
        std::fs::copy(target.join("release").join(made), &fresh)?;
        std::fs::rename(&fresh, &kept)?;
        Ok(kept.canonicalize()?)
    }
}

/// The version of a peer's crate.
fn pinned(package: &str) -> String {
    let manifest = include_str!("../peers/preload/Cargo.toml").parse::<toml::Table>();
    let crates = &manifest.expect("Cargo reads it, too")["dependencies"];
    crates[package]["version"].as_str().unwrap_or_default().replace('=', "")
}

/// Has Cargo build something; the error has the first that it says.
fn build<'a>(
    manifest: &Path,
    profile: &str,
    target: &Path,
    arguments: &[&str],
    needs: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--profile", profile, "--manifest-path"]).arg(manifest);
    command.arg("--target-dir").arg(target).current_dir(manifest.parent().expect("a file"));
    let output = command.args(arguments).envs(needs).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "does not build: {}", first_error(&output.stderr));
    Ok(())
}

fn first_error(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let error = text.lines().find(|line| line.contains("error")).or(text.lines().last());
    error.unwrap_or("no message").trim().chars().take(300).collect()
}

fn glibc() -> Candidate {
    // SAFETY: returns a static C string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    let version = query_version("libc6").unwrap_or(version.to_string_lossy().into_owned());
    Candidate::new(GLIBC, &version, "the system's", "The C library's own malloc.")
}

fn packaged(Packaged { name, package, library, about }: &Packaged) -> Candidate {
    let path = dpkg("dpkg", &["-L", package])
        .and_then(|files| files.lines().map(PathBuf::from).find(|file| file.ends_with(library)));
    let version = query_version(package).unwrap_or_else(|| "unknown version".into());
    let source = format!("Debian's {package}");
    let mut candidate = Candidate::new(name, &version, &source, about)
        .with_library(&path.unwrap_or_else(|| library.into()), &format!("install {package}"));
    candidate.public.no_engine = Some("a shared library only".into());
    candidate
}

/// One that was given by its library, which may be another build of cairn. It says nothing of its version: the file's
/// name and the first digits of its SHA-256 stand for that.
fn given(Named { name, library: path, environment }: &Named) -> Candidate {
    let (mut version, mut is_cairn) = (file_name(path), false);
    if let Ok(file) = std::fs::read(path) {
        version += &format!(" {}", &hex::encode(Sha256::digest(&file))[..DIGITS]);
        is_cairn = exports(&file, "cairn_header");
    }
    let mut source = path.display().to_string();
    source.extend(environment.iter().map(|(variable, value)| format!(",{variable}={value}")));
    let given = Candidate::new(name, &version, &source, "Given on the command line.");
    let mut given = given.with_library(path, "check the path");
    given.public.no_engine = Some("given as a library".into());
    given.public.is_cairn = is_cairn;
    given
}

/// Digits of a hash that tell files apart.
const DIGITS: usize = 8;

/// Whether a library has a symbol of this name.
fn exports(library: &[u8], name: &str) -> bool {
    let Ok(library) = object::File::parse(library) else { return false };
    library.dynamic_symbols().any(|symbol| symbol.is_definition() && symbol.name() == Ok(name))
}

fn query_version(package: &str) -> Option<String> {
    dpkg("dpkg-query", &["-W", "-f", "${Version}", package]).filter(|v| !v.is_empty())
}

fn dpkg(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs one workload in one form, and makes sure that it was this allocator's malloc.
pub fn run_workload(
    workload: &Path,
    candidate: &Candidate,
    form: Form,
    name: &str,
    settings: &Settings,
    limits: &Limits,
) -> Result<Results, Failure> {
    let mut command = match (form, &candidate.engine) {
        (Form::Linked, Some(engine)) => Command::new(engine),
        _ => Command::new(workload),
    };
    command.env_clear().args([name, "--scale", &settings.scale.to_string()]);
    command.envs(&candidate.environment);
    if let Some(threads) = settings.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if settings.aged {
        command.arg("--aged");
    }
    if let (Form::Preloaded, Some(library)) = (form, &candidate.library) {
        command.env("LD_PRELOAD", library);
    }
    let output = Process::alone(command, limits).success()?.text();
    let line: Line = serde_json::from_str(&output)
        .map_err(|error| Failure::wrong(format!("unreadable result: {error}")))?;
    let from = line.malloc_from.canonicalize().unwrap_or_default();
    match (form, &candidate.library) {
        (Form::Preloaded, Some(library)) if from != *library => {
            Err(Failure::wrong(format!("malloc came from {}", from.display())))
        }
        (Form::Linked, _) if line.linked.as_deref() != Some(&*candidate.public.name) => {
            Err(Failure::wrong(format!("linked is {}", line.linked.unwrap_or_default())))
        }
        _ => Ok(line.results),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_name_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libother.so");
        let of = |name: &str| {
            let environment = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
            given(&Named { name: name.to_owned(), library: path.clone(), environment }).public
        };
        let missing = of("other");
        assert_eq!((&*missing.version, missing.no_preload.is_some()), ("libother.so", true));
        std::fs::write(&path, "abc").unwrap();
        let found = of("any name, with 1.2");
        // What sha256sum says of "abc".
        assert_eq!((&*found.version, found.no_preload), ("libother.so ba7816bf", None));
        assert!(!found.is_cairn);
        assert_eq!(found.source, format!("{},A=1", path.display()));
    }

    #[test]
    fn a_library_exports_what_it_defines() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("/libc.so.6")).unwrap();
        let library = std::fs::read(&line[line.find('/').unwrap()..]).unwrap();
        assert!(exports(&library, "malloc") && !exports(&library, "cairn_header"));
        assert!(!exports(b"no library", "malloc"));
    }
}
