//! Allocators that a program brings along: libraries that it is linked with, or code inside it.
//!
//! Owns what `cairn run --stats` and `cairn record` say of them: which of their names cairn serves, and which stay theirs. The one
//! idea: the loader itself is asked which libraries there will be, so that every variable and path counts, and their
//! symbol tables say the rest. It must never be in the way: what cannot be read is left out.

use crate::embedded::{self, Library};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SymbolKind, elf};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

type Names = BTreeSet<String>;

/// What allocators put in front of names of their own, so that cairn does not take them over.
const PREFIXES: [&str; 8] =
    ["je_", "_rjem_", "mi_", "tc_", "rp", "sn_rust_", "scalable_", "hoard_"];

/// The calls that come behind it.
const CALLS: [&str; 12] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "aligned_alloc",
    "memalign",
    "posix_memalign",
    "mallocx",
    "rallocx",
    "dallocx",
    "sdallocx",
    "malloc_aligned",
];

/// A name that tells the C library, whose malloc is no rival.
const OF_LIBC: &str = "__libc_start_main";

/// What allocators write in front of their messages, and a colon and a space: they are in a program whose symbols are
/// gone. What is searched for must not be in this program.
const SIGNS: [&[u8]; 3] = [b"<jemalloc>", b"mimalloc", b"tcmalloc"];

/// How many names a line has.
const SHOWN: usize = 4;

/// What a program or library has to do with allocators.
struct Linked {
    path: PathBuf,
    /// Names that it offers to others.
    offers: Names,
    /// Names that it wants from others.
    wants: Names,
    /// Names that it has for itself alone, as far as its symbols are there.
    keeps: Names,
}

/// Whether the file is the C library's, or one that lacks nothing to tell so.
pub(crate) fn is_libc(path: &Path) -> bool {
    Linked::read(path).is_none_or(|linked| linked.offers.contains(OF_LIBC))
}

/// What there is to say of the program, which will have these variables.
pub(crate) fn lines(
    program: &Path,
    library: &Library,
    variables: &[(OsString, OsString)],
) -> Vec<String> {
    said_of(program, library, variables).unwrap_or_default()
}

fn said_of(
    program: &Path,
    library: &Library,
    variables: &[(OsString, OsString)],
) -> Option<Vec<String>> {
    let file = ReadCache::new(File::open(program).ok()?);
    let loader = loader_of(&file)?;
    let own = ElfFile64::<Endianness, _>::parse(library.contents).ok()?;
    let cairns = names(own.dynamic_symbols(), true);
    let mut linked = vec![Linked::read(program)?];
    linked.extend(
        libraries(&loader, program, variables).iter().filter_map(|path| Linked::read(path)),
    );

    let of_libc = linked.iter().find(|one| one.offers.contains(OF_LIBC));
    let of_libc = of_libc.map(|libc| libc.offers.clone()).unwrap_or_default();
    let mut lines: Vec<String> = line_of_program(&linked[0], &cairns).into_iter().collect();
    for (at, rival) in linked.iter().enumerate().skip(1).filter(|(_, one)| one.is_allocator()) {
        let others = linked.iter().enumerate().filter(|(other, _)| *other != at);
        let wanted = others.flat_map(|(_, other)| other.wants.intersection(&rival.offers)).cloned();
        let (served, kept): (Names, Names) = wanted.partition(|name| cairns.contains(name));
        let kept = kept.difference(&of_libc).cloned().collect();
        lines.extend(line_of_library(&linked[0], rival, &served, &kept));
    }
    Some(lines.into_iter().map(|line| format!("{line}; see docs/guide/coming-from.md")).collect())
}

/// An allocator inside the program: the loader takes what the program has before what is preloaded.
fn line_of_program(program: &Linked, cairns: &Names) -> Option<String> {
    let name = name_of(&program.path);
    let instead: Names = program.offers.intersection(cairns).cloned().collect();
    if instead.contains("malloc") {
        return Some(format!(
            "{name} has a malloc of its own: cairn does not serve {}",
            shown(&instead)
        ));
    }
    let offered = program.offers.iter().filter(|name| is_prefixed(name));
    let beside: Names = offered.chain(&program.keeps).cloned().collect();
    if !beside.is_empty() {
        return Some(format!(
            "{name} has an allocator in it: cairn does not serve {}",
            shown(&beside)
        ));
    }
    let rival = spoken_of(&program.path)?;
    Some(format!(
        "{name} seems to have {rival} in it: cairn does not serve what it allocates by that"
    ))
}

