//! Heaps that are damaged, or made to deceive: the metadata of a core file, and of a process that runs, is changed at
//! random. Whatever it says, there is an account or an error, soon, and in bounded memory.

mod common;

use cairn_sight::profile::sampled;
use cairn_sight::{Source, Watch, account_page, inspect, inspect_with_map, leaks};
use common::inspected::{Running, compiled, start};
use common::{Home, core_file, display};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often the core file is changed and looked at.
fn times() -> usize {
    if std::env::var_os("CAIRN_TEST_ALL").is_some() { 400 } else { 30 }
}
/// And lost blocks looked for, once in so many times.
const LEAKS_EACH: usize = 4;
/// The longest that a look may take, without optimization and with others at work, and the memory that it may have.
const LONGEST: Duration = Duration::from_secs(20);
const MOST: usize = 512 << 20;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Blocks of all classes, free ones among them, large ones, a mapping, heaps of three threads.
const HEAP: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *work(void *arg)
{
    static __thread void *blocks[2000];
    for (int i = 0; i < 2000; i++) blocks[i] = malloc(i * 7);
    for (int i = 0; i < 2000; i++) if (i % 3) free(blocks[i]);
    if (!arg) return 0;
    pthread_barrier_wait(arg);
    pause();
    return 0;
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, 3);
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, work, &barrier);
    work(0);
    malloc(1 << 20);
    malloc(64 << 20);
    pthread_barrier_wait(&barrier);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";

/// That program, at rest.
fn heap(home: &Home, build: &[&str]) -> Option<Running> {
    let program = compiled(home, HEAP, &[])?;
    let profile = home.path().join("profile");
    let profile = ["--profile", display(&profile), "--profile-rate", "16KiB"];
    Some(start(home.cairn().arg("run").args(build).args(profile).arg(program)))
}

/// Numbers that look random, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % end.max(1)
    }
}

/// What a core file says.
struct Core {
    bytes: Vec<u8>,
    /// (place in the file, address, bytes)
    segments: Vec<(u64, u64, u64)>,
}

impl Core {
    fn read(path: &Path) -> Core {
        let mut core = Core { bytes: std::fs::read(path).unwrap(), segments: Vec::new() };
        core.segments = (0..core.count())
            .map(|nth| 64 + 56 * nth)
            .map(|at| (core.word(at + 8), core.word(at + 16), core.word(at + 32)))
            .collect();
        core
    }

