//! Variables that do not do what somebody may think.
//!
//! Owns what `cairn run` says of them, a line each. The one idea: the command is for people, so it
//! speaks, where the library, inside programs whose standard error may be compared, is silent. It
//! must never say the same again below another `cairn run`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The library's own: one list of names, one reading of values.
#[allow(dead_code, reason = "the command asks for problems, and for numbers of bytes")]
#[path = "../library/src/settings.rs"]
pub(crate) mod settings;
#[allow(unreachable_pub, reason = "the core's own file")]
#[path = "../library/core/src/base/values.rs"]
pub(crate) mod values;

/// What the names of the library's settings begin with.
const PREFIX: &[u8] = b"CAIRN_";
/// Tells everything below, the library too, that the settings have been spoken of.
pub(crate) const WARNED: &str = "CAIRN_WARNED";

/// What another allocator reads.
struct Foreign {
    owner: &'static str,
    reads: fn(name: &[u8], value: &[u8]) -> bool,
}

const FOREIGN: [Foreign; 4] = [
    Foreign { owner: "jemalloc", reads: |name, _| name.ends_with(b"MALLOC_CONF") },
    Foreign { owner: "mimalloc", reads: |name, _| name.starts_with(b"MIMALLOC_") },
    Foreign {
        owner: "tcmalloc",
        reads: |name, _| name.starts_with(b"TCMALLOC_") || name == b"HEAPPROFILE",
    },
    Foreign {
        owner: "glibc",
        reads: |name, value| match name {
            b"GLIBC_TUNABLES" => value.windows(13).any(|part| part == b"glibc.malloc."),
            b"MALLOC_ARENA_MAX" | b"MALLOC_ARENA_TEST" => true,
            // As MALLOC_TRIM_THRESHOLD_.
            _ => name.starts_with(b"MALLOC_") && name.ends_with(b"_"),
        },
    },
];

/// What there is to say of the variables that the program will get.
pub(crate) fn lines(variables: &[(OsString, OsString)]) -> Vec<String> {
    if env::var_os(WARNED).is_some() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.as_bytes().strip_prefix(PREFIX) else { continue };
        if let Err(problem) = settings::read(PREFIX, name, value.as_bytes()) {
            lines.push(problem.to_string());
        }
    }
    for foreign in FOREIGN {
        let of_its = |(name, value): &&(OsString, OsString)| {
            (foreign.reads)(name.as_bytes(), value.as_bytes())
        };
        let names: Vec<_> = variables.iter().filter(of_its).map(|(name, _)| shown(name)).collect();
        let (verb, what) = if names.len() == 1 { ("is", "it") } else { ("are", "them") };
        if !names.is_empty() {
            lines.push(format!(
                "{} {verb} {}'s; cairn does not read {what}: see docs/guide/coming-from.md",
                names.join(", "),
                foreign.owner
            ));
        }
    }
    lines
}

pub(crate) fn shown(name: &OsStr) -> String {
    settings::Text(name.as_bytes()).to_string()
}
