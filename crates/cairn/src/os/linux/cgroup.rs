//! Owns: how near the process's memory cgroup is to its limit.
//! Idea: the group with the lowest limit is found once; then two small files are read at each look.
//!   They are opened and closed each time: a descriptor that is kept shows in the program, which may
//!   close it.
//! Never: allocates, or keeps a file open.
//! Threads: any; one lock, for which group it is and while its files are read.
//! Checked: the purge thread's tests of the C layer, in groups of their own.
//! Story: docs/design/purging.md

use super::read_file;
use crate::base::{AtomicBool, Ordering};
use crate::os::tuning::CGROUP_PATH_BYTES;
use crate::os::{Guard, Lock};
use core::ffi::CStr;

/// From here on it is none: what the first version says where there is none.
const NO_LIMIT: u64 = 1 << 60;
/// Bytes read of a file: what is wanted of the long ones stands there. The first version's list of groups has a line for each of
/// a dozen.
const ROOM: usize = 4096;

/// What the versions of cgroups differ by.
struct Version {
    mount: &'static [u8],
    /// Beyond each of these the kernel stops the group, or ends processes of it.
    limits: [&'static [u8]; 2],
    used: &'static [u8],
    /// What begins the lines of `memory.stat` with pages of files, which go when memory is short.
    files: [&'static [u8]; 2],
    /// Where it is counted how many processes were ended.
    events: &'static [u8],
}

impl Version {
    /// The lower of the limits of a group, whose folder these parts are; `NO_LIMIT` or more if there is none.
    #[inline(never)]
    fn limit(&self, [mount, path]: &[&[u8]; 2]) -> u64 {
        let of = |name| number([mount, path, name]).unwrap_or(NO_LIMIT);
        self.limits.into_iter().map(of).min().unwrap_or(NO_LIMIT)
    }
}

const V1: Version = Version {
    mount: b"/sys/fs/cgroup/memory",
    limits: [b"/memory.limit_in_bytes"; 2],
    used: b"/memory.usage_in_bytes",
    files: [b"total_inactive_file ", b"total_active_file "],
    events: b"/memory.oom_control",
};
const V2: Version = Version {
    mount: b"/sys/fs/cgroup",
    limits: [b"/memory.max", b"/memory.high"],
    used: b"/memory.current",
    files: [b"inactive_file ", b"active_file "],
    events: b"/memory.events",
};

/// The group with the lowest limit, of those that the process is in.
pub(crate) struct Group {
    version: &'static Version,
    folder: Path,
}

/// It, if there is one; None: nobody has looked for it.
static GROUP: Lock<Option<Option<Group>>> = Lock::new(None);

/// Where long files are read to. Not on the stack: who calls `malloc` may have a small one.
static LONG_FILE: Lock<[u8; ROOM]> = Lock::new([0; ROOM]);

#[inline(never)]
fn long_file() -> Guard<'static, [u8; ROOM]> {
    LONG_FILE.lock()
}

/// See `is_hidden`. Relaxed: under the same lock.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// What a file holds.
fn read<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let held = read_file(path, room);
    if let Err(libc::EMFILE | libc::ENFILE | libc::ENOMEM) = held {
        HIDDEN.store(true, Ordering::Relaxed);
    }
    held.ok()
}

