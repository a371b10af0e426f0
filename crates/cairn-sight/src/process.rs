//! Owns: a process that runs: its memory, areas, pages and threads, by `/proc` and `process_vm_readv`.
//! Idea: large pieces in few calls, and nothing is stopped or written.
//! Never: reads memory that is not resident, if it can know that: the process would get pages that it has not had.
//! Threads: one.
//! Checked: tests/inspect.rs of the command.
//! Story: docs/design/outside-view.md

mod rights;
mod scan;
mod task;

pub use task::task_of;

use crate::Error;
use crate::memory::{Area, Kind, Memory, u64_at};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Words that one call reads: as many pieces as the kernel takes.
const AT_ONCE: usize = 1024;
/// Entries of `pagemap` that one call reads.
const ENTRIES: u64 = 1 << 16;

// Bits of `pagemap`.
const PRESENT: u64 = 1 << 63;
const OF_A_FILE: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// A process that may be read.
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// What stands for it.
    pub(crate) task: u32,
    areas: Vec<Area>,
    page: u64,
    pages: File,
    /// Where `process_vm_readv` is refused, or could be by the end of a thread.
    memory: Option<File>,
}

/// Threads of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    pub(crate) all: u64,
    pub(crate) asleep: u64,
}

/// What is known of threads' registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    /// What may be pointers.
    pub(crate) words: Vec<u64>,
    /// Where stacks end: what is below is not in use.
    pub(crate) stacks: Vec<u64>,
}

impl Process {
    pub(crate) fn open(pid: u32) -> Result<Process, Error> {
        let task = task_of(pid);
        Process::with(pid, task, read_areas(pid, task, "smaps")?)
    }

    /// Opens a process whose areas are known.
    pub(crate) fn with(pid: u32, task: u32, areas: Vec<Area>) -> Result<Process, Error> {
        if areas.is_empty() {
            return Err(Error::NoMemory(pid));
        }
        let pages = File::open(format!("/proc/{task}/pagemap"));
        let pages = pages.map_err(|error| refused(pid, &error))?;
        let page = rustix::param::page_size() as u64;
        let mut process = Process { pid, task, areas, page, pages, memory: None };
        process.choose_way()?;
        Ok(process)
    }

    /// Finds the way by which its memory can be read, by a byte of it.
    fn choose_way(&mut self) -> Result<(), Error> {
        let Some(area) = self.areas.iter().find(|area| area.resident > 0) else {
            return Err(Error::NoMemory(self.pid));
        };
        let (at, mut byte) = (area.range.start, [0]);
        // A file that is open leads to the memory when the thread has ended, too.
        if self.task == self.pid {
            match self.read_pieces(&[(at, 1)], &mut byte) {
                Ok(_) => return Ok(()),
                // The way is open; this byte is not to be read.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                    return Err(Error::NoMemory(self.pid));
                }
                Err(_) => {}
            }
        }
        let memory = File::open(format!("/proc/{}/mem", self.task));
        self.memory = Some(memory.map_err(|error| refused(self.pid, &error))?);
        Ok(())
    }

    /// Reads pieces of its memory, one behind the other: how many bytes it has read.
    fn read_pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> io::Result<usize> {
        debug_assert_eq!(pieces.iter().map(|piece| piece.1).sum::<usize>(), into.len());
        let there: Vec<_> = pieces
            .iter()
            .map(|&(at, bytes)| libc::iovec { iov_base: at as *mut _, iov_len: bytes })
            .collect();
        let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: `here` is a buffer of the caller's, of that length; the other addresses are another process's,
        // which the kernel checks.
        let read = unsafe {
            let pid = self.pid as libc::pid_t;
            libc::process_vm_readv(pid, &raw const here, 1, there.as_ptr(), there.len() as _, 0)
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Threads, and those that sleep at this moment.
    pub(crate) fn threads(&self) -> Threads {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let states = tasks.flatten().filter_map(|task| {
            let stat = text(task.path().join("stat")).ok()?;
            Some(stat.rsplit_once(") ")?.1.starts_with('S'))
        });
        states.fold(Threads { all: 0, asleep: 0 }, |threads, asleep| Threads {
            all: threads.all + 1,
            asleep: threads.asleep + u64::from(asleep),
        })
    }

    /// What the kernel shows of registers: of threads that wait in a system call its arguments, and where their stacks end.
    pub(crate) fn registers(&self) -> Registers {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let calls =
            tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("syscall")).ok());
        let mut registers = Registers::default();
        for call in calls {
            let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
            let words: Vec<_> = call.split_ascii_whitespace().filter_map(number).collect();
            // The last two: the stack's end, and where the program is.
            if let [arguments @ .., stack, _] = words.as_slice() {
                registers.words.extend(arguments);
                registers.stacks.push(*stack);
            }
        }
        registers
    }

    /// The names of its threads.
    pub(crate) fn thread_names(&self) -> BTreeMap<u32, String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let named = tasks.flatten().filter_map(|task| {
            let number = task.file_name().to_str()?.parse().ok()?;
            Some((number, named(&fs::read(task.path().join("comm")).ok()?)))
        });
        named.collect()
    }

    /// What the kernel calls resident.
    pub(crate) fn resident(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.task)).ok()?;
        text.lines().find_map(|line| kib(line, "Rss:"))
    }

    /// Where a file of it is here, as [`file`] says.
    pub(crate) fn file(&self, path: impl AsRef<Path>, area: &Range<u64>) -> PathBuf {
        file_by(self.task, path, area)
    }

    /// The program's name.
    pub(crate) fn name(&self) -> String {
        named(&fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default())
    }
}

