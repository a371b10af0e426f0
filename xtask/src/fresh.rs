//! The README's two commands as a newcomer meets them: on a new Debian with git, a C and a C++
//! compiler and a Rust toolchain, as an ordinary user, without a network.
//!
//! The system is made from packages below the target directory. What is mounted in it, and every
//! process started in it, belongs to namespaces of one command each and ends with it.

use crate::library::{shell, target_dir, workspace};
use crate::steps::{Ended, Steps, not_run};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use xshell::{Shell, cmd};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave the system in target/fresh/root when all has passed.
    #[arg(long)]
    keep: bool,
    /// Only steps with this in their names.
    #[arg(long, value_name = "TEXT", default_value = "")]
    step: String,
}

/// What a newcomer has beside a Rust toolchain.
const PACKAGES: &str = "git,gcc,g++,libc6-dev,ca-certificates";
/// Debian's packages that this command is made of.
const NEEDS: &str = "mmdebstrap apt util-linux coreutils git";
/// What is tried where little but the surroundings differs: programs that preload the library, and
/// the command. Where all is built anew, the first alone: the README's command is the command.
const SOME_TESTS: &str = "cargo test -p cairn-c -p cairn-cli --test environment --test run";
const FEWER_TESTS: &str = "cargo test -p cairn-c --test environment";
/// Far beyond what any step needs on a slow machine.
const LIMIT: Duration = Duration::from_secs(3600);

/// Places in the new system.
const HOME: &str = "/home/newcomer";
const CLONE: &str = "/home/newcomer/cairn";
const SPACED: &str = "/home/newcomer/a b/cairn";
/// A home that its user cannot write to, with the same settings of cargo.
const READ_ONLY_HOME: &str = "/home/read-only";
const TOOLCHAIN: &str = "/opt/rust";
const CRATES: &str = "/opt/crates";
const USER: u32 = 1000;
const PATH: &str = "/opt/rust/bin:/usr/local/bin:/usr/bin:/bin";

/// Mounts what a running system has, hides the network, and becomes the user. Runs in namespaces
/// of its own: nothing has to be unmounted, and no process is left behind. The shell stays: a process
/// that becomes another user forgets that it was to die with its parent, and the rest dies with this.
const ENTER: &str = r#"
    set -e
    root=$1 toolchain=$2 user=$3
    shift 3
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount --bind "$toolchain" "$root/opt/rust"
    mount -o remount,bind,ro "$root/opt/rust"
    chroot --userspec="$user:$user" --groups= "$root" /usr/bin/env -i "$@" || exit
    exit 0
"#;

/// A system with a clone in it.
struct Fresh {
    root: PathBuf,
    toolchain: PathBuf,
}

/// A command inside: where, and with what home.
struct Inside<'a> {
    folder: &'a str,
    home: Option<&'a str>,
}

/// As any newcomer.
const USUAL: Inside = Inside { folder: CLONE, home: Some(HOME) };

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "only root can make a system of its own: run `cargo xtask fresh` as root");
    let shell = shell()?;
    let mut steps = Steps::new("fresh", LIMIT, &args.step)?;
    let fresh = Fresh::new(&shell, &mut steps)
        .with_context(|| format!("the packages {NEEDS} are needed, if one is missing"))?;
    let readme = fs::read_to_string(fresh.inside(CLONE).join("README.md"))?;
    let commands = shell_blocks(&readme);
    let [first, second, ..] = &commands[..] else { bail!("README.md lacks its two commands") };

    fresh.run("README, first command", &USUAL, first, &mut steps, accounted);
    fresh.run("README, second command", &USUAL, second, &mut steps, tested);
    for (name, inside, some_tests) in [
        ("without HOME", Inside { home: None, ..USUAL }, SOME_TESTS),
        ("HOME read-only", Inside { home: Some(READ_ONLY_HOME), ..USUAL }, SOME_TESTS),
        ("a path with spaces", Inside { folder: SPACED, ..USUAL }, FEWER_TESTS),
    ] {
        fresh.run(&format!("{name}, first command"), &inside, first, &mut steps, accounted);
        fresh.run(&format!("{name}, {some_tests}"), &inside, some_tests, &mut steps, tested);
    }
    steps.finish()?;
    if !args.keep {
        fresh.remove()?;
    }
    not_run("what needs root or more packages (CAIRN_TEST_ALL=1 cargo test --workspace, as root)");
    Ok(())
}

impl Fresh {
    fn new(shell: &Shell, steps: &mut Steps) -> Result<Fresh> {
        let toolchain = PathBuf::from(cmd!(shell, "rustc --print sysroot").quiet().read()?);
        ensure!(
            toolchain != Path::new("/usr"),
            "a Rust toolchain in a folder of its own is needed, as rustup installs it"
        );
        let fresh = Fresh { root: target_dir("fresh/root"), toolchain };
        fresh.remove()?;
        let (root, release) = (&fresh.root, release()?);
        let sources = apt_sources(&release)?;
        let apt = cmd!(shell, "apt-config dump").quiet().read()?;
        let options = apt.lines().filter(|line| is_way_to_packages(line));
        let debian = cmd!(shell, "mmdebstrap --mode=root --variant=essential --include {PACKAGES}")
            .args(options.map(|option| format!("--aptopt={option}")));
        steps.build("a new Debian", debian.arg(&release).arg(root).args(sources))?;
        fresh.furnish(shell, steps)?;
        Ok(fresh)
    }

