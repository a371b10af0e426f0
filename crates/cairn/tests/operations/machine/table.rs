//! The oracle: which blocks are live, where, and what each must hold.

use cairn::Cairn;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, VecDeque};

/// Blocks up to this are filled and compared to the last byte; larger ones at both ends and in
/// each page.
const FULL: usize = 8 << 10;
/// Beyond this, one page in 16: touching all would leave no time for anything else.
const EACH_PAGE_MAX: usize = 1 << 20;
const PAGE: usize = 4096;
const WORD: usize = 8;
/// Words at each end of a larger block.
const END: usize = 8;
/// Bytes that must be zero are compared up to here, and beyond at the places that are filled.
const ZERO_FULL: usize = 64 << 10;
/// From a word of a pattern to the next.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A live block.
#[derive(Debug)]
pub(crate) struct Held {
    /// Its first byte.
    pub(crate) p: *mut u8,
    /// What was asked for.
    pub(crate) size: usize,
    /// What it has.
    pub(crate) usable: usize,
    /// As what it came from the global allocator's interface, if it did.
    pub(crate) layout: Option<Layout>,
    /// What its pattern is made of; no two blocks' are equal.
    pub(crate) seed: u64,
}

// SAFETY: a block belongs to whoever holds this.
unsafe impl Send for Held {}

impl Held {
    /// What is known of a block that was just handed out.
    pub(crate) fn new(
        p: *mut u8,
        size: usize,
        align: usize,
        layout: Option<Layout>,
        seed: u64,
    ) -> Held {
        assert!(!p.is_null(), "no memory for {size} bytes, aligned to {align}");
        assert!(p.addr().is_multiple_of(align), "{p:p} for {size} bytes is not aligned to {align}");
        // SAFETY: a live block.
        let usable = unsafe { cairn::usable_size(p) };
        assert!(usable >= size, "{usable} bytes are usable of {size} at {p:p}");
        Held { p, size, usable, layout, seed }
    }

    /// Frees it, in one of the ways that it may be freed.
    pub(crate) fn free(self) {
        self.verify();
        // SAFETY: live, and nobody else's.
        unsafe {
            match self.layout {
                Some(layout) => Cairn.dealloc(self.p, layout),
                None if self.seed.is_multiple_of(8) => {
                    cairn::deallocate_named(self.p, "operations");
                }
                None => cairn::deallocate(self.p),
            }
        }
    }

    fn pattern(&self, word: usize) -> u64 {
        self.seed.wrapping_add((word as u64).wrapping_mul(STRIDE))
    }

    fn word(&self, word: usize) -> *mut u64 {
        self.p.cast::<u64>().wrapping_add(word)
    }

    /// Calls `f` with each whole word that carries the pattern, in order, in ranges.
    fn places(&self, mut f: impl FnMut(usize, usize)) {
        let words = self.usable / WORD;
        if self.usable <= FULL {
            return f(0, words);
        }
        f(0, END);
        let pages = if self.usable <= EACH_PAGE_MAX { 1 } else { 16 };
        let within = self.seed as usize % (PAGE / WORD);
        for page in (0..words - END).step_by(pages * PAGE / WORD) {
            let at = page + within;
            if at >= END && at < words - END {
                f(at, at + 1);
            }
        }
        f(words - END, words);
    }

    /// Writes the pattern.
    pub(crate) fn fill(&self) {
        self.places(|from, to| self.write(from, to));
        let (rest, pattern) = self.rest();
        // SAFETY: inside the block.
        unsafe { rest.copy_from_nonoverlapping(pattern.as_ptr(), self.usable % WORD) };
    }

    /// The last bytes, too few for a word, and what they carry.
    fn rest(&self) -> (*mut u8, [u8; WORD]) {
        let words = self.usable / WORD;
        (self.word(words).cast(), self.pattern(words).to_ne_bytes())
    }

    fn write(&self, from: usize, to: usize) {
        for word in from..to {
            // SAFETY: inside the block.
            unsafe { self.word(word).write(self.pattern(word)) };
        }
    }

    /// Compares all of the pattern.
    pub(crate) fn verify(&self) {
        self.places(|from, to| self.compare(from, to));
        let (rest, pattern) = self.rest();
        let len = self.usable % WORD;
        // SAFETY: inside the block.
        let got = unsafe { std::slice::from_raw_parts(rest, len) };
        assert_eq!(got, &pattern[..len], "last bytes of {self:x?}");
    }

    fn compare(&self, from: usize, to: usize) {
        let mut wrong = 0;
        for word in from..to {
            // SAFETY: inside the block.
            wrong |= unsafe { self.word(word).read() } ^ self.pattern(word);
        }
        if wrong != 0 {
            self.complain(from, to);
        }
    }

    #[cold]
    fn complain(&self, from: usize, to: usize) -> ! {
        for word in from..to {
            // SAFETY: inside the block.
            let got = unsafe { self.word(word).read() };
            let want = self.pattern(word);
            let at = word * WORD;
            assert_eq!(got, want, "contents at byte {at} of {self:x?}: {got:#x}, not {want:#x}");
        }
        panic!("contents of {self:x?} change while they are looked at");
    }

    /// Writes the pattern in front of byte `keep`, where `verify_kept` will look for it.
    pub(crate) fn mark_kept(&self, keep: usize) {
        let words = keep / WORD;
        self.write(words.saturating_sub(END), words);
    }

