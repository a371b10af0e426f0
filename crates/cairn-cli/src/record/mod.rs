//! `cairn record`: every call of a program's malloc family, in a file.
//!
//! Owns the process that is recorded, and the file's size. The one idea: a library in front of cairn's notes calls in
//! memory that both processes share, and this one, beside the program, puts them in order and compresses them. It must
//! never lose a note: the program waits where this process does not keep up.
//!
//! | module | holds |
//! | --- | --- |
//! | [`shared`] | the memory, as library/recorder.c fills it |
//! | [`order`] | all threads' notes in one order |
//! | [`blocks`] | from addresses to the slots of a trace |
//! | [`signals`] | those that this process gets are the program's |
//! | [`addresses`] | which slot is at which address |

mod addresses;
mod blocks;
mod order;
mod shared;
mod signals;

use crate::trace::Writer;
use crate::units::human;
use crate::{embedded, program, rivals, run, say};
use anyhow::{Context, Result, bail};
use blocks::Blocks;
use clap::ValueHint;
use order::{Order, Said};
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};
use shared::{Note, Shared};
use signals::{EndsTold, Held};
use std::ffi::{OsStr, OsString, c_int};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, thread};

/// Tells the recorder where the memory is.
const VARIABLE: &str = "LIBCAIRN_RECORDER";
const LD_PRELOAD: &str = "LD_PRELOAD";

/// How long to wait where there is nothing to do: the least, and the most.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(5)];

/// As many notes are worth another look at once. At fewer, this process would take the program's cache lines from it.
const WORTH: usize = 20_000;

/// The least that a file may take.
const LIMIT_MIN: u64 = 1 << 20;

/// Record every call of a program's malloc family
///
/// The trace has thread, size, alignment and order of each call, for `cairn replay`, and nothing of what is in the
/// blocks. The program runs on cairn, up to twice as long as without a recorder; its exit status is passed on, or 128 and
/// the signal's number. What it becomes by exec is recorded in its place; its child processes, which inherit cairn, are
/// not recorded.
#[derive(clap::Args)]
#[command(override_usage = "cairn record [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(after_help = "Examples:
  cairn record ls /                          into cairn.trace
  cairn record -o sort.trace sort words
  cairn record --limit 4GiB ./server         the last 2 to 4 GiB of a long run")]
pub(crate) struct Args {
    /// Where the trace goes
    #[arg(short, long, value_name = "FILE", default_value = "cairn.trace")]
    output: PathBuf,

    /// Take at most so much of the disk
    ///
    /// A file of half of that gets the ending .1, in the place of an earlier one, and a new file begins with the blocks
    /// that are live. Both can be replayed.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = limit)]
    limit: u64,

    /// The program, searched for in PATH, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

fn limit(text: &str) -> Result<u64, String> {
    let bytes = crate::advice::values::bytes(text.as_bytes()).map(|bytes| bytes as u64);
    bytes.filter(|&bytes| bytes >= LIMIT_MIN).ok_or_else(|| "it is 1MiB or more".to_owned())
}

/// Runs the program, and returns its exit status.
pub(crate) fn run(args: &Args) -> Result<c_int> {
    let launch = program::resolve(&args.command)?;
    let shared = Shared::new()?;
    let mut recording = Recording::begin(&args.output, args.limit)?;
    let environment = environment(&shared)?;
    // Calls that cairn does not serve are not recorded.
    rivals::lines(&launch.loaded, &embedded::DEFAULT, &environment).into_iter().for_each(say);

    let (signals_held, ends_told) = (Held::all(), EndsTold::begin());
    // SAFETY: this process has one thread, so that the child may do what it likes.
    let process = match unsafe { libc::fork() } {
        0 => {
            signals_held.release();
            ends_told.put_back();
            shared.is_of_this_process();
            let outcome = run::exec(&launch, &run::entries(environment));
            let error = outcome.map(|error| program::Unfit::refused_by_system(launch.path, error));
            let code = error.as_ref().map_or(crate::EXIT_OWN_FAILURE, program::Unfit::exit_code);
            match error {
                Ok(unfit) => say(unfit),
                Err(error) => say(format_args!("{error:#}")),
            }
            // SAFETY: it has no preconditions. What this process would do at its end is the parent's.
            unsafe { libc::_exit(code.into()) }
        }
        // No process: its number is none.
        process => Pid::from_raw(process.max(0)).with_context(|| {
            format!("cannot start a process: {}", std::io::Error::last_os_error())
        })?,
    };
    signals::pass_on_to(process);
    signals_held.release();
    let mut ended = None;
    let outcome = recording.follow(process, &shared, &mut ended);
    // Whatever has happened here, the program goes on.
    shared.close();
    let status = match ended {
        Some(status) => status,
        None => waitpid(Some(process), WaitOptions::empty())?.context("no such process")?.1,
    };
    let code =
        status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0));
    match (outcome, recording.end(code)) {
        // What there is may be whole; if not, the reason is told.
        (Err(error), _) => {
            say(format_args!("the recording has ended before the program: {error:#}"));
        }
        (Ok(()), Err(error)) => say(format_args!("the recording is not whole: {error:#}")),
        (Ok(()), Ok(())) => {}
    }
    Ok(code)
}