    /// The user, cargo's settings, the crates, the clones.
    fn furnish(&self, shell: &Shell, steps: &mut Steps) -> Result<()> {
        for folder in [TOOLCHAIN, CRATES, "/home/newcomer/.cargo", "/home/read-only/.cargo"] {
            fs::create_dir_all(self.inside(folder))?;
        }
        let users = self.inside("/etc/passwd");
        let line = format!("newcomer:x:{USER}:{USER}::{HOME}:/bin/sh\n");
        fs::write(&users, fs::read_to_string(&users)? + &line)?;

        let crates = self.inside(CRATES);
        let vendor = cmd!(shell, "cargo vendor --quiet --locked --versioned-dirs {crates}");
        steps.build("the crates", vendor)?;
        let settings = format!(
            "[source.crates-io]\nreplace-with = \"folder\"\n\n[source.folder]\ndirectory = \"{CRATES}\"\n"
        );
        for home in [HOME, READ_ONLY_HOME] {
            fs::write(self.inside(home).join(".cargo/config.toml"), &settings)?;
        }
        for folder in [CLONE, SPACED] {
            let (from, to) = (workspace(), self.inside(folder));
            steps
                .build("the clone", cmd!(shell, "git clone --quiet --no-hardlinks {from} {to}"))?;
        }
        let home = self.inside(HOME);
        steps.build("the newcomer's own", cmd!(shell, "chown -R 1000:1000 {home}"))
    }

    /// A place of the new system, seen from outside.
    fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Runs a line of shell as the user.
    fn run(
        &self,
        name: &str,
        inside: &Inside,
        line: &str,
        steps: &mut Steps,
        judge: fn(&Ended) -> Result<String>,
    ) {
        // Nothing outlives this command, however it ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare"]);
        command.args(["--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--"]);
        command.args(["sh", "-c", ENTER, "enter"]).arg(&self.root).arg(&self.toolchain);
        command.arg(USER.to_string());
        command.args(inside.home.map(|home| format!("HOME={home}")));
        command.args([format!("PATH={PATH}"), "CARGO_NET_OFFLINE=true".to_owned()]);
        command.args(["sh", "-c", &format!("cd '{}' && {line}", inside.folder)]);
        steps.run(name, command, |ended| {
            ended.ensure_success().with_context(|| last_lines(&ended.output))?;
            judge(ended)
        });
    }

    /// Removes the system, if there is one.
    fn remove(&self) -> Result<()> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let below = format!(" {}/", self.root.display());
        ensure!(!mounts.contains(&below), "something is mounted below {}", self.root.display());
        if self.root.exists() {
            fs::remove_dir_all(&self.root)
                .with_context(|| format!("cannot remove {}", self.root.display()))?;
        }
        Ok(())
    }
}

/// The name of this machine's Debian.
fn release() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("this is no Debian")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release has no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

/// The files that tell this machine's apt where that Debian comes from; not those of others.
fn apt_sources(release: &str) -> Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(fs::read_dir("/etc/apt/sources.list.d")?.flatten().map(|entry| entry.path()));
    files.retain(|file| {
        let by_name = file.extension().is_some_and(|end| end == "list" || end == "sources");
        by_name && fs::read_to_string(file).is_ok_and(|text| names(&text, release))
    });
    files.sort();
    ensure!(!files.is_empty(), "no file in /etc/apt names packages of {release}");
    Ok(files)
}

/// Whether a file of apt's sources names this release.
fn names(text: &str, release: &str) -> bool {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).any(|word| word == release)
}

/// Whether a line of apt's settings says how this machine reaches its sources: proxies, certificates,
/// what is not checked.
fn is_way_to_packages(line: &str) -> bool {
    const PREFIXES: [&str; 4] =
        ["Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries"];
    PREFIXES.iter().any(|prefix| line.starts_with(prefix)) && !line.ends_with("\"\";")
}

/// The blocks of shell in a page, each as one line.
fn shell_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.map(|block| block.lines().collect::<Vec<_>>().join(" && ")).collect()
}

/// The program ran on cairn, which has told what it did.
fn accounted(ended: &Ended) -> Result<String> {
    let told = ended.output.lines().find(|line| line.starts_with("cairn"));
    Ok(told.context("no account of the memory was given")?.to_owned())
}

/// Tests ran; how many, and what was skipped.
fn tested(ended: &Ended) -> Result<String> {
    let tests = ended.passed()?;
    ensure!(tests > 0, "no test has run");
    let skipped = ended.output.lines().filter(|line| line.contains("skipped ")).count();
    Ok(format!("{tests} tests passed, {skipped} skipped with a line"))
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_read_from_the_page() {
        let page = "a\n```sh\nb c\n```\n```rust\nd\n```\n```sh\ne\nf\n```\n";
        assert_eq!(shell_blocks(page), ["b c", "e && f"]);
    }

    #[test]
    fn sources_of_others_are_left_out() {
        assert!(names("deb http://mirror/debian trixie main", "trixie"));
        assert!(names("Types: deb\nSuites: trixie trixie-updates\n", "trixie"));
        assert!(!names("# deb http://mirror/debian trixie main", "trixie"));
        assert!(!names("deb http://elsewhere/apt tool-trixie main", "trixie"));
    }

    #[test]
    fn proxies_are_kept() {
        assert!(is_way_to_packages("Acquire::http::Proxy \"http://proxy:3128\";"));
        assert!(!is_way_to_packages("Acquire::http::Proxy \"\";"));
        assert!(!is_way_to_packages("Acquire::IndexTargets::deb::Packages::Optional \"0\";"));
    }
}