/// What a group has, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct GroupUse {
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl Group {
    /// It, looked for if nobody has: `Some(None)` where there is none.
    #[inline(never)]
    pub(crate) fn known() -> Guard<'static, Option<Option<Group>>> {
        let mut group = GROUP.lock();
        if group.is_none() {
            HIDDEN.store(false, Ordering::Relaxed);
            let found = Group::find();
            if found.is_some() || !Group::is_hidden() {
                *group = Some(found);
            }
        }
        group
    }

    /// Keeps others from looking meanwhile.
    pub(crate) fn hold() -> Guard<'static, Option<Option<Group>>> {
        GROUP.lock()
    }

    /// Whether the last one who looked could not, for want of descriptors or memory: later somebody can. Under the lock.
    pub(crate) fn is_hidden() -> bool {
        HIDDEN.load(Ordering::Relaxed)
    }

    /// Looks for another one where it has no limit now. If there is none it stays: it may get a limit again.
    pub(crate) fn find_again(known: &mut Option<Option<Group>>) {
        if let Some(Some(group)) = known
            && let Some(other) = Group::find()
        {
            *group = other;
        }
    }

    /// Takes a folder with files like the second version's for it.
    #[cfg(test)]
    pub(crate) fn set(folder: &std::path::Path) {
        let folder = Path::of(&[folder.as_os_str().as_encoded_bytes()]).expect("a short path");
        *GROUP.lock() = Some(Some(Group { version: &V2, folder }));
    }

    /// In a forked child, before it has a second thread: it may be in another group soon.
    pub(crate) fn forget_in_child() {
        GROUP.settle_in_child();
        LONG_FILE.settle_in_child();
        // SAFETY: there is one thread; if it was looking, it finds nothing, and looks again.
        unsafe { *GROUP.alone() = None };
    }

    /// Looks for it; None if no group has a limit, or none that can be seen.
    #[inline(never)]
    fn find() -> Option<Group> {
        let mut room = long_file();
        let list = read(c"/proc/self/cgroup", &mut *room)?;
        let (version, path) = place(list)?;
        let mut path = path.strip_suffix(b"/").unwrap_or(path);
        let mut lowest = (NO_LIMIT, path);
        loop {
            let limit = version.limit(&[version.mount, path]);
            if limit < lowest.0 {
                lowest = (limit, path);
            }
            // Up to the root of what is mounted: in a container, often the group itself.
            let Some(end) = path.iter().rposition(|&b| b == b'/') else { break };
            path = path.get(..end)?;
        }
        let (limit, path) = lowest;
        let folder = (limit < NO_LIMIT).then(|| Path::of(&[version.mount, path]))??;
        Some(Group { version, folder })
    }

    /// The lower of its limits; None if it has none now.
    fn limit(&self) -> Option<u64> {
        let limit = self.version.limit(&[self.folder.text(), b""]);
        (limit < NO_LIMIT).then_some(limit)
    }

    /// What it has; None if there is no limit now.
    pub(crate) fn usage(&self) -> Option<GroupUse> {
        HIDDEN.store(false, Ordering::Relaxed);
        Some(GroupUse { used: self.number(self.version.used)?, limit: self.limit()? })
    }

    /// Bytes of files that it has in memory.
    pub(crate) fn files(&self) -> Option<u64> {
        let mut room = long_file();
        let stat = self.read(b"/memory.stat", &mut *room)?;
        Some(self.version.files.into_iter().filter_map(|name| value(stat, name)).sum())
    }

    /// How often it has come to a limit, and how many processes were ended for that.
    pub(crate) fn events(&self) -> [u64; 2] {
        let mut room = long_file();
        let hits = self.number(b"/memory.failcnt").unwrap_or(0);
        let Some(events) = self.read(self.version.events, &mut *room) else { return [hits, 0] };
        let count = |name: &[u8]| value(events, name).unwrap_or(0);
        [hits + count(b"max ") + count(b"high "), count(b"oom_kill ")]
    }

    /// In which part of the last 10 seconds some process of it waited for memory, in hundredths of a percent.
    pub(crate) fn pressure(&self) -> u64 {
        let mut room = long_file();
        let text = self.read(b"/memory.pressure", &mut *room);
        let average = text.and_then(|text| {
            let mut parts = text.strip_prefix(b"some avg10=")?.splitn(3, |&b| !b.is_ascii_digit());
            Some(parsed(parts.next()?)? * 100 + parsed(parts.next()?)?)
        });
        average.unwrap_or(0)
    }

    /// The number in a file; None if there is another word, or no file.
    #[inline(never)]
    fn number(&self, name: &[u8]) -> Option<u64> {
        number([self.folder.text(), b"", name])
    }

    #[inline(never)]
    fn read<'a>(&self, name: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
        read_at([self.folder.text(), b"", name], room)
    }
}

/// What the file holds whose path these parts are.
#[inline(never)]
fn read_at<'a>(path: [&[u8]; 3], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut whole = Path::EMPTY;
    whole.set(&path)?;
    read(CStr::from_bytes_until_nul(&whole.0).ok()?, room)
}

/// The number in such a file; None if there is another word, or no file.
#[inline(never)]
fn number(path: [&[u8]; 3]) -> Option<u64> {
    let mut room = [0; 32];
    parsed(read_at(path, &mut room)?)
}

/// The number in the line of a file that begins so.
#[inline(never)]
fn value(text: &[u8], name: &[u8]) -> Option<u64> {
    text.split(|&b| b == b'\n').find_map(|line| parsed(line.strip_prefix(name)?))
}

#[inline(never)]
fn parsed(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.trim_ascii_end().parse().ok()
}

/// Which version's group, and which one of it, has the memory of a process with this `list`, of
/// lines like `4:cpu,memory:/path`. The second version's has no names: `0::/path`.
fn place(list: &[u8]) -> Option<(&'static Version, &[u8])> {
    let entry = |wanted: &[u8]| {
        list.split(|&b| b == b'\n').find_map(|line| {
            let mut fields = line.splitn(3, |&b| b == b':').skip(1);
            let (names, path) = (fields.next()?, fields.next()?);
            names.split(|&b| b == b',').any(|name| name == wanted).then_some(path)
        })
    };
    // Where both versions are mounted the second one may have other groups, without memory.
    entry(b"memory").map(|path| (&V1, path)).or_else(|| entry(b"").map(|path| (&V2, path)))
}

/// A file's path, with a zero at its end.
struct Path([u8; CGROUP_PATH_BYTES]);

impl Path {
    const EMPTY: Path = Path([0; CGROUP_PATH_BYTES]);

    /// These parts, one after the other; None if they are too long.
    fn of(parts: &[&[u8]]) -> Option<Path> {
        let mut path = Path::EMPTY;
        path.set(parts)?;
        Some(path)
    }

    /// Becomes these parts, if it is empty; None if they are too long.
    #[inline(never)]
    fn set(&mut self, parts: &[&[u8]]) -> Option<()> {
        let mut end = 0;
        for part in parts {
            self.0.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        (end < CGROUP_PATH_BYTES).then_some(())
    }

    /// Without the zeros.
    fn text(&self) -> &[u8] {
        self.0.split(|&b| b == 0).next().unwrap_or(&[])
    }
}
