//! Makes the wheel, installs it into an environment of Python's, runs both commands, and takes it
//! away again.

mod common;

use common::{VERSION, fails_with, lacks, output_of, scratch, tree, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const USAGE: &str = "python -m cairn run [--OPTION]...";

/// Makes the wheel in a folder, which has nothing else.
fn wheel(folder: &Path) -> PathBuf {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    output_of(xtask.args(["wheel", "--out"]).arg(folder));
    tree(folder).pop_first().unwrap()
}

/// A program in a folder, which no setting of the user's changes.
fn program(path: &Path, folder: &Path) -> Command {
    let mut program = Command::new(path);
    program.current_dir(folder).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", folder);
    // What is there then has been installed.
    program.env("PYTHONDONTWRITEBYTECODE", "1");
    program
}

#[test]
fn python_runs_programs_on_cairn() {
    // First: without it two wheels would be made for nothing, which takes minutes.
    if lacks(
        Command::new("python3").args(["-c", "import ensurepip, venv"]),
        "the package `python3-venv`",
    ) {
        return;
    }
    let (_folder, folder) = scratch();
    let wheels = ["one", "two"].map(|name| wheel(&folder.join(name)));
    assert!(fs::read(&wheels[0]).unwrap() == fs::read(&wheels[1]).unwrap(), "two wheels differ");
    let environment = folder.join("environment");
    output_of(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    let before = tree(&environment);
    let python = environment.join("bin/python");
    let run = |words: &[&str]| {
        let mut python = program(&python, &folder);
        python.args(words);
        python
    };
    let pip = |words: &[&str]| output_of(run(&["-m", "pip", "--isolated", "-q"]).args(words));
    pip(&["install", "--no-index", wheels[0].to_str().unwrap()]);

    fs::copy(workspace().join("xtask/tests/samples/app.py"), folder.join("app.py")).unwrap();
    the_commands_run(&run, &environment, &folder);
    the_tag_is_true(&wheels[0], &environment, &folder);
    the_package_knows(&run, &environment, &folder);
    misuse_is_named(&run);

    // A part of it is missing.
    let (command, away) = (environment.join("bin/cairn"), folder.join("away"));
    fs::rename(&command, &away).unwrap();
    let gone = format!("the command cairn is not at {}: install cairn-malloc", command.display());
    fails_with(&mut run(&["-m", "cairn", "run", "app.py"]), 125, &gone);
    fs::rename(&away, &command).unwrap();

    pip(&["uninstall", "-y", "cairn-malloc"]);
    assert_eq!(tree(&environment), before);
}

fn the_commands_run(run: &dyn Fn(&[&str]) -> Command, environment: &Path, folder: &Path) {
    let python = environment.join("bin/python");
    let says = |command: &mut Command, rest: &str, on_cairn: &str| {
        assert_eq!(output_of(command), format!("{on_cairn} {} {rest}\n", python.display()));
    };
    let mut cairn = program(&environment.join("bin/cairn"), folder);
    let everywhere = "True True True";
    says(cairn.arg("run").arg(&python).args(["app.py", "a"]), "0 a", everywhere);
    for (words, rest) in [
        (&["-m", "cairn", "run", "app.py", "-x", "--stats"][..], "0 -x --stats"),
        (&["-m", "cairn", "run", "--", "app.py"], "0"),
        (&["-m", "cairn", "run", "--hardened", "-I", "app.py"], "1"),
        (&["-m", "cairn", "run", "--stats-file", "stats", "app.py"], "0"),
        (&["-Bmcairn", "run", "-m", "app"], "0"),
        (&["-W", "ignore", "-Im", "cairn", "run", "app.py"], "1"),
    ] {
        says(&mut run(words), rest, everywhere);
    }
    let alone = &mut run(&["-m", "cairn", "run", "--no-inherit", "app.py"]);
    says(alone, "0", "True False False");
    let stats = fs::read_to_string(folder.join("stats")).unwrap();
    assert!(stats.starts_with("cairn: the memory of python"), "{stats}");
}

/// It names the newest version of glibc that is named in the command and in both libraries.
fn the_tag_is_true(wheel: &Path, environment: &Path, folder: &Path) {
    let command = environment.join("bin/cairn");
    let mut readelf = Command::new("readelf");
    readelf.arg("-VW").arg(&command);
    for option in [None, Some("--hardened")] {
        readelf.arg(output_of(program(&command, folder).arg("path").args(option)).trim_end());
    }
    let needs = output_of(&mut readelf);
    let minors = needs.split("GLIBC_2.").skip(1);
    let minors = minors.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap());
    let newest = minors.map(|minor| minor.parse::<u32>().unwrap()).max().unwrap();
    let tag = format!("-py3-none-manylinux_2_{newest}_x86_64.whl");
    assert!(wheel.to_str().unwrap().ends_with(&tag), "{} is not {tag}", wheel.display());
}

fn the_package_knows(run: &dyn Fn(&[&str]) -> Command, environment: &Path, folder: &Path) {
    let code = "import cairn; print(cairn.version, cairn.command(), cairn.library())";
    let said = output_of(&mut run(&["-c", code]));
    let command = environment.join("bin/cairn");
    let path = output_of(program(&command, folder).arg("path"));
    assert_eq!(said, format!("{VERSION} {} {path}", command.display()));
    let code = "import cairn; cairn.library(True)";
    let refused =
        run(&["-c", code]).env("XDG_CACHE_HOME", "/proc").env("TMPDIR", "/proc").output().unwrap();
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("\nOSError: cairn: no directory to keep libcairn.so in"), "{message}");
    // Options whose value is the next word are known to the package.
    let help = output_of(program(&command, folder).args(["run", "--help"]));
    let options = help.lines().filter_map(|line| line.trim_start().split_once(" <"));
    let with_value: Vec<_> =
        options.map(|(name, _)| name).filter(|name| name.starts_with("--")).collect();
    let code = "import cairn.__main__ as main; print(*main.WITH_VALUE)";
    let said = output_of(&mut run(&["-c", code]));
    let known: Vec<_> = said.split_whitespace().collect();
    // Second names of options stand in the help, too, behind the first.
    assert!(with_value.iter().all(|name| known.contains(name)), "{known:?}, not {with_value:?}");
    assert!(known.iter().all(|name| help.contains(name)), "{known:?}: {help}");
}

fn misuse_is_named(run: &dyn Fn(&[&str]) -> Command) {
    for words in [&[][..], &["run"], &["run", "--stats"], &["run", "--stats-file"]] {
        let missing = format!("python -m cairn: what to run is missing: {USAGE}");
        fails_with(run(&["-m", "cairn"]).args(words), 125, &missing);
    }
    let unknown = format!("python -m cairn: there is no 'path' here, only: {USAGE}");
    fails_with(&mut run(&["-m", "cairn", "path"]), 125, &unknown);
    fails_with(&mut run(&["-m", "cairn", "run", "missing.py"]), 2, "can't open file");
    assert!(output_of(&mut run(&["-m", "cairn", "--help"])).starts_with("usage: "));
}
