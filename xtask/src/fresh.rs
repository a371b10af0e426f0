//! The README's two commands as a newcomer meets them: on a new Debian with git, a C and a C++
//! compiler and a Rust toolchain, as an ordinary user, without a network.
//!
//! The system is made from packages below the target directory, by fresh.sh. What is mounted in it,
//! and every process started in it, belongs to namespaces of one command each and ends with it.

use crate::library::{shell, target_dir};
use crate::steps::{Ended, LIMIT, Steps, not_run};
use anyhow::{Context, Result, bail, ensure};
use programs::process::tail;
use xshell::cmd;

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

/// Debian's packages that this command is made of.
const NEEDS: &str = "mmdebstrap apt util-linux coreutils git";
/// What is tried where little but the surroundings differs: programs that preload the library, and
/// the command. Of the same packages: of fewer cargo would build their dependencies anew.
const SOME_TESTS: &str = "cargo test -p 'cairn-*' --test environment --test run --test programs";
const SCRIPT: &str = "xtask/src/fresh.sh";
/// Places in the new system. A path with a space is the one that goes wrong, if any.
const CLONE: &str = "/home/newcomer/a b/cairn";
const HOME: &str = "HOME=/home/newcomer";
const READ_ONLY_HOME: &str = "HOME=/home/read-only";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "only root can make a system of its own: run `cargo xtask fresh` as root");
    let (shell, root) = (shell()?, target_dir("fresh/root"));
    let mut steps = Steps::new(&target_dir("fresh"), LIMIT, &args.step)?;
    let made = steps.build("a new Debian", cmd!(shell, "sh {SCRIPT} make {root} {CLONE}"));
    made.with_context(|| format!("the packages {NEEDS} are needed, if one is missing"))?;
    let readme = std::fs::read_to_string(root.join(&CLONE[1..]).join("README.md"))?;
    let commands = shell_blocks(&readme);
    let [first, second, ..] = &commands[..] else { bail!("README.md lacks its two commands") };

    for (place, home, tests) in [
        ("README", Some(HOME), "second command"),
        ("without HOME", None, SOME_TESTS),
        ("HOME read-only", Some(READ_ONLY_HOME), SOME_TESTS),
    ] {
        let second = if place == "README" { second } else { tests };
        let judges: [fn(&Ended) -> Result<String>; 2] = [accounted, tested];
        for ((what, line), judge) in
            [("first command", &**first), (tests, second)].into_iter().zip(judges)
        {
            let command = cmd!(shell, "sh {SCRIPT} enter {root} {CLONE} {line} {home...}");
            steps.run(&format!("{place}, {what}"), command, |ended| {
                ended.ensure_success().with_context(|| tail(&ended.output))?;
                judge(ended)
            });
        }
    }
    steps.finish()?;
    if !args.keep {
        std::fs::remove_dir_all(&root)?;
    }
    not_run("what needs root or more packages (CAIRN_TEST_ALL=1 cargo test --workspace, as root)");
    Ok(())
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
