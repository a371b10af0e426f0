//! `cairn guards`: switches guards on or off in a process that runs.
//!
//! Owns the way there: the symbol `cairn_header` in one of the files that the process has mapped, the header
//! behind it, and the two words that the header leads to. The one idea: a number is written into the process's
//! memory, and the process does the rest when it next looks. It must never write where a header of this
//! version has not been found.

use crate::advice::values;
use anyhow::{Result, bail, ensure};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSegment, ObjectSymbol, ReadCache};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// The header's first bytes and the version of it that is understood (`crates/cairn/src/report/outside.rs`).
const MAGIC: &[u8] = b"CAIRNHDR";
const VERSION: u32 = 7;
/// Where in the header the address of the two words stands, and how long it is then at least.
const GUARDS_OFFSET: u64 = 104;
const HEADER_BYTES: u32 = 112;
/// How often the process is asked whether it has followed, and how long is between.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Guard sampled blocks of a running process, or stop that
///
/// The process needs cairn as its allocator, and the command the rights of a debugger: those of root, or
/// the same user where the system lets users debug their processes. What guards find the process writes to its
/// own standard error. It follows at its next upkeep, which an idle process does not have.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of the process
    pid: u32,

    /// From one guarded block to the next: a number of bytes such as 10MiB or 512KiB; or off
    #[arg(default_value = "10MiB", value_parser = bytes)]
    bytes: u64,
}

fn bytes(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    let bytes = values::bytes(text.as_bytes()).ok_or("it is a number such as 10MiB, or off")?;
    Ok(bytes as u64)
}

/// Switches each copy of cairn in the process; one that cannot be does not keep others from it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let process = Process { pid: args.pid };
    let files = process.files()?.into_iter();
    let copies: Vec<_> =
        files.filter_map(|copy| Some((copy.header(&process)?, copy.path))).collect();
    ensure!(!copies.is_empty(), "process {} has no cairn in it, or an older one", args.pid);
    let mut all = Ok(());
    for (header, path) in &copies {
        match switch(&process, *header, args.bytes) {
            Ok(done) if copies.len() == 1 => println!("{done}"),
            Ok(done) => println!("{}: {done}", path.display()),
            Err(error) => {
                let failed = Err(error.context(path.display().to_string()));
                if let Err(earlier) = std::mem::replace(&mut all, failed) {
                    eprintln!("cairn: {earlier:#}");
                }
            }
        }
    }
    all
}

/// Writes what is wanted of a copy, and waits a little for the process to follow.
fn switch(process: &Process, header: u64, bytes: u64) -> Result<String> {
    let memory = process.memory()?;
    let words = words(&memory, header)?;
    memory.write(words, bytes)?;
    outcome(&memory, words, bytes)
}

/// What has become of it.
fn outcome(memory: &Memory, words: u64, bytes: u64) -> Result<String> {
    for _ in 0..LOOKS {
        sleep(PAUSE);
        let (wanted, done) = (memory.word(words)?, memory.word(words + 8)?);
        ensure!(wanted == bytes, "the process has no memory for guards");
        if done == bytes {
            return Ok(match bytes {
                0 => "guards are off".to_owned(),
                _ => format!("guards are on: one allocation in every {bytes} bytes"),
            });
        }
    }
    Ok("the process has been asked: it follows when it allocates".to_owned())
}

/// Where the two words are, by the header at an address.
fn words(memory: &Memory, header: u64) -> Result<u64> {
    let mut start = [0; 16];
    memory.read(header, &mut start)?;
    let number = |at: usize| start[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    ensure!(start.starts_with(MAGIC), "what is called cairn_header is none");
    ensure!(
        number(8) == VERSION && number(12) >= HEADER_BYTES,
        "another version of cairn, which this command cannot switch"
    );
    memory.word(header + GUARDS_OFFSET)
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

struct Process {
    pid: u32,
}

/// A file that the process runs code of, and where its first byte is mapped.
struct Mapped {
    path: PathBuf,
    base: u64,
}

impl Process {
    fn place(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// What to say of a failure to open one of its files.
    fn refused<T>(&self, result: std::io::Result<T>) -> Result<T> {
        let pid = self.pid;
        result.map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!("there is no process {pid}"),
            // It has ended since its file was opened, or nobody has waited for it yet.
            _ if error.raw_os_error() == Some(libc::ESRCH) => ended(pid),
            ErrorKind::PermissionDenied => anyhow::anyhow!(
                "not permitted to look into process {pid}: it takes the rights of a debugger (root, or \
                 CAP_SYS_PTRACE)"
            ),
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
            let Some((base, offset, runs, path)) = fields(line) else { continue };
            if offset == 0 && files.last().is_none_or(|(last, _)| last.path != path) {
                files.push((Mapped { path: path.to_owned(), base }, false));
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

/// Of a line of the list of mappings: the address, the place in the file, whether code is there, the file.
fn fields(line: &[u8]) -> Option<(u64, u64, bool, &Path)> {
    let slash = line.iter().position(|&byte| byte == b'/')?;
    let (numbers, path) = line.split_at(slash);
    let mut numbers = std::str::from_utf8(numbers).ok()?.split_ascii_whitespace();
    let base = u64::from_str_radix(numbers.next()?.split('-').next()?, 16).ok()?;
    let runs = numbers.next()?.contains('x');
    let offset = u64::from_str_radix(numbers.next()?, 16).ok()?;
    Some((base, offset, runs, Path::new(OsStr::from_bytes(path))))
}

impl Mapped {
    /// The address of the symbol `cairn_header`; None if the file has none, or cannot be read.
    fn header(&self, process: &Process) -> Option<u64> {
        // As the process sees it, in a container for instance.
        let inside = process.place("root").join(self.path.strip_prefix("/").ok()?);
        let contents = ReadCache::new(File::open(inside).ok()?);
        let file = ElfFile::<FileHeader64<Endianness>, _>::parse(&contents).ok()?;
        let first = file.segments().find(|segment| segment.file_range().0 == 0)?;
        let is_header = |name: object::Result<&str>| name == Ok("cairn_header");
        let address = file
            .dynamic_symbols()
            .chain(file.symbols())
            .find(|symbol| symbol.is_definition() && is_header(symbol.name()))?
            .address();
        Some(address.wrapping_sub(first.address()).wrapping_add(self.base))
    }
}