/// The variables of the program: it has the recorder in front of the library.
fn environment(shared: &Shared) -> Result<Vec<(OsString, OsString)>> {
    let libraries = [&embedded::RECORDER, &embedded::DEFAULT, &embedded::PLUGINS];
    let preloaded = libraries.into_iter().map(embedded::install).collect::<Result<Vec<_>>>()?;
    let preloaded = run::preload_list(&preloaded, env::var_os(LD_PRELOAD));
    let changes = [(LD_PRELOAD, preloaded), (VARIABLE, shared.path().into())];
    let is_changed = |name: &OsStr| changes.iter().any(|(changed, _)| name == *changed);
    let kept: Vec<_> = env::vars_os().filter(|(name, _)| !is_changed(name)).collect();
    let changes = changes.map(|(name, value)| (OsString::from(name), value));
    Ok(kept.into_iter().chain(changes).collect())
}

/// A trace that is being made.
struct Recording {
    path: PathBuf,
    limit: u64,
    /// What the process is; nothing before the recorder is in it.
    program: Option<String>,
    blocks: Blocks,
    /// None after the end.
    writer: Option<Writer>,
    /// Calls in former files.
    calls: u64,
    /// Threads of former programs, and all.
    former_threads: usize,
    threads: usize,
    files: u32,
}

impl Recording {
    fn begin(path: &Path, limit: u64) -> Result<Self> {
        // It may be renamed, or removed at the end: a device must not be.
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            bail!("{}: no regular file", path.display());
        }
        let writer = Writer::create(path, "", 0);
        let writer = writer.with_context(|| path.display().to_string())?;
        Ok(Self {
            path: path.to_owned(),
            limit,
            program: None,
            blocks: Blocks::default(),
            writer: Some(writer),
            calls: 0,
            former_threads: 0,
            threads: 0,
            files: 1,
        })
    }

    /// Writes down what the process does until it ends: how, also if the rest could not be written.
    fn follow(
        &mut self,
        process: Pid,
        shared: &Shared,
        ended: &mut Option<WaitStatus>,
    ) -> Result<()> {
        let mut order = Order::new(process.as_raw_nonzero().get() as u32, shared);
        let mut pause = PAUSES[0];
        loop {
            // Before the look: what is there then is all.
            *ended = waitpid(Some(process), WaitOptions::NOHANG)?.map(|(_, status)| status);
            let count = order.pass(shared, ended.is_some(), |thread, said| {
                if matches!(said, Said::Note(Note::Begun)) {
                    return self.restart(shared, thread);
                }
                let writer = self.writer.as_mut().context("no file")?;
                match said {
                    Said::Note(note) => self.blocks.take(thread, note, writer),
                    Said::Ended => writer.ended(thread),
                }?;
                self.turn_over()
            })?;
            self.threads = order.threads();
            if ended.is_some() {
                return Ok(());
            }
            if count >= WORTH {
                pause = PAUSES[0];
                continue;
            }
            if order.is_stuck() {
                bail!("it has {} threads at once, which is too many", shared.chunks());
            }
            thread::sleep(pause);
            pause = if count > 0 { PAUSES[0] } else { (pause * 2).min(PAUSES[1]) };
        }
    }

    /// The process has begun a program: what was before is gone, blocks and all.
    fn restart(&mut self, shared: &Shared, thread: u32) -> Result<()> {
        let path = shared.program();
        let name = path.file_name().map_or(String::new(), |name| name.display().to_string());
        self.writer = Some(Writer::create(&self.path, &name, 0)?);
        (self.program, self.blocks) = (Some(name), Blocks::default());
        (self.calls, self.former_threads, self.files) = (0, thread as usize, 1);
        Ok(())
    }

    /// Begins a new file if this one is as large as it may be.
    fn turn_over(&mut self) -> Result<()> {
        let Some(full) = self.writer.take_if(|writer| writer.bytes() >= self.limit / 2) else {
            return Ok(());
        };
        self.calls += full.calls();
        full.finish()?;
        fs::rename(&self.path, self.former())?;
        let alive = self.blocks.count();
        let mut writer =
            Writer::create(&self.path, self.program.as_deref().unwrap_or_default(), alive)?;
        self.blocks.begin(self.former_threads as u32, &mut writer)?;
        if writer.bytes() >= self.limit / 4 {
            bail!("{} live blocks alone take too much for --limit", alive);
        }
        self.calls -= alive;
        self.writer = Some(writer);
        self.files += 1;
        Ok(())
    }

    /// The file before this one.
    fn former(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".1");
        name.into()
    }

    /// Ends the file, and says what is in it.
    fn end(&mut self, code: c_int) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let calls = self.calls + writer.calls();
        let (path, in_file) = (self.path.display().to_string(), writer.calls());
        let bytes = writer.finish().with_context(|| path.clone())?;
        if self.program.is_none() {
            fs::remove_file(&self.path)?;
            // The program could not be started, and somebody has said so.
            if ![126, 127].contains(&code) {
                say("nothing is recorded: the program did not load the recorder");
            }
            return Ok(());
        }
        let threads = self.threads.saturating_sub(self.former_threads);
        let unknown = self.blocks.unknown;
        let size = human(bytes);
        let end = if threads == 1 { "" } else { "s" };
        say(format_args!("{calls} calls of {threads} thread{end}; {in_file} in {path}, {size}"));
        if self.files > 1 {
            let former = self.former();
            say(format_args!("those before are in {}, or gone", former.display()));
        }
        if unknown > 0 {
            say(format_args!(
                "{unknown} frees of blocks that nobody has seen allocated are not in it"
            ));
        }
        Ok(())
    }
}
