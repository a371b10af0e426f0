//! One program at a time, under valgrind for its instructions, and without for its pages.

use super::{Cost, Table};
use crate::c_programs::cases;
use crate::library::shell;
use anyhow::{Context, Result, ensure};
use programs::process::{Limits, Process};
use rustix::thread::{CpuSet, disable_transparent_huge_pages, sched_getcpu, sched_setaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use xshell::cmd;

/// Of so many runs the least faults and memory count. Instructions are the same to a 5,000th, and are counted once.
const RUNS: usize = 3;
/// Counts of a row that differ by more from run to run get a warning.
const SPREAD_PERCENT: f64 = 0.5;

/// Seen from the folder of the C layer's tests.
const SUBJECT: &str = "../../../../xtask/src/counts/subject.c";

/// Real programs that are on each machine with Debian and a compiler, by the row's name.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("true", &["/usr/bin/true"]),
    (
        "perl",
        &["/usr/bin/perl", "-e", "my %h; $h{$_} = [1..$_ % 9] for 1..20000; print scalar keys %h"],
    ),
    ("python3", &["/usr/bin/python3", "-sSBc", PYTHON]),
    ("cc", &["/usr/bin/cc", "-fsyntax-only", "subject.c"]),
];
const PYTHON: &str = "import json; print(len(json.dumps([{i: str(i)} for i in range(9999)])))";

/// All that the programs see of the environment. Nothing is due by the clock. The C library's functions for memory
/// and strings are those that every processor can run, and hashes have no secret.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("PATH", "/usr/bin:/bin"),
    ("LC_ALL", "C"),
    ("CAIRN_PURGE_DELAY", "3600s"),
    ("GLIBC_TUNABLES", TUNABLES),
    ("PERL_HASH_SEED", "0"),
    ("PYTHONHASHSEED", "0"),
    ("PYTHONMALLOC", "malloc"),
];
const TUNABLES: &str = "glibc.cpu.x86_non_temporal_threshold=0xc0000:glibc.cpu.hwcaps=\
    -AVX2,-AVX,-ERMS,-FSRM,-SSE4_2,-SSSE3,-BMI2,-LZCNT,-MOVBE,-POPCNT";

/// What the counts depend on beside the library, and a line for a shell that tells its version.
const TOOLS: [(&str, &str); 7] = [
    ("cc", "/usr/bin/cc --version"),
    ("glibc", "getconf GNU_LIBC_VERSION"),
    ("linux", "uname -r | cut -d. -f1,2"),
    ("perl", "/usr/bin/perl -e 'print $^V'"),
    ("python3", "/usr/bin/python3 --version"),
    ("rustc", "rustc --version"),
    ("valgrind", "valgrind --version"),
];

/// Where programs are run, and by what.
pub(super) struct Place {
    folder: TempDir,
    library: PathBuf,
}

impl Place {
    /// Builds what is run.
    pub(super) fn prepare(library: &Path) -> Result<Place> {
        let place = Place { folder: tempfile::tempdir()?, library: library.canonicalize()? };
        let (source, subject) = (place.at("subject.c"), place.at("subject"));
        fs::write(&source, include_str!("subject.c"))?;
        let (shell, launch) = (shell()?, place.at("launch"));
        cmd!(shell, "cc -O2 -fno-builtin -pthread -o {subject} {source}").quiet().run()?;
        let source = "bench/programs/scripts/launch.c";
        cmd!(shell, "cc -O2 -static -o {launch} {source}").quiet().run()?;
        Ok(place)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Measures all rows.
    pub(super) fn table(&self) -> Result<Table> {
        let (mut table, mut spreads) = (Table { tools: tools()?, ..Table::default() }, Vec::new());
        hold_still()?;
        let own = cases(SUBJECT, "")?.into_iter().map(|row| {
            let line = vec![self.at("subject").into_os_string(), OsString::from(&row)];
            (row, line)
        });
        let real = PROGRAMS
            .iter()
            .map(|(row, line)| (row.to_string(), line.iter().map(OsString::from).collect()));
        for (row, line) in own.chain(real) {
            let (cost, spread) = self.cost(&line).with_context(|| row.clone())?;
            table.costs.insert(row.clone(), cost);
            spreads.push((row, spread));
        }
        tell_spreads(&spreads);
        Ok(table)
    }

    /// What one program costs, and by how much of a hundred runs differ in faults and in memory.
    fn cost(&self, line: &[OsString]) -> Result<(Cost, [f64; 2])> {
        let instructions = self.instructions(line)?;
        let (faults, peaks) = self.pages(line)?;
        let counts = [faults, peaks];
        let [faults, peak_kib] = counts.each_ref().map(|runs| least(runs));
        Ok((Cost { instructions, faults, peak_kib }, counts.map(|runs| spread(&runs))))
    }

    /// In user mode, of the process and all that it starts.
    fn instructions(&self, line: &[OsString]) -> Result<u64> {
        let out = self.at("counted");
        fs::create_dir(&out)?;
        let mut valgrind = self.command("valgrind");
        valgrind.args(["--quiet", "--tool=cachegrind", "--cache-sim=no", "--trace-children=yes"]);
        valgrind.arg(format!("--cachegrind-out-file={}/%p", out.display()));
        valgrind.args(line).env("LD_PRELOAD", &self.library);
        success(valgrind)?;
        let mut all = 0;
        for file in fs::read_dir(&out)? {
            all +=
                total(&fs::read_to_string(file?.path())?).context("cachegrind gives no total")?;
        }
        fs::remove_dir_all(&out)?;
        Ok(all)
    }

    /// What runs programs, in the environment of them all.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(ENVIRONMENT).current_dir(self.folder.path());
        command
    }

