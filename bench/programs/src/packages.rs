//! Finds executables, and brings missing ones by Debian package.
//!
//! Only root installs; others are told the line. Services that packages would start stay off.

use crate::process::Failure;
use crate::variables::SCRIPTS;
use regex_lite::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// What processes find on their path: the system's own directories, no one's stand-ins.
pub(crate) const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The files that a program cannot do without, each with its package as `apt-get install` takes it. A file is a name to
/// be found on the path, or an absolute path in which `*` stands for anything within one component.
pub(crate) type Needs = BTreeMap<String, String>;

/// Where an executable of the system is.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    find_in(name, SYSTEM_PATH.split(':').chain(["/usr/local/bin"]).map(PathBuf::from))
}

/// The same, and this process's own path after it.
pub(crate) fn find_anywhere(name: &str) -> Option<PathBuf> {
    let own = std::env::var_os("PATH").unwrap_or_default();
    find_in(name, SYSTEM_PATH.split(':').map(PathBuf::from).chain(std::env::split_paths(&own)))
}

fn find_in(name: &str, mut directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    if name.starts_with('/') {
        return newest(name);
    }
    directories.find_map(|directory| Some(directory.join(name)).filter(|path| path.is_file()))
}

/// The last of the paths that match, which is the newest where versions are in the names.
fn newest(pattern: &str) -> Option<PathBuf> {
    glob::glob(pattern).ok()?.flatten().max_by_key(|path| {
        // 15 comes after 9.
        let path = path.to_string_lossy().into_owned();
        let numbers = path.split(|c: char| !c.is_ascii_digit());
        (numbers.filter_map(|number| number.parse().ok()).collect::<Vec<u64>>(), path.clone())
    })
}

/// The first of these files that is not there.
pub(crate) fn lacking<'a>(needs: impl IntoIterator<Item = &'a Needs>) -> Option<Failure> {
    let mut files = needs.into_iter().flatten();
    let (file, package) = files.find(|(file, _)| find_anywhere(file).is_none())?;
    Some(Failure::Absent { what: file.clone(), hint: format!("apt-get install {package}") })
}

/// Installs the packages of what is not there yet if this process may, and says how if it may not.
pub(crate) fn install_missing<'a>(needs: impl IntoIterator<Item = &'a Needs>) {
    let all = needs.into_iter().flatten();
    let missing = all.filter(|(file, _)| find_anywhere(file).is_none());
    let packages: BTreeSet<&str> = missing.map(|(_, package)| package.as_str()).collect();
    if packages.is_empty() {
        return;
    }
    let packages = packages.into_iter().collect::<Vec<_>>();
    let line = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !rustix::process::geteuid().is_root() {
        eprintln!("some programs are missing; as root, run\n  {line}");
        return;
    }
    eprintln!("{line}");
    // What is still missing afterwards, its suite says.
    let _ = Command::new("sh").arg(format!("{SCRIPTS}/install.sh")).args(packages).status();
}

/// The version that a command prints: the first word of its output that begins with a digit.
pub(crate) fn version(command: &str) -> String {
    let mut words = command.split_whitespace();
    let path = find_anywhere(words.next().unwrap_or_default());
    let output = path.and_then(|path| Command::new(path).args(words).output().ok());
    let text = output.map_or(Vec::new(), |output| [output.stdout, output.stderr].concat());
    first_version(&String::from_utf8_lossy(&text)).unwrap_or_else(|| "?".to_owned())
}

fn first_version(text: &str) -> Option<String> {
    let number = Regex::new(r"\d+\.[\d.]*\d").ok()?;
    Some(number.find(text)?.as_str().to_owned())
}
