//! Brings sources and builds them: Debian's source packages and crates, kept from run to run.
//!
//! Nothing of the system is changed: apt gets lists and a cache of its own, made from the
//! system's. Everything here runs without the library.

use crate::definitions::{SCRIPTS, fill};
use crate::generate::Variables;
use crate::packages::find_anywhere;
use crate::process::Process;
use crate::stage::Stage;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// How long one step of a build may take.
const STEP_SECONDS: u64 = 3600;

/// Where a suite is made ready.
pub(super) struct Shop<'a> {
    pub(super) stage: &'a Stage,
    pub(super) scratch: &'a Path,
}

/// An unpacked source package.
pub(super) struct Source {
    pub(super) directory: PathBuf,
    pub(super) version: String,
}

impl<'a> Shop<'a> {
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

    /// Where things are.
    pub(super) fn variables(&self) -> Result<Variables> {
        let bin = self.directory("bin")?.display().to_string();
        let shared = self.scratch.join("shared").display().to_string();
        let all = [("bin", bin), ("shared", shared), ("scripts", SCRIPTS.to_owned())];
        Ok(all.map(|(name, value)| (name.to_owned(), value)).into())
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
    pub(super) fn tool(&self, program: &str) -> Result<Process<'a>> {
        Ok(self.stage.tool(program)?.limit(STEP_SECONDS))
    }

    /// A shell that runs this script.
    pub(super) fn shell(
        &self,
        script: &str,
        directory: &Path,
        variables: &Variables,
    ) -> Result<Process<'a>> {
        Ok(self.tool("sh")?.arg("-c").arg(fill(script, variables)).directory(directory))
    }

    /// Builds one program, once, and says whether it is there. Both are remembered.
    pub(super) fn compiled(
        &self,
        script: &str,
        program: &str,
        directory: &Path,
        env: &Variables,
        variables: &Variables,
    ) -> Result<bool> {
        let failed = format!("{program}.failed");
        if !Path::new(program).exists() && !Path::new(&failed).exists() {
            let mut shell = self.shell(script, directory, variables)?;
            for (name, value) in env {
                shell = shell.env(name, fill(value, variables));
            }
            let ended = shell.run()?;
            if ended.code() != Some(0) {
                fs::write(failed, ended.stderr)?;
            }
        }
        Ok(Path::new(program).exists())
    }

    /// Copies a directory with everything in it.
    pub(super) fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.tool("cp")?.line("-a --no-preserve=ownership").args([from, to]).success()?;
        self.tool("chmod")?.line("-R u+w").arg(to).success().map(drop)
    }

    /// The source package of that name, unpacked and patched as Debian builds it.
    pub(super) fn debian_source(&self, package: &str) -> Result<Source> {
        ensure!(find_anywhere("dpkg-source").is_some(), "needs dpkg-source (package dpkg-dev)");
        let home = self.shared("sources")?.join(package);
        fs::create_dir_all(&home)?;
        self.once(&home, "source", || {
            let fetch = |name: &str| {
                self.apt("apt-get")?.arg("source").arg(name).directory(&home).success().map(drop)
            };
            if fetch(package).is_ok() {
                return Ok(());
            }
            self.apt("apt-get")?.arg("update").success()?;
            // A mirror may list a version that it does not carry; an older one will do.
            let known = self.apt("apt-cache")?.line("showsrc --only-source").arg(package).run()?;
            let known = known.text();
            let mut versions = known.lines().filter_map(|line| line.strip_prefix("Version: "));
            let fetched = versions.any(|version| fetch(&format!("{package}={version}")).is_ok());
            ensure!(fetched, "Debian has no source package {package}");
            Ok(())
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
        self.once(&home, "lists", || {
            for directory in ["lists/partial", "cache/archives/partial", "sources.list.d"] {
                fs::create_dir_all(home.join(directory))?;
            }
            // Of a line, and of a paragraph.
            let script =
                "sed -i -e 's/^deb /deb-src /' -e 's/^Types:.*\\<deb\\>.*/Types: deb-src/'";
            let copy = "for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources \
                        /etc/apt/sources.list.d/*.list; do \
                        [ ! -e $file ] || cp $file sources.list.d/; done";
            let script = format!("{copy}; {script} sources.list.d/*");
            let copied = self.shell(&script, &home, &Variables::new())?.success();
            copied.context("apt has no repositories").map(drop)
        })?;
        let mut apt = self.tool(tool)?.line("-o APT::Sandbox::User=root");
        let places = [
            ("Dir::Etc::sourcelist", "none"),
            ("Dir::Etc::sourceparts", "sources.list.d"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ];
        for (name, place) in places {
            apt = apt.arg("-o").arg(format!("{name}={}", home.join(place).display()));
        }
        Ok(apt)
    }

    /// The sources of crates, each a directory of its own that is no part of any workspace.
    /// A crate is written as in a manifest, `name = "1.2"`.
    pub(super) fn crates(&self, crates: &[&str]) -> Result<Vec<Source>> {
        let name = |wanted: &str| wanted.split([' ', '=']).next().unwrap_or(wanted).to_owned();
        let first = crates.first().map_or_else(String::new, |krate| name(krate));
        let home = self.shared("crates")?.join(first);
        fs::create_dir_all(&home)?;
        let manifest = "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
             [lib]\npath = \"lib.rs\"\n[workspace]\n[dependencies]\n";
        fs::write(home.join("lib.rs"), "")?;
        fs::write(home.join("Cargo.toml"), manifest.to_owned() + &crates.join("\n") + "\n")?;
        let cargo = self.tool("cargo")?.line("metadata --format-version 1 --quiet");
        let metadata = cargo.directory(&home).success()?.stdout;
        let metadata: serde_json::Value = serde_json::from_slice(&metadata)?;
        let packages = metadata["packages"].as_array().context("cargo names no packages")?;
        let mut sources = Vec::new();
        for wanted in crates {
            let name = name(wanted);
            let (from, version) = direct(packages, &name, wanted)
                .with_context(|| format!("cargo did not bring {wanted}"))?;
            let directory = home.join(format!("{name}-{version}"));
            self.once(&home, &format!("{name}-{version}"), || {
                let _ = fs::remove_dir_all(&directory);
                self.copy(&from, &directory)?;
                let manifest = directory.join("Cargo.toml");
                let text = fs::read_to_string(&manifest)?;
                if !text.contains("\n[workspace]") {
                    fs::write(&manifest, text + "\n[workspace]\n")?;
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
fn direct(packages: &[serde_json::Value], name: &str, wanted: &str) -> Option<(PathBuf, String)> {
    let is_version = |text: &&str| text.starts_with(|c: char| c.is_ascii_digit() || c == '=');
    let asked = wanted.split('"').find(is_version).unwrap_or_default().trim_start_matches('=');
    let version = |package: &serde_json::Value| {
        package["version"].as_str().filter(|it| it.starts_with(asked)).map(str::to_owned)
    };
    let named = packages.iter().filter(|package| package["name"] == name);
    let (package, version) =
        named.filter_map(|it| Some((it, version(it)?))).max_by_key(|(_, version)| {
            let parts = version.split(['.', '-', '+']).map_while(|part| part.parse().ok());
            parts.collect::<Vec<u64>>()
        })?;
    let manifest = Path::new(package["manifest_path"].as_str()?);
    Some((manifest.parent()?.to_owned(), version))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(of("a = \"2\""), None);
    }
}
