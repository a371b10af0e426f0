//! Owns: which processes are on cairn, from one look to the next.
//! Idea: `/proc/PID/stat`, which anybody may read, tells whether a process is the one known, and whether it has mapped
//!   anything: one without cairn that has not is left alone. Of the others the names of mapped files are asked, and of
//!   each file once whether cairn is in it.
//! Never: reads the memory of a process whose files have no cairn.
//! Threads: one.
//! Checked: tests here; tests/top.rs of the command.
//! Story: docs/guide/inspect.md

use crate::glance::{self, Glance};
use crate::process::{self, Process};
use crate::profile;
use crate::symbol::{self, Files, Found};
use crate::{Error, largest};
use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// A look at a process that ends or changes in the midst of it is tried so often.
const TRIES: usize = 3;
/// A process without cairn that maps something is looked at again after this time.
const AGAIN: Duration = Duration::from_secs(2);

/// Looks at processes again and again.
#[derive(Debug, Default)]
pub struct Watch {
    files: Files,
    known: HashMap<u32, Known>,
}

/// What was seen at one time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    /// Processes on cairn.
    pub processes: Vec<Glance>,
    /// Processes that are on cairn, or were asked for, and could not be read.
    pub unread: Vec<Unread>,
    /// Others of which not even that is known: how many, and what would help.
    pub hidden: u64,
    /// What would help.
    pub remedy: Option<String>,
}

/// A process that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct Unread {
    /// The process.
    pub pid: u32,
    /// The program's name, if the process is there.
    pub program: Option<String>,
    /// Why.
    pub why: String,
}

/// What is known of a process.
#[derive(Debug)]
struct Known {
    started: u64,
    /// The bytes of its address space when its files were looked at, and when that was.
    size: u64,
    looked: Instant,
    found: Result<Found, Error>,
}

/// What the kernel tells everybody of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    program: String,
    threads: u64,
    started: u64,
    size: u64,
    rss: u64,
}

impl Watch {
    /// Looks at all processes.
    pub fn all(&mut self) -> Round {
        let names = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids: Vec<u32> =
            names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let mut round = Round::default();
        for &pid in &pids {
            let Some(stat) = stat(pid) else { continue };
            match self.look(pid, &stat) {
                Ok(Some(glance)) => round.processes.push(glance),
                Ok(None) | Err(Error::Unused | Error::NoProcess(_) | Error::NoMemory(_)) => {}
                Err(Error::NotPermitted(_, remedy)) if !self.is_on_cairn(pid) => {
                    round.hidden += 1;
                    round.remedy = Some(remedy);
                }
                Err(error) => round.unread.push(unread(pid, Some(stat), &error)),
            }
        }
        self.known.retain(|pid, _| pids.contains(pid));
        round
    }

    /// Looks at these.
    pub fn some(&mut self, pids: &[u32]) -> Round {
        let mut round = Round::default();
        for &pid in pids {
            let stat = stat(pid);
            match self.one(pid, stat.as_ref()) {
                Ok(glance) => round.processes.push(glance),
                Err(error) => round.unread.push(unread(pid, stat, &error)),
            }
        }
        round
    }

    /// Looks at this one, of which the kernel tells that.
    fn one(&mut self, pid: u32, stat: Option<&Stat>) -> Result<Glance, Error> {
        let is_first = !self.known.contains_key(&pid);
        let glance = stat.ok_or(Error::NoProcess(pid)).and_then(|stat| self.look(pid, stat));
        let glance = glance.map_err(|error| if is_first { error } else { error.later() })?;
        let nothing = || self.known.get(&pid).map_or(Error::NoMemory(pid), Known::nothing);
        glance.ok_or_else(nothing)
    }

    /// Looks at a process alone.
    pub(crate) fn alone(&mut self, pid: u32) -> Result<Glance, Error> {
        self.one(pid, stat(pid).as_ref())
    }

    fn is_on_cairn(&self, pid: u32) -> bool {
        let found = self.known.get(&pid).and_then(|known| known.found.as_ref().ok());
        found.is_some_and(|found| !found.copies.is_empty())
    }

    /// None if it has no cairn.
    fn look(&mut self, pid: u32, stat: &Stat) -> Result<Option<Glance>, Error> {
        let mut outcome = Ok(None);
        for _ in 0..TRIES {
            outcome = self.try_look(pid, stat);
            // It may have become another program, or have changed what is read.
            if !matches!(outcome, Err(Error::Damaged(_) | Error::NoCairn { .. })) {
                break;
            }
            self.known.remove(&pid);
        }
        match outcome {
            Err(Error::NoCairn { .. }) => Ok(None),
            other => other,
        }
    }

