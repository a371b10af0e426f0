//! Which lines and branches of the core its own tests and those of the C layer reach.
//!
//! Built by the nightly toolchain, which alone counts branches, and read by the LLVM tools that
//! come with it. The counters live in the profile's file from the start (`%c`): a process that
//! aborts, as misuse tests want it, leaves them there too.

use crate::{explained, library, tidy};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Report what the last run has recorded, without running the tests again.
    #[arg(long)]
    report_only: bool,
    /// Write the table into docs/results/verification.md.
    #[arg(long)]
    update: bool,
}

const CORE: &str = "crates/cairn/src";
const PAGE: &str = "docs/results/verification.md";
const TOOLCHAIN: &str = "+nightly";
const FLAGS: &str =
    "-Cinstrument-coverage -Zcoverage-options=branch -Cllvm-args=-runtime-counter-relocation";
/// Tests that look at the library's file, or count or fail its system calls: the profile's runtime
/// is in it, and makes calls.
const SKIPPED: [&str; 10] = [
    "the_shared_library_exports_nothing_else",
    "it_needs_only_the_c_library",
    "its_text_is_not_relocated_and_its_stack_not_executable",
    "its_thread_storage_is_small_and_initial_exec",
    "it_is_small",
    "the_archive_defines_the_whole_family",
    "starting_takes_few_system_calls",
    "hardly_any_address_space_is_no_crash",
    "no_call_escapes",
    "calls_may_fail",
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let target = library::target_dir("coverage");
    let profiles = target.join("profiles");
    if !args.report_only {
        let _ = std::fs::remove_dir_all(&profiles);
        std::fs::create_dir_all(&profiles)?;
        run_tests(&target, &profiles)?;
    }
    let objects = objects(&target, &profiles)?;
    let merged = merge(&target, &profiles)?;
    let files = read_coverage(&objects, &merged)?;
    let table = table(&files);
    print!("{table}");
    if args.update {
        update_page(&table)?;
    }
    let found: Vec<_> = files.iter().flat_map(FileCoverage::found).collect();
    explained::judge(PAGE, "uncovered", &found)
}

/// Cargo, with everything it builds and runs instrumented; nested builds too, by the environment.
fn cargo(target: &Path, profiles: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.arg(TOOLCHAIN).current_dir(library::workspace());
    cargo.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", target);
    cargo.env("LLVM_PROFILE_FILE", profiles.join("%p-%m%c.profraw"));
    // What the running `cargo xtask` says about itself is not for another toolchain.
    cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    cargo
}

fn run_tests(target: &Path, profiles: &Path) -> Result<()> {
    let mut core = cargo(target, profiles);
    core.args(["test", "-p", "cairn-malloc", "--lib", "--tests", "--no-fail-fast"]);
    let mut c_layer = cargo(target, profiles);
    c_layer.args(["test", "-p", "cairn-c", "--tests", "--no-fail-fast", "--"]);
    SKIPPED.iter().for_each(|name| {
        c_layer.args(["--skip", name]);
    });
    for mut command in [core, c_layer] {
        let status = command.status().context("cannot start cargo")?;
        if !status.success() {
            println!(
                "coverage: some tests failed under instrumentation ({status}); what they reached counts"
            );
        }
    }
    Ok(())
}

