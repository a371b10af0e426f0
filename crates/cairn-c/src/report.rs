//! Where text goes: standard error, a file, a C stream, a few bytes; and glibc's XML. Whose it is.

use cairn::Stats;
use core::ffi::{CStr, c_int, c_long};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

const STDERR: c_int = 2;

/// This process's number; asked of the system each time, because a child may be without our
/// knowledge.
pub(crate) fn process() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { cairn::system_call(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Tells this process from all that it may come from by forks, as far as those are seen: in another namespace it may have the
/// number of one of them.
pub(crate) fn identity() -> u32 {
    process() ^ FORKS.load(Ordering::Relaxed)
}

/// The forks since the library was loaded, in the bits that no process's number has. Relaxed: a forked child has one thread.
static FORKS: AtomicU32 = AtomicU32::new(0);
const FORK: u32 = 1 << 22;

/// Sees forks from now on; false without memory for that.
pub(crate) fn see_forks() -> bool {
    // SAFETY: the handler stays loaded as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 }
}

extern "C" fn in_child() {
    FORKS.fetch_add(FORK, Ordering::Relaxed);
    if let Some(kept) = kept_stderr() {
        close(kept);
    }
    KEPT.store(-1, Ordering::Relaxed);
}

/// Writes to a descriptor, in pieces of a buffer's length.
pub(crate) struct Output {
    bytes: [u8; 512],
    len: usize,
    descriptor: c_int,
    /// Something was not taken.
    is_cut: bool,
}

impl Output {
    fn to(descriptor: c_int) -> Self {
        Self { bytes: [0; 512], len: 0, descriptor, is_cut: false }
    }

    /// Writes to standard error.
    pub(crate) fn to_stderr() -> Self {
        Self::to(STDERR)
    }

    /// Writes to standard error or, if the program has closed it and may use the number for something else, to where
    /// it led at the start; None if that is closed, too.
    #[inline(never)]
    pub(crate) fn to_first_stderr() -> Option<Self> {
        if stderr_takes_text() { Some(STDERR) } else { kept_stderr() }.map(Self::to)
    }

    /// Makes the file anew.
    pub(crate) fn to_file(path: &CStr) -> Option<Self> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
        open(path, flags).map(Self::to)
    }

    /// Writes bytes.
    #[inline(never)]
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.len == self.bytes.len() {
                self.flush();
            }
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
        }
    }

    fn flush(&mut self) {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        self.is_cut |= !cairn::write_all(self.descriptor, bytes);
        self.len = 0;
    }
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.flush();
        // The second one of standard error has perhaps more to take. That it takes nothing there is nobody to tell.
        if self.descriptor != STDERR && self.descriptor != KEPT.load(Ordering::Relaxed) {
            close(self.descriptor);
            if self.is_cut {
                warn_at_end(format_args!("a file is not whole; is the disk full?"));
            }
        }
    }
}

/// Writes bytes to standard error.
#[inline(always)]
pub(crate) fn line(text: &[u8]) {
    cairn::write_all(STDERR, text);
}

/// Makes a system call about a descriptor. Not the C library's functions: they are cancellation points, others may stand
/// in for them, and errno is the program's.
///
/// # Safety
/// As the call's; pointers among `rest` are exposed.
unsafe fn call(number: c_long, descriptor: c_int, rest: [usize; 3]) -> isize {
    let [b, c, d] = rest;
    // SAFETY: the caller's.
    unsafe { cairn::system_call(number, [descriptor as usize, b, c, d, 0, 0]) }
}

/// Which file a descriptor leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct File {
    device: u64,
    node: u64,
}

impl File {
    fn of(descriptor: c_int) -> Option<File> {
        look_at(descriptor).ok().map(|found| File { device: found.st_dev, node: found.st_ino })
    }
}

/// What the kernel says of a descriptor's file, or its error.
fn look_at(descriptor: c_int) -> Result<libc::stat, isize> {
    let mut found = core::mem::MaybeUninit::<libc::stat>::uninit();
    let at = found.as_mut_ptr().expose_provenance();
    // SAFETY: valid for writing, and written if the call succeeds: the kernel's struct is the C library's.
    unsafe {
        match call(libc::SYS_fstat, descriptor, [at, 0, 0]) {
            0 => Ok(found.assume_init()),
            error => Err(error),
        }
    }
}