/// The allocator whose messages are in a file.
fn spoken_of(path: &Path) -> Option<&'static str> {
    let file = ReadCache::new(File::open(path).ok()?);
    let parsed = ElfFile64::<Endianness, _>::parse(&file).ok()?;
    let texts = parsed.section_by_name(".rodata")?.data().ok()?;
    let has = |sign: &[u8]| {
        let is_message = |part: &[u8]| matches!(part.strip_prefix(sign), Some([b':', b' ']));
        texts.windows(sign.len() + 2).any(is_message)
    };
    let sign = SIGNS.into_iter().find(|sign| has(sign))?;
    std::str::from_utf8(sign).ok().map(|name| name.trim_matches(['<', '>']))
}

fn line_of_library(
    program: &Linked,
    rival: &Linked,
    served: &Names,
    kept: &Names,
) -> Option<String> {
    let what = match (served.is_empty(), kept.is_empty()) {
        (true, true) => return None,
        (false, true) => format!("serves {}", shown(served)),
        (true, false) => format!("does not serve {}", shown(kept)),
        (false, false) => format!("serves {}, but not {}", shown(served), shown(kept)),
    };
    Some(format!(
        "{} is linked with {}: cairn {what}",
        name_of(&program.path),
        name_of(&rival.path)
    ))
}

fn is_prefixed(name: &str) -> bool {
    PREFIXES
        .iter()
        .any(|prefix| name.strip_prefix(prefix).is_some_and(|call| CALLS.contains(&call)))
}

fn name_of(path: &Path) -> String {
    crate::advice::shown(path.file_name().unwrap_or(path.as_os_str()))
}

/// The first names, those that everybody knows in front, and how many more there are.
fn shown(names: &Names) -> String {
    let mut sorted: Vec<&str> = names.iter().map(String::as_str).collect();
    sorted.sort_by_key(|name| CALLS.iter().position(|call| call == name).unwrap_or(CALLS.len()));
    let first: Vec<&str> = sorted.into_iter().take(SHOWN).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

impl Linked {
    fn read(path: &Path) -> Option<Self> {
        let file = ReadCache::new(File::open(path).ok()?);
        let parsed = ElfFile64::<Endianness, _>::parse(&file).ok()?;
        let mut keeps = names(parsed.symbols(), true);
        // cairn's own header makes functions of these names, too, but not what is behind them in mimalloc.
        let has_mimalloc = keeps.iter().any(|name| name.starts_with("_mi_"));
        keeps.retain(|name| is_prefixed(name) && (has_mimalloc || !name.starts_with("mi_")));
        let offers = names(parsed.dynamic_symbols(), true);
        let wants = names(parsed.dynamic_symbols(), false);
        Some(Self { path: path.to_owned(), offers, wants, keeps })
    }

    fn is_allocator(&self) -> bool {
        let has_malloc = self.offers.contains("malloc") && !self.offers.contains(OF_LIBC);
        has_malloc || self.offers.iter().any(|name| is_prefixed(name))
    }
}

/// The names of functions that a table defines, or of all that it lacks.
fn names<'data>(symbols: impl Iterator<Item = impl ObjectSymbol<'data>>, defined: bool) -> Names {
    let is_meant = |symbol: &_| match defined {
        true => {
            ObjectSymbol::is_definition(symbol) && ObjectSymbol::kind(symbol) == SymbolKind::Text
        }
        false => ObjectSymbol::is_undefined(symbol),
    };
    let name = |symbol: &_| ObjectSymbol::name(symbol).ok().map(str::to_owned);
    symbols
        .filter(is_meant)
        .filter_map(|symbol| name(&symbol))
        .filter(|name| !name.is_empty())
        .collect()
}

fn loader_of(file: &ReadCache<File>) -> Option<PathBuf> {
    let header = elf::FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let loader =
        segments.iter().find_map(|segment| segment.interpreter(endian, file).ok().flatten())?;
    Some(OsStr::from_bytes(loader).into())
}

/// The libraries that the loader would load, but cairn. The loader may have a malloc, which it gives up to others.
fn libraries(loader: &Path, program: &Path, variables: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let mut command = Command::new(loader);
    command.arg("--list").arg(program).env_clear().envs(variables.iter().cloned());
    let Ok(output) = command.stdin(Stdio::null()).stderr(Stdio::null()).output() else {
        return Vec::new();
    };
    // "NAME => PATH (ADDRESS)", or "PATH (ADDRESS)".
    let path = |line: &[u8]| -> Option<PathBuf> {
        let line = line.trim_ascii();
        let end = line.windows(4).rposition(|part| part == b" (0x")?;
        let start = line.windows(4).position(|part| part == b" => ").map_or(0, |at| at + 4);
        let path = Path::new(OsStr::from_bytes(line.get(start..end)?));
        (path.is_absolute() && path != loader && !embedded::is_cairn(path)).then(|| path.to_owned())
    };
    output.stdout.split(|&byte| byte == b'\n').filter_map(path).collect()
}