    /// Page faults and peak memory of each run.
    fn pages(&self, line: &[OsString]) -> Result<(Vec<u64>, Vec<u64>)> {
        self.read_files(line)?;
        let report = self.at("report");
        let mut launch = self.command(self.at("launch"));
        launch.arg(&report).arg(RUNS.to_string()).arg(&self.library).args(line);
        success(launch)?;
        let report = fs::read_to_string(&report)?;
        let pages: Vec<(u64, u64)> = report.lines().filter_map(faults_and_peak).collect();
        ensure!(pages.len() == RUNS, "unreadable report: {report}");
        Ok(pages.into_iter().unzip())
    }

    /// Has the system keep all of the files that a program loads: with a page that is touched those around it are
    /// mapped, and counted, which are in memory at that time, be it for another program.
    fn read_files(&self, line: &[OsString]) -> Result<()> {
        let mut command = self.command(&line[0]);
        command.args(&line[1..]).env("LD_PRELOAD", &self.library).env("LD_DEBUG", "files");
        let said = String::from_utf8_lossy(&command.output()?.stderr).into_owned();
        loaded(&said).into_iter().try_for_each(|file| {
            fs::read(file).map(drop).with_context(|| format!("cannot read {file}"))
        })
    }
}

/// Of what the dynamic loader says of its work: the program, and the libraries.
fn loaded(said: &str) -> BTreeSet<&str> {
    fn file(line: &str) -> Option<&str> {
        let (_, file) = line.split_once("init: ").or_else(|| line.split_once("control: "))?;
        file.starts_with('/').then_some(file)
    }
    said.lines().filter_map(file).collect()
}

/// For this process and what it starts: the same addresses in each run where the system allows it, one processor, and
/// no huge pages, of which there may be none free.
fn hold_still() -> Result<()> {
    // SAFETY: it is a number that what is started from here on inherits.
    unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    disable_transparent_huge_pages(true)?;
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    Ok(sched_setaffinity(None, &one)?)
}

fn success(command: Command) -> Result<()> {
    let limits = Limits::of_time(Duration::from_secs(300));
    Process::alone(command, &limits).success().map(drop)
}

/// What a file of cachegrind's says at its end.
fn total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("summary:"))?.trim().parse().ok()
}

/// Of a line that the launcher writes.
fn faults_and_peak(line: &str) -> Option<(u64, u64)> {
    let mut last = line.split(' ').skip(3).map(str::parse);
    Some((last.next()?.ok()?, last.next()?.ok()?))
}

fn tools() -> Result<BTreeMap<String, String>> {
    let shell = shell()?;
    let version = |(tool, line): (&str, &str)| -> Result<(String, String)> {
        let text = cmd!(shell, "sh -c {line}").quiet().read()?;
        Ok((tool.to_owned(), text.lines().next().unwrap_or_default().to_owned()))
    };
    TOOLS.into_iter().map(version).collect()
}

fn least(runs: &[u64]) -> u64 {
    runs.iter().copied().min().unwrap_or(0)
}

/// By how much of a hundred the most is above the least.
fn spread(runs: &[u64]) -> f64 {
    let most = runs.iter().copied().max().unwrap_or(0);
    (most as f64 / least(runs).max(1) as f64 - 1.0) * 100.0
}

/// Says how well the runs agree: the most of all rows, and each row that differs much.
fn tell_spreads(spreads: &[(String, [f64; 2])]) {
    let all = || spreads.iter().map(|(_, spread)| spread);
    let [faults, peak] = [0, 1].map(|at| all().map(|s| s[at]).fold(0.0, f64::max));
    println!(
        "{RUNS} runs of a row differ by at most {faults:.3} % of faults, {peak:.3} % of memory\n"
    );
    for (row, spread) in spreads.iter().filter(|(_, s)| s.iter().any(|s| *s > SPREAD_PERCENT)) {
        eprintln!("warning: {row}: runs differ by {spread:.2?} %");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_write_is_read() {
        assert_eq!(
            total("desc: I1 cache\nevents: Ir\nfn=main\n3 7\nsummary: 172510\n"),
            Some(172_510)
        );
        assert_eq!(total("events: Ir\n"), None);
        assert_eq!(faults_and_peak("826496 738 0 84 1644"), Some((84, 1644)));
        assert_eq!(faults_and_peak("826496 738 0 84"), None);
        let said =
            " 7:\tcalling init: /lib/libc.so.6\n 7:\t\n 7:\ttransferring control: /bin/cc\nrest\n";
        assert!(loaded(said).into_iter().eq(["/bin/cc", "/lib/libc.so.6"]));
    }

    #[test]
    fn of_runs_the_least_counts() {
        assert_eq!(least(&[12, 10, 11]), 10);
        assert!((spread(&[100, 101, 100]) - 1.0).abs() < 1e-9);
        assert!(spread(&[0, 0, 0]) < 1e-9);
    }
}
