//! Runs programs of operations against the oracle: guided by coverage, or random ones by the
//! thousand million. Both run the machine in crates/cairn/tests/operations.

use crate::library::{self, target_dir};
use crate::steps::not_run;
use anyhow::{Context, Result, ensure};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of each of the four coverage-guided runs (nightly Rust, cargo-fuzz).
    #[arg(long, default_value_t = 150)]
    seconds: u64,
    /// Instead, run so many random operations, half of them with debug assertions.
    #[arg(long, value_name = "OPERATIONS")]
    campaign: Option<u64>,
    /// Instead, make the committed corpus of what the coverage-guided runs have found.
    #[arg(long, conflicts_with = "campaign")]
    minimize: bool,
}

const TARGETS: [&str; 2] = ["single", "threads"];
/// With debug assertions and without: the name, and cargo-fuzz's option.
const BUILDS: [(&str, &str); 2] = [("debug", "--debug-assertions"), ("fast", "--release")];
/// The committed programs, compressed: on each line a target's name, and the bytes in hexadecimal.
const CORPUS: &str = "fuzz/corpus.gz";
/// Longer programs find nothing that shorter ones do not, and run slower.
const LONGEST: &str = "-max_len=1024";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let results = match args.campaign {
        Some(operations) => campaign(operations)?,
        None if args.minimize => return minimize(),
        None => guided(args.seconds)?,
    };
    println!("{}", results.join("\n"));
    not_run(match args.campaign {
        Some(_) => "runs guided by coverage (cargo xtask fuzz --seconds 150)",
        None => "a campaign of random operations (cargo xtask fuzz --campaign 500000000)",
    });
    Ok(())
}

/// Random programs on stable Rust, with debug assertions and without.
fn campaign(operations: u64) -> Result<Vec<String>> {
    let mut results = Vec::new();
    for assertions in [true, false] {
        let mut command = Command::new(env!("CARGO"));
        command
            .args(["test", "--quiet", "--release", "-p", "cairn-malloc", "--test", "operations"])
            .args(["--config", &format!("profile.release.debug-assertions={assertions}")])
            .arg("--target-dir")
            .arg(target_dir("fuzz"))
            .args(["--", "--nocapture"])
            .env("CAIRN_FUZZ_OPERATIONS", (operations / 2).to_string());
        results.extend(told(&mut command, |line| line.starts_with("operations: "))?);
    }
    Ok(results)
}

/// libFuzzer, on each target in each build.
fn guided(seconds: u64) -> Result<Vec<String>> {
    let mut results = Vec::new();
    for target in TARGETS {
        let committed = unpacked(target)?;
        for (name, option) in BUILDS {
            let mut command = cargo_fuzz("run", target, option);
            // New programs go to the first folder only.
            command.arg(found_corpus(target)?).arg(&committed);
            command.args(["--", LONGEST, "-len_control=0", "-timeout=120", "-rss_limit_mb=8192"]);
            command.args(["-print_final_stats=1", &format!("-max_total_time={seconds}")]);
            let is_result = |line: &str| {
                line.starts_with("operations: ")
                    || line.starts_with("stat::number_of_executed_units")
                    || line.contains("DONE")
            };
            let lines = told(&mut command, is_result)?;
            results.push(format!("{target}, {name}, {seconds} s: {}", lines.join("; ")));
        }
    }
    Ok(results)
}

/// Keeps as few of the programs found as reach what all of them reach.
fn minimize() -> Result<()> {
    let mut lines = Vec::new();
    for target in TARGETS {
        let committed = unpacked(target)?;
        let mut command = cargo_fuzz("run", target, BUILDS[1].1);
        // Merging takes what the first folder lacks; by edges, without how often each is taken:
        // that makes a tenth of the files.
        command.arg(&committed).arg(found_corpus(target)?);
        command.args(["--", "-merge=1", "-use_counters=0", LONGEST]);
        told(&mut command, |_| false)?;
        for program in committed.read_dir()? {
            let bytes = fs::read(program?.path())?;
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            lines.push(format!("{target} {digits}\n"));
        }
    }
    lines.sort();
    let file = fs::File::create(library::workspace().join(CORPUS))?;
    let mut packed = GzEncoder::new(file, Compression::best());
    packed.write_all(lines.concat().as_bytes()).context("cannot write the corpus")?;
    packed.finish()?;
    Ok(())
}

/// A new folder with the committed programs of a target, each in a file.
fn unpacked(target: &str) -> Result<PathBuf> {
    let folder = target_dir("fuzz").join("committed").join(target);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let packed = GzDecoder::new(fs::File::open(library::workspace().join(CORPUS))?);
    let text = std::io::read_to_string(packed)?;
    let programs = text.lines().filter_map(|line| line.strip_prefix(target)?.strip_prefix(' '));
    for (number, digits) in programs.enumerate() {
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).context(CORPUS);
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect::<Result<_>>()?;
        fs::write(folder.join(number.to_string()), bytes)?;
    }
    Ok(folder)
}

/// Where the runs collect the programs that reach something new.
fn found_corpus(target: &str) -> Result<PathBuf> {
    let folder = target_dir("fuzz").join("corpus").join(target);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// cargo-fuzz, without a sanitizer: they do not see into an allocator's own memory.
fn cargo_fuzz(verb: &str, target: &str, option: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz", verb, "--sanitizer", "none", option]);
    command.arg("--target-dir").arg(target_dir("fuzz")).arg(target);
    command
}

/// Runs a command, shows what it says, and returns the lines that are results.
fn told(command: &mut Command, is_result: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).stdin(Stdio::null());
    let mut child = command
        .current_dir(library::workspace())
        .spawn()
        .with_context(|| format!("cannot start {:?}", command.get_program()))?;
    // The pipe ends when the last copy of its other end is gone.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut results = Vec::new();
    for line in BufReader::new(reader).lines() {
        let line = line?;
        eprintln!("{line}");
        if is_result(&line) {
            results.push(line);
        }
    }
    ensure!(child.wait()?.success(), "a program fails: see above");
    Ok(results)
}
