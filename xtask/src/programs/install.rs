//! Finds executables, and brings missing ones by Debian package.
//!
//! Only root installs; others are told the line. Services that packages would start stay off.

use super::process::SYSTEM_PATH;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file that a program cannot do without.
pub(crate) struct Need {
    /// A name to be found on the path, or an absolute path in which `*` stands for anything within
    /// one component.
    pub(crate) file: &'static str,
    /// Its name, or a pattern as `apt-get install` takes it.
    pub(crate) package: &'static str,
}

impl Need {
    pub(crate) const fn new(file: &'static str, package: &'static str) -> Self {
        Self { file, package }
    }

    pub(crate) fn present(&self) -> bool {
        find(self.file).is_some()
    }
}

/// Where an executable is: the system's directories first, then this process's own path.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    if name.starts_with('/') {
        return newest(name);
    }
    let own = std::env::var("PATH").unwrap_or_default();
    let directories = SYSTEM_PATH.split(':').chain(own.split(':'));
    directories.map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

/// The last of the paths that match, which is the newest where versions are in the names.
fn newest(pattern: &str) -> Option<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = match part.split_once('*') {
            None => {
                found.into_iter().map(|path| path.join(part)).filter(|it| it.exists()).collect()
            }
            Some((before, after)) => {
                let entries = found.iter().filter_map(|path| fs::read_dir(path).ok());
                let names = entries.flatten().flatten().filter(|entry| {
                    let name = entry.file_name();
                    let name = name.to_string_lossy();
                    name.len() >= before.len() + after.len()
                        && name.starts_with(before)
                        && name.ends_with(after)
                });
                names.map(|entry| entry.path()).collect()
            }
        };
    }
    found.into_iter().max()
}

/// Every package that these needs come from.
pub(crate) fn packages_of<'a>(needs: impl Iterator<Item = &'a Need>) -> Vec<&'static str> {
    needs.map(|need| need.package).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The packages of what is not there yet.
pub(crate) fn missing<'a>(needs: impl Iterator<Item = &'a Need>) -> Vec<&'static str> {
    packages_of(needs.filter(|need| !need.present()))
}

/// Installs packages if this process may, and says how if it may not.
pub(crate) fn install(packages: &[&str]) {
    let line = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !rustix::process::geteuid().is_root() {
        eprintln!("some programs are missing; as root, run\n  {line}");
        return;
    }
    eprintln!("{line}");
    let quiet = QuietServices::begin();
    apt(&["update"]);
    let all: Vec<&str> = ["install", "--yes", "--no-install-recommends"]
        .into_iter()
        .chain(packages.iter().copied())
        .collect();
    if !apt(&all) {
        // One unknown name refuses the whole line; the others may still come one by one.
        for package in packages {
            apt(&["install", "--yes", "--no-install-recommends", package]);
        }
    }
    drop(quiet);
}

fn apt(args: &[&str]) -> bool {
    let output =
        Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            eprintln!("cannot start apt-get: {error}");
            false
        }
    }
}

/// Forbids packages to start services while it lives, by the file that Debian asks for that.
struct QuietServices {
    made: bool,
}

impl QuietServices {
    const FILE: &'static str = "/usr/sbin/policy-rc.d";

    fn begin() -> Self {
        if Path::new(Self::FILE).exists() {
            return Self { made: false };
        }
        let made = fs::write(Self::FILE, "#!/bin/sh\nexit 101\n").is_ok()
            && fs::set_permissions(Self::FILE, fs::Permissions::from_mode(0o755)).is_ok();
        Self { made }
    }
}

impl Drop for QuietServices {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(Self::FILE);
        }
    }
}

/// The version that a program prints: the first word of its output that begins with a digit.
pub(crate) fn version(command: &[&str]) -> String {
    let Some((path, args)) =
        command.split_first().and_then(|(name, args)| Some((find(name)?, args)))
    else {
        return "?".to_owned();
    };
    let Ok(output) = Command::new(path).args(args).output() else { return "?".to_owned() };
    let text = [output.stdout, output.stderr].concat();
    first_version(&String::from_utf8_lossy(&text)).unwrap_or_else(|| "?".to_owned())
}

fn first_version(text: &str) -> Option<String> {
    text.split(|c: char| c.is_whitespace() || "=/,()\"".contains(c)).find_map(|word| {
        let word = word.trim_start_matches(['v', 'g', 'o']);
        let digits = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
        digits.then(|| word.split(['-', '+']).next().unwrap_or(word).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let of = |text| first_version(text).unwrap();
        assert_eq!(of("Redis server v=7.0.15 sha=00000000:0"), "7.0.15");
        assert_eq!(of("nginx version: nginx/1.22.1"), "1.22.1");
        assert_eq!(of("go version go1.24.1 linux/amd64"), "1.24.1");
        assert_eq!(of("ffmpeg version 5.1.9-0+deb12u1 Copyright (c) 2000-2026"), "5.1.9");
        assert_eq!(of("This is perl 5, version 36, subversion 0 (v5.36.0) built"), "5.36.0");
    }

    #[test]
    fn patterns() {
        assert_eq!(newest("/pr*c/self/stat"), Some(PathBuf::from("/proc/self/stat")));
        assert_eq!(newest("/proc/self/no-such-*"), None);
    }
}
