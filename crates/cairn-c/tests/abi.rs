//! The library's interface, which files in `abi/` hold: what it exports, and what its header declares. A test fails
//! where one differs; docs/design/abi.md says how they may change.

mod common;

use common::{include_dir, library, run, scratch_dir, skip_for_stand_in};
use object::endian::LittleEndian;
use object::read::archive::ArchiveFile;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol, SymbolScope};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

type Lines = BTreeSet<String>;

/// The lines of a file in `abi/`, but for what it says of itself.
fn written(file: &str) -> Lines {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi").join(file);
    let text = std::fs::read_to_string(path).expect("the file is there");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Asserts that these lines are those of the file.
#[track_caller]
fn assert_as_written(file: &str, found: &Lines) {
    let written = written(file);
    let mut differences = String::new();
    for (sign, one, other) in [('-', &written, found), ('+', found, &written)] {
        one.difference(other).for_each(|line| writeln!(differences, "{sign}{line}").unwrap());
    }
    assert!(differences.is_empty(), "abi/{file}, see docs/design/abi.md:\n{differences}");
}

#[test]
fn the_shared_library_exports_what_is_written() {
    if skip_for_stand_in() {
        return;
    }
    let mut readelf = Command::new("readelf");
    readelf.args(["-W", "--dyn-syms"]).arg(&library().shared);
    // Num Value Size Type Bind Vis Ndx Name; the linker has a symbol for each version.
    let symbols = run(readelf).stdout;
    let symbols = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let exported = symbols
        .filter(|fields| fields.len() == 8 && matches!(fields[4], "GLOBAL" | "WEAK"))
        .filter(|fields| !matches!(fields[6], "UND" | "ABS"))
        .map(|fields| fields[7].to_owned());
    assert_as_written("symbols.txt", &exported.collect());
}

/// A program and its other libraries meet no other names in it.
#[test]
fn the_archive_defines_the_same_names() {
    let Some(path) = library().archive.as_ref().filter(|_| !skip_for_stand_in()) else { return };
    let bytes = std::fs::read(path).expect("the archive is readable");
    let archive = ArchiveFile::parse(bytes.as_slice()).expect("an archive");
    let mut defined = Lines::new();
    for member in archive.members() {
        // A copy: members are not aligned in the archive.
        let data = member.expect("a member").data(bytes.as_slice()).expect("its data").to_vec();
        let file = ElfFile64::<LittleEndian>::parse(data.as_slice()).expect("an object file");
        let symbols = file.symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
        // Those that libraries made of the archive do not export are to be found by nobody.
        for symbol in symbols.filter(|symbol| symbol.scope() == SymbolScope::Dynamic) {
            defined.insert(symbol.name().expect("a name").to_owned());
        }
    }
    let names = written("symbols.txt");
    let names = names.iter().filter_map(|line| line.split('@').next()).map(str::to_owned);
    assert_eq!(defined, names.collect());
}

/// The header's declarations, each in one line without comments and what only helps compilers.
fn declarations() -> Vec<String> {
    let text = std::fs::read_to_string(include_dir().join("cairn.h")).expect("the header");
    let code = text.split("/*").map(|part| part.rsplit("*/").next().unwrap_or_default());
    let code = code.collect::<String>().replace("extern \"C\" {", "");
    let code = code.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
    let mut declarations = vec![String::new()];
    let mut depth = 0;
    for character in code.chars() {
        depth += i32::from(character == '{') - i32::from(character == '}');
        match character {
            ';' if depth == 0 => declarations.push(String::new()),
            // What is compiled into programs has no symbol; the layout that it uses is a declaration of its own.
            '}' if depth == 0 && declarations.last().unwrap().contains(" static ") => {
                *declarations.last_mut().unwrap() = String::new();
            }
            _ => declarations.last_mut().unwrap().push(character),
        }
    }
    declarations.pop();
    let words = declarations.iter().map(|text| {
        // An attribute of ours may have arguments.
        let mut text = text.clone();
        while let Some(at) = text.find("CAIRN_") {
            let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
            let end = text[at..].find(|c| !is_name(c)).map_or(text.len(), |length| at + length);
            let end = if text[end..].starts_with('(') {
                end + text[end..].find(')').expect("a closed list") + 1
            } else {
                end
            };
            text.replace_range(at..end, "");
        }
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    words.collect()
}

/// The names that a declaration's fields have.
fn field_name(field: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let start = match field.find("(*") {
        Some(at) => &field[at + 2..],
        None => {
            let name = field.split('[').next().unwrap_or(field);
            &name[name.rfind(|c| !is_part(c)).map_or(0, |at| at + 1)..]
        }
    };
    start.split(|c| !is_part(c)).next().unwrap_or_default()
}

/// Functions by their types, data by their layout.
#[test]
fn the_header_declares_what_is_written() {
    let mut found = Lines::new();
    let mut program = "#include <cairn.h>\n#include <stdio.h>\nint main(void)\n{\n".to_owned();
    for declaration in declarations() {
        let Some((name, fields)) = declaration.split_once(" {") else {
            found.insert(declaration);
            continue;
        };
        writeln!(program, "printf(\"{name}: %zu bytes\\n\", sizeof({name}));").unwrap();
        let fields = fields.trim_end_matches('}').split(';').map(str::trim);
        for field in fields.filter(|field| !field.is_empty()) {
            let offset = format!("offsetof({name}, {})", field_name(field));
            writeln!(program, "printf(\"{name} at %zu: {field}\\n\", {offset});").unwrap();
        }
    }
    let file = scratch_dir().join(format!("abi-{}", std::process::id()));
    let source = file.with_extension("c");
    std::fs::write(&source, program + "}\n").expect("the scratch folder is writable");
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(include_dir()).arg("-o").arg(&file).arg(&source);
    run(compiler).assert_quiet_success("the program that measures");
    let outcome = run(Command::new(&file));
    outcome.assert_quiet_success("the program that measures");
    found.extend(outcome.stdout.lines().map(str::to_owned));
    for file in [file, source] {
        std::fs::remove_file(file).expect("it was just written");
    }
    assert_as_written("header.txt", &found);
}

/// What the header declares is what the library exports under its own prefix.
#[test]
fn the_header_declares_what_is_exported() {
    let declared = declarations().into_iter().filter(|text| !text.contains(['{']));
    let declared = declared.filter(|text| !text.starts_with("typedef")).map(|text| {
        let name = text.split('(').next().unwrap_or_default();
        name[name.rfind([' ', '*']).map_or(0, |at| at + 1)..].to_owned()
    });
    let (declared, of_c): (Lines, Lines) = declared.partition(|name| name.starts_with("cairn_"));
    let symbols = written("symbols.txt");
    let exported = symbols.iter().filter_map(|line| line.split_once("@@CAIRN_"));
    assert_eq!(declared, exported.map(|(name, _)| name.to_owned()).collect());
    // What some C libraries do not declare.
    assert_eq!(of_c.iter().collect::<Vec<_>>(), ["free_aligned_sized", "free_sized"]);
    assert!(of_c.is_subset(&symbols), "{of_c:?}");
}

/// Whether the C library declares the sized frees of C23, as the newer ones do, or not, in C and C++.
#[test]
fn the_sized_frees_are_declared() {
    const OF_C_LIBRARY: &str = "\
#ifdef __cplusplus
extern \"C\" {
#define DOES_NOT_THROW noexcept(true)
#else
#define DOES_NOT_THROW __attribute__((nothrow))
#endif
extern void free_sized(void *pointer, __SIZE_TYPE__ size) DOES_NOT_THROW;
extern void free_aligned_sized(void *pointer, __SIZE_TYPE__ align, __SIZE_TYPE__ size) DOES_NOT_THROW;
#ifdef __cplusplus
}
#endif
";
    const PROGRAM: &str = "\
#include <stdlib.h>
#include <cairn.h>
int main(void)
{
    free_sized(malloc(100), 100);
    free_aligned_sized(aligned_alloc(64, 640), 64, 640);
    return 0;
}
";
    for (compiler, standard) in [("cc", "c11"), ("cc", "c2x"), ("c++", "c++11"), ("c++", "c++20")] {
        for before in ["", OF_C_LIBRARY] {
            let end = if compiler == "cc" { "c" } else { "cpp" };
            let source = scratch_dir().join(format!("sized-{}.{end}", std::process::id()));
            std::fs::write(&source, format!("{before}{PROGRAM}")).expect("it is writable");
            let mut command = Command::new(compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
            command.arg(format!("-std={standard}")).arg("-I").arg(include_dir()).arg(&source);
            run(command).assert_quiet_success(&format!("{compiler} {standard} {}", before.len()));
            std::fs::remove_file(source).expect("it was just written");
        }
    }
}
