//! Addresses of a process as functions and source lines.

use addr2line::Loader;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use stepper::Mapping;

/// Functions that one address is described by, at most.
const FRAMES: usize = 4;

/// The mappings of a process, and the objects in them as far as they were asked for.
pub struct Places {
    mappings: Vec<Mapping>,
    objects: HashMap<PathBuf, Option<Loader>>,
}

impl Places {
    /// The places of a process with these mappings.
    pub fn new(mappings: Vec<Mapping>) -> Places {
        Places { mappings, objects: HashMap::new() }
    }

    /// The file that an address lies in.
    pub fn object(&self, address: u64) -> Option<&Path> {
        let here = self.mappings.iter().find(|map| map.range.contains(&address));
        here.map(|map| map.path.as_path())
    }

    /// What is at an address: the function and the line for code of objects with debug
    /// information, else the nearest symbol before it, else the mapping.
    pub fn describe(&mut self, address: u64) -> String {
        let Some(here) = self.mappings.iter().find(|map| map.range.contains(&address)) else {
            return format!("{address:#x}, mapped later");
        };
        // An object's first mapping is that of its address 0.
        let first = self.mappings.iter().find(|map| map.path == here.path).unwrap_or(here);
        let (path, linked) = (&here.path, address - first.range.start);
        let object = self.objects.entry(path.clone());
        let object = object.or_insert_with_key(|path| Loader::new(path).ok());
        let described = object.as_ref().and_then(|object| describe(object, linked));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        described.unwrap_or_else(|| format!("{name} + {linked:#x}"))
    }
}

/// The functions that the code was written in and inlined into, innermost first, Rust's own
/// library apart; or the symbol.
fn describe(object: &Loader, address: u64) -> Option<String> {
    let mut frames = object.find_frames(address).ok()?;
    let mut found = Vec::new();
    while let (Ok(Some(frame)), true) = (frames.next(), found.len() < FRAMES) {
        let at = frame.location.and_then(|at| Some((at.file?, at.line?)));
        if let (Some((file, line)), Some(function)) = (at, frame.function)
            && !file.contains("/rustc/")
        {
            let file = file.rsplit_once("/src/").map_or(file, |(_, file)| file);
            found.push(format!("{} ({file}:{line})", short(&function.demangle().ok()?)));
        }
    }
    if !found.is_empty() {
        return Some(found.join(" < "));
    }
    let symbol = object.find_symbol_info(address)?;
    let name = addr2line::demangle_auto(symbol.name().into(), None);
    Some(format!("{name} + {:#x}", address - symbol.address()))
}

/// A path's last two parts, without what stands in angle brackets.
fn short(function: &str) -> &str {
    let function = function.split('<').next().filter(|name| !name.is_empty()).unwrap_or(function);
    function.rmatch_indices("::").nth(1).map_or(function, |(at, _)| &function[at + 2..])
}