    fn try_look(&mut self, pid: u32, stat: &Stat) -> Result<Option<Glance>, Error> {
        // The kernel's, or it has ended.
        if stat.size == 0 {
            return Err(Error::NoMemory(pid));
        }
        let known = self.known.get(&pid).filter(|known| known.holds(stat));
        if known.is_some_and(Known::is_without) {
            return Ok(None);
        }
        let task = process::task_of(pid);
        let areas = process::quick_areas(pid, task);
        let found = match &areas {
            Ok(areas) => Ok(symbol::find(&mut self.files, areas, |path, area| {
                process::file_by(task, path, area)
            })),
            Err(error) => Err(error.clone()),
        };
        let looked = Instant::now();
        let known = Known { started: stat.started, size: stat.size, looked, found: found.clone() };
        self.known.insert(pid, known);
        let mut found = found?;
        if found.copies.is_empty() {
            return Ok(None);
        }
        let process = Process::with(pid, task, areas?)?;
        found.confirm(&process);
        let (header, copy) = largest(&process, found)?;
        let (heap, mut parts) = glance::parts(&process, &header)?;
        let allocated = profile::allocated(&process, header.profile);
        allocated.iter().for_each(|all| glance::tell_allocated(&mut parts, &header, all));
        Ok(Some(Glance {
            at: Instant::now(),
            pid,
            started: stat.started,
            program: stat.program.clone(),
            library: symbol::shown(&copy.path),
            hardened: header.is_hardened(),
            threads: stat.threads,
            rss: stat.rss,
            allocated: allocated.map(|all| all.of(0..=u64::MAX)),
            heap,
            parts,
        }))
    }
}

impl Known {
    /// Whether it is still what is known of the process.
    fn holds(&self, stat: &Stat) -> bool {
        let is_same = self.size == stat.size || self.looked.elapsed() < AGAIN;
        self.started == stat.started && is_same
    }

    fn is_without(&self) -> bool {
        self.found.as_ref().is_ok_and(|found| found.copies.is_empty())
    }

    /// Why there is nothing to be seen.
    fn nothing(&self) -> Error {
        self.found.clone().map_or_else(|error| error, Found::nothing)
    }
}

fn unread(pid: u32, stat: Option<Stat>, error: &Error) -> Unread {
    // The same words for all of them.
    let why = match error {
        Error::NotPermitted(_, remedy) => format!("not permitted: {remedy}"),
        other => other.to_string(),
    };
    Unread { pid, program: stat.map(|stat| stat.program), why }
}

/// When a process was started, in the kernel's ticks.
pub(crate) fn started(pid: u32) -> Option<u64> {
    Some(stat(pid)?.started)
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = stat_of(pid)?;
    if stat.size > 0 || stat.threads == 1 {
        return Some(stat);
    }
    // Its first thread has ended: the memory is told of others.
    let Stat { size, rss, .. } = stat_of(process::task_of(pid))?;
    Some(Stat { size, rss, ..stat })
}

fn stat_of(task: u32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{task}/stat")).ok()?;
    parse(&String::from_utf8_lossy(&text), rustix::param::page_size() as u64)
}

/// `pid (program) state ...`: the program's name may have anything in it.
fn parse(text: &str, page: u64) -> Option<Stat> {
    let (_, rest) = text.split_once('(')?;
    let (program, rest) = rest.rsplit_once(") ")?;
    // From the third field on.
    let fields: Vec<_> = rest.split_whitespace().collect();
    let number = |nth: usize| fields.get(nth - 3)?.parse::<u64>().ok();
    Some(Stat {
        program: program.to_owned(),
        threads: number(20)?,
        started: number(22)?,
        size: number(23)?,
        rss: number(24)?.checked_mul(page)?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Stat, Watch, parse, stat};

    #[test]
    fn names_may_have_anything_in_them() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 12 0 777 4096 3 0";
        let expected = Stat {
            program: "a) (b\n".to_owned(),
            threads: 12,
            started: 777,
            size: 4096,
            rss: 3 << 12,
        };
        assert_eq!(parse(&format!("42 (a) (b\n) {rest}\n"), 4096), Some(expected));
        for text in ["", "42", "42 (a", "42 (a) S 1", "42 (a) S x x x"] {
            assert_eq!(parse(text, 4096), None, "{text}");
        }
    }

    /// This process has no cairn: what it is asked for a second time is nothing.
    #[test]
    fn a_process_without_cairn_is_looked_at_once() {
        let mut watch = Watch::default();
        let pid = std::process::id();
        let first = watch.some(&[pid]);
        assert!(first.unread[0].why.starts_with("no cairn in it"), "{first:?}");
        let looked = watch.known[&pid].looked;
        watch.some(&[pid]);
        assert_eq!(watch.known[&pid].looked, looked);
        assert_eq!(stat(pid).unwrap().started, watch.known[&pid].started);
        assert!(watch.some(&[0]).unread[0].why.contains("no process 0"));
    }
}
