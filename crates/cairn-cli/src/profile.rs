//! `cairn profile`: what a heap profile says, with names.
//!
//! Owns how it is printed, and into which files it goes; `cairn_sight` reads it. The one idea: a table for people, and the
//! forms that other viewers read. It must never write over the profile that it reads.

use crate::advice::values;
use crate::sampled::{self, Request};
use crate::say;
use anyhow::{Context, Result, ensure};
use cairn_sight::Source;
use cairn_sight::profile::{
    Amounts, Frame, HeapProfile, Names, Row, Subject, View, collapsed, page, pprof, rows, short,
};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// How a core file begins.
const ELF: &[u8] = b"\x7fELF";
/// Rows that the table shows.
const ROWS: usize = 20;
/// Functions of each that it shows, without those inside of libraries.
const FRAMES: usize = 4;

/// Say which code has allocated what a process holds
///
/// It samples a running process for a while, without a signal and without preparation; the process follows on a slow path
/// of `malloc`, to which an idle one does not come. Ctrl-C ends the while early. Or it reads a profile that was written: by `cairn run
/// --profile FILE PROGRAM`, by the variable CAIRN_PROFILE, or by a call of the program's; or a core file. Figures are estimates: a
/// sample stands for all blocks that are like it. Names come from the files that the process has run, where they were then: look
/// at the profile where it was made. A file that is another build by now gives none. Another user's process takes root or
/// CAP_SYS_PTRACE.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cairn profile 1234                          30 seconds of the process 1234: what is live of them
  cairn profile 1234 --seconds 5 --view allocated
  cairn run --profile heap -- python3 app.py
  cairn profile heap                          what was live at exit
  cairn profile heap --view peak              what was live when most was
  cairn profile heap --view pinned            whose survivors keep pages from going back
  cairn profile heap --view lifetimes         how long blocks live
  cairn profile heap --pprof heap.pb.gz       then: go tool pprof -http : heap.pb.gz
  cairn profile heap --collapsed heap.txt     then: inferno-flamegraph <heap.txt >heap.svg
  cairn profile heap --html heap.html         a flame graph, for a browser
  cairn profile heap --html heap.html --compare before     what grew")]
pub(crate) struct Args {
    /// The number of a process, a profile, or a core file; a path of digits alone needs ./ in front
    #[arg(value_name = "PID|FILE")]
    target: OsString,

    /// How long a process is sampled [default: 30, or only what there is where it is sampled already]
    #[arg(long)]
    seconds: Option<u64>,

    /// Bytes of a process from one sample to the next on average [default: 512KiB, or the one at which it is sampled already]
    #[arg(long, value_parser = rate, value_name = "BYTES")]
    rate: Option<u64>,

    /// What is looked at, in the table, lines or the page [default: live]
    #[arg(long, value_enum)]
    view: Option<Shown>,

    /// Write it as pprof reads it, with alloc_objects, alloc_space, inuse_objects, inuse_space, peak_space, pinned_space
    #[arg(long, value_name = "OUT")]
    pprof: Option<PathBuf>,

    /// Write a line for each stack, with bytes, as flame graphs are drawn from
    #[arg(long, value_name = "OUT")]
    collapsed: Option<PathBuf>,

    /// Write a page with a flame graph for a browser: one file, which needs no network
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,

    /// Show in that page what has changed from an older profile
    #[arg(long, value_name = "OLD", requires = "html")]
    compare: Option<PathBuf>,

    /// Write the profile itself, for later
    #[arg(long, value_name = "OUT")]
    save: Option<PathBuf>,
}

/// What of a profile is looked at.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shown {
    /// What was live at the end
    Live,
    /// All that was allocated
    Allocated,
    /// What was live when most was
    Peak,
    /// What was live, by the bytes of the pages that it keeps from going back
    Pinned,
    /// All that was allocated, by how long it has lived: in the table alone
    Lifetimes,
}

impl Args {
    fn shown(&self) -> Shown {
        self.view.unwrap_or(Shown::Live)
    }

