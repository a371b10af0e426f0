//! Runs programs of operations against the oracle: guided by coverage, or random ones by the
//! thousand million. Both run the machine in crates/cairn/tests/operations. Guided by coverage, the
//! reader of traces has its turn, too.

use crate::library::{self, Build, shell};
use crate::steps::{Ended, Steps, not_run_with};
use anyhow::{Context, Result};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use xshell::{Shell, cmd};

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of each of the coverage-guided runs, eight of the default build (nightly Rust, cargo-fuzz).
    #[arg(long, default_value_t = 150)]
    seconds: u64,
    /// Instead, run so many random operations, half of them with debug assertions.
    #[arg(long, value_name = "OPERATIONS")]
    campaign: Option<u64>,
    /// Instead, make the committed corpus of what the coverage-guided runs have found.
    #[arg(long, conflicts_with_all = ["campaign", "hardened"])]
    minimize: bool,
    #[command(flatten)]
    build: Build,
}

/// The first three run operations, in either build of the core; what is behind them does not know the core.
const TARGETS: [&str; 4] = ["single", "threads", "watched", "trace"];
const OF_THE_CORE: usize = 3;
/// With debug assertions and without: the name, and cargo-fuzz's option.
const BUILDS: [(&str, &str); 2] = [("debug", "--debug-assertions"), ("fast", "--release")];
/// The committed programs, compressed: on each line a target's name, and the bytes in hexadecimal.
const CORPUS: &str = "fuzz/corpus.gz";
/// Longer programs find nothing that shorter ones do not, and run slower.
const LONGEST: &str = "-max_len=1024";
/// A day: these runs know themselves when to end.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (shell, build) = (shell()?, args.build);
    let mut steps = Steps::new(&folder(build), LIMIT, "")?;
    match args.campaign {
        Some(operations) => campaign(build, operations, &shell, &mut steps),
        None if args.minimize => return minimize(build, &shell, &mut steps),
        None => guided(build, args.seconds, &shell, &mut steps)?,
    }
    steps.finish()?;
    let left_out = match args.campaign {
        Some(_) => "runs guided by coverage (cargo xtask fuzz --seconds 150)",
        None => "a campaign of random operations (cargo xtask fuzz --campaign 500000000)",
    };
    not_run_with(build, left_out);
    Ok(())
}

/// Where everything is that is built and found.
fn folder(build: Build) -> PathBuf {
    build.target_dir("fuzz")
}

/// Random programs on stable Rust, with debug assertions and without.
fn campaign(build: Build, operations: u64, shell: &Shell, steps: &mut Steps) {
    for assertions in ["true", "false"] {
        let config = format!("profile.release.debug-assertions={assertions}");
        let (target, features) = (folder(build), build.features());
        let command = cmd!(
            shell,
            "cargo test --quiet --release -p cairn-malloc --test operations --config {config}
                --features {features} --target-dir {target} -- --nocapture"
        );
        let command = command.env("CAIRN_FUZZ_OPERATIONS", (operations / 2).to_string());
        steps.run(&format!("campaign, debug assertions {assertions}"), command, told);
    }
}

/// libFuzzer, on each target in each build.
fn guided(build: Build, seconds: u64, shell: &Shell, steps: &mut Steps) -> Result<()> {
    let count = if build.features().is_empty() { TARGETS.len() } else { OF_THE_CORE };
    for target in &TARGETS[..count] {
        // New programs go to the first folder only.
        let (found, committed) = (found_corpus(build, target)?, unpacked(build, target)?);
        for (name, option) in BUILDS {
            let time = format!("-max_total_time={seconds}");
            let command = cargo_fuzz(build, shell, target, option).args([&found, &committed]);
            let command = command.args(["--", LONGEST, "-len_control=0", "-timeout=120", &time]);
            let command = command.args(["-rss_limit_mb=8192", "-print_final_stats=1"]);
            steps.run(&format!("{target}, {name}, {seconds} s"), command, told);
        }
    }
    Ok(())
}

/// What a run says of itself.
fn told(ended: &Ended) -> Result<String> {
    ended.ensure_success()?;
    let told = ["operations: ", "stat::number_of_executed_units", "DONE"];
    let is_result = |line: &&str| told.iter().any(|told| line.contains(told));
    Ok(ended.output.lines().filter(is_result).collect::<Vec<_>>().join("; "))
}

/// Keeps as few of the programs found as reach what all of them reach.
fn minimize(build: Build, shell: &Shell, steps: &mut Steps) -> Result<()> {
    let mut lines = Vec::new();
    for target in TARGETS {
        let (found, committed) = (found_corpus(build, target)?, unpacked(build, target)?);
        // Merging takes what the first folder lacks; by edges, without how often each is taken:
        // that makes a tenth of the files.
        let command = cargo_fuzz(build, shell, target, BUILDS[1].1).args([&committed, &found]);
        let command = command.args(["--", "-merge=1", "-use_counters=0", LONGEST]);
        steps.build(&format!("minimize {target}"), command)?;
        for program in committed.read_dir()? {
            lines.push(format!("{target} {}\n", hex::encode(fs::read(program?.path())?)));
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
fn unpacked(build: Build, target: &str) -> Result<PathBuf> {
    let folder = folder(build).join("committed").join(target);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let packed = GzDecoder::new(fs::File::open(library::workspace().join(CORPUS))?);
    let text = std::io::read_to_string(packed)?;
    let programs = text.lines().filter_map(|line| line.strip_prefix(target)?.strip_prefix(' '));
    for (number, digits) in programs.enumerate() {
        fs::write(folder.join(number.to_string()), hex::decode(digits).context(CORPUS)?)?;
    }
    Ok(folder)
}

/// Where the runs collect the programs that reach something new.
fn found_corpus(build: Build, target: &str) -> Result<PathBuf> {
    let folder = folder(build).join("corpus").join(target);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// cargo-fuzz, without a sanitizer: they do not see into an allocator's own memory.
fn cargo_fuzz<'a>(build: Build, shell: &'a Shell, target: &str, option: &str) -> xshell::Cmd<'a> {
    let (folder, features) = (folder(build), build.features());
    cmd!(
        shell,
        "rustup run nightly cargo fuzz run --sanitizer none {option}
            --features {features} --target-dir {folder} {target}"
    )
}