    /// Compares the pattern of `before` in front of byte `keep` with what is here now.
    pub(crate) fn verify_kept(&self, before: &Held, keep: usize) {
        let here = Held { p: self.p, layout: None, ..*before };
        let words = keep / WORD;
        here.places(|from, to| here.compare(from.min(words), to.min(words)));
        here.compare(words.saturating_sub(END), words);
        let rest = keep % WORD;
        if rest > 0 && before.usable <= FULL {
            // SAFETY: the bytes are in front of `keep`, inside both blocks.
            let got = unsafe { std::slice::from_raw_parts(self.p.add(words * WORD), rest) };
            let want = &before.pattern(words).to_ne_bytes()[..rest];
            assert_eq!(got, want, "last bytes of {keep} kept of {before:x?} in {self:x?}");
        }
    }

    /// Checks that the bytes asked for are zero.
    pub(crate) fn verify_zero(&self) {
        let full = self.size.min(ZERO_FULL);
        // SAFETY: inside the block.
        let bytes = unsafe { std::slice::from_raw_parts(self.p, full) };
        if let Some(at) = bytes.iter().position(|&b| b != 0) {
            panic!("byte {at} of zeroed {self:x?} is {:#x}", bytes[at]);
        }
        let words = self.size / WORD;
        self.places(|from, to| {
            for word in from.min(words)..to.min(words) {
                // SAFETY: inside the block.
                let got = unsafe { self.word(word).read() };
                assert_eq!(got, 0, "word {word} of zeroed {self:x?}");
            }
        });
    }
}

/// The live blocks that one thread may work with; all there are while it works alone.
pub(crate) struct Table {
    /// In the order in which they came, as far as nothing was taken from between.
    pub(crate) blocks: VecDeque<Held>,
    /// First byte to end, of each.
    live: BTreeMap<usize, usize>,
    /// Usable bytes of all.
    pub(crate) bytes: usize,
    /// Done so far.
    pub(crate) operations: u64,
    /// Whether steps are printed.
    pub(crate) trace: bool,
    /// Whether an errand is under way: it sends nobody on another.
    pub(crate) is_away: bool,
    next_id: u64,
    /// Tables that are used at the same time count in different steps.
    id_step: u64,
}

impl Table {
    /// No blocks.
    pub(crate) fn new(trace: bool) -> Table {
        Table {
            blocks: VecDeque::new(),
            live: BTreeMap::new(),
            bytes: 0,
            operations: 0,
            trace,
            is_away: false,
            next_id: 1,
            id_step: 1,
        }
    }

    /// A seed that no other block has had.
    pub(crate) fn seed(&mut self) -> u64 {
        self.next_id += self.id_step;
        // One to one: both steps can be undone.
        let mixed = self.next_id.wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    }

    /// Takes note of a block; it may not touch any other.
    pub(crate) fn put(&mut self, held: Held) {
        let (from, end) = (held.p.addr(), held.p.addr() + held.usable);
        if let Some((&other, &other_end)) = self.live.range(..end).next_back() {
            assert!(other_end <= from, "{held:x?} overlaps {other:#x}..{other_end:#x}");
        }
        self.live.insert(from, end);
        self.bytes += held.usable;
        self.blocks.push_back(held);
    }

    /// Takes a block out; the last one takes its place.
    pub(crate) fn take(&mut self, index: usize) -> Held {
        let held = self.blocks.swap_remove_back(index).expect("the index is in bounds");
        self.forget(held)
    }

    /// Takes the oldest block out.
    pub(crate) fn take_first(&mut self) -> Option<Held> {
        let held = self.blocks.pop_front()?;
        Some(self.forget(held))
    }

    fn forget(&mut self, held: Held) -> Held {
        self.live.remove(&held.p.addr());
        self.bytes -= held.usable;
        held
    }

    /// Deals the blocks out to `parts` tables, `run` in a row to each.
    pub(crate) fn split(self, parts: usize, run: usize) -> Vec<Table> {
        let mut tables: Vec<Table> = (0..parts)
            .map(|part| Table {
                next_id: self.next_id + part as u64,
                id_step: parts as u64,
                ..Table::new(self.trace)
            })
            .collect();
        for (i, held) in self.blocks.into_iter().enumerate() {
            let table = &mut tables[i / run % parts];
            table.bytes += held.usable;
            table.blocks.push_back(held);
        }
        for table in &mut tables {
            table.rebuild();
        }
        tables
    }

    /// Makes one table of several, and checks that no blocks of theirs touch each other.
    pub(crate) fn merge(tables: Vec<Table>) -> Table {
        let mut whole = Table::new(false);
        for table in tables {
            whole.bytes += table.bytes;
            whole.operations += table.operations;
            whole.trace |= table.trace;
            whole.next_id = whole.next_id.max(table.next_id);
            whole.blocks.extend(table.blocks);
        }
        whole.rebuild();
        whole
    }

    fn rebuild(&mut self) {
        let extent = |held: &Held| (held.p.addr(), held.p.addr() + held.usable);
        let mut extents: Vec<_> = self.blocks.iter().map(extent).collect();
        extents.sort_unstable();
        for pair in extents.windows(2) {
            let ((a, a_end), (b, b_end)) = (pair[0], pair[1]);
            assert!(a_end <= b, "{a:#x}..{a_end:#x} overlaps {b:#x}..{b_end:#x}");
        }
        self.live = extents.into_iter().collect();
    }
}
