//! Traces: the calls of a program's malloc family, in a file.
//!
//! Owns the format; [`write`] makes it, [`read`] checks it. The one idea: all calls stand in one order, and a block is a
//! slot, a number that a later block of its thread's has again ([`slots`]), so that the file needs no number for a new
//! one, and whoever reads it a table of the live ones alone. It must never hold what the program keeps in its blocks, or where they are.
//!
//! The file is the line [`MAGIC`], and one zstd frame with a checksum. In that, numbers are LEB128: the length of the
//! program's name and the name, how many blocks lived when the trace began, which come first, and then steps. A step
//! is a byte with its [`tag`] in the low three bits, and numbers:
//!
//! | tag | numbers | what |
//! | --- | --- | --- |
//! | `MALLOC`, `CALLOC` | size | a block, in the slot of its thread's that was freed last, or a new one |
//! | `ALIGNED`, the high five bits the alignment's logarithm | size | the same |
//! | `REALLOC` | slot, size | a block has another size |
//! | `FREE` | slot | a block is free |
//! | `THREAD` | thread | what follows is this one's; numbers of threads are slots, too |
//! | `GONE` | - | the thread has ended |
//! | `END` | calls | how many there were: it is whole |

mod read;
mod slots;
mod write;

pub(crate) use read::{Reader, What, check_magic};
pub(crate) use write::Writer;

/// How a file begins.
pub(crate) const MAGIC: &[u8] = b"cairn trace 1\n";

/// What the low bits of a step's first byte say.
mod tag {
    pub(super) const MALLOC: u8 = 0;
    pub(super) const CALLOC: u8 = 1;
    pub(super) const ALIGNED: u8 = 2;
    pub(super) const REALLOC: u8 = 3;
    pub(super) const FREE: u8 = 4;
    pub(super) const THREAD: u8 = 5;
    pub(super) const GONE: u8 = 6;
    pub(super) const END: u8 = 7;
}

/// How a block was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Malloc,
    Calloc,
    /// With the alignment's logarithm.
    Aligned(u8),
}

/// Larger alignments are this one.
pub(crate) const ALIGN_LOG2_MAX: u8 = 31;
/// No block is larger.
pub(crate) const SIZE_MAX: u64 = 1 << 47;
/// Bytes of a program's name at most.
const NAME_MAX: usize = 255;
