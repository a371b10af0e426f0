//! What stands in the server's blocks, and whether it does still.

/// Its first words say what it is; all that follow say so in their own way.
pub(crate) type Word = u64;

/// Between words that are written and looked at: all of a small block, some of each page of a
/// large one.
pub(crate) fn step(size: usize) -> usize {
    if size <= 8192 { 1 } else { 61 }
}

pub(crate) fn word(tag: Word, at: usize) -> Word {
    tag ^ (at as Word) << 40
}

/// Marks words of a block of `size` bytes, from byte `from` on, and its head.
pub(crate) unsafe fn write(block: *mut Word, tag: Word, from: usize, size: usize) {
    // SAFETY: the caller's block, that large.
    unsafe {
        block.write(tag);
        block.add(1).write(tag ^ size as Word);
        let first = (from / 8).max(2).next_multiple_of(step(size));
        for at in (first..size / 8).step_by(step(size)) {
            block.add(at).write(word(tag, at));
        }
    }
}

/// Looks at the words below byte `upto` that have been marked, one in `step`.
pub(crate) unsafe fn compare(block: *mut Word, tag: Word, upto: usize, step: usize) {
    for at in (2usize.next_multiple_of(step)..upto / 8).step_by(step) {
        // SAFETY: the caller's block.
        let got = unsafe { block.add(at).read() };
        assert_eq!(got, word(tag, at), "word {at} of {upto} bytes at {block:p}");
    }
}

/// Looks at everything; the size.
pub(crate) unsafe fn verify(block: *mut Word) -> usize {
    // SAFETY: a block that `write` has made, the caller's.
    unsafe {
        let tag = block.read();
        assert_ne!(tag, !0, "{block:p} is free already");
        let size = (block.add(1).read() ^ tag) as usize;
        let usable = cairn::usable_size(block.cast());
        assert!(size >= 16 && size <= usable, "{block:p}: {size} bytes, {usable} usable");
        compare(block, tag, size, step(size));
        size
    }
}
