//! Owns: the tuned constants of this floor: from which sizes on large blocks are treated otherwise.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/why-not.md, docs/design/large-blocks.md

use crate::{base::in_shuttle, os};

/// Bytes from which on a block is a mapping of its own: slices of that size would leave holes in the reservation that
/// only as large a block fills. Half, twice: not tried.
pub(crate) const MAPPING_MIN: usize = in_shuttle(32 << 20, 512 << 10);
/// A run grows in place up to so many bytes. Half, twice: not tried.
pub(crate) const EXTEND_MAX: usize = 16 << 20;
/// Runs are aligned to up to so many bytes; beyond, a mapping is cut to measure. A mapping for each small block at
/// multiples of 2 MiB would use up what the kernel allows a process. Half, twice: not tried.
pub(crate) const RUN_ALIGN_MAX: usize = 16 << 20;
/// Free runs that are looked at for one in which an aligned block fits as it is. Where blocks of 1 to 6 MiB at multiples of 1 MiB
/// come and go, 727 MiB are needed, 758 without; with half of it 728, with twice of it 724, in the same time.
pub(crate) const ALIGNED_LOOKS: usize = 16;
/// Bytes from which on a block that grows, and must be copied, is copied to a mapping, where it grows on by moving
/// pages, mostly huge ones. Below, that costs more than the next copy: a parser that grows some buffers to 1 or 2 MiB
/// for each document spends a fifth of its time in page faults then. `vectors-grow` peaks at 159 MiB with half of it,
/// 178 as it is, and with twice of it at 202, in 88 ms instead of 115.
pub(crate) const MOVE_MIN: usize = in_shuttle(os::HUGE_PAGE, 160 << 10);
/// Bytes from which on a page more for colour is cheap. Half, twice: not tried.
pub(crate) const COLOUR_MIN: usize = 128 << 10;

/// Bytes from which on the kernel is asked what is resident of a block that is to be zero: below, to write all takes 4
/// to 30 us (300 KiB, 1 MiB). Half, twice: not tried.
pub(crate) const ASKED_MIN: usize = in_shuttle(1 << 20, 128 << 10);
/// Pages that are written or given back together: 64 KiB where a page has 4. Half, twice: not tried.
pub(crate) const PIECE_PAGES: usize = 16;
/// With so many resident pages, or fewer, a piece is given back. Half, twice: not tried.
pub(crate) const FEW_PAGES: usize = 2;
/// Pages that the kernel is asked about at once. Half, twice: not tried.
pub(crate) const ASKED_PAGES: usize = 64 * PIECE_PAGES;

/// How many blocks may have huge pages put there before one is looked at again that has not. With half of it one block
/// in five has small pages; twice of it is 32 MiB if the program has changed.
pub(crate) const CREDIT_MAX: usize = 8;
/// One block in so many is looked at, of those below `MOVE_MIN`. Each 32nd, 8th, 2nd: `large-churn` takes 18.5, 14.7,
/// 15.0 ms. Half, twice: not tried.
pub(crate) const LOOKED_AT_EACH: usize = 8;
/// Bytes from which on blocks that will be filled may have huge pages as the program comes to them, and nothing is put
/// there. Two of them: the first may be resident because of a single byte, and is no evidence. Half, twice: not tried.
pub(crate) const AS_USED_MIN: usize = 2 * os::HUGE_PAGE;

/// Bytes mapped at once for metadata of nurseries. Half, twice: not tried.
pub(crate) const NURSERY_METADATA_BYTES: usize = 64 << 10;
/// Hardened: the first block of a nursery ends at one of so many places. With twice as many, an eighth of all
/// nurseries would be gaps.
pub(crate) const NURSERY_ENDS: usize = 16;