impl Memory for Process {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        match &self.memory {
            Some(memory) => memory.read_exact_at(into, at).is_ok(),
            None => {
                let bytes = into.len();
                bytes == 0 || self.read_pieces(&[(at, bytes)], into).is_ok_and(|read| read == bytes)
            }
        }
    }

    fn words(&self, places: &[u64]) -> Vec<u64> {
        let mut words = Vec::with_capacity(places.len());
        if self.memory.is_some() {
            words.extend(places.iter().map(|&at| self.number(at).unwrap_or(0)));
            return words;
        }
        let mut bytes = [0; 8 * AT_ONCE];
        let mut rest = places;
        while !rest.is_empty() {
            let pieces: Vec<_> = rest.iter().take(AT_ONCE).map(|&at| (at, 8)).collect();
            let into = &mut bytes[..8 * pieces.len()];
            let count = self.read_pieces(&pieces, into).unwrap_or(0) / 8;
            words.extend((0..count).map(|nth| u64_at(into, 8 * nth)));
            // The kernel stops at the first piece that is not there.
            if count < pieces.len() {
                words.push(0);
            }
            rest = &places[words.len()..];
        }
        words
    }

    fn pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) {
        let (mut rest, mut into) = (pieces, into);
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(AT_ONCE)];
            let bytes = now.iter().map(|piece| piece.1).sum();
            let read = match &self.memory {
                Some(_) => 0,
                None => self.read_pieces(now, &mut into[..bytes]).unwrap_or(0),
            };
            let (mut done, mut count) = (0, 0);
            while count < now.len() && done + now[count].1 <= read {
                done += now[count].1;
                count += 1;
            }
            // The kernel stops at the first piece that is not there.
            if let Some(&(at, bytes)) = now.get(count) {
                let piece = &mut into[done..done + bytes];
                if !self.read(at, piece) {
                    piece.fill(0);
                }
                (done, count) = (done + bytes, count + 1);
            }
            (rest, into) = (&rest[count..], &mut into[done..]);
        }
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn page(&self) -> u64 {
        self.page
    }

    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn look(&self, from: u64, count: u64, area: &Area, mark: &mut dyn FnMut(u64)) {
        if area.present() == 0 {
            return;
        }
        if scan::each_run(&self.pages, from..from + count * self.page, &mut |run| {
            run.step_by(self.page as usize).for_each(&mut *mark);
        }) {
            return;
        }
        // An older kernel. It does not count the one page of zeros, which the bit of presence does, as it does pages that a
        // forked process shares. Of an area that is looked at as a whole the kernel's count decides.
        let (mut sure, mut others) = (0, Vec::new());
        self.each_entry(from, count, &mut |at, entry| {
            if entry & (EXCLUSIVE | OF_A_FILE) != 0 {
                sure += 1;
                mark(at);
            } else {
                others.push(at);
            }
        });
        let is_whole = count * self.page == area.range.end - area.range.start;
        let (wanted, present) = (area.present() / self.page, sure + others.len() as u64);
        if !is_whole || wanted.abs_diff(present) <= wanted.abs_diff(sure) {
            others.into_iter().for_each(mark);
        }
    }
}

impl Process {
    /// The entries of present pages.
    fn each_entry(&self, from: u64, count: u64, each: &mut dyn FnMut(u64, u64)) {
        let mut bytes = vec![0; (count.min(ENTRIES) * 8) as usize];
        let mut done = 0;
        while done < count {
            let now = (count - done).min(ENTRIES);
            let into = &mut bytes[..(now * 8) as usize];
            let first = from / self.page + done;
            if self.pages.read_exact_at(into, first * 8).is_err() {
                return;
            }
            for nth in 0..now {
                let entry = u64_at(into, (nth * 8) as usize);
                if entry & PRESENT != 0 {
                    each((first + nth) * self.page, entry);
                }
            }
            done += now;
        }
    }
}

/// Why a file of a process's cannot be opened.
fn refused(pid: u32, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::NoProcess(pid),
        _ if error.raw_os_error() == Some(libc::ESRCH) => Error::NoMemory(pid),
        ErrorKind::PermissionDenied => Error::not_permitted(pid),
        _ => Error::Unreadable(pid, error.to_string()),
    }
}

/// The name in a file, as it is: whoever prints it makes it harmless.
fn named(name: &[u8]) -> String {
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(name)).into_owned()
}

/// A file of a process's, as it sees it: in a container, for instance. One that has no name any more, as after an upgrade, is
/// where the kernel shows what is mapped there, to root. What has left its root behind, as a server does, is named by ours.
pub(crate) fn file(pid: u32, path: impl AsRef<Path>, area: &Range<u64>) -> PathBuf {
    file_by(task_of(pid), path, area)
}

