//! `cairn run`: any program, with cairn as its allocator.
//!
//! Owns the environment that the program gets. The one idea: `LD_PRELOAD` plus exec, so that
//! exit status, signals, process id and streams are the program's own. It must never start a
//! program that would silently run without cairn: [`program`] refuses those first.

use crate::advice::values;
use crate::{advice, embedded, program, rivals};
use anyhow::{Context, Result};
use clap::ValueHint;
use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;

const LD_PRELOAD: &str = "LD_PRELOAD";

/// Asks the library for an account at exit.
const STATS: &str = "CAIRN_STATS";
/// The value by which descendants write theirs, too.
const ALL: &str = "all";

/// Tells the library where the account goes.
const STATS_FILE: &str = "CAIRN_STATS_FILE";

/// Asks the library for the account at SIGTERM and SIGINT, too.
const STATS_AT_SIGNAL: &str = "CAIRN_STATS_AT_SIGNAL";

/// Asks the library for a heap profile, and tells it where that goes.
const PROFILE: &str = "CAIRN_PROFILE";

/// Tells it how often a sample is taken.
const PROFILE_RATE: &str = "CAIRN_PROFILE_RATE";
/// The library's own: the first process that has seen the request.
const PROFILE_FIRST: &str = "CAIRN_PROFILE_FIRST";

/// Asks the library for a thread that gives memory back while the program is idle.
const PURGE_THREAD: &str = "CAIRN_PURGE_THREAD";

/// Tells the library how much memory the process may have.
const MEMORY_LIMIT: &str = "CAIRN_MEMORY_LIMIT";

/// Asks the library to take itself out of `LD_PRELOAD`, and this variable out of the
/// environment, in its constructor: only there is it early enough for every child and late
/// enough for the program itself.
const NO_INHERIT: &str = "CAIRN_NO_INHERIT";

/// Run a program with cairn as its allocator
///
/// The program takes the place of cairn: its exit status, signals, process id and streams are
/// its own. Settings in CAIRN_* variables reach the library; those that it will not understand are
/// named first. If the program cannot be run, the exit status is 127 when it was not found, 126
/// when it cannot run with cairn, and 125 when cairn itself failed or was called wrongly.
#[derive(clap::Args)]
#[command(override_usage = "cairn run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(after_help = "Examples:
  cairn run --stats ls
  cairn run --report heap-%p.json ./server")]
pub(crate) struct Args {
    /// Say how much memory the program holds and cairn adds, when the program exits
    ///
    /// On standard error, and of the program only; with --stats=all of the processes that it
    /// starts, too. This is also the way to see that cairn is active. A program that ends without
    /// its exit handlers, as some shells do, says nothing. Of an allocator that the program is
    /// linked with, or has inside, it says first which names cairn serves and which it does not.
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = ["1", ALL], hide_possible_values = true)]
    stats: Option<String>,

    /// Write what --stats says to a file; %p in its name is the process id
    ///
    /// As JSON if the name ends in .json, as Prometheus reads it if it ends in .prom, and else in words.
    #[arg(long, value_name = "PATH", visible_alias = "report")]
    stats_file: Option<PathBuf>,

    /// Say it when SIGTERM or SIGINT ends the program, too
    ///
    /// It takes one thread more in the program. With =TERM or =INT it is for one of the two.
    #[arg(long, value_name = "SIGNAL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = ["1", "TERM", "INT"])]
    #[arg(hide_possible_values = true)]
    stats_at_signal: Option<String>,

    /// Let the program's children keep their own allocator
    ///
    /// A shell script counts as the program, and what it starts as its children.
    #[arg(long)]
    no_inherit: bool,

    /// Use the hardened build, which stops more attacks on the heap
    #[arg(long)]
    hardened: bool,

    /// Give memory back while the program is idle, too, and before its memory cgroup is full
    ///
    /// It takes one thread more in the program, and in each child that inherits cairn.
    #[arg(long)]
    purge_thread: bool,

    /// Let the program have at most so much memory: beyond it malloc fails, with ENOMEM
    ///
    /// Bytes, or a number with a unit, such as 2G or 512MiB. All that malloc has counts, also what is free
    /// and has not gone back to the system, which goes before an allocation fails; code and stacks do not.
    /// Each child that inherits cairn may have as much.
    #[arg(long, value_name = "BYTES", value_parser = memory)]
    memory: Option<String>,

    /// Write a heap profile to a file when the program exits; %p in its name is the process id
    ///
    /// `cairn profile FILE` says which code has allocated what. A process that the program starts has its number behind
    /// the name. A program that ends without its exit handlers writes nothing.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Take a sample of so many bytes on average
    #[arg(long, value_name = "BYTES", default_value = "512KiB", requires = "profile")]
    #[arg(value_parser = rate)]
    profile_rate: usize,

    /// The program, searched for in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

fn rate(text: &str) -> Result<usize, String> {
    let bytes = advice::values::bytes(text.as_bytes()).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "it is a number such as 128KiB or 1MiB".to_owned())
}