    /// How many segments it has.
    fn count(&self) -> usize {
        u16::from_ne_bytes(self.bytes[56..58].try_into().unwrap()).into()
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    /// Where it has an address.
    fn place(&self, address: u64) -> Option<u64> {
        let inside =
            |&&(_, from, bytes): &&(u64, u64, u64)| (from..from + bytes).contains(&address);
        self.segments.iter().find(inside).map(|(offset, from, _)| offset + (address - from))
    }

    /// Where it has the header.
    fn header(&self) -> usize {
        // Other pages may have the text, too.
        let words = self.bytes.chunks_exact(8).enumerate();
        let mut texts = words.filter(|(_, word)| word == b"CAIRNHDR").map(|(nth, _)| 8 * nth);
        texts.find(|at| self.place(self.word(at + 16)).is_some()).unwrap()
    }
}

/// Where a core file has something: (place, bytes), the header first.
fn places(core: &Path) -> Vec<(u64, u64)> {
    let core = Core::read(core);
    let (word, place, header) = (|at| core.word(at), |at| core.place(at), core.header());
    let map = place(word(header + 16)).unwrap() as usize;
    let mut places = vec![(header as u64, 160), (map as u64, 72)];
    for (at, bytes) in [(header + 24, 56 * 32), (header + 96, 24), (header + 112, 32)] {
        places.extend(place(word(at)).map(|at| (at, bytes)));
    }
    // Descriptors, sections and heaps, as far as they begin in the file, and the core's own headers.
    for at in [map, map + 40, map + 48] {
        places.extend(place(word(at)).map(|at| (at, 64 << 10)));
    }
    places.push((0, 64 + 56 * core.count() as u64));
    // The profile's control and table.
    let control = place(word(header + 144)).unwrap();
    let table = word(control as usize + 24);
    places.push((control, 80));
    places.extend(
        table_parts(table, |nth| word(control as usize + 32 + 4 * nth) as u32)
            .filter_map(|(at, bytes)| Some((place(at)?, bytes))),
    );
    places
}

/// Parts of the table of a profile, by the numbers of its control.
fn table_parts(table: u64, number: impl Fn(usize) -> u32) -> impl Iterator<Item = (u64, u64)> {
    let part = |nth: usize, bytes| (table + u64::from(number(nth)), bytes);
    [(table, 64), part(2, 4096), part(6, 512), part(8, 4096)].into_iter()
}

/// The same of a process.
fn places_of_process(pid: u32, memory: &File) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).map(|()| u64::from_ne_bytes(bytes)).ok()
    };
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let areas = maps.lines().filter(|line| line.contains("/libcairn-"));
    let areas = areas.filter_map(|line| line.split(' ').next()?.split_once('-'));
    let words = areas.flat_map(|(from, to)| (number(from)..number(to)).step_by(8));
    let is_header = |at: &u64| {
        word(*at).is_some_and(|first| first.to_ne_bytes() == *b"CAIRNHDR")
            && word(at + 16).is_some_and(|map| word(map).is_some())
    };
    let header = words.into_iter().find(is_header).unwrap();
    let map = word(header + 16).unwrap();
    let mut places = vec![(header, 160), (map, 72)];
    let control = word(header + 144).unwrap();
    let table = word(control + 24).unwrap();
    places.push((control, 80));
    places.extend(table_parts(table, |nth| word(control + 32 + 4 * nth as u64).unwrap() as u32));
    for (at, bytes) in [(header + 24, 56 * 32), (header + 96, 24), (header + 112, 32)] {
        places.push((word(at).unwrap(), bytes));
    }
    // Descriptors, sections and heaps, as far as they begin there.
    places.extend([map, map + 40, map + 48].map(|at| (word(at).unwrap(), 64 << 10)));
    places
}

/// Changes some bytes at random places, looks, and puts the bytes back: some of what is damaged is refused.
fn disturb(file: &File, places: &[(u64, u64)], seed: u64, mut is_read: impl FnMut() -> bool) {
    let (mut random, mut refused) = (Random(seed), 0);
    for _ in 0..times() {
        let mut before = Vec::new();
        for _ in 0..=random.below(4) {
            let (from, bytes) = places[random.below(places.len() as u64) as usize];
            let width = 1 << random.below(4);
            let at = from + random.below(bytes) / width * width;
            let mut old = [0; 8];
            // A file may end there, and a process have nothing.
            if file.read_exact_at(&mut old, at).is_err() {
                continue;
            }
            let word = u64::from_ne_bytes(old);
            let new = match random.below(8) {
                0 => 0,
                1 => u64::MAX,
                2 => 1 << random.below(64),
                3 => word.wrapping_add(random.below(64)),
                4 => word.wrapping_sub(random.below(64)),
                5 => word ^ 1 << random.below(64),
                6 => word << random.below(32),
                _ => random.below(u64::MAX),
            };
            file.write_all_at(&new.to_ne_bytes()[..width as usize], at).unwrap();
            before.push((at, old));
        }
        refused += usize::from(!is_read());
        for (at, old) in before.into_iter().rev() {
            file.write_all_at(&old, at).unwrap();
        }
    }
    assert!((1..times()).contains(&refused), "{refused} of {}", times());
}

/// The length of the page of a target: its account, and a map of its heap.
fn page(source: &Source) -> Result<usize, cairn_sight::Error> {
    let (account, map) = inspect_with_map(source)?;
    Ok(account_page(&account, &map).unwrap().len())
}

/// Looks, with a limit on time and memory.
#[track_caller]
fn look<T: std::fmt::Debug>(once: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let kept = NOW.load(Ordering::Relaxed);
    PEAK.store(kept, Ordering::Relaxed);
    let outcome = once();
    let (took, peak) = (begin.elapsed(), PEAK.load(Ordering::Relaxed) - kept);
    assert!(took < LONGEST, "{took:?}: {outcome:?}");
    assert!(peak < MOST, "{peak} bytes: {outcome:?}");
    outcome
}

