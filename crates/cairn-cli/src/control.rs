//! The way into a running process: where a header's words are, and how one of them is written.
//!
//! Owns the search for the symbol `cairn_header` in the files that the process has mapped, and the process's memory as a file.
//! The one idea: a number is written into the process's memory, and the process does the rest when it next looks. It must
//! never write where a header of this version has not been found.

use anyhow::{Result, bail, ensure};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// The header's first bytes and the version of it that is understood (`crates/cairn/src/report/outside.rs`).
const MAGIC: &[u8] = b"CAIRNHDR";
const VERSION: u32 = cairn_sight::HEADER_VERSION;
/// How often the process is asked whether it has followed, and how long is between.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// What of a process can be asked for from outside: two words, the first of which is what is wanted, the second what is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Bytes from one guarded block to the next.
    Guards,
    /// Bytes from one sample of the heap profile to the next.
    Profile,
}

impl Wish {
    /// Where in the header the words' address stands.
    fn offset(self) -> u32 {
        match self {
            Wish::Guards => 104,
            Wish::Profile => 144,
        }
    }
}

/// What has become of a wish.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The process does it.
    Done,
    /// It will when it next looks.
    Asked,
    /// It has no memory for it.
    Refused,
    /// Somebody else wants something else since.
    Overtaken,
}

/// The two words of a wish.
#[derive(Clone, Copy)]
pub(crate) struct State {
    /// What is wanted, 0 for nothing. A call of the program's makes it what is done.
    pub(crate) wanted: u64,
    /// What is done.
    pub(crate) done: u64,
}

impl State {
    /// Whether it is done, and nobody has switched it off: the process may not have followed that yet.
    pub(crate) fn is_on(self) -> bool {
        self.wanted != 0 && self.done != 0
    }
}

/// A copy of cairn in a process.
pub(crate) struct Copy {
    /// Its file.
    pub(crate) path: PathBuf,
    header: u64,
}

impl Copy {
    /// The copies in a process; there is one at least.
    pub(crate) fn all(process: &Process) -> Result<Vec<Copy>> {
        let files = process.files()?.into_iter();
        let copies: Vec<_> = files
            .filter_map(|file| Some(Copy { header: file.header(process)?, path: file.path }))
            .collect();
        ensure!(!copies.is_empty(), "process {} has no cairn in it, or an older one", process.pid);
        Ok(copies)
    }

    /// How far a wish is.
    pub(crate) fn state(&self, process: &Process, wish: Wish) -> Result<State> {
        let memory = process.memory()?;
        let words = words(&memory, self.header, wish)?;
        Ok(State { wanted: memory.word(words)?, done: memory.word(words + 8)? })
    }

    /// Writes what is wanted: where.
    pub(crate) fn tell(&self, process: &Process, wish: Wish, bytes: u64) -> Result<u64> {
        let memory = process.memory()?;
        let words = words(&memory, self.header, wish)?;
        memory.write(words, bytes)?;
        Ok(words)
    }

    /// Writes what is wanted, and waits a little for the process to follow.
    pub(crate) fn ask(&self, process: &Process, wish: Wish, bytes: u64) -> Result<Outcome> {
        let memory = process.memory()?;
        let before = self.state(process, wish)?.done;
        let words = self.tell(process, wish, bytes)?;
        for _ in 0..LOOKS {
            sleep(PAUSE);
            let (wanted, done) = (memory.word(words)?, memory.word(words + 8)?);
            if wanted != bytes {
                // Who cannot wants again what it does.
                let is_refused = wanted == before && done == before;
                return Ok(if is_refused { Outcome::Refused } else { Outcome::Overtaken });
            }
            if done == bytes {
                return Ok(Outcome::Done);
            }
        }
        Ok(Outcome::Asked)
    }
}

