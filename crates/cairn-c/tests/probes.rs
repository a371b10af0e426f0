//! The probes of the heap profile: the notes that tools find them by, and what whoever listens hears.

mod common;

use common::{Loading, Program, lacks, library, run, scratch_dir, skip_for_stand_in};
use object::elf;
use object::endian::LittleEndian;
use object::read::elf::{ElfFile64, ProgramHeader, SectionHeader};
use object::{Object, ObjectSection};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a note says.
#[derive(Clone, Debug)]
struct Probe {
    name: String,
    arguments: String,
    place: u64,
    base: u64,
    listeners: u64,
}

/// Three addresses, and three texts that end with a zero. None if the provider is another one.
fn probe(description: &[u8]) -> Option<Probe> {
    let (addresses, texts) = description.split_at(24);
    let address = |nth: usize| {
        let bytes = addresses[8 * nth..8 * nth + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    let mut texts = texts.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    (texts.next()? == "otel_memory").then_some(())?;
    Some(Probe {
        name: texts.next()?.into_owned(),
        arguments: texts.next()?.into_owned(),
        place: address(0),
        base: address(1),
        listeners: address(2),
    })
}

/// A file's probes, by name.
fn probes(file: &ElfFile64<'_, LittleEndian>) -> Vec<Probe> {
    let mut found = Vec::new();
    for section in file.elf_section_table().iter() {
        let Some(mut notes) = section.notes(LittleEndian, file.data()).expect("notes") else {
            continue;
        };
        while let Some(note) = notes.next().expect("a note") {
            if note.name() == b"stapsdt" && note.n_type(LittleEndian).0 == 3 {
                found.extend(probe(note.desc()));
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// Both probes are there, in one place each. What counts who listens is in the file, and stays writable.
fn found(path: &Path) -> [Probe; 2] {
    let bytes = fs::read(path).expect("the file is readable");
    let file = ElfFile64::parse(&*bytes).expect("an ELF file");
    let found = probes(&file);
    let what = format!("{}: {found:?}", path.display());
    let said = found.iter().map(|probe| (&*probe.name, &*probe.arguments)).collect::<Vec<_>>();
    let expected = match cfg!(target_arch = "x86_64") {
        true => [("alloc", "8@%rdi 8@%rsi 8@%rdx"), ("free", "8@%rdi")],
        false => [("alloc", "8@x0 8@x1 8@x2"), ("free", "8@x0")],
    };
    assert_eq!(said, expected, "{what}");
    let base = file.section_by_name(".stapsdt.base").map(|section| section.address());
    for probe in &found {
        assert_eq!(Some(probe.base), base, "{what}");
        let parts_with = |address: u64| {
            let parts = file.elf_program_headers().iter().filter(move |part| {
                let start = part.p_vaddr(LittleEndian);
                (start..start + part.p_filesz(LittleEndian)).contains(&address)
            });
            parts.map(|part| (part.p_type(LittleEndian), part.p_flags(LittleEndian).0))
        };
        let is = |address, wanted: elf::ProgramFlags| {
            let mut parts = parts_with(address);
            parts.any(|(kind, flags)| kind == elf::PT_LOAD && flags & wanted.0 != 0)
        };
        let is_sealed = parts_with(probe.listeners).any(|(kind, _)| kind == elf::PT_GNU_RELRO);
        assert!(is(probe.place, elf::PF_X) && is(probe.listeners, elf::PF_W), "{what}");
        assert!(!is_sealed && probe.listeners.is_multiple_of(2), "{what}");
    }
    assert_ne!(found[0].listeners, found[1].listeners, "{what}");
    found.try_into().expect("there are two")
}

/// A file without symbols.
fn stripped(path: &Path, nth: usize) -> PathBuf {
    let copy = scratch_dir().join(format!("probes-{nth}-{}", std::process::id()));
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&copy).arg(path);
    run(strip).assert_quiet_success("strip");
    copy
}

#[test]
fn the_notes_are_there_after_linking_and_stripping() {
    if skip_for_stand_in() {
        return;
    }
    let mut files = vec![library().shared.clone()];
    for loading in [Loading::Static, Loading::StaticPie] {
        files.extend(Program::build("nothing.c", loading).map(|program| program.path));
    }
    for (nth, file) in files.iter().enumerate() {
        found(file);
        let copy = stripped(file, nth);
        found(&copy);
        fs::remove_file(copy).expect("it was just written");
    }
}

/// Rust programs have them by another linker, perhaps.
#[test]
fn rust_programs_have_them() {
    if skip_for_stand_in() {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--release", "-p", "cairn-malloc", "--example", "requests"]);
    cargo.arg("--target-dir").arg(folder).env_remove("CARGO_BUILD_TARGET");
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    if cfg!(feature = "hardened") {
        cargo.args(["--features", "hardened"]);
    }
    run(cargo).assert_success("cargo");
    found(&folder.join("release/examples/requests"));
}

/// A tool that knows nothing of us finds them.
#[test]
fn gdb_finds_them() {
    if skip_for_stand_in() || lacks("gdb", "gdb") {
        return;
    }
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "info probes stap otel_memory"]).arg(&library().shared);
    let said = run(gdb).stdout;
    for probe in found(&library().shared) {
        let line = said.lines().find(|line| line.split_whitespace().nth(2) == Some(&probe.name));
        let line = line.unwrap_or_else(|| panic!("no {}:\n{said}", probe.name));
        let has = |address: u64| line.contains(&format!("{address:016x}"));
        assert!(has(probe.place) && has(probe.listeners), "{line}");
    }
}

#[cfg(target_arch = "x86_64")]
mod heard {
    use super::{found, library, run, scratch_dir, skip_for_stand_in};
    use crate::common::{EVERYWHERE, Loading, Program};
    use std::collections::BTreeMap;
    use std::fs;

    const RATE: f64 = (64 << 10) as f64;
    /// What the program asks for, and nobody else, while it listens.
    const SIZES: [usize; 6] = [1003, 200_003, 3011, 5021, 70_001, 90_001];

    /// Samples of blocks for which so many bytes were asked: allocated, freed, and what they stand for.
    #[derive(Debug, Default, PartialEq)]
    struct Samples {
        allocated: usize,
        freed: usize,
        weighted: usize,
    }

    /// What the program has heard: each block is allocated before it is freed, and freed before it is allocated again.
    fn heard(text: &str) -> BTreeMap<usize, Samples> {
        let mut live = BTreeMap::new();
        let mut all: BTreeMap<usize, Samples> = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["alloc", block, size, weighted] => {
                    let size = size.parse().expect("a number");
                    assert_eq!(live.insert(block, size), None, "{line}: allocated twice");
                    let samples = all.entry(size).or_default();
                    samples.allocated += 1;
                    samples.weighted += weighted.parse::<usize>().expect("a number");
                }
                ["free", block] => {
                    // What was allocated before anybody listened is freed, too.
                    if let Some(size) = live.remove(block) {
                        all.entry(size).or_default().freed += 1;
                    }
                }
                _ => panic!("{line}"),
            }
        }
        all
    }

    /// What the profile has of it.
    fn profiled(text: &str) -> BTreeMap<usize, Samples> {
        let mut all: BTreeMap<usize, Samples> = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("site ")) {
            let numbers: Vec<usize> =
                line.split(' ').take(6).map(|word| word.parse().expect("a number")).collect();
            let [weighed, _, allocated, bytes, freed, _] = numbers[..] else { panic!("{line}") };
            let size = bytes / allocated;
            let samples = all.entry(size).or_default();
            samples.allocated += allocated;
            samples.freed += freed;
            let each = size as f64 / -(-(weighed as f64) / RATE).exp_m1();
            samples.weighted += allocated * each.round() as usize;
        }
        all
    }

    /// Each sample of the profile is one event, with its weight; blocks that move or grow too.
    #[test]
    fn each_sample_is_one_event() {
        if skip_for_stand_in() {
            return;
        }
        let path = scratch_dir().join(format!("probes-profile-{}", std::process::id()));
        for loading in EVERYWHERE {
            let Some(program) = Program::build("probes.c", loading) else { continue };
            let is_static = loading == Loading::Static;
            let probes = found(if is_static { &program.path } else { &library().shared });
            let places = probes.iter().flat_map(|probe| [probe.place, probe.listeners]);
            let places: Vec<_> = places.map(|place| format!("{place:x}")).collect();
            let mut command = program.command(&places);
            command.env("CAIRN_PROFILE", &path).env("CAIRN_PROFILE_RATE", "64KiB");
            let outcome = run(command);
            outcome.assert_quiet_success(&format!("{loading:?}"));
            let heard = heard(&outcome.stdout);
            let profiled = profiled(&fs::read_to_string(&path).expect("a profile"));
            for size in SIZES {
                assert!(heard[&size].allocated > 100 && heard[&size].freed > 10, "{heard:?}");
                assert_eq!(heard[&size], profiled[&size], "{size} bytes, {loading:?}");
            }
            fs::remove_file(&path).expect("it was just written");
        }
    }
}