/// Whether standard error leads where it led at the start, or else to something that is only written, as logs are: not to
/// data of the program's that has come to its number.
fn stderr_takes_text() -> bool {
    const NULL_DEVICE: u64 = libc::makedev(1, 3);
    let found = match look_at(STDERR) {
        Ok(found) => found,
        // In a sandbox where nobody may ask it counts as open.
        Err(error) => return error != -(libc::EBADF as isize),
    };
    if (File { device: found.st_dev, node: found.st_ino }) == first_stderr() {
        return true;
    }
    // SAFETY: the call takes numbers.
    let flags = unsafe { call(libc::SYS_fcntl, STDERR, [libc::F_GETFL as usize, 0, 0]) };
    // Sockets are open for both.
    flags as c_int & libc::O_ACCMODE == libc::O_WRONLY
        || (found.st_mode & libc::S_IFMT == libc::S_IFCHR && found.st_rdev == NULL_DEVICE)
        || stderr_is_a_terminal()
}

/// A second descriptor of standard error; -1: none.
static KEPT: AtomicI32 = AtomicI32::new(-1);
/// Where it led at the start; 0: nowhere.
static FIRST_DEVICE: AtomicU64 = AtomicU64::new(0);
static FIRST_NODE: AtomicU64 = AtomicU64::new(0);

/// Takes note of where standard error leads.
pub(crate) fn note_stderr() {
    let Some(file) = File::of(STDERR) else { return };
    FIRST_DEVICE.store(file.device, Ordering::Relaxed);
    FIRST_NODE.store(file.node, Ordering::Relaxed);
}

fn first_stderr() -> File {
    let order = Ordering::Relaxed;
    File { device: FIRST_DEVICE.load(order), node: FIRST_NODE.load(order) }
}

/// Keeps standard error, which has been noted: many programs, `ls` for one, close it before they are at their end. Forks are
/// seen: whoever reads a pipe to its end must not wait for children.
pub(crate) fn keep_stderr() {
    /// Beyond those that programs, shells among them, count on.
    const LEAST: [usize; 2] = [100, 10];
    let keep = |least| {
        // SAFETY: the call takes numbers.
        let kept =
            unsafe { call(libc::SYS_fcntl, STDERR, [libc::F_DUPFD_CLOEXEC as usize, least, 0]) };
        KEPT.store(kept as c_int, Ordering::Relaxed);
        kept >= 0
    };
    // Where fewer are allowed, one of the first.
    let _ = LEAST.into_iter().any(keep);
}

/// Whether standard error is a pipe or a socket, whose reader may wait until all have closed it.
pub(crate) fn has_reader() -> bool {
    look_at(STDERR)
        .is_ok_and(|found| matches!(found.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK))
}

/// Whether the process may write that file, or make files in that directory.
pub(crate) fn may_write(path: &CStr) -> bool {
    let arguments = [path.as_ptr().expose_provenance(), libc::W_OK as usize, 0];
    // SAFETY: the path ends with a zero.
    unsafe { call(libc::SYS_faccessat, libc::AT_FDCWD, arguments) == 0 }
}

/// The descriptor, unless the program has closed it and may use the number for another file.
fn kept_stderr() -> Option<c_int> {
    let kept = KEPT.load(Ordering::Relaxed);
    Some(kept).filter(|&kept| kept >= 0 && File::of(kept) == Some(first_stderr()))
}

/// Writes a warning of one line.
#[inline(never)]
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    let _ = writeln!(Output::to_stderr(), "cairn: {message}");
}

/// The same at the end of the process.
#[inline(never)]
pub(crate) fn warn_at_end(message: fmt::Arguments<'_>) {
    if let Some(mut out) = Output::to_first_stderr() {
        let _ = writeln!(out, "cairn: {message}");
    }
}

