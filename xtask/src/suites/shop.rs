//! Brings sources and builds them: Debian's source packages and crates, kept from run to run.
//!
//! Nothing of the system is changed: apt gets lists and a cache of its own, made from the
//! system's. Everything here runs without the library.

use crate::programs::install::find;
use crate::programs::process::Process;
use crate::programs::stage::Stage;
use anyhow::{Context, Result, bail, ensure};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

/// How long one step of a build may take.
const STEP_SECONDS: u64 = 3600;

/// Where a suite is made ready.
pub(super) struct Shop<'a> {
    stage: &'a Stage,
    scratch: &'a Path,
    /// The suite asked for the scale.
    picked: Cell<bool>,
}

/// An unpacked source package.
pub(super) struct Source {
    pub(super) directory: PathBuf,
    pub(super) version: String,
}

impl<'a> Shop<'a> {
    pub(super) fn new(stage: &'a Stage, scratch: &'a Path) -> Self {
        Self { stage, scratch, picked: Cell::new(false) }
    }

    /// One of two values, by scale.
    pub(super) fn pick<T>(&self, quick: T, full: T) -> T {
        self.picked.set(true);
        self.stage.pick(quick, full)
    }

    /// Whether the suite is another one at another scale.
    pub(super) fn has_picked(&self) -> bool {
        self.picked.get()
    }

    /// A directory of this suite that stays.
    pub(super) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.stage.input.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// A directory that suites share and that stays.
    pub(super) fn shared(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.join("shared").join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Does something once in the life of `directory`.
    pub(super) fn once(
        &self,
        directory: &Path,
        what: &str,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let done = directory.join(format!(".done-{what}"));
        if !done.exists() {
            work().with_context(|| what.to_owned())?;
            fs::write(&done, "")?;
        }
        Ok(())
    }

    /// A tool that fetches or builds, with the caller's environment.
    pub(super) fn tool(&self, program: impl AsRef<Path>) -> Result<Process<'a>> {
        let process = self.stage.process(program)?;
        Ok(process.caller_env().without_env("LD_PRELOAD").limit(STEP_SECONDS))
    }

    /// Copies a directory with everything in it.
    pub(super) fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.tool("cp")?.line("-a --no-preserve=ownership").args([from, to]).success()?;
        self.tool("chmod")?.line("-R u+w").arg(to).success()?;
        Ok(())
    }

    /// The source package of that name, unpacked and patched as Debian builds it.
    pub(super) fn debian_source(&self, package: &str) -> Result<Source> {
        ensure!(find("dpkg-source").is_some(), "needs dpkg-source (package dpkg-dev)");
        let home = self.shared("sources")?.join(package);
        fs::create_dir_all(&home)?;
        self.once(&home, "source", || {
            let fetch = |name: &str| {
                self.apt("apt-get")?.arg("source").arg(name).directory(&home).success()
            };
            if fetch(package).is_ok() {
                return Ok(());
            }
            self.apt("apt-get")?.arg("update").success()?;
            // A mirror may list a version that it does not carry; an older one will do.
            let known = self.apt("apt-cache")?.line("showsrc --only-source").arg(package).run()?;
            let mut last = Err(anyhow::anyhow!("Debian has no source package {package}"));
            for version in known.text().lines().filter_map(|it| it.strip_prefix("Version: ")) {
                last = fetch(&format!("{package}={version}"));
                if last.is_ok() {
                    break;
                }
            }
            last.map(|_| ())
        })?;
        let (mut directory, mut version) = (None, None);
        for entry in fs::read_dir(&home)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() {
                directory = Some(entry.path());
            } else if let Some(stem) = name.strip_suffix(".dsc") {
                version = stem.split_once('_').map(|(_, version)| version.to_owned());
            }
        }
        Ok(Source {
            directory: directory.with_context(|| format!("{package} did not unpack"))?,
            version: version.with_context(|| format!("{package} came without a .dsc file"))?,
        })
    }

    /// One of apt's tools with lists of its own, in which every repository has its sources
    /// switched on.
    fn apt(&self, tool: &str) -> Result<Process<'a>> {
        let home = self.shared("apt")?;
        let parts = home.join("sources.list.d");
        self.once(&home, "lists", || {
            for directory in ["lists/partial", "cache/archives/partial", "sources.list.d"] {
                fs::create_dir_all(home.join(directory))?;
            }
            let mut seen = 0;
            let listed = fs::read_dir("/etc/apt/sources.list.d")?.flatten().map(|it| it.path());
            for file in listed.chain([PathBuf::from("/etc/apt/sources.list")]) {
                let Ok(text) = fs::read_to_string(&file) else { continue };
                let kind = file.extension().unwrap_or_default();
                if kind != "sources" && kind != "list" {
                    continue;
                }
                let sources = text.lines().map(with_sources).collect::<Vec<_>>().join("\n");
                fs::write(parts.join(file.file_name().unwrap_or_default()), sources + "\n")?;
                seen += 1;
            }
            ensure!(seen > 0, "apt has no repositories");
            Ok(())
        })?;
        let option = |name: &str, value: PathBuf| format!("{name}={}", value.display());
        let options = [
            option("Dir::Etc::sourcelist", home.join("none")),
            option("Dir::Etc::sourceparts", parts),
            option("Dir::State::lists", home.join("lists")),
            option("Dir::Cache", home.join("cache")),
            "APT::Sandbox::User=root".to_owned(),
        ];
        let mut apt = self.tool(tool)?;
        for option in options {
            apt = apt.arg("-o").arg(option);
        }
        Ok(apt)
    }

    /// The sources of crates, each a directory of its own that is no part of any workspace.
    /// A crate is written as in a manifest, `name = "1.2"`.
    pub(super) fn crates(&self, crates: &[&str]) -> Result<Vec<Source>> {
        let name = |wanted: &str| wanted.split([' ', '=']).next().unwrap_or(wanted).to_owned();
        let home =
            self.shared("crates")?.join(crates.first().map_or_else(String::new, |it| name(it)));
        fs::create_dir_all(&home)?;
        let manifest = home.join("Cargo.toml");
        let dependencies = crates.join("\n");
        let text = format!(
            "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
             [lib]\npath = \"lib.rs\"\n[workspace]\n[dependencies]\n{dependencies}\n"
        );
        fs::write(home.join("lib.rs"), "")?;
        fs::write(&manifest, text)?;
        let metadata = self
            .tool("cargo")?
            .line("metadata --format-version 1 --quiet --manifest-path")
            .arg(&manifest)
            .success()?;
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)?;
        let packages = metadata["packages"].as_array().context("cargo names no packages")?;
        let mut sources = Vec::new();
        for wanted in crates {
            let name = name(wanted);
            let (from, version) = direct(packages, &name, wanted)?;
            let directory = home.join(format!("{name}-{version}"));
            self.once(&home, &format!("{name}-{version}"), || {
                if directory.exists() {
                    fs::remove_dir_all(&directory)?;
                }
                self.copy(&from, &directory)?;
                let manifest = directory.join("Cargo.toml");
                if manifest.exists() {
                    let text = fs::read_to_string(&manifest)?;
                    if !text.contains("\n[workspace]") {
                        fs::write(&manifest, text + "\n[workspace]\n")?;
                    }
                }
                Ok(())
            })?;
            sources.push(Source { directory, version });
        }
        Ok(sources)
    }
}