/// Where the two words of a wish are, by the header at an address.
fn words(memory: &Memory, header: u64, wish: Wish) -> Result<u64> {
    let mut start = [0; 16];
    memory.read(header, &mut start)?;
    let number = |at: usize| start[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    ensure!(start.starts_with(MAGIC), "what is called cairn_header is none");
    ensure!(
        number(8) == VERSION && number(12) >= wish.offset() + 8,
        "another version of cairn, which this command cannot switch"
    );
    memory.word(header + u64::from(wish.offset()))
}

/// The memory of a process. It is nobody's once the process has ended or become another program: what is read or
/// written is no byte then.
struct Memory {
    file: File,
    pid: u32,
}

impl Memory {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.known(self.file.read_exact_at(bytes, at), "cannot read its memory")
    }

    fn word(&self, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn write(&self, at: u64, word: u64) -> Result<()> {
        self.known(self.file.write_all_at(&word.to_ne_bytes(), at), "cannot write its memory")
    }

    fn known(&self, result: std::io::Result<()>, what: &'static str) -> Result<()> {
        result.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::WriteZero => ended(self.pid),
            _ => anyhow::Error::new(error).context(what),
        })
    }
}

fn ended(pid: u32) -> anyhow::Error {
    anyhow::anyhow!("process {pid} has ended, or runs another program now")
}

/// A process, by its number.
pub(crate) struct Process {
    pub(crate) pid: u32,
}

/// A file that the process runs code of, and where its beginning is mapped.
struct Mapped {
    path: PathBuf,
    area: Range<u64>,
}

impl Process {
    fn place(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(cairn_sight::task_of(self.pid).to_string()).join(name)
    }

    /// What to say of a failure to open one of its files.
    fn refused<T>(&self, result: std::io::Result<T>) -> Result<T> {
        let pid = self.pid;
        result.map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("there is no process {pid}"),
            // It has ended since its file was opened, or nobody has waited for it yet.
            _ if error.raw_os_error() == Some(libc::ESRCH) => ended(pid),
            ErrorKind::PermissionDenied => {
                anyhow::Error::new(cairn_sight::Error::not_permitted(pid))
                    .context("it takes the rights of a debugger")
            }
            _ => anyhow::Error::new(error).context(format!("process {pid}")),
        })
    }

    fn memory(&self) -> Result<Memory> {
        let file = OpenOptions::new().read(true).write(true).open(self.place("mem"));
        Ok(Memory { file: self.refused(file)?, pid: self.pid })
    }

    fn files(&self) -> Result<Vec<Mapped>> {
        let maps = self.refused(fs::read(self.place("maps")))?;
        if maps.is_empty() {
            bail!("process {} has no memory: it has ended, or is the kernel's", self.pid);
        }
        let mut files: Vec<(Mapped, bool)> = Vec::new();
        for line in maps.split(|&byte| byte == b'\n') {
            let Some((area, offset, runs, path)) = fields(line) else { continue };
            if offset == 0 && files.last().is_none_or(|(last, _)| last.path != path) {
                files.push((Mapped { path: path.to_owned(), area }, false));
            }
            if let Some((last, known)) = files.last_mut()
                && last.path == path
            {
                *known |= runs;
            }
        }
        Ok(files.into_iter().filter(|(_, runs)| *runs).map(|(file, _)| file).collect())
    }
}

/// Of a line of the list of mappings: the addresses, the place in the file, whether code is there, the file.
fn fields(line: &[u8]) -> Option<(Range<u64>, u64, bool, &Path)> {
    let slash = line.iter().position(|&byte| byte == b'/')?;
    let (numbers, path) = line.split_at(slash);
    let mut numbers = std::str::from_utf8(numbers).ok()?.split_ascii_whitespace();
    let address = |digits| u64::from_str_radix(digits, 16).ok();
    let (start, end) = numbers.next()?.split_once('-')?;
    let runs = numbers.next()?.contains('x');
    let offset = address(numbers.next()?)?;
    Some((address(start)?..address(end)?, offset, runs, Path::new(OsStr::from_bytes(path))))
}

impl Mapped {
    /// The address of the symbol `cairn_header`; None if the file has none, or cannot be read.
    fn header(&self, process: &Process) -> Option<u64> {
        let file = cairn_sight::mapped_file(process.pid, &self.path, &self.area)?;
        let contents = ReadCache::new(file);
        let file = ElfFile::<FileHeader64<Endianness>, _>::parse(&contents).ok()?;
        let first = file.segments().find(|segment| segment.file_range().0 == 0)?;
        let is_header = |name: object::Result<&str>| name == Ok("cairn_header");
        let address = file
            .dynamic_symbols()
            .chain(file.symbols())
            .find(|symbol| symbol.is_definition() && is_header(symbol.name()))?
            .address();
        Some(address.wrapping_sub(first.address()).wrapping_add(self.area.start))
    }
}
