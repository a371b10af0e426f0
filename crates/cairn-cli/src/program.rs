//! The program to run: which file that is, and whether cairn can get into it.
//!
//! Owns the search in `PATH` and the inspection of ELF files and scripts. The one idea: every
//! case in which the loader would ignore `LD_PRELOAD`, or complain in riddles, is found before
//! exec and said in one line. It must never refuse what would have worked: a file that it may
//! execute but not read is left to the system.

use crate::embedded;
use crate::units::printable;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};
use rustix::fs::{Access, StatVfsMountFlags};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where glibc's execvp looks when there is no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// What execvp runs scripts without a `#!` line with.
const SHELL: &str = "/bin/sh";
/// How much of a script's first line the kernel reads (`BINPRM_BUF_SIZE`).
const SCRIPT_HEAD_BYTES: u64 = 256;
/// How many scripts may be each other's interpreters; the kernel gives up after five.
const MAX_SCRIPTS: usize = 5;

/// What to hand to execve.
pub(crate) struct Launch {
    /// The file.
    pub(crate) path: PathBuf,
    /// Its arguments, from the zeroth on.
    pub(crate) arguments: Vec<OsString>,
    /// The ELF file that will be loaded: the program, or what its script leads to.
    pub(crate) loaded: PathBuf,
}

/// A program that cannot be run with cairn.
#[derive(Debug, thiserror::Error)]
#[error("{}{reason}", self.subject())]
pub(crate) struct Unfit {
    /// The program.
    program: PathBuf,
    /// The interpreter that is the problem, if the program is a script.
    interpreter: Option<PathBuf>,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("not found in PATH")]
    NotInPath,
    #[error("no such file")]
    NoSuchFile,
    #[error("is a directory")]
    Directory,
    #[error("not executable")]
    NotExecutable,
    #[error("neither an ELF program nor a script")]
    UnknownFormat,
    #[error("damaged ELF file ({0})")]
    Damaged(object::read::Error),
    #[error("more than {MAX_SCRIPTS} scripts that are each other's interpreters")]
    TooManyScripts,
    #[error("statically linked, nothing can be preloaded: link libcairn.a into it instead")]
    Static,
    #[error("built for {found}, but this cairn is for {expected}", expected = library_architecture())]
    OtherArchitecture { found: String },
    #[error("its loader is {}, but libcairn.so needs the one of glibc: link libcairn.a into it instead", shown(.0))]
    OtherLoader(PathBuf),
    #[error("its loader {} does not exist", shown(.0))]
    LoaderMissing(PathBuf),
    #[error("set-uid or set-gid, the loader ignores preloaded libraries for it")]
    SetId,
    #[error("has file capabilities, the loader ignores preloaded libraries for it")]
    Capabilities,
    #[error("cannot run: {0}")]
    System(io::Error),
}

impl Unfit {
    /// For a file that looked right but that execve refused.
    pub(crate) fn refused_by_system(path: PathBuf, error: io::Error) -> Self {
        Self { program: path, interpreter: None, reason: Reason::System(error) }
    }

    /// The exit status that shells give to such a program.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.reason {
            Reason::NotInPath | Reason::NoSuchFile if self.interpreter.is_none() => 127,
            _ => 126,
        }
    }

    fn subject(&self) -> String {
        let program = shown(&self.program);
        match &self.interpreter {
            None => format!("{program}: "),
            Some(interpreter) => format!("{program}: its interpreter {}: ", shown(interpreter)),
        }
    }
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Finds the program and follows it, through scripts, to the ELF file that will be loaded.
pub(crate) fn resolve(command: &[OsString]) -> Result<Launch, Unfit> {
    let mut program = None;
    let result = follow(command, &mut program);
    result.map_err(|(file, reason)| match program {
        Some(program) if program != file => Unfit { program, interpreter: Some(file), reason },
        _ => Unfit { program: file, interpreter: None, reason },
    })
}

/// A failure and the file it is about.
type Fault = (PathBuf, Reason);

/// Does the work of [`resolve`] and sets `program` as soon as it is found.
///
/// What `env` and execvp would do for a script is done here, and the outcome is exec'd: an `env`
/// in between would be the program that has cairn, and with `--no-inherit` the only one. From
/// the first interpreter that the kernel starts, there is only inspection.
fn follow(command: &[OsString], program: &mut Option<PathBuf>) -> Result<Launch, Fault> {
    let mut file = find(&command[0])?;
    let mut launch =
        Launch { path: file.clone(), arguments: command.to_vec(), loaded: PathBuf::new() };
    *program = Some(launch.path.clone());
    let mut left_to_kernel = false;

    for _ in 0..=MAX_SCRIPTS {
        let at_file = |reason| (file.clone(), reason);
        let next = match Format::of(&file).map_err(at_file)? {
            Format::Elf(contents) => {
                check_privileges(&file).map_err(at_file)?;
                // The loader run as a program loads another one, with what is preloaded.
                if !is_loader_of_glibc(&file) {
                    check_elf(&contents).map_err(at_file)?;
                }
                return Ok(Launch { loaded: file, ..launch });
            }
            Format::Unreadable => {
                check_privileges(&file).map_err(at_file)?;
                return Ok(Launch { loaded: file, ..launch });
            }
            Format::Script { interpreter, argument } => {
                let words = words_for_env(&interpreter, argument.as_deref());
                left_to_kernel |= words.is_empty();
                if words.is_empty() { vec![interpreter] } else { words }
            }
            Format::Text => vec![OsString::from(SHELL)],
        };
        let script = std::mem::replace(&mut file, find(&next[0])?);
        if !left_to_kernel {
            launch.path.clone_from(&file);
            launch.arguments.splice(0..1, next.into_iter().chain([script.into_os_string()]));
        }
    }
    Err((file, Reason::TooManyScripts))
}