/// The same by the task that stands for the process.
pub(crate) fn file_by(task: u32, path: impl AsRef<Path>, area: &Range<u64>) -> PathBuf {
    let (process, path) = (PathBuf::from(format!("/proc/{task}")), path.as_ref());
    match path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
        true => process.join("map_files").join(format!("{:x}-{:x}", area.start, area.end)),
        false => {
            let inside = process.join("root").join(path.strip_prefix("/").unwrap_or(path));
            if inside.exists() { inside } else { path.to_owned() }
        }
    }
}

/// The areas of a process, without what is resident of them: then all may be.
pub(crate) fn quick_areas(pid: u32, task: u32) -> Result<Vec<Area>, Error> {
    let mut areas = read_areas(pid, task, "maps")?;
    areas.iter_mut().for_each(|area| area.resident = area.range.end - area.range.start);
    Ok(areas)
}

fn read_areas(pid: u32, task: u32, name: &str) -> Result<Vec<Area>, Error> {
    let lines = fs::read(format!("/proc/{task}/{name}")).map_err(|error| refused(pid, &error))?;
    Ok(areas(&lines))
}

/// A file of the kernel's, of which names are of no use: those of files and of threads may be any bytes.
pub(crate) fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

fn kib(line: &str, name: &str) -> Option<u64> {
    let number = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
    number.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The areas that `smaps` tells of.
pub(crate) fn areas(lines: &[u8]) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for line in lines.split(|&byte| byte == b'\n') {
        if let Some(area) = head(line) {
            areas.push(area);
        } else if let (Some(area), Ok(line)) = (areas.last_mut(), str::from_utf8(line)) {
            let name = line.split_inclusive(':').next().unwrap_or(line);
            let place = match name {
                "Rss:" => &mut area.resident,
                "Swap:" => &mut area.swapped,
                "AnonHugePages:" => &mut area.huge,
                "Private_Hugetlb:" | "Shared_Hugetlb:" => &mut area.hugetlb,
                _ => continue,
            };
            *place = place.saturating_add(kib(line, name).unwrap_or(0));
        }
    }
    areas
}

/// The first line of an area: `from-to rwxp offset device inode path`.
fn head(line: &[u8]) -> Option<Area> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut word = || str::from_utf8(words.next()?).ok();
    let (from, to) = word()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let range: Range<u64> = number(from)?..number(to)?;
    let rights = word()?;
    let has = |right| rights.contains(right);
    let offset = number(word()?)?;
    let path = words.nth(2).map(<[u8]>::trim_ascii_start).filter(|path| !path.is_empty());
    let kind = match path {
        Some(b"[heap]") => Kind::Brk,
        Some(path) if path.starts_with(b"[stack") => Kind::Stack,
        Some(path) if !path.starts_with(b"[") => Kind::File,
        _ => Kind::Anonymous,
    };
    let path = path.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    (range.start < range.end).then_some(Area {
        range,
        kind,
        path,
        offset,
        reads: has('r'),
        runs: has('x'),
        writes: has('w'),
        shared: has('s'),
        resident: 0,
        swapped: 0,
        huge: 0,
        hugetlb: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::{Memory, Process, areas};
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// Where `process_vm_readv` is refused, the file says the same.
    #[test]
    fn both_ways_read_the_same() {
        let text: Vec<u64> = (0..10_000).collect();
        let at = text.as_ptr().addr() as u64;
        let mut process = Process::open(std::process::id()).unwrap();
        let places: Vec<_> = (0..3000).map(|nth| at + nth * 8).chain([0, 8, at]).collect();
        let mut expected: Vec<u64> = (0..3000).chain([0, 0, 0]).collect();
        expected[3002] = 0;
        for memory in [None, Some(File::open("/proc/self/mem").unwrap())] {
            process.memory = memory;
            assert_eq!(process.words(&places), expected);
            assert_eq!(process.number(at + 80), Some(10));
            assert!(!process.read(0, &mut [0; 8]));
        }
    }

    #[test]
    fn areas_are_found_in_smaps() {
        let lines = b"1000-3000 r-xp 00001000 08:01 42   /a b/caf\xe9\n\
                    Rss:                   8 kB\nAnonHugePages:         0 kB\nVmFlags: rd ex\n\
                    nonsense\n5000-4000 rw-p 0 0 0\n\
                    7000-9000 rw-p 00000000 00:00 0                          [heap]\nRss: 4 kB\nSwap: 4 kB\n";
        let areas = areas(lines);
        assert_eq!(areas.len(), 2);
        let path = Path::new(OsStr::from_bytes(b"/a b/caf\xe9"));
        assert_eq!(areas[0].path.as_deref(), Some(path));
        assert_eq!((areas[0].range.clone(), areas[0].offset), (0x1000..0x3000, 0x1000));
        assert!(areas[0].runs && !areas[1].runs);
        assert!(areas[1].writes && !areas[0].writes);
        assert_eq!((areas[0].resident, areas[1].resident, areas[1].swapped), (8192, 4096, 4096));
    }
}