/// Whether somebody may be watching standard error.
pub(crate) fn stderr_is_a_terminal() -> bool {
    let mut settings = core::mem::MaybeUninit::<libc::termios>::uninit();
    let at = settings.as_mut_ptr().expose_provenance();
    // SAFETY: the kernel's settings are no longer than these.
    unsafe { call(libc::SYS_ioctl, STDERR, [libc::TCGETS as usize, at, 0]) == 0 }
}

/// What a file holds, as far as there is room.
pub(crate) fn read_file<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let mut len = 0;
    // In pieces: what /proc holds may come so.
    while let Some(rest) = room.get_mut(len..).filter(|rest| !rest.is_empty()) {
        let at = rest.as_mut_ptr().expose_provenance();
        // SAFETY: `rest` is valid for writing.
        let got = unsafe { call(libc::SYS_read, file, [at, rest.len(), 0]) };
        match usize::try_from(got) {
            Ok(more) if more > 0 => len += more,
            _ => break,
        }
    }
    close(file);
    room.get(..len)
}

/// A descriptor that is closed on exec.
fn open(path: &CStr, flags: c_int) -> Option<c_int> {
    const EVERYBODY: usize = 0o666;
    let arguments = [path.as_ptr().expose_provenance(), flags as usize, EVERYBODY];
    // SAFETY: a C string.
    let file = unsafe { call(libc::SYS_openat, libc::AT_FDCWD, arguments) };
    let file = c_int::try_from(file).ok().filter(|&file| file >= 0)?;
    if file > STDERR {
        return Some(file);
    }
    // The program has closed that one: what is written there is meant for somebody else.
    let arguments = [libc::F_DUPFD_CLOEXEC as usize, STDERR as usize + 1, 0];
    // SAFETY: the descriptor is this function's own.
    let moved = unsafe { call(libc::SYS_fcntl, file, arguments) };
    close(file);
    c_int::try_from(moved).ok().filter(|&moved| moved >= 0)
}

fn close(descriptor: c_int) {
    // SAFETY: the descriptor is the caller's own.
    unsafe { call(libc::SYS_close, descriptor, [0; 3]) };
}

/// Text in a place of fixed length.
pub(crate) struct Line<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Line<'a> {
    /// With nothing written.
    pub(crate) fn new(room: &'a mut [u8]) -> Self {
        Line { room, len: 0 }
    }

    /// What has been written.
    pub(crate) fn as_str(&self) -> &str {
        let text = self.room.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(text).unwrap_or("")
    }
}

impl Write for Line<'_> {
    #[inline(never)]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.room.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Writes to a C stream.
pub(crate) struct Stream(pub(crate) *mut libc::FILE);

impl Write for Stream {
    #[inline(never)]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the caller of malloc_info vouches for the stream.
        let n = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.0) };
        if n == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// malloc_info's document.
pub(crate) fn write_xml(out: &mut Stream) -> fmt::Result {
    let stats = Stats::take();
    let total = stats.total();
    writeln!(out, "<malloc version=\"cairn-1\">")?;
    writeln!(out, "<sizes>")?;
    for c in stats.classes.iter().filter(|c| c.spans > 0) {
        writeln!(
            out,
            "  <class size=\"{}\" spans=\"{}\" in_use=\"{}\" cached=\"{}\" free=\"{}\" \
             untouched=\"{}\"/>",
            c.size, c.spans, c.in_use, c.cached, c.free, c.untouched
        )?;
    }
    writeln!(out, "</sizes>")?;
    let amounts = [
        ("spans", stats.spans),
        ("large", stats.large),
        ("nurseries", stats.nurseries),
        ("mappings", stats.mappings),
        ("dirty", stats.dirty),
        ("metadata", stats.metadata),
        ("total", total),
    ];
    for (name, amount) in amounts {
        writeln!(
            out,
            "<amount type=\"{name}\" size=\"{}\" resident=\"{}\"/>",
            amount.bytes, amount.resident
        )?;
    }
    writeln!(out, "<allocated size=\"{}\"/>", stats.allocated())?;
    writeln!(out, "<returned size=\"{}\"/>", stats.given_back)?;
    writeln!(out, "<heaps in_use=\"{}\" count=\"{}\"/>", stats.heaps.0, stats.heaps.1)?;
    writeln!(out, "</malloc>")
}
