//! The heap profile of a process that runs: switched on for a while, and read from outside.
//!
//! Owns when it is on. The one idea: what was on before is left as it was. It must never leave a process sampling that did not
//! before, whatever ends the command but a kill.

use crate::control::{Copy, Outcome, Process, Wish};
use anyhow::{Result, bail, ensure};
use cairn_sight::profile::{HeapProfile, Site, sampled};
use cairn_sight::{Error, Source};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long nobody looks whether the process is still there.
const STEP: Duration = Duration::from_millis(200);
/// The rate where none is asked for.
const RATE: u64 = 512 << 10;

/// What is asked for.
pub(crate) struct Request {
    pub(crate) pid: u32,
    /// How long; None: 30 seconds, or not at all where samples are taken already.
    pub(crate) seconds: Option<u64>,
    /// Bytes from one sample to the next on average; None: as usual, or as samples are taken already.
    pub(crate) rate: Option<u64>,
}

/// The profile of the process, and what the command has done for it.
pub(crate) fn profile(request: &Request) -> Result<(HeapProfile, String)> {
    let pid = request.pid;
    let process = Process { pid };
    let source = Source::Process(pid);
    // Before anything is switched on: a signal that ends the command would leave it so.
    let signals = Blocked::new();
    let rate = request.rate.unwrap_or(RATE);
    let mut on = On { process: &process, copies: Vec::new(), rate };
    let mut sampling = Vec::new();
    for copy in Copy::all(&process)? {
        let state = copy.state(&process, Wish::Profile)?;
        match state.is_on() {
            true => sampling.push((copy, state.wanted)),
            false => on.copies.push(copy),
        }
    }
    if !sampling.is_empty() {
        on.copies.clear();
        if request.rate.is_some_and(|rate| sampling.iter().any(|(_, own)| *own != rate)) {
            crate::say(
                "--rate has no effect: the process is sampled already, at a rate of its own",
            );
        }
        let Some(seconds) = request.seconds else {
            let how = "sampled since its start, by a call, or by another command";
            return Ok((sampled(&source)?, how.to_owned()));
        };
        let before = sampled(&source)?;
        let waited = wait(&process, &signals, seconds, || true)?;
        warn(&process, sampling.iter().map(|(copy, rate)| (copy, *rate)))?;
        return Ok((since(&before, sampled(&source)?), told(waited)));
    }
    let before = match sampled(&source) {
        // Where none is found now, none will be when it has been sampled.
        Err(error @ Error::NoCairn { .. }) => return Err(error.into()),
        before => before.unwrap_or_default(),
    };
    on.switch()?;
    let seconds = request.seconds.unwrap_or(30);
    let waited = wait(&process, &signals, seconds, || on.is_followed())?;
    warn(&process, on.copies.iter().map(|copy| (copy, rate)))?;
    Ok((since(&before, sampled(&source)?), told(waited)))
}

/// Says so where a copy has not been sampling all the while at the rate that was wanted: another command may have come to its
/// end, or the program have called.
fn warn<'a>(process: &Process, copies: impl Iterator<Item = (&'a Copy, u64)>) -> Result<()> {
    for (copy, rate) in copies {
        let state = copy.state(process, Wish::Profile)?;
        if state.wanted != rate {
            crate::say(
                "sampling was switched off or changed meanwhile, by another command or the program: samples may be missing",
            );
        } else if state.done != rate {
            crate::say("the process has not followed: it has hardly allocated meanwhile");
        }
    }
    Ok(())
}

fn told(waited: Duration) -> String {
    format!("sampled for {:.0} s", waited.as_secs_f64())
}

/// Copies of cairn that have been switched on; they are switched off with it, unless somebody else wants something else since.
struct On<'a> {
    process: &'a Process,
    copies: Vec<Copy>,
    rate: u64,
}

impl On<'_> {
    fn switch(&self) -> Result<()> {
        for copy in &self.copies {
            match copy.ask(self.process, Wish::Profile, self.rate)? {
                Outcome::Refused => bail!("the process has no memory for samples"),
                Outcome::Overtaken => {
                    bail!("another command, or the program, has changed sampling meanwhile")
                }
                Outcome::Done => {}
                Outcome::Asked => {
                    crate::say("the process has been asked: it follows when it allocates");
                }
            }
        }
        Ok(())
    }

    /// Whether a copy samples at that rate.
    fn is_followed(&self) -> bool {
        let state = |copy: &Copy| copy.state(self.process, Wish::Profile);
        self.copies.iter().any(|copy| state(copy).is_ok_and(|state| state.done == self.rate))
    }
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        for copy in &self.copies {
            // It may have ended; nobody else has to be told.
            let state = copy.state(self.process, Wish::Profile);
            if state.is_ok_and(|state| state.wanted == self.rate) {
                let _ = copy.tell(self.process, Wish::Profile, 0);
            }
        }
    }
}

/// Waits so long, or until a signal would end the command: how much of it was left when the process was first seen to sample.
fn wait(
    process: &Process,
    signals: &Blocked,
    seconds: u64,
    is_sampling: impl Fn() -> bool,
) -> Result<Duration> {
    let (begin, whole) = (Instant::now(), Duration::from_secs(seconds));
    let mut since = is_sampling().then_some(begin);
    let place = format!("/proc/{}", process.pid);
    while let Some(left) = whole.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        if signals.has_come(left.min(STEP)) {
            break;
        }
        ensure!(Path::new(&place).exists(), "process {} has ended", process.pid);
        since = since.or_else(|| is_sampling().then(Instant::now));
    }
    Ok(since.map_or(Duration::ZERO, |since| since.elapsed()))
}

/// The signals that end a command from its terminal, kept until somebody asks.
struct Blocked {
    all: libc::sigset_t,
    before: libc::sigset_t,
}

impl Blocked {
    fn new() -> Blocked {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sets are made here, and of signals that there are.
        unsafe {
            libc::sigemptyset(all.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
                libc::sigaddset(all.as_mut_ptr(), signal);
            }
            // What is told to nobody ends the command afterwards.
            let mut held = all;
            libc::sigaddset(held.as_mut_ptr(), libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr());
            Blocked { all: all.assume_init(), before: before.assume_init() }
        }
    }

    /// Whether one of them comes meanwhile.
    fn has_come(&self, within: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: within.as_secs() as libc::time_t,
            tv_nsec: within.subsec_nanos().into(),
        };
        // SAFETY: a set, nowhere to tell more, and a time.
        unsafe {
            libc::sigtimedwait(&raw const self.all, std::ptr::null_mut(), &raw const time) > 0
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set that there was.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut())
        };
    }
}

/// A profile without what had been allocated before. What is live counts whenever it was allocated.
fn since(before: &HeapProfile, mut profile: HeapProfile) -> HeapProfile {
    let key = |site: &Site| (site.weighed, site.rate, site.calls.clone());
    let old: HashMap<_, _> = before.sites.iter().map(|site| (key(site), site)).collect();
    for site in &mut profile.sites {
        if let Some(old) = old.get(&key(site)) {
            site.begin_at(old);
        }
    }
    profile
}
