//! The `cairn` command.
//!
//! Owns the command line; each subcommand is a module. The one idea: the command carries
//! the library inside itself, so there is nothing to install. It must never stand between a
//! program and its user: whatever is started takes over this very process, but for [`record`], whose program it
//! accompanies.
//!
//! | module | holds |
//! | --- | --- |
//! | [`run`] | `cairn run`: environment and exec |
//! | [`advice`] | what it says of variables that do not do what somebody may think |
//! | [`inspect`] | `cairn inspect`: where the memory of a process or core file is |
//! | [`diff`] | `cairn diff`: what has grown from one account to another |
//! | [`leaks`] | `cairn leaks`: which blocks no pointer leads to |
//! | [`top`] | `cairn top`: the same of all processes, again and again |
//! | [`guards`] | `cairn guards`: switches guards in a process that runs |
//! | [`profile`] | `cairn profile`: what a heap profile says, with names |
//! | [`record`] | `cairn record`: every call of a program, in a file |
//! | [`replay`] | `cairn replay`: the same calls under several allocators |
//! | [`trace`] | what that file is |
//! | [`program`] | which file will run, and whether a library can be preloaded into it |
//! | [`rivals`] | what is said of allocators that a program brings along |
//! | [`units`] | how numbers of bytes are written |
//! | [`embedded`] | the library: bytes in here, file in a cache directory |
#![no_main]

mod advice;
mod control;
mod diff;
mod embedded;
mod guards;
mod inspect;
mod leaks;
mod profile;
mod program;
mod record;
mod replay;
mod rivals;
mod run;
mod sampled;
mod top;
mod trace;
mod units;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Exit status for failures of cairn itself, as with `env` and `timeout`.
const EXIT_OWN_FAILURE: u8 = 125;

/// A general-purpose memory allocator, and what to do with it.
#[derive(Parser)]
#[command(name = "cairn", version = embedded::VERSION)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),

    Inspect(inspect::Args),

    Profile(profile::Args),

    Diff(diff::Args),

    Leaks(leaks::Args),

    Top(top::Args),

    Guards(guards::Args),

    Record(record::Args),

    Replay(replay::Args),

    /// Print the path of libcairn.so, for LD_PRELOAD=$(cairn path)
    Path {
        /// Of the hardened build
        #[arg(long)]
        hardened: bool,
    },

    /// Print what a shell completes the words of this command with
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The C entry point, in place of the one of Rust's runtime. That one ignores SIGPIPE and opens
/// the standard streams that are closed, and a program started by exec would inherit both;
/// services started with SIGPIPE ignored (the default of systemd) must find it so, and others
/// must not.
///
/// `std::env::args` does not depend on the runtime: with glibc it is filled before `main`.
// SAFETY: no other crate of this program defines `main`, and the signature is the one C expects.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    if argc == 3 {
        // SAFETY: as many words are there, and each is a C string.
        let [word, path] = [1, 2].map(|at| unsafe { CStr::from_ptr(*argv.add(at)) });
        if word == replay::worker::WORD {
            return replay::worker::run(path);
        }
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(words) => return tell(&words),
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args).map(|never| match never {}),
        Command::Path { hardened } => print_path(embedded::build(hardened)),
        Command::Inspect(args) => inspect::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Leaks(args) => match leaks::run(&args) {
            Ok(found) => return found.into(),
            Err(error) => Err(error),
        },
        Command::Top(args) => top::run(args),
        Command::Guards(args) => guards::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Record(args) => match record::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Completions { shell } => print_completions(shell),
    };
    let Err(error) = outcome else { return 0 };
    say(format_args!("{error:#}"));
    let unfit = error.downcast_ref::<program::Unfit>();
    unfit.map_or(EXIT_OWN_FAILURE, program::Unfit::exit_code).into()
}

/// Help and the version, which were asked for, or what is wrong with the command line.
fn tell(words: &clap::Error) -> c_int {
    let told = words.print().and_then(|()| std::io::stdout().flush());
    match told {
        // There is nobody to tell about a failure.
        _ if words.use_stderr() => EXIT_OWN_FAILURE.into(),
        Ok(()) => 0,
        Err(error) => {
            say(error);
            EXIT_OWN_FAILURE.into()
        }
    }
}

fn print_path(library: &embedded::Library) -> Result<()> {
    print(&[embedded::install(library)?.as_os_str().as_bytes(), b"\n"].concat())
}

fn print_completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cairn", &mut script);
    print(&script)
}

/// Says something beside the work, which goes on if nobody can be told.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "cairn: {line}");
}

fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    Ok(stdout.flush()?)
}