/// The file that execvp would run.
fn find(name: &OsStr) -> Result<PathBuf, Fault> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match check_executable(&path) {
            Ok(()) => Ok(path),
            Err(reason) => Err((path, reason)),
        };
    }
    let directories = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut fault = (PathBuf::from(name), Reason::NotInPath);
    for directory in env::split_paths(&directories).filter(|_| !name.is_empty()) {
        let here = directory.as_os_str().is_empty();
        let path = if here { Path::new(".").join(name) } else { directory.join(name) };
        match check_executable(&path) {
            Ok(()) => return Ok(path),
            // Also a directory that the user may not search: shells do not mention it either.
            Err(Reason::NoSuchFile | Reason::System(_)) => {}
            Err(reason) => {
                if matches!(fault.1, Reason::NotInPath) {
                    fault = (path, reason);
                }
            }
        }
    }
    Err(fault)
}

fn check_executable(path: &Path) -> Result<(), Reason> {
    let metadata = path.metadata().map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Reason::NoSuchFile,
        _ => Reason::System(error),
    })?;
    if metadata.is_dir() {
        return Err(Reason::Directory);
    }
    let may_execute = rustix::fs::access(path, Access::EXEC_OK).is_ok();
    if metadata.is_file() && may_execute { Ok(()) } else { Err(Reason::NotExecutable) }
}

/// What kind of program a file is, as the kernel and execvp see it.
enum Format {
    Elf(ReadCache<File>),
    Script { interpreter: OsString, argument: Option<OsString> },
    Text,
    Unreadable,
}

impl Format {
    fn of(path: &Path) -> Result<Self, Reason> {
        let Ok(file) = File::open(path) else { return Ok(Self::Unreadable) };
        let mut head = Vec::new();
        (&file).take(SCRIPT_HEAD_BYTES).read_to_end(&mut head).map_err(Reason::System)?;
        let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
        if head.starts_with(&elf::ELFMAG) {
            Ok(Self::Elf(ReadCache::new(file)))
        } else if let Some(line) = line.strip_prefix(b"#!") {
            Self::script(line)
        } else if line.contains(&0) {
            Err(Reason::UnknownFormat)
        } else {
            Ok(Self::Text)
        }
    }

    /// Splits a `#!` line like the kernel: a path, and all the rest as one argument.
    fn script(line: &[u8]) -> Result<Self, Reason> {
        // Blanks are these two: a carriage return belongs to the name, and is shown in it.
        let is_blank = |byte: &u8| b" \t".contains(byte);
        let start = line.iter().position(|byte| !is_blank(byte)).unwrap_or(line.len());
        let end = line.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
        let line = &line[start..end];
        let (interpreter, argument) = match line.iter().position(is_blank) {
            Some(end) => (&line[..end], Some(line[end..].trim_ascii_start())),
            None => (line, None),
        };
        if interpreter.is_empty() {
            return Err(Reason::UnknownFormat);
        }
        // With a slash, because the kernel does not search in PATH.
        let interpreter = match interpreter.contains(&b'/') {
            true => OsStr::from_bytes(interpreter).to_owned(),
            false => Path::new(".").join(OsStr::from_bytes(interpreter)).into_os_string(),
        };
        Ok(Self::Script {
            interpreter,
            argument: argument.map(|a| OsStr::from_bytes(a).to_owned()),
        })
    }
}

/// The command that `#!/usr/bin/env ...` stands for; empty if it is not env, or if env has more
/// to do than to search in PATH.
fn words_for_env(interpreter: &OsStr, argument: Option<&OsStr>) -> Vec<OsString> {
    let argument = argument.map(OsStr::as_bytes).unwrap_or_default();
    if Path::new(interpreter).file_name() != Some(OsStr::new("env")) || argument.is_empty() {
        return Vec::new();
    }
    let words: Vec<&[u8]> = match argument.strip_prefix(b"-S") {
        Some(command) => command.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).collect(),
        None => vec![argument],
    };
    let special = |byte: &u8| b"\\\"'$#".contains(byte);
    let plain = words.iter().all(|word| !word.iter().any(special))
        && words.first().is_some_and(|word| word[0] != b'-' && !word.contains(&b'='));
    if !plain {
        return Vec::new();
    }
    words.into_iter().map(|word| OsStr::from_bytes(word).to_owned()).collect()
}

