//! Executes the threads of another process one instruction at a time, and says what each instruction is and what memory
//! it accesses. `cargo xtask fast-path` counts instructions with it, `cargo xtask scaling` the moves of cache lines.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;

mod decode;
mod tracee;

pub use decode::{Access, Step};
pub use iced_x86::{FlowControl, Mnemonic};
pub use proc_maps::MapRange;
pub use tracee::{Stop, Tracee};

/// The registers of a stopped thread.
pub type Registers = libc::user_regs_struct;

/// Whether an address lies in a mapping of this file.
pub fn in_object(mappings: &[MapRange], file: &Path, address: u64) -> bool {
    let inside = |map: &MapRange| {
        let offset = (address as usize).checked_sub(map.start());
        map.filename() == Some(file) && offset.is_some_and(|offset| offset < map.size())
    };
    mappings.iter().any(inside)
}