/// Where cargo keeps the package, and its version. Several versions may be there for others'
/// sake; the wanted one is the newest that begins as asked.
fn direct(packages: &[serde_json::Value], name: &str, wanted: &str) -> Result<(PathBuf, String)> {
    let asked =
        wanted.split('"').find(|it| it.starts_with(|c: char| c.is_ascii_digit() || c == '='));
    let asked = asked.unwrap_or_default().trim_start_matches('=');
    let mut found: Vec<(Vec<u64>, PathBuf, String)> = Vec::new();
    for package in packages.iter().filter(|package| package["name"] == name) {
        let version = package["version"].as_str().unwrap_or_default();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let parts = version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect();
        if version.starts_with(asked) {
            let directory = manifest.parent().context("a manifest is in a directory")?;
            found.push((parts, directory.to_owned(), version.to_owned()));
        }
    }
    found.sort();
    let Some((_, directory, version)) = found.pop() else { bail!("cargo did not bring {wanted}") };
    Ok((directory, version))
}

/// A line of apt's lists, for sources instead of packages.
fn with_sources(line: &str) -> String {
    if let Some(types) = line.strip_prefix("Types:") {
        let kinds = types.split_whitespace().any(|kind| kind == "deb" || kind == "deb-src");
        return if kinds { "Types: deb-src".to_owned() } else { line.to_owned() };
    }
    match line.strip_prefix("deb ") {
        Some(rest) => format!("deb-src {rest}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_of_sources() {
        assert_eq!(with_sources("Types: deb"), "Types: deb-src");
        assert_eq!(with_sources("deb http://x bookworm main"), "deb-src http://x bookworm main");
        assert_eq!(with_sources("URIs: http://x"), "URIs: http://x");
    }

    #[test]
    fn the_wanted_version_of_a_crate() {
        let packages = serde_json::json!([
            {"name": "a", "version": "1.2.9", "manifest_path": "/r/a-1.2.9/Cargo.toml"},
            {"name": "a", "version": "1.10.0", "manifest_path": "/r/a-1.10.0/Cargo.toml"},
            {"name": "a", "version": "0.3.0", "manifest_path": "/r/a-0.3.0/Cargo.toml"},
        ]);
        let of = |wanted| direct(packages.as_array().unwrap(), "a", wanted).map(|it| it.1);
        assert_eq!(of("a = \"1\"").unwrap(), "1.10.0");
        assert_eq!(of("a = { version = \"0.3\", features = [\"x\"] }").unwrap(), "0.3.0");
        assert!(of("a = \"2\"").is_err());
    }
}