    /// Refuses a view of which nothing would be seen.
    fn check_view(&self) -> Result<()> {
        let is_drawn = self.collapsed.is_some() || self.html.is_some();
        let is_table = !is_drawn && self.save.is_none() && self.pprof.is_none();
        let is_seen = is_table || is_drawn || self.view.is_none();
        ensure!(is_seen, "--view: it is for the table, --collapsed and --html");
        let is_lifetimes = self.shown() == Shown::Lifetimes;
        let of_table = "it is a table; --collapsed and --html have --view allocated";
        ensure!(!is_lifetimes || is_table, "--view lifetimes: {of_table}");
        Ok(())
    }
}

impl Shown {
    fn view(self) -> View {
        match self {
            Shown::Live => View::Live,
            Shown::Allocated | Shown::Lifetimes => View::Allocated,
            Shown::Peak => View::Peak,
            Shown::Pinned => View::Pinned,
        }
    }
}

fn rate(text: &str) -> Result<u64, String> {
    let rate = values::bytes(text.as_bytes()).filter(|rate| (1..=1 << 30).contains(rate));
    rate.map(|rate| rate as u64).ok_or("it is a number such as 512KiB, up to 1GiB".to_owned())
}

/// Prints the profile, or writes it in the forms that are asked for.
pub(crate) fn run(args: &Args) -> Result<()> {
    args.check_view()?;
    let outputs = [&args.save, &args.pprof, &args.collapsed, &args.html];
    if let Some(old) = &args.compare {
        outputs.into_iter().flatten().try_for_each(|out| refuse_same(out, old))?;
    }
    let (profile, how) = read(args)?;
    let view = args.shown().view();
    let mut names = Names::new();
    let path = Path::new(&args.target);
    if let Some(out) = &args.save {
        write_to(out, path, &profile.to_bytes()).context("--save")?;
    }
    if let Some(out) = &args.pprof {
        let packed = pprof(&profile, &mut names).context("--pprof")?;
        write_to(out, path, &packed).context("--pprof")?;
    }
    if let Some(out) = &args.collapsed {
        let text = collapsed(&profile, &mut names, view);
        write_to(out, path, text.as_bytes()).context("--collapsed")?;
    }
    if let Some(out) = &args.html {
        let subject = Subject { name: name(path, &how), profile: &profile, names: &mut names };
        draw(args, out, subject).context("--html")?;
    }
    if outputs.iter().all(|out| out.is_none()) {
        let rows = rows(&profile, &mut names, view);
        let text = match args.shown() {
            Shown::Lifetimes => lifetimes(&profile, &how, &rows)?,
            _ => text(&profile, &how, &rows, view)?,
        };
        crate::print(text.as_bytes())?;
    }
    warn(&names);
    Ok(())
}

/// Says which files were not found as the process has run them.
fn warn(names: &Names) {
    for path in names.doubtful() {
        let path = path.to_string_lossy();
        let path = path.escape_debug();
        let wrong = "is not the file that the process has run: names may be wrong";
        say(format_args!("{path} {wrong}"));
    }
    for path in names.replaced() {
        let path = path.to_string_lossy();
        let path = path.escape_debug();
        let nameless =
            "is another build than the process has run, or not there: its calls have no names";
        say(format_args!("{path} {nameless}"));
    }
}

/// The profile, and where it comes from.
fn read(args: &Args) -> Result<(HeapProfile, String)> {
    const OF_FILES: &str = "it is for a process; a file has what was sampled";
    if let Some(pid) = args.target.to_str().and_then(|text| text.parse().ok()) {
        let request = Request { pid, seconds: args.seconds, rate: args.rate };
        let (profile, how) = sampled::profile(&request)?;
        return Ok((profile, format!(" of process {pid}, {how}")));
    }
    ensure!(args.seconds.is_none(), "--seconds: {OF_FILES}");
    ensure!(args.rate.is_none(), "--rate: {OF_FILES}");
    read_file(Path::new(&args.target))
}

