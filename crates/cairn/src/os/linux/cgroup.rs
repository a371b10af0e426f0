//! Owns: how near the process's memory cgroup is to its limit.
//! Idea: the group with the lowest limit is found once; then two small files are read at each look.
//!   They are opened and closed each time: a descriptor that is kept shows in the program, which may
//!   close it.
//! Never: allocates, or keeps a file open.
//! Threads: any; holds nothing.
//! Checked: the purge thread's tests of the C layer, in groups of their own.
//! Story: docs/design/purging.md

use super::read_file;
use crate::os::tuning::CGROUP_PATH_BYTES;
use core::ffi::CStr;

/// From here on it is none: what the first version says where there is none.
const NO_LIMIT: u64 = 1 << 60;

/// What the versions of cgroups differ by.
struct Version {
    mount: &'static [u8],
    limit: &'static [u8],
    used: &'static [u8],
}

const V1: Version = Version {
    mount: b"/sys/fs/cgroup/memory",
    limit: b"/memory.limit_in_bytes",
    used: b"/memory.usage_in_bytes",
};
const V2: Version =
    Version { mount: b"/sys/fs/cgroup", limit: b"/memory.max", used: b"/memory.current" };

/// The group with the lowest limit, of those that the process is in.
pub(crate) struct Group {
    limit: Path,
    used: Path,
}

impl Group {
    /// Looks for it; None if no group has a limit, or none that can be seen.
    pub(crate) fn find() -> Option<Group> {
        let mut room = [0; 4096];
        let list = read_file(c"/proc/self/cgroup", &mut room)?;
        let (version, path) = place(list)?;
        let mut lowest: Option<(u64, Group)> = None;
        let mut path = path.strip_suffix(b"/").unwrap_or(path);
        loop {
            if let Some(group) = Group::at(version, path)
                && let Some(limit) = number(&group.limit)
                && limit < lowest.as_ref().map_or(NO_LIMIT, |lowest| lowest.0)
            {
                lowest = Some((limit, group));
            }
            // Up to the root of what is mounted: in a container, often the group itself.
            let Some(end) = path.iter().rposition(|&b| b == b'/') else { break };
            path = path.get(..end)?;
        }
        Some(lowest?.1)
    }

    fn at(version: &Version, path: &[u8]) -> Option<Group> {
        let file = |name| Path::of(&[version.mount, path, name]);
        Some(Group { limit: file(version.limit)?, used: file(version.used)? })
    }

    /// Bytes in use, and how many may be; None if there is no limit now.
    pub(crate) fn used_and_limit(&self) -> Option<(u64, u64)> {
        let limit = number(&self.limit).filter(|&limit| limit < NO_LIMIT)?;
        Some((number(&self.used)?, limit))
    }
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
    /// These parts, one after the other; None if they are too long.
    fn of(parts: &[&[u8]]) -> Option<Path> {
        let mut path = [0; CGROUP_PATH_BYTES];
        let mut end = 0;
        for part in parts {
            path.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        (end < CGROUP_PATH_BYTES).then_some(Path(path))
    }
}

/// The number in a file; None if there is another word, or no file.
fn number(path: &Path) -> Option<u64> {
    let mut room = [0; 32];
    let text = read_file(CStr::from_bytes_until_nul(&path.0).ok()?, &mut room)?;
    core::str::from_utf8(text).ok()?.trim_ascii_end().parse().ok()
}
