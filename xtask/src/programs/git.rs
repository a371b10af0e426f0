//! git: a history made by commits and merges, packed, checked, cloned and read back.

use super::generate::{Numbers, fingerprint, tree_fingerprint};
use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Context, Result, ensure};
use std::fs;

pub(super) const GIT: Program = Program {
    name: "git",
    quick: true,
    needs: &[Need::new("git", "git")],
    version: &["git", "--version"],
    what: "fast-import, commits, merge, gc, fsck, log, blame, grep, clone; objects compared",
    loaded_in: &["git"],
    prepare,
    run,
};

/// A history for `git fast-import`.
fn prepare(stage: &Stage) -> Result<()> {
    let mut numbers = Numbers::new(12);
    let mut stream = String::new();
    for commit in 1..=stage.pick(150, 1_200) {
        let message = format!("step {commit}: {}\n", numbers.words(6));
        stream.push_str(&format!(
            "commit refs/heads/main\ncommitter C <c@example.com> {} +0000\ndata {}\n{message}",
            1_700_000_000 + commit * 60,
            message.len()
        ));
        for _ in 0..1 + numbers.below(12) {
            let size = 200 + numbers.below(12_000) as usize;
            let content = numbers.text(size);
            let path = format!("d{}/f{}.txt", numbers.below(12), numbers.below(30));
            stream.push_str(&format!("M 644 inline {path}\ndata {}\n{content}\n", content.len()));
        }
    }
    stage.write_input("stream", stream)
}

fn run(stage: &Stage) -> Result<Evidence> {
    fs::create_dir(stage.work.join("one"))?;
    git(stage, "one", "init --quiet --initial-branch=main")?;
    stage
        .process("git")?
        .line("fast-import --quiet")
        .stdin(stage.input.join("stream"))?
        .directory(stage.work.join("one"))
        .success()?;
    git(stage, "one", "reset --quiet --hard main")?;
    let mut numbers = Numbers::new(13);
    git(stage, "one", "checkout --quiet -b side HEAD~20")?;
    commits(stage, "side", &mut numbers)?;
    git(stage, "one", "checkout --quiet main")?;
    commits(stage, "main", &mut numbers)?;
    git(stage, "one", "merge --quiet --no-edit side")?;
    let log = git(stage, "one", "log --stat -p --find-renames -C --no-color -n 300")?;
    git(stage, "one", "-c pack.threads=2 gc --quiet --aggressive --prune=now")?;
    let check = git(stage, "one", "fsck --full --strict")?;
    let objects = git(stage, "one", "cat-file --batch-all-objects --batch-check")?;
    let blame = git(stage, "one", "blame --line-porcelain main.txt")?;
    let grep = git(stage, "one", "grep -c -E (ka|lo)+mi")?;
    git(stage, ".", "clone --quiet --no-local one two")?;
    let head = git(stage, "two", "rev-parse HEAD")?;
    fs::remove_dir_all(stage.work.join("two/.git"))?;
    let count = objects.lines().count();
    ensure!(count > 100, "only {count} objects");
    let short = head.get(..10).context("a commit has a long name")?;
    Ok(Evidence::summary(format!("{count} objects, head {short}"))
        .fact("head", head.clone())
        .fact("objects", fingerprint(objects.as_bytes()))
        .fact("log", fingerprint(log.as_bytes()))
        .fact("blame", fingerprint(blame.as_bytes()))
        .fact("grep", grep)
        .fact("fsck", check)
        .fact("clone", tree_fingerprint(&stage.work.join("two"))?))
}

/// A few ordinary commits to one file.
fn commits(stage: &Stage, name: &str, numbers: &mut Numbers) -> Result<()> {
    let file = format!("{name}.txt");
    let mut content = String::new();
    for _ in 0..stage.pick(5, 30) {
        content.push_str(&numbers.text(2_000));
        fs::write(stage.work.join("one").join(&file), &content)?;
        git(stage, "one", &format!("add {file}"))?;
        git(stage, "one", "commit --quiet -m more")?;
    }
    Ok(())
}

fn git(stage: &Stage, directory: &str, line: &str) -> Result<String> {
    let date = "1800000000 +0000";
    let finished = stage
        .process("git")?
        .line("-c user.name=C -c user.email=c@example.com -c gc.auto=0 -c core.pager=cat")
        .line("-c commit.gpgsign=false -c safe.directory=*")
        .line(line)
        .directory(stage.work.join(directory))
        .env("GIT_AUTHOR_DATE", date)
        .env("GIT_COMMITTER_DATE", date)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .success()?;
    Ok(finished.text())
}