/// Core files and processes of both builds in turn: what is counted is the process's.
#[test]
fn damaged_metadata_does_no_harm() {
    for (seed, build) in [&[][..], &["--hardened"]].into_iter().enumerate() {
        let home = Home::new();
        let Some(process) = heap(&home, build) else { return };
        let pid = process.0.id();
        let path = home.path().join("core");
        core_file::write(pid, &path);
        // Of the rest some are enough: it reads as the others do.
        let turn = Cell::new(0_usize);
        let has_leaks = |source: &Source| {
            turn.set(turn.get() + 1);
            !turn.get().is_multiple_of(LEAKS_EACH) || leaks(source, None).is_ok()
        };
        let core = || {
            let profile = sampled(&Source::Core(path.clone()));
            let lost = has_leaks(&Source::Core(path.clone()));
            page(&Source::Core(path.clone())).is_ok() && profile.is_ok() && lost
        };
        assert!(look(core), "what is whole is read");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        disturb(&file, &places(&path), seed as u64, || look(core));
        assert!(look(core), "all is as it was");

        let mut watch = Watch::default();
        let mut alive = || {
            let seen = look(|| watch.some(&[pid]));
            let account = look(|| page(&Source::Process(pid)));
            let profile = look(|| sampled(&Source::Process(pid)));
            let lost = look(|| has_leaks(&Source::Process(pid)));
            assert_eq!(seen.processes.len() + seen.unread.len(), 1, "{seen:?}");
            !seen.processes.is_empty() && account.is_ok() && profile.is_ok() && lost
        };
        assert!(alive(), "what is whole is read");
        let path = format!("/proc/{pid}/mem");
        let memory = File::options().read(true).write(true).open(path).unwrap();
        disturb(&memory, &places_of_process(pid, &memory), seed as u64, &mut alive);
        assert!(alive(), "all is as it was");
    }
}

/// What was a large block when its descriptor was read, and has become a span before its slot was, is neither.
#[test]
fn a_slot_that_has_become_a_spans_is_no_large_blocks() {
    let home = Home::new();
    let Some(process) = heap(&home, &[]) else { return };
    let path = home.path().join("core");
    core_file::write(process.0.id(), &path);
    let source = Source::Core(path.clone());
    let before = inspect(&source).unwrap();
    let is_known = |bytes| (1 << 20..2 << 20).contains(&bytes);
    let block = before.biggest.iter().find(|block| is_known(block.bytes)).unwrap();

    let core = Core::read(&path);
    let header = core.header();
    let map = core.place(core.word(header + 16)).unwrap() as usize;
    let numbers = core.word(header + 40);
    let (slice_shift, descriptor_bytes) = (numbers as u32, numbers >> 32);
    let nth = ((block.address >> slice_shift) * descriptor_bytes) & core.word(map + 8);
    let descriptor = core.place(core.word(map) + nth).unwrap() as usize;
    let slot = core.place(core.word(descriptor + 8)).unwrap();
    assert_eq!(core.word(slot as usize), block.address);

    // A span's: its list, which begins with a block or is empty; 5 frees until an event, 10 blocks, 3 of them set aside.
    let (end, counts) = (core.word(header + 96), 5 | 10 << 32 | 3 << 48);
    let file = File::options().write(true).open(&path).unwrap();
    for free in [block.address, end] {
        for (at, word) in [(0, free), (8, counts)] {
            file.write_all_at(&u64::to_ne_bytes(word), slot + at).unwrap();
        }
        let after = inspect(&source).unwrap();
        assert!(before.held.large - after.held.large >= block.bytes, "{after:?}");
        assert_eq!(after.held.small, before.held.small, "{after:?}");
        let notes = after.notes.join("\n");
        assert!(notes.contains("1 spans changed while they were read"), "{notes}");
        assert!(!notes.contains("regions of the program's"), "{notes}");
    }
}
