//! Addresses of a process as functions and source lines.

use addr2line::Loader;
use object::{Object, ObjectSegment};
use procfs::process::{MMapPath, MemoryMaps};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Functions that one address is described by, at most.
const FRAMES: usize = 4;

/// The mappings of a process, and the objects in them as far as they were asked for.
pub struct Places {
    maps: MemoryMaps,
    objects: HashMap<PathBuf, Option<ObjectFile>>,
}

struct ObjectFile {
    loader: Loader,
    /// Ranges of the file, and the addresses that they are linked at.
    segments: Vec<(Range<u64>, u64)>,
}

impl Places {
    /// The places of a process with these mappings.
    pub fn new(maps: MemoryMaps) -> Places {
        Places { maps, objects: HashMap::new() }
    }

    /// What is at an address: the function and the line for code of objects with debug
    /// information, else the nearest symbol before it, else the mapping.
    pub fn describe(&mut self, address: u64) -> String {
        let contains =
            |map: &&procfs::process::MemoryMap| (map.address.0..map.address.1).contains(&address);
        let Some(map) = self.maps.iter().find(contains) else {
            return format!("{address:#x}, mapped later");
        };
        let MMapPath::Path(path) = &map.pathname else {
            return format!("{:?} + {:#x}", map.pathname, address - map.address.0);
        };
        let in_file = address - map.address.0 + map.offset;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let object = self.objects.entry(path.clone());
        let object = object.or_insert_with_key(|path| ObjectFile::open(path));
        let described = object.as_ref().and_then(|object| object.describe(in_file));
        described.unwrap_or_else(|| format!("{name} + {in_file:#x}"))
    }
}

impl ObjectFile {
    fn open(path: &Path) -> Option<ObjectFile> {
        let bytes = std::fs::read(path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        // Zeroed data lies behind the end of its segment's part of the file.
        let segments = file.segments().map(|segment| {
            let start = segment.file_range().0;
            (start..start + segment.size(), segment.address())
        });
        Some(ObjectFile { segments: segments.collect(), loader: Loader::new(path).ok()? })
    }

    fn describe(&self, in_file: u64) -> Option<String> {
        let (range, linked) = self.segments.iter().rfind(|(range, _)| range.contains(&in_file))?;
        let address = in_file - range.start + linked;
        self.source(address).or_else(|| self.symbol(address))
    }

    /// The functions that the code was written in and inlined into, innermost first;
    /// Rust's own library apart.
    fn source(&self, address: u64) -> Option<String> {
        let mut frames = self.loader.find_frames(address).ok()?;
        let mut found = Vec::new();
        while let (Ok(Some(frame)), true) = (frames.next(), found.len() < FRAMES) {
            let Some((file, line)) = frame.location.and_then(|at| Some((at.file?, at.line?)))
            else {
                continue;
            };
            if file.contains("/rustc/") {
                continue;
            }
            let file = file.rsplit_once("/src/").map_or(file, |(_, file)| file);
            let function = frame.function?.demangle().ok()?.into_owned();
            found.push(format!("{} ({file}:{line})", short(&function)));
        }
        (!found.is_empty()).then(|| found.join(" < "))
    }

    fn symbol(&self, address: u64) -> Option<String> {
        let symbol = self.loader.find_symbol_info(address)?;
        let name = addr2line::demangle_auto(symbol.name().into(), None);
        Some(format!("{name} + {:#x}", address - symbol.address()))
    }
}

/// A path's last two parts, without what stands in angle brackets.
fn short(function: &str) -> &str {
    let function = function.split('<').next().filter(|name| !name.is_empty()).unwrap_or(function);
    function.rmatch_indices("::").nth(1).map_or(function, |(at, _)| &function[at + 2..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_short() {
        assert_eq!(short("cairn::heap::Heap::refill"), "Heap::refill");
        assert_eq!(short("heap::refill"), "heap::refill");
        assert_eq!(short("malloc"), "malloc");
        assert_eq!(short("get<*mut cairn::block::Block>"), "get");
    }

    #[test]
    fn this_function_is_found() {
        let process = procfs::process::Process::myself().unwrap();
        let mut places = Places::new(process.maps().unwrap());
        let here = Places::describe as *const () as u64;
        let place = places.describe(here);
        assert!(place.contains("describe"), "{place}");
    }
}