/// The files that carry the map from counters to lines: the test programs and the library.
fn objects(target: &Path, profiles: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let output = cargo(target, profiles)
        .args([
            "test",
            "-p",
            "cairn-malloc",
            "--lib",
            "--tests",
            "--no-run",
            "--message-format=json",
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let text = String::from_utf8(output.stdout)?;
    let mut objects: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable)
        .collect();
    objects.push(target.join("release/libcairn.so"));
    Ok(objects)
}

/// A tool of the toolchain's own LLVM.
fn llvm_tool(name: &str) -> Result<Command> {
    let print = |what: [&str; 2]| -> Result<String> {
        let output = Command::new("rustc").arg(TOOLCHAIN).args(what).output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let root = print(["--print", "sysroot"])?;
    let version = print(["--version", "--verbose"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let tool = Path::new(root.trim())
        .join("lib/rustlib")
        .join(host.context("rustc names its host")?)
        .join("bin")
        .join(name);
    ensure!(tool.exists(), "no {name}: rustup component add --toolchain nightly llvm-tools");
    Ok(Command::new(tool))
}

fn merge(target: &Path, profiles: &Path) -> Result<PathBuf> {
    let mut list = String::new();
    let mut count = 0;
    for entry in std::fs::read_dir(profiles)? {
        let path = entry?.path();
        // A process that was killed while it made its file leaves an empty one.
        if path.metadata()?.len() > 0 {
            writeln!(list, "{}", path.display())?;
            count += 1;
        }
    }
    ensure!(count > 0, "no profiles in {}", profiles.display());
    println!("coverage: {count} profiles");
    let (files, merged) = (target.join("profiles.txt"), target.join("merged.profdata"));
    std::fs::write(&files, list)?;
    let status = llvm_tool("llvm-profdata")?
        .args(["merge", "-sparse", "-failure-mode=all", "-f"])
        .arg(&files)
        .arg("-o")
        .arg(&merged)
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "llvm-profdata merge failed");
    Ok(merged)
}

/// A condition's place: first line and column, last line and column.
type Place = (usize, usize, usize, usize);

/// What is known of one file.
#[derive(Default)]
struct FileCoverage {
    /// Below the core's folder.
    name: String,
    source: Vec<String>,
    /// Runs of each line that has code.
    lines: BTreeMap<usize, u64>,
    /// How often each condition was true and false.
    branches: BTreeMap<Place, (u64, u64)>,
}

impl FileCoverage {
    fn covered_lines(&self) -> usize {
        self.lines.values().filter(|count| **count > 0).count()
    }

    fn covered_branches(&self) -> usize {
        self.branches.values().map(|(t, f)| usize::from(*t > 0) + usize::from(*f > 0)).sum()
    }

    /// (place, what to look up in the page) of everything that was not reached.
    fn found(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (&line, _) in self.lines.iter().filter(|(_, count)| **count == 0) {
            let text = self.source[line - 1].trim();
            found.push((line, format!("{} {}: {text}", self.name, self.function(line))));
        }
        for (&place, &(yes, no)) in &self.branches {
            let line = place.0;
            // The rest are lines that were not reached at all.
            let never = match (yes, no) {
                (0, 1..) => "never true",
                (1.., 0) => "never false",
                _ => continue,
            };
            let text = self.text(place);
            found.push((line, format!("{} {}: {text} ({never})", self.name, self.function(line))));
        }
        found.sort();
        let at = |line| format!("{CORE}/{}:{line}", self.name);
        found.into_iter().map(|(line, item)| (at(line), item)).collect()
    }

    /// The name of the function around a line.
    fn function(&self, line: usize) -> &str {
        let named = |text: &'_ String| -> Option<usize> {
            let at = text.find("fn ")? + 3;
            let before = &text[..at - 3];
            (before.trim().is_empty() || before.ends_with(' ') || before.ends_with('('))
                .then_some(at)
        };
        let head = self.source[..line].iter().rev().find_map(|text| Some((text, named(text)?)));
        head.map_or("", |(text, at)| {
            let name = &text[at..];
            &name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())]
        })
    }

    /// The source between two places, on one line.
    fn text(&self, (first, from, last, to): Place) -> String {
        let mut text = String::new();
        for line in first..=last {
            let all: Vec<char> = self.source[line - 1].chars().collect();
            let from = if line == first { from - 1 } else { 0 };
            let to = if line == last { (to - 1).min(all.len()) } else { all.len() };
            let part: String = all[from.min(to)..to].iter().collect();
            text += part.trim();
            text.push(' ');
        }
        text.trim_end().to_owned()
    }
}

fn export(objects: &[PathBuf], merged: &Path, format: &str) -> Result<String> {
    let mut command = llvm_tool("llvm-cov")?;
    command.args(["export", &format!("--format={format}")]).arg("-instr-profile").arg(merged);
    for object in objects {
        command.arg("-object").arg(object);
    }
    command.arg("--sources").arg(library::workspace().join(CORE));
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "llvm-cov export failed");
    Ok(String::from_utf8(output.stdout)?)
}

