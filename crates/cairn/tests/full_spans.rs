//! Full spans that a heap holds on to: what it has taken of their room is what it gives back.

/// First many full spans of one slice, then larger ones that push them out one by one: the list
/// outgrows what was taken, and upkeep comes while it is so.
#[test]
fn larger_spans_push_out_smaller_ones() {
    let mut blocks = Vec::new();
    for (size, bytes) in [(64, 8 << 20), (3072, 16 << 20), (64, 1 << 20), (40 << 10, 64 << 20)] {
        for _ in 0..bytes / size {
            let block = cairn::allocate(size);
            assert!(!block.is_null());
            blocks.push(block);
        }
    }
    for block in blocks {
        // SAFETY: each was allocated above and is freed once.
        unsafe { cairn::deallocate(block) };
    }
    cairn::purge();
    cairn::check();
}