/// Becomes the program; returns only if that fails.
pub(crate) fn run(args: &Args) -> Result<Infallible> {
    let launch = program::resolve(&args.command)?;
    let build = embedded::build(args.hardened);
    let preloaded = [embedded::install(build)?, embedded::install(&embedded::PLUGINS)?];
    let mut environment = environment(&preloaded, args)?;
    if args.stats.is_some() || args.stats_file.is_some() || args.stats_at_signal.is_some() {
        for line in rivals::lines(&launch.loaded, build, &environment) {
            crate::say(line);
        }
    }
    let lines = advice::lines(&environment);
    for line in &lines {
        crate::say(line);
    }
    if !lines.is_empty() {
        environment.push((advice::WARNED.into(), "1".into()));
    }
    let error = exec(&launch, &entries(environment))?;
    Err(program::Unfit::refused_by_system(launch.path, error).into())
}

/// The variables of this process with the library, and what belongs to it, in front of `LD_PRELOAD`.
fn environment(preloaded: &[PathBuf], args: &Args) -> Result<Vec<(OsString, OsString)>> {
    let mut changes = vec![(LD_PRELOAD, preload_list(preloaded, env::var_os(LD_PRELOAD)))];
    if let Some(whose) = &args.stats {
        changes.push((STATS, whose.into()));
    } else if args.stats_file.is_some() || args.stats_at_signal.is_some() {
        let of_all = env::var_os(STATS).is_some_and(|whose| whose == ALL);
        changes.push((STATS, if of_all { ALL } else { "1" }.into()));
    }
    if let Some(path) = &args.stats_file {
        // Absolute: the program may go elsewhere.
        let path = std::path::absolute(path).context("--stats-file")?;
        changes.push((STATS_FILE, path.into_os_string()));
    }
    if let Some(signals) = &args.stats_at_signal {
        changes.push((STATS_AT_SIGNAL, signals.into()));
    }
    if let Some(path) = &args.profile {
        let path = std::path::absolute(path).context("--profile")?;
        changes.push((PROFILE, path.into_os_string()));
        changes.push((PROFILE_RATE, args.profile_rate.to_string().into()));
    }
    if args.no_inherit {
        changes.push((NO_INHERIT, "1".into()));
    }
    if args.purge_thread {
        changes.push((PURGE_THREAD, "1".into()));
    }
    if let Some(bytes) = &args.memory {
        changes.push((MEMORY_LIMIT, bytes.into()));
    }
    // What is profiled here is this program's own, whoever has been first outside.
    let is_outer = |name: &OsString| args.profile.is_some() && name == PROFILE_FIRST;
    let is_changed = |name: &OsString| changes.iter().any(|(changed, _)| name == changed);
    let kept = env::vars_os().filter(|(name, _)| !is_changed(name) && !is_outer(name));
    let changed = changes.iter().map(|(name, value)| (OsString::from(name), value.clone()));
    Ok(kept.chain(changed).collect())
}

/// A limit as the library reads it.
fn memory(text: &str) -> Result<String, &'static str> {
    match values::bytes(text.as_bytes()) {
        Some(bytes) if bytes > 0 => Ok(bytes.to_string()),
        _ => Err("it is a number of bytes such as 2G or 512MiB"),
    }
}

/// As the system wants them: `NAME=value`.
pub(crate) fn entries(variables: Vec<(OsString, OsString)>) -> Vec<OsString> {
    let entry = |(mut entry, value): (OsString, OsString)| {
        entry.push("=");
        entry.push(value);
        entry
    };
    variables.into_iter().map(entry).collect()
}

/// Puts the library in front of what is preloaded already, so that its malloc wins. Any other cairn
/// goes: below another `cairn run`, with the same build or not, the newer choice counts.
pub(crate) fn preload_list(preloaded: &[PathBuf], inherited: Option<OsString>) -> OsString {
    let paths: Vec<_> = preloaded.iter().map(|path| path.as_os_str()).collect();
    let mut list = paths.join(OsStr::new(":"));
    let inherited = inherited.unwrap_or_default();
    for entry in inherited.as_bytes().split(|byte| b" :".contains(byte)) {
        let entry = OsStr::from_bytes(entry);
        if !entry.is_empty() && !embedded::is_cairn(Path::new(entry)) {
            list.push(":");
            list.push(entry);
        }
    }
    list
}

/// Calls execve itself: `std::process::Command` would reset SIGPIPE and the signal mask, which
/// the program shall inherit as they are.
pub(crate) fn exec(launch: &program::Launch, environment: &[OsString]) -> Result<io::Error> {
    let path = c_strings(&[launch.path.clone().into_os_string()])?.remove(0);
    let (arguments, environment) = (c_strings(&launch.arguments)?, c_strings(environment)?);
    let (arguments, environment) = (c_pointers(&arguments), c_pointers(&environment));
    // SAFETY: `path` ends with NUL; both arrays end with a null pointer and point to strings that
    // end with NUL; all of them live until the call returns, if it does.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    Ok(io::Error::last_os_error())
}

fn c_strings(strings: &[OsString]) -> Result<Vec<CString>> {
    let to_c = |string: &OsString| CString::new(string.clone().into_vec());
    strings.iter().map(to_c).collect::<Result<_, _>>().context("NUL byte in an argument")
}

fn c_pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}
