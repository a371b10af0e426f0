//! The libraries that travel inside the command.
//!
//! Owns the embedded bytes and the file that the loader gets to see. The one idea: that file is
//! a cache, named after its contents and compared with the embedded bytes at each use. It must
//! never hand out a file that anyone but its user and the administrator could have written.

use anyhow::{Context, Result, bail, ensure};
use object::Object;
use rustix::fs::StatVfsMountFlags;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, io};

/// A library, as built and stripped by `build.rs`.
pub(crate) struct Library {
    pub(crate) contents: &'static [u8],
    /// Of its file; it names the contents by 16 hex digits.
    name: &'static str,
}

impl Library {
    /// The number that the linker has given it, in hexadecimal.
    pub(crate) fn build(&self) -> Option<String> {
        let file = object::File::parse(self.contents).ok()?;
        let id = file.build_id().ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The default build.
pub(crate) static DEFAULT: Library = Library {
    contents: include_bytes!(env!("EMBEDDED_LIBRARY")),
    name: concat!("libcairn-", env!("EMBEDDED_LIBRARY_HASH"), ".so"),
};

/// The hardened build.
pub(crate) static HARDENED: Library = Library {
    contents: include_bytes!(env!("EMBEDDED_HARDENED")),
    name: concat!("libcairn-hardened-", env!("EMBEDDED_HARDENED_HASH"), ".so"),
};

/// What is preloaded beside either: a `dlopen` whose plugins have the allocator of their host.
pub(crate) static PLUGINS: Library = Library {
    contents: include_bytes!(env!("EMBEDDED_PLUGINS")),
    name: concat!("libcairn-plugins-", env!("EMBEDDED_PLUGINS_HASH"), ".so"),
};

/// What is preloaded in front of the default build to record calls.
pub(crate) static RECORDER: Library = Library {
    contents: include_bytes!(env!("EMBEDDED_RECORDER")),
    name: concat!("libcairn-recorder-", env!("EMBEDDED_RECORDER_HASH"), ".so"),
};

/// What `cairn --version` prints behind the name.
pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (libcairn ", env!("EMBEDDED_LIBRARY_HASH8"), ")");

/// Write permission for others than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Read permission for everybody.
const READABLE_BY_ALL: u32 = 0o444;
/// In a directory with this bit, only the owner of an entry can replace it.
const STICKY: u32 = 0o1000;

/// The build that was asked for.
pub(crate) fn build(hardened: bool) -> &'static Library {
    if hardened { &HARDENED } else { &DEFAULT }
}

/// Whether a path is that of a build of cairn: of this command, another version, or the user.
pub(crate) fn is_cairn(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    // A version may follow.
    let stem = name.windows(3).position(|end| end == b".so").map(|at| &name[..at]);
    stem.is_some_and(|stem| stem == b"libcairn" || stem.starts_with(b"libcairn-"))
}

/// Makes sure that the library lies in a safe place and returns its path.
///
/// Files of other versions stay where they are: running programs may still start children with
/// them.
pub(crate) fn install(library: &Library) -> Result<PathBuf> {
    let mut obstacles = Vec::new();
    for directory in candidate_directories() {
        match install_in(&directory, library) {
            Ok(path) => return Ok(path),
            Err(error) => obstacles.push(format!("{}: {error:#}", directory.display())),
        }
    }
    bail!(
        "no directory to keep libcairn.so in ({}); set XDG_CACHE_HOME to one that is yours",
        obstacles.join("; ")
    )
}

/// The user's cache directory, then one for the user in the temporary directory. What root starts may become another user,
/// who has to find the library, too: unless a variable names the place, those come first that all can enter.
fn candidate_directories() -> Vec<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let temporary = env::temp_dir().join(format!("cairn-{}", rustix::process::getuid()));
    if let Some(cache) = absolute("XDG_CACHE_HOME") {
        return vec![cache.join("cairn"), temporary];
    }
    let of_system = is_root().then(|| PathBuf::from("/var/cache/cairn"));
    let of_user = absolute("HOME").map(|home| home.join(".cache/cairn"));
    let mut all: Vec<_> = of_user.into_iter().chain(of_system).chain([temporary]).collect();
    if is_root() {
        all.sort_by_key(|directory| !all_can_enter(directory));
    }
    all
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Whether other users reach what lies in the directory, or will when it has been made.
fn all_can_enter(directory: &Path) -> bool {
    let there = directory.ancestors().filter_map(|part| part.metadata().ok());
    there.into_iter().all(|metadata| metadata.mode() & 0o001 != 0)
}

fn install_in(directory: &Path, library: &Library) -> Result<PathBuf> {
    // Looked at before anything is made: under `sudo` with the home of another user, nothing
    // owned by root shall appear there.
    let existing = directory.ancestors().find(|path| path.exists()).context("not absolute")?;
    let real = existing.canonicalize()?;
    ensure_out_of_reach(&real)?;
    // From here on without symbolic links, so that what is checked is what is used.
    let directory = real.join(directory.strip_prefix(existing)?);
    make(&directory)?;
    let directory = directory.canonicalize()?;
    ensure_out_of_reach(&directory)?;
    ensure!(is_ours(&directory.metadata()?), "owned by another user, or others can write to it");
    ensure_loadable_from(&directory)?;

    let path = directory.join(library.name);
    if !is_intact(&path, library.contents) {
        write_atomically(&path, library.contents).context("cannot write libcairn.so")?;
    }
    Ok(path)
}

/// Makes a directory and those above it. What root makes all users can enter, whatever the mask of new files says.
fn make(directory: &Path) -> Result<()> {
    let mode = if is_root() { 0o755 } else { 0o700 };
    let missing: Vec<_> = directory.ancestors().take_while(|part| !part.exists()).collect();
    for part in missing.into_iter().rev() {
        match DirBuilder::new().mode(mode).create(part) {
            Ok(()) if is_root() => fs::set_permissions(part, Permissions::from_mode(mode))?,
            Ok(()) => {}
            // Somebody else has made it meanwhile.
            Err(_) if part.is_dir() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Fails if another user could exchange the directory or anything above it.
fn ensure_out_of_reach(directory: &Path) -> Result<()> {
    // The owner of the root directory holds everything below it anyway. Asked for, because in a
    // user namespace it need not be user 0.
    let trusted = [rustix::process::getuid().as_raw(), fs::metadata("/")?.uid()];
    for part in directory.ancestors() {
        let metadata = part.metadata()?;
        let others_can_exchange =
            metadata.mode() & WRITABLE_BY_OTHERS != 0 && metadata.mode() & STICKY == 0;
        ensure!(
            trusted.contains(&metadata.uid()) && !others_can_exchange,
            "other users can write to {}",
            part.display()
        );
    }
    Ok(())
}

/// Fails if the dynamic loader would not load a library from the directory.
fn ensure_loadable_from(directory: &Path) -> Result<()> {
    // LD_PRELOAD has no quoting: a space or a colon ends a path, a dollar starts a substitution.
    let unquotable = directory.as_os_str().as_bytes().iter().any(|byte| b" :$".contains(byte));
    ensure!(!unquotable, "LD_PRELOAD cannot hold a path with a space, a colon or a dollar sign");
    let flags = rustix::fs::statvfs(directory)?.f_flag;
    ensure!(!flags.contains(StatVfsMountFlags::NOEXEC), "mounted noexec");
    Ok(())
}

fn is_ours(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::getuid().as_raw()
        && metadata.mode() & WRITABLE_BY_OTHERS == 0
}

/// Whether the file is a plain file of ours with exactly the embedded contents, and root's one that all can read.
fn is_intact(path: &Path, expected: &[u8]) -> bool {
    let matches = || -> io::Result<bool> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let is_readable = !is_root() || metadata.mode() & READABLE_BY_ALL == READABLE_BY_ALL;
        let is_like_ours = metadata.is_file() && is_ours(&metadata) && is_readable;
        if !is_like_ours || metadata.len() != expected.len() as u64 {
            return Ok(false);
        }
        let mut contents = Vec::with_capacity(expected.len());
        file.read_to_end(&mut contents)?;
        Ok(contents == expected)
    };
    matches().unwrap_or(false)
}

/// Writes the library under a temporary name and renames it, so that no one sees half of it and
/// programs that run with a former file keep that. No fsync: after a crash [`is_intact`] finds
/// what is missing.
fn write_atomically(path: &Path, contents: &[u8]) -> Result<()> {
    let directory = path.parent().context("no directory")?;
    let mut file = tempfile::Builder::new().prefix(".libcairn-").tempfile_in(directory)?;
    file.write_all(contents)?;
    // Not when it is made: the mask of new files would take from it.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    let _: File = file.persist(path)?;
    Ok(())
}
