//! git on a generated history.

use super::prepare::Numbers;
use super::task::Task;
use super::{Program, Subject, find};
use crate::child::{self, Failure};
use cairn_workloads::case::{Case, Group, Results, Row};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

/// The programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        case: case(
            "git-log",
            "git log with patches and renames: objects inflated, texts compared.",
        )
        .quick(0.12),
        run: |s| {
            let count = format!("-{}", s.scaled(2500));
            run(s, "git-log", &["log", "-p", "--stat", "-C", "--no-color", &count])
        },
    },
    Program {
        case: case("git-repack", "git packing a history anew: deltas between all objects.")
            .quick(0.0),
        run: |s| {
            let line = "pack-objects --all --revs --stdout --quiet --threads=1 --window=20 \
                        --no-reuse-delta --no-reuse-object";
            run(s, "git-repack", &line.split_whitespace().collect::<Vec<_>>())
        },
    },
];

const fn case(name: &'static str, about: &'static str) -> Case {
    Case::new(name, Group::Programs, about, Row::MS_PEAK)
}

fn run(subject: &Subject<'_>, name: &str, arguments: &[&str]) -> Result<Results, Failure> {
    let git = find("git", "git")?;
    let repository = subject.made("repository", |path| create(subject, &git, path))?;
    let mut task = Task::new(name, git)
        .line("-c core.pager=cat -c safe.directory=*")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .directory(&repository);
    for argument in arguments {
        task = task.arg(*argument);
    }
    task.run(subject)
}

/// A history of 2,500 commits.
fn create(subject: &Subject<'_>, git: &Path, path: &Path) -> Result<(), Failure> {
    let stream = subject.prepared("stream", history)?;
    let bare = Subject { preload: None, ..*subject };
    let mut init = bare.command(git);
    child::run(init.args(["init", "--quiet", "--bare"]).arg(path), subject.limits)?;
    std::fs::write(path.join("HEAD"), "ref: refs/heads/main\n")?;
    let mut import = bare.command(git);
    import.args(["fast-import", "--quiet"]).current_dir(path);
    import.stdin(std::fs::File::open(&stream)?).stderr(Stdio::null());
    match import.status()?.success() {
        true => Ok(()),
        false => Err(Failure::wrong("git cannot import")),
    }
}

/// Files that grow and change by a few lines at a time.
fn history() -> String {
    let mut numbers = Numbers::new(5);
    let mut stream = String::new();
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for commit in 1..=2500 {
        let message = format!("step {commit}: {}\n", numbers.words(6));
        stream.push_str(&format!(
            "commit refs/heads/main\ncommitter C <c@example.com> {} +0000\ndata {}\n{message}",
            1_700_000_000 + commit * 60,
            message.len()
        ));
        for _ in 0..1 + numbers.below(6) {
            let path = format!("d{}/f{}.txt", numbers.below(10), numbers.below(12));
            let lines = files.entry(path.clone()).or_default();
            for _ in 0..numbers.length(4, 60) {
                let (at, words) =
                    (numbers.below(lines.len() as u64 + 1) as usize, numbers.below(15));
                match numbers.below(3) {
                    0 if at < lines.len() => drop(lines.remove(at)),
                    _ => lines.insert(at, numbers.words(words)),
                }
            }
            let content = lines.join("\n");
            stream.push_str(&format!("M 644 inline {path}\ndata {}\n{content}\n", content.len()));
        }
    }
    stream
}
