//! Writes a core file as the kernel does: segments of what is mapped, but for unchanged pages of files other than their
//! first, the list of these, holes where nothing is resident. Whether the system writes core files, and where, is its own affair.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE: u64 = 4096;
const PRESENT: u64 = 1 << 63;
const OF_A_FILE: u64 = 1 << 61;
const NT_FILE: u32 = 0x4649_4c45;
const NT_PRSTATUS: u32 = 1;
const NT_AUXV: u32 = 6;
/// Bytes of a note of a thread, and where it has the thread's number.
const STATUS_BYTES: usize = 400;
const STATUS_NUMBER: usize = 32;
/// Where it has registers, and which of them is the end of the stack.
const STATUS_REGISTERS: usize = 112;
const STACK: usize = if cfg!(target_arch = "aarch64") { 31 } else { 19 };
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;

struct Area {
    from: u64,
    to: u64,
    flags: u32,
    offset: u64,
    path: Option<Vec<u8>>,
    pages: Vec<u64>,
}

/// Writes the memory of a process, which runs on but had better be at rest.
pub(crate) fn write(pid: u32, to: &Path) {
    let areas = areas(pid);
    let mut notes = note(NT_FILE, &files(&areas));
    threads(pid).for_each(|thread| notes.extend(note(NT_PRSTATUS, &status(pid, thread))));
    notes.extend(note(NT_AUXV, &std::fs::read(format!("/proc/{pid}/auxv")).unwrap()));
    let count = areas.len() as u64 + 1;
    let notes_at = HEADER_BYTES + count * SEGMENT_BYTES;
    let mut head = elf_header(count as u16);
    head.extend(segment(4, 0, [notes_at, 0, 0, notes.len() as u64]));
    let mut at = (notes_at + notes.len() as u64).next_multiple_of(PAGE);
    let core = File::create(to).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    for area in &areas {
        let there = area.pages.last().map_or(0, |last| last + PAGE - area.from);
        let mut bytes = segment(1, area.flags, [at, area.from, 0, there]);
        bytes[40..48].copy_from_slice(&(area.to - area.from).to_le_bytes());
        head.extend(bytes);
        for page in &area.pages {
            let mut bytes = [0; PAGE as usize];
            if memory.read_exact_at(&mut bytes, *page).is_ok() {
                core.write_all_at(&bytes, at + page - area.from).unwrap();
            }
        }
        at += there;
    }
    head.extend(notes);
    core.write_all_at(&head, 0).unwrap();
    core.set_len(at).unwrap();
}

fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
}

/// The number, and of registers what is known of a thread that waits: arguments of its call, and the end of its stack.
fn status(pid: u32, thread: u32) -> Vec<u8> {
    let mut bytes = vec![0; STATUS_BYTES];
    bytes[STATUS_NUMBER..STATUS_NUMBER + 4].copy_from_slice(&thread.to_le_bytes());
    let call = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"));
    let call = call.unwrap_or_default();
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let words: Vec<_> = call.split_ascii_whitespace().filter_map(number).collect();
    if let [arguments @ .., stack, _] = words.as_slice() {
        let places = (0..).zip(arguments).chain([(STACK, stack)]);
        for (nth, word) in places {
            let at = STATUS_REGISTERS + 8 * nth;
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// What is mapped, and which pages of it are resident.
fn areas(pid: u32) -> Vec<Area> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
    let pages = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let area = |line: &[u8]| {
        // The name may be any bytes.
        let at = line.iter().position(|&byte| byte == b'/').unwrap_or(line.len());
        let mut words = std::str::from_utf8(&line[..at]).unwrap().split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let flag = |sign, bit| if rights.contains(sign) { bit } else { 0 };
        let offset = number(words.next()?);
        let path = Some(line[at..].to_owned()).filter(|path| !path.is_empty());
        let (from, to) = (number(from), number(to));
        let flags = flag('r', 4) | flag('w', 2) | flag('x', 1);
        let mut pages = if flags == 0 { Vec::new() } else { present(&pages, from, to) };
        if flags == 4 && offset == 0 && path.is_some() && pages.is_empty() {
            pages.push(from);
        }
        Some(Area { from, to, flags, offset, path, pages })
    };
    let lines = maps.split(|&byte| byte == b'\n');
    lines.filter(|line| !line.ends_with(b"[vsyscall]")).filter_map(area).collect()
}

fn present(pages: &File, from: u64, to: u64) -> Vec<u64> {
    let mut entries = vec![0; ((to - from) / PAGE * 8) as usize];
    if pages.read_exact_at(&mut entries, from / PAGE * 8).is_err() {
        return Vec::new();
    }
    let is_present = |entry: &[u8]| {
        entry.try_into().map_or(0, u64::from_ne_bytes) & (PRESENT | OF_A_FILE) == PRESENT
    };
    let numbered = entries.chunks_exact(8).enumerate();
    numbered
        .filter(|(_, entry)| is_present(entry))
        .map(|(nth, _)| from + nth as u64 * PAGE)
        .collect()
}

fn files(areas: &[Area]) -> Vec<u8> {
    let files: Vec<_> = areas.iter().filter(|area| area.path.is_some()).collect();
    let mut bytes = Vec::new();
    let words = [files.len() as u64, PAGE];
    let places = files.iter().flat_map(|area| [area.from, area.to, area.offset / PAGE]);
    bytes.extend(words.into_iter().chain(places).flat_map(u64::to_le_bytes));
    for path in files.iter().filter_map(|area| area.path.as_ref()) {
        bytes.extend(path.iter().chain(&[0]));
    }
    bytes
}

fn note(kind: u32, contents: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [5, contents.len() as u32, kind].into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend(b"CORE\0\0\0\0");
    bytes.extend(contents);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A program header: its type, rights, and (place in the file, address, another one, bytes in the file).
fn segment(kind: u32, flags: u32, [offset, address, other, bytes]: [u64; 4]) -> Vec<u8> {
    let words = [offset, address, other, bytes, bytes, 4];
    let numbers = [kind, flags].into_iter().flat_map(u32::to_le_bytes);
    numbers.chain(words.into_iter().flat_map(u64::to_le_bytes)).collect()
}

fn elf_header(segments: u16) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([4, machine].into_iter().flat_map(u16::to_le_bytes));
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend([0, HEADER_BYTES, 0].into_iter().flat_map(u64::to_le_bytes));
    bytes.extend(0_u32.to_le_bytes());
    let sizes = [HEADER_BYTES as u16, SEGMENT_BYTES as u16, segments, 64, 0, 0];
    bytes.extend(sizes.into_iter().flat_map(u16::to_le_bytes));
    bytes
}