/// Lines by the one format of `llvm-cov`, which has them ready; branches by the other, which has
/// their places. A function that several programs carry counts as the sum.
fn read_coverage(objects: &[PathBuf], merged: &Path) -> Result<Vec<FileCoverage>> {
    #[derive(Deserialize)]
    struct Export {
        data: Vec<Data>,
    }
    #[derive(Deserialize)]
    struct Data {
        files: Vec<File>,
    }
    #[derive(Deserialize)]
    struct File {
        filename: PathBuf,
        branches: Vec<[u64; 9]>,
    }
    let mut files: BTreeMap<PathBuf, FileCoverage> = BTreeMap::new();
    let mut current = None;
    for line in export(objects, merged, "lcov")?.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            current = Some(files.entry(path.into()).or_default());
        } else if let (Some(file), Some(data)) = (&mut current, line.strip_prefix("DA:")) {
            let mut numbers = data.split(',').map(str::parse::<u64>);
            let (Some(Ok(line)), Some(Ok(count))) = (numbers.next(), numbers.next()) else {
                bail!("not a line of lcov: {line}");
            };
            *file.lines.entry(line as usize).or_default() += count;
        }
    }
    let export: Export = serde_json::from_str(&export(objects, merged, "text")?)?;
    for file in export.data.into_iter().flat_map(|data| data.files) {
        let of_it = files.entry(file.filename).or_default();
        for b in file.branches {
            let place = (b[0] as usize, b[1] as usize, b[2] as usize, b[3] as usize);
            let sums = of_it.branches.entry(place).or_default();
            *sums = (sums.0 + b[4], sums.1 + b[5]);
        }
    }
    let core = library::workspace().join(CORE);
    let mut covered = Vec::new();
    for (path, mut file) in files {
        let Ok(name) = path.strip_prefix(&core) else { continue };
        if name.starts_with("tests") || name == Path::new("tests.rs") {
            continue;
        }
        file.name = name.display().to_string();
        file.source = std::fs::read_to_string(&path)?.lines().map(str::to_owned).collect();
        let tests = tidy::test_lines(&path)?;
        let is_test = |line: usize| tests.iter().any(|range| range.contains(&line));
        file.lines.retain(|line, _| !is_test(*line));
        file.branches.retain(|place, _| !is_test(place.0));
        covered.push(file);
    }
    ensure!(!covered.is_empty(), "nothing is known of {CORE}");
    Ok(covered)
}

fn table(files: &[FileCoverage]) -> String {
    let percent = |part: usize, all: usize| match all {
        0 => "–".to_owned(),
        _ => format!("{:.1}", part as f64 * 100.0 / all as f64),
    };
    let mut table = String::from("| file | lines | covered % | branches | covered % |\n");
    table += "| --- | ---: | ---: | ---: | ---: |\n";
    let mut sum = [0; 4];
    let mut row = |name: &str, [lines, reached, branches, taken]: [usize; 4]| {
        let (of_lines, of_branches) = (percent(reached, lines), percent(taken, branches));
        table += &format!("| {name} | {lines} | {of_lines} | {branches} | {of_branches} |\n");
    };
    for file in files {
        let here = [
            file.lines.len(),
            file.covered_lines(),
            file.branches.len() * 2,
            file.covered_branches(),
        ];
        row(&format!("`{}`", file.name), here);
        sum.iter_mut().zip(here).for_each(|(sum, here)| *sum += here);
    }
    row("all", sum);
    table
}

/// Puts the table between the page's marks.
fn update_page(table: &str) -> Result<()> {
    const MARKS: [&str; 2] = ["<!-- figures -->\n", "<!-- /figures -->"];
    let path = library::workspace().join(PAGE);
    let text = std::fs::read_to_string(&path)?;
    let (before, rest) = text.split_once(MARKS[0]).context("no mark for the figures")?;
    let (_, after) = rest.split_once(MARKS[1]).context("no mark behind the figures")?;
    std::fs::write(&path, format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))?;
    Ok(())
}
