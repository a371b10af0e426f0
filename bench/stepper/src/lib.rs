//! Executes the threads of another process one instruction at a time, and says what each
//! instruction is and what memory it accesses. `cargo xtask fast-path` counts instructions with
//! it, `cairn-scaling` the moves of cache lines.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod decode;
mod maps;
mod tracee;

pub use decode::{Access, Step};
pub use iced_x86::FlowControl;
pub use maps::Mapping;
pub use tracee::{Stop, Tracee};

/// The registers of a stopped thread.
pub type Registers = libc::user_regs_struct;