/// The profile in a file, which may be a pipe: it is read once.
fn read_file(path: &Path) -> Result<(HeapProfile, String)> {
    let shown = || path.display().to_string();
    let mut file = File::open(path).with_context(shown)?;
    let mut start = Vec::new();
    file.by_ref().take(ELF.len() as u64).read_to_end(&mut start).with_context(shown)?;
    if start == ELF {
        let core = cairn_sight::profile::sampled(&Source::Core(path.to_owned()));
        return Ok((core.with_context(shown)?, " of a core file".to_owned()));
    }
    let profile = HeapProfile::read_from(start.chain(file));
    Ok((profile.with_context(shown)?, String::new()))
}

/// What a page calls it.
fn name(path: &Path, how: &str) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let is_process = how.starts_with(" of process");
    if is_process { how.trim_start().to_owned() } else { format!("{file}{how}") }
}

/// Writes the page with the flame graph.
fn draw(args: &Args, out: &Path, subject: Subject<'_>) -> Result<()> {
    let view = args.shown().view();
    let page = match &args.compare {
        None => page(subject, None, view)?,
        Some(old) => {
            let ((profile, how), mut names) = (read_file(old)?, Names::new());
            let before = Subject { name: name(old, &how), profile: &profile, names: &mut names };
            let page = page(subject, Some(before), view)?;
            warn(&names);
            page
        }
    };
    write_to(out, Path::new(&args.target), page.as_bytes())
}

/// What is read must not be written over.
pub(crate) fn refuse_same(out: &Path, read: &Path) -> Result<()> {
    let is_same =
        fs::canonicalize(out).is_ok_and(|out| fs::canonicalize(read).is_ok_and(|read| read == out));
    ensure!(!is_same, "{} is what is read itself", out.display());
    Ok(())
}

fn write_to(out: &Path, profile: &Path, bytes: &[u8]) -> Result<()> {
    refuse_same(out, profile)?;
    fs::write(out, bytes).with_context(|| out.display().to_string())
}

/// The profile for people.
fn text(profile: &HeapProfile, how: &str, rows: &[Row], view: View) -> Result<String> {
    let mut text = head(profile, how)?;
    let whole = profile.sum(view);
    writeln!(text, "\n  {:>12}      %      blocks  by", view.name())?;
    for row in rows.iter().take(ROWS) {
        let share = 100.0 * row.amounts.bytes / whole.bytes.max(1.0);
        let (bytes, objects) = (human(row.amounts.bytes), row.amounts.objects);
        let before = format!("  {bytes:>12}  {share:>5.1}  {objects:>10.0}  ");
        add_stack(&mut text, &before, &row.frames)?;
    }
    add_rest(&mut text, rows)?;
    Ok(text)
}

/// What it says of all stacks.
fn head(profile: &HeapProfile, how: &str) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "cairn: a heap profile{how}, {} sites", profile.sites.len())?;
    for (view, what) in [
        (View::Live, "live"),
        (View::Allocated, "allocated meanwhile"),
        (View::Peak, "live at the peak"),
        (View::Pinned, "of pages that what is live keeps from going back"),
    ] {
        let Amounts { bytes, objects } = profile.sum(view);
        // Older profiles do not have all of them.
        if bytes > 0.0 || view == View::Live {
            writeln!(text, "  {:>12}  {what}, in {objects:.0} blocks", human(bytes))?;
        }
    }
    if profile.dropped > 0 {
        writeln!(text, "  There was no room for {} samples: use a larger rate.", profile.dropped)?;
    }
    Ok(text)
}

/// How long what each stack has allocated has lived, in percent of its blocks.
fn lifetimes(profile: &HeapProfile, how: &str, rows: &[Row]) -> Result<String> {
    let mut text = head(profile, how)?;
    writeln!(text, "\n  {:>12}  % of blocks freed within", "allocated")?;
    write!(text, "  {:>12}", "")?;
    for limit in ["1ms", "10ms", "0.1s", "1s", "10s", "100s", "1000s", "later"] {
        write!(text, " {limit:>5}")?;
    }
    writeln!(text, "  live  by")?;
    for row in rows.iter().take(ROWS) {
        let mut before = format!("  {:>12}", human(row.amounts.bytes));
        let all = row.amounts.objects.max(1.0);
        for count in row.lived {
            write!(before, " {:>5.0}", 100.0 * count / all)?;
        }
        let live = (1.0 - row.lived.iter().sum::<f64>() / all).max(0.0);
        write!(before, " {:>5.0}  ", 100.0 * live)?;
        add_stack(&mut text, &before, &row.frames)?;
    }
    add_rest(&mut text, rows)?;
    Ok(text)
}

