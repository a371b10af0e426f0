//! Records three real programs with `cairn record`, and replays them.

use crate::library::{shell, workspace};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the traces are, and go if they are not there: target/traces if nothing is said.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// What the compiler compiles: much of the C++ library.
const SOURCE: &str = "bench/workloads/src/single/containers/containers.cpp";
const SCRIPT: &str = "bench/programs/scripts/work.py";

/// Names of traces, and command lines.
type Programs = [(&'static str, Vec<String>); 3];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let shell = shell()?;
    let usual = workspace().join("target/traces");
    let folder = args.folder.as_ref().map_or(usual, |folder| workspace().join(folder));
    shell.create_dir(&folder)?;
    for (name, program) in programs(&shell, &folder)? {
        let trace = folder.join(name).with_extension("trace");
        if !trace.exists() {
            cairn(&shell, "record").arg("-o").arg(&trace).arg("--").args(program).run()?;
        }
        cairn(&shell, "replay").arg(&trace).run()?;
    }
    println!("traces: {}", folder.display());
    Ok(())
}

/// A compiler, an interpreter, and a tool that reads many objects.
fn programs(shell: &Shell, folder: &Path) -> Result<Programs> {
    let text = |path: PathBuf| path.into_os_string().into_string().ok().context("not UTF-8");
    let source = text(folder.join("containers.ii"))?;
    cmd!(shell, "g++ -E {SOURCE} -o {source}").quiet().run()?;
    let compiler = cmd!(shell, "g++ -print-prog-name=cc1plus").quiet().read()?;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Ok([
        ("compiler", words(&[&compiler, "-quiet", "-O2", &source, "-o", "/dev/null"])),
        ("python", words(&["env", "PYTHONMALLOC=malloc", "python3", SCRIPT, "tables", "10"])),
        ("git", words(&["git", "log", "--stat", "-n", "400", "--output=/dev/null"])),
    ])
}

fn cairn<'a>(shell: &'a Shell, command: &str) -> xshell::Cmd<'a> {
    cmd!(shell, "cargo run --quiet --release -p cairn-malloc-cli --").arg(command).quiet()
}
