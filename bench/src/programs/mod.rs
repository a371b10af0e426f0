//! Real programs, started by the driver with the allocator preloaded.

pub mod hello;
pub mod python;
pub mod redis;

use crate::child::Failure;
use std::path::PathBuf;

/// Finds a program in the system's directories: not in PATH, which may hold wrappers.
fn find(name: &str, package: &str) -> Result<PathBuf, Failure> {
    ["/usr/bin", "/usr/local/bin", "/bin"]
        .iter()
        .map(|directory| PathBuf::from(directory).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| Failure::Absent {
            what: name.into(),
            hint: format!("apt-get install {package}"),
        })
}