fn add_rest(text: &mut String, rows: &[Row]) -> Result<()> {
    if rows.len() > ROWS {
        writeln!(text, "  {:>12}  and {} more stacks", "", rows.len() - ROWS)?;
    }
    Ok(())
}

/// Adds the innermost functions of a stack, the first behind what stands in front.
fn add_stack(text: &mut String, before: &str, frames: &[Frame]) -> Result<()> {
    let frames = telling(frames);
    let first = frames.first().map_or("an unknown stack".to_owned(), |frame| place(frame));
    writeln!(text, "{before}{first}")?;
    for frame in frames.iter().take(FRAMES).skip(1) {
        writeln!(text, "{:>1$}  < {2}", "", before.len(), place(frame))?;
    }
    Ok(())
}

/// The program's own functions, and of libraries those that it calls: between these and the allocator there may be a dozen.
/// All, if none is the program's but where a thread begins.
fn telling(frames: &[Frame]) -> Vec<&Frame> {
    let is_own = |frame: &Frame| !is_of_library(frame);
    let is_telling = |frame: &Frame| is_own(frame) && !is_beginning(frame);
    let is_called = |at: usize| frames.get(at + 1).is_some_and(is_own);
    let told = frames.iter().enumerate().filter(|(at, frame)| is_own(frame) || is_called(*at));
    match frames.iter().any(is_telling) {
        true => told.map(|(_, frame)| frame).collect(),
        false => frames.iter().collect(),
    }
}

/// How the names of the files begin in which threads begin: the loader, the C library, C++'s.
const BEGINNINGS: [&str; 10] = [
    "ld-linux",
    "ld-musl-",
    "ld-2.",
    "libc.so",
    "libc-2.",
    "libc.musl-",
    "libpthread.so",
    "libpthread-2.",
    "libstdc++.so",
    "libc++.so",
];
/// Functions of these files that a thread begins in, where they have names.
const FIRST: [&str; 7] = [
    "_start",
    "start_thread",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "execute_native_thread_routine",
];

/// Whether it is where a thread begins, with a name or without; `main` is Rust's own if it has no source.
fn is_beginning(frame: &Frame) -> bool {
    let name = frame.function.as_str();
    let file = name.rsplit_once("+0x").map(|(file, _)| file);
    let is_of_file =
        file.is_some_and(|file| BEGINNINGS.iter().any(|begin| file.starts_with(begin)));
    let is_named = FIRST.contains(&name) || name.starts_with("__libc_start");
    is_of_file || is_named || name == "main" && frame.source.is_empty()
}

/// Whether a function is of Rust's or C++'s library, or of a crate from a registry.
fn is_of_library(frame: &Frame) -> bool {
    let source = &frame.source;
    let is_of_rust = ["/rustc/", "/rust/deps/"].iter().any(|begin| source.starts_with(begin))
        || source.contains("/rustlib/src/");
    let is_header = source.starts_with("/usr/include/") || source.contains("/include/c++/");
    let name = frame.function.trim_start_matches("void ").trim_start_matches("void* ");
    let name = name.trim_start_matches('<');
    let begins = |names: &[&str]| names.iter().any(|begin| name.starts_with(begin));
    is_of_rust
        || is_header
        || source.contains("/registry/src/")
        || begins(&["std::", "__gnu_cxx::", "operator new"])
        // Elsewhere these are names of others.
        || source.is_empty() && begins(&["alloc::", "core::", "hashbrown::"])
}

/// A function, and where in the source it is.
fn place(frame: &Frame) -> String {
    let source = frame.source.rsplit('/').next().unwrap_or("");
    let function = frame.function.escape_debug().to_string();
    let function = short(&function);
    match source {
        "" => function.into_owned(),
        source => format!("{function} ({}:{})", source.escape_debug(), frame.line),
    }
}

/// Bytes with a unit.
fn human(bytes: f64) -> String {
    crate::units::human(bytes as u64)
}
