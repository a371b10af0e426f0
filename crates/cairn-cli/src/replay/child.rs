//! One replay: a process with an allocator, and what it has told.
//!
//! Owns that process. The one idea: while it replays one window, this process fills the other, so that it neither waits
//! nor decodes. It must never take another allocator's figures for those that were asked for.

use super::Candidate;
use super::plan::Plan;
use super::window::Memory;
use super::worker::{DONE, GO, WORD};
use crate::rivals;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

/// What a replay has taken.
#[derive(Clone, Copy)]
pub(super) struct Figures {
    pub(super) milliseconds: f64,
    pub(super) processor_milliseconds: f64,
    pub(super) faults: u64,
    pub(super) peak: u64,
    pub(super) end: u64,
    pub(super) failed: u64,
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Replays a trace once.
pub(super) fn replay(plan: &Plan, candidate: &Candidate) -> Result<Figures> {
    let (memory, file) = Memory::new(plan.size())?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut running = Running(start(&path, candidate)?);
    let mut input = running.0.stdin.take().context("no pipe")?;
    let mut output = running.0.stdout.take().context("no pipe")?;
    let mut is_done = |running: &mut Running| -> Result<()> {
        let mut word = [0];
        if output.read_exact(&mut word).is_ok() && word[0] == DONE {
            return Ok(());
        }
        bail!("the replay has ended early, with {}", running.0.wait()?)
    };

    let mut calls = plan.calls()?;
    // SAFETY: the process reads no window before it is told to.
    let mut is_full = unsafe { calls.fill(&memory, 0)? };
    let mut window = 0;
    // It is there, and waits: what is written into the pipe of one that has ended would end this one.
    is_done(&mut running)?;
    while is_full {
        // It may have ended: the answer tells.
        let _ = input.write_all(&[GO]);
        window = 1 - window;
        // SAFETY: the process reads the other window.
        is_full = unsafe { calls.fill(&memory, window)? };
        is_done(&mut running)?;
    }
    drop(input);
    is_done(&mut running)?;
    check_library(&memory, candidate)?;
    let told = memory.told();
    Ok(Figures {
        milliseconds: told.nanoseconds.load(Ordering::Relaxed) as f64 / 1e6,
        processor_milliseconds: told.processor_microseconds.load(Ordering::Relaxed) as f64 / 1e3,
        faults: told.faults.load(Ordering::Relaxed),
        peak: told.peak.load(Ordering::Relaxed),
        end: told.end.load(Ordering::Relaxed),
        failed: told.failed.load(Ordering::Relaxed),
    })
}

fn start(path: &str, candidate: &Candidate) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(OsStr::from_bytes(WORD.to_bytes())).arg(path);
    command.env_remove("LD_PRELOAD").envs(candidate.variables.iter().copied());
    if let Some(library) = &candidate.library {
        command.env("LD_PRELOAD", library);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().context("cannot start the replay")
}

/// Fails if malloc is not the library's that it should be.
fn check_library(memory: &Memory, candidate: &Candidate) -> Result<()> {
    let words = memory.told().library.iter().map(|word| word.load(Ordering::Relaxed));
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).take_while(|&byte| byte != 0).collect();
    let found = Path::new(OsStr::from_bytes(&bytes));
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    if let Some(library) = &candidate.library {
        ensure!(
            real(library) == real(found),
            "{} does not offer malloc: {} does",
            library.display(),
            found.display()
        );
    } else {
        ensure!(
            rivals::is_libc(found),
            "malloc is not the system's: {} offers it, by /etc/ld.so.preload",
            found.display()
        );
    }
    Ok(())
}
