//! Memory cgroups for programs.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A memory cgroup with one below it, that the program is in: both are gone with this.
pub(crate) struct Group {
    pub(crate) outer: PathBuf,
    pub(crate) inner: PathBuf,
    limit: &'static str,
}

impl Group {
    /// None where none can be made.
    pub(crate) fn new(name: &str) -> Option<Group> {
        let versions =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        versions.into_iter().find_map(|(mount, limit)| {
            let outer = Path::new(mount).join(format!("cairn-{name}-{}", std::process::id()));
            let inner = outer.join("inner");
            let group = Group { outer, inner, limit };
            std::fs::create_dir(&group.outer).ok()?;
            // The second version has to be told; in the first one there is no such file.
            let _ = std::fs::write(group.outer.join("cgroup.subtree_control"), "+memory");
            std::fs::create_dir(&group.inner).ok()?;
            group.inner.join(limit).exists().then_some(group)
        })
    }

    pub(crate) fn limit(&self, group: &Path, bytes: usize) {
        std::fs::write(group.join(self.limit), bytes.to_string()).expect("a limit");
    }

    /// Has the command run in the inner one.
    pub(crate) fn put(&self, command: &mut Command) {
        let file = self.inner.join("cgroup.procs");
        let file = CString::new(file.as_os_str().as_bytes()).expect("no zeros");
        // SAFETY: between fork and exec only async-signal-safe functions are called, with pointers
        // into the closure.
        unsafe {
            command.pre_exec(move || {
                let procs = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                match libc::write(procs, c"0".as_ptr().cast(), 1) {
                    1 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for group in [&self.inner, &self.outer] {
            // A process that has ended may take a moment to leave.
            for _ in 0..100 {
                match std::fs::remove_dir(group) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    _ => break,
                }
            }
        }
    }
}
