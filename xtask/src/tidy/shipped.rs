//! What is shipped: the core's dependencies, the library's size and what it needs.

use super::Report;
use anyhow::{Context, Result};
use object::read::elf::{Dyn, ElfFile64};
use std::path::Path;
use std::process::Command;

const STRIPPED_BYTES: u64 = 200 * 1024;

pub(super) fn check_dependencies(root: &Path, report: &mut Report) -> Result<()> {
    const FILE: &str = "crates/cairn/Cargo.toml";
    let text = std::fs::read_to_string(root.join(FILE))?;
    let manifest: toml::Table = toml::from_str(&text).with_context(|| format!("in {FILE}"))?;
    for (table, dependency) in strange_dependencies(&manifest) {
        let is_it = |line: &str| line.trim_start().starts_with(&dependency);
        let line = text.lines().position(is_it).map_or(1, |index| index + 1);
        let reason = format!("`{dependency}` in [{table}]; the core depends on libc alone");
        report.fail(FILE, line, "dependencies", reason);
    }
    Ok(())
}

fn strange_dependencies(manifest: &toml::Table) -> Vec<(String, String)> {
    let mut strange = Vec::new();
    let mut check = |place: String, table: &toml::Value| {
        for (kind, allowed) in [("dependencies", &["libc"][..]), ("build-dependencies", &[])] {
            let names = table.get(kind).and_then(toml::Value::as_table);
            for name in names.into_iter().flat_map(toml::Table::keys) {
                if !allowed.contains(&name.as_str()) {
                    strange.push((format!("{place}{kind}"), name.clone()));
                }
            }
        }
    };
    check(String::new(), &toml::Value::Table(manifest.clone()));
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    for (target, table) in targets.into_iter().flatten() {
        check(format!("target.'{target}'."), table);
    }
    strange
}

/// Checks the size and the dependencies of the shipped library; returns what to say about it.
pub(super) fn check_library(shared: &Path, report: &mut Report) -> Result<String> {
    const FILE: &str = "target/release/libcairn.so";
    let folder = tempfile::tempdir()?;
    let stripped = folder.path().join("libcairn.so");
    let status = Command::new("strip").args(["-s", "-o"]).args([&stripped, shared]).status();
    let Ok(true) = status.map(|status| status.success()) else {
        return Ok("; libcairn.so: cannot be stripped here".into());
    };
    let bytes = std::fs::read(&stripped)?;
    let size = bytes.len() as u64;
    if size > STRIPPED_BYTES {
        let reason = format!("{size} bytes stripped, at most {STRIPPED_BYTES}");
        report.fail(FILE, 1, "library-size", reason);
    }
    let needed = needed_libraries(&bytes).context("cannot read libcairn.so")?;
    for name in &needed {
        if name != "libc.so.6" && !name.starts_with("ld-linux") {
            report.fail(FILE, 1, "library-needs", format!("it needs {name}; only libc may be"));
        }
    }
    let panics = bytes.windows(11).filter(|window| window == b"panicked at").count();
    let needed = needed.join(", ");
    Ok(format!(
        "; libcairn.so: {size} bytes stripped, needs {needed}, {panics} panic messages inside"
    ))
}

fn needed_libraries(bytes: &[u8]) -> Result<Vec<String>> {
    let file = ElfFile64::<object::Endianness>::parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut needed = Vec::new();
    if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries.iter().filter(|e| e.d_tag(endian) == object::elf::DT_NEEDED) {
            let offset = u32::try_from(entry.d_val(endian))?;
            let name = strings.get(offset).ok().context("a name outside the string table")?;
            needed.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_may_depend_on_libc() {
        let manifest = "[dependencies]\nlibc = \"0\"\nrand = \"0\"\n[dev-dependencies]\nx = \"0\"\n\
                        [target.'cfg(unix)'.dependencies]\nlibc = \"0\"\nloom = \"0\"\n";
        let strange = strange_dependencies(&toml::from_str(manifest).unwrap());
        let expected = [("dependencies", "rand"), ("target.'cfg(unix)'.dependencies", "loom")];
        assert_eq!(strange, expected.map(|(table, name)| (table.to_owned(), name.to_owned())));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_file_says_which_libraries_it_needs() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needed_libraries(&bytes).unwrap().contains(&"libc.so.6".to_owned()));
    }
}