fn check_elf(contents: &ReadCache<File>) -> Result<(), Reason> {
    match FileKind::parse(contents).map_err(Reason::Damaged)? {
        FileKind::Elf32 => check_elf_of_class::<FileHeader32<Endianness>>(contents),
        FileKind::Elf64 => check_elf_of_class::<FileHeader64<Endianness>>(contents),
        _ => Err(Reason::UnknownFormat),
    }
}

fn check_elf_of_class<H>(contents: &ReadCache<File>) -> Result<(), Reason>
where
    H: FileHeader<Endian = Endianness>,
{
    let header = H::parse(contents).map_err(Reason::Damaged)?;
    let endian = header.endian().map_err(Reason::Damaged)?;
    let found = architecture(header, endian);
    if found != library_architecture() {
        return Err(Reason::OtherArchitecture { found });
    }
    if ![elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(endian)) {
        return Err(Reason::UnknownFormat);
    }
    for segment in header.program_headers(endian, contents).map_err(Reason::Damaged)? {
        if let Some(loader) = segment.interpreter(endian, contents).map_err(Reason::Damaged)? {
            return check_loader(Path::new(OsStr::from_bytes(loader)));
        }
    }
    Err(Reason::Static)
}

fn check_loader(loader: &Path) -> Result<(), Reason> {
    if !is_loader_of_glibc(loader) {
        Err(Reason::OtherLoader(loader.to_owned()))
    } else if !loader.exists() {
        Err(Reason::LoaderMissing(loader.to_owned()))
    } else {
        Ok(())
    }
}

/// By name, which is part of each architecture's binary interface: `ld-linux-x86-64.so.2`,
/// `ld64.so.1`, `ld.so.1`; the others are `ld-musl-x86_64.so.1` and `linker64`.
fn is_loader_of_glibc(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().as_bytes();
    [&b"ld-linux"[..], b"ld64.so", b"ld.so"].iter().any(|prefix| name.starts_with(prefix))
}

/// The architecture in words, with everything in which a program and a library must agree.
fn architecture<H: FileHeader<Endian = Endianness>>(header: &H, endian: Endianness) -> String {
    let machine = match header.e_machine(endian) {
        elf::EM_X86_64 => "x86-64".to_owned(),
        elf::EM_386 => "i386".to_owned(),
        elf::EM_AARCH64 => "aarch64".to_owned(),
        elf::EM_ARM => "arm".to_owned(),
        elf::EM_RISCV => "riscv".to_owned(),
        elf::EM_PPC64 => "powerpc64".to_owned(),
        elf::EM_S390 => "s390".to_owned(),
        elf::EM_LOONGARCH => "loongarch".to_owned(),
        other => format!("machine {}", other.0),
    };
    let class = if header.is_class_64() { "" } else { ", 32-bit" };
    // The default is the byte order of this machine.
    let order = if endian == Endianness::default() { "" } else { ", other byte order" };
    format!("{machine}{class}{order}")
}

/// Asked of the embedded library itself, so that there is no second list of targets.
fn library_architecture() -> String {
    let parsed = FileHeader64::<Endianness>::parse(embedded::DEFAULT.contents);
    parsed
        .and_then(|header| Ok(architecture(header, header.endian()?)))
        .unwrap_or_else(|_| env::consts::ARCH.to_owned())
}

/// Fails if the program gains privileges by exec: then the loader ignores `LD_PRELOAD`.
///
/// These are the conditions under which the kernel sets `AT_SECURE`: a set-uid program of the
/// user's own, for instance, gains nothing.
fn check_privileges(path: &Path) -> Result<(), Reason> {
    let ignored_on = |flags: StatVfsMountFlags| flags.contains(StatVfsMountFlags::NOSUID);
    if rustix::fs::statvfs(path).is_ok_and(|mount| ignored_on(mount.f_flag)) {
        return Ok(());
    }
    let no_new_privileges = rustix::thread::no_new_privs().unwrap_or(false);
    let metadata = path.metadata().map_err(Reason::System)?;
    if changes_id(&metadata) && !no_new_privileges {
        return Err(Reason::SetId);
    }
    let has_capabilities = rustix::fs::getxattr(path, "security.capability", &mut [0; 64][..]);
    if has_capabilities.is_ok() && !rustix::process::getuid().is_root() {
        return Err(Reason::Capabilities);
    }
    Ok(())
}

fn changes_id(metadata: &Metadata) -> bool {
    const SET_GID: u32 = libc::S_ISGID | libc::S_IXGRP;
    let set_uid = metadata.mode() & libc::S_ISUID != 0;
    let set_gid = metadata.mode() & SET_GID == SET_GID;
    set_uid && metadata.uid() != rustix::process::getuid().as_raw()
        || set_gid && metadata.gid() != rustix::process::getgid().as_raw()
}
