//! The tests of CPython, perl and ruby, run by the interpreters that are installed.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, stems, tally, words};
use crate::programs::install::{self, Need, find};
use anyhow::{Context, Result};
use std::path::Path;

const PYTHON_NAME: &str = "/usr/bin/python3";

const PYTHON_NEEDS: &[Need] = &[
    Need::new(PYTHON_NAME, "python3"),
    Need::new("/usr/lib/python3.*/test/test_list.py", "libpython3.*-testsuite"),
];

pub(super) const PYTHON_MALLOC: Suite = Suite {
    name: "python-malloc",
    needs: PYTHON_NEEDS,
    what: "CPython's own tests, module by module, every object by malloc (PYTHONMALLOC=malloc)",
    prepare: |shop| python(shop, "malloc"),
    explained: &[],
};

pub(super) const PYTHON: Suite = Suite {
    name: "python",
    needs: PYTHON_NEEDS,
    what: "CPython's own tests, module by module, with its own small-object allocator on malloc",
    prepare: |shop| python(shop, "pymalloc"),
    explained: &[],
};

pub(super) const PERL: Suite = Suite {
    name: "perl",
    needs: &[Need::new("perl", "perl"), Need::new("dpkg-source", "dpkg-dev")],
    what: "perl's core tests, file by file, with the installed perl and its modules",
    prepare: perl,
    explained: &[],
};

pub(super) const RUBY: Suite = Suite {
    name: "ruby",
    needs: &[Need::new("ruby", "ruby"), Need::new("dpkg-source", "dpkg-dev")],
    what: "ruby's bootstrap tests and test/ruby, file by file, with the installed ruby",
    prepare: ruby,
    explained: &[],
};

/// Modules that allocate in many ways, start threads and processes, or call C libraries.
const PYTHON_QUICK: &str = "test_list test_dict test_set test_bytes test_unicode test_re test_json \
    test_pickle test_gc test_weakref test_thread test_threading test_zlib test_tracemalloc \
    test_array test_memoryview test_buffer test_collections test_itertools test_functools \
    test_generators test_coroutines test_struct test_codecs test_io test_bz2 test_lzma \
    test_hashlib test_decimal test_datetime test_descr test_ast test_compile test_exceptions \
    test_queue test_fork1 test_mmap test_ctypes test_sqlite3 test_xml_etree_c test_pyexpat \
    test_long test_capi test_embed test_audit test_faulthandler test_deque test_ordered_dict \
    test_unicodedata test_contextlib test_context test_sort test_string test_tuple test_bigmem";

fn python(shop: &Shop, allocator: &'static str) -> Result<Prepared> {
    let listed = shop.tool(PYTHON_NAME)?.line("-m test --list-tests").success()?.text();
    let quick = words(PYTHON_QUICK);
    let all = shop.pick(false, true);
    let modules = listed.split_whitespace().filter(|name| all || quick.contains(*name));
    let units = modules.map(|module| {
        let name = module.to_owned();
        Unit::new(module, tally::unittest, move |stage| {
            Ok(stage
                .process(PYTHON_NAME)?
                .env("PYTHONMALLOC", allocator)
                .env("PYTHONHASHSEED", "1")
                .line("-m test -v --timeout 280")
                .arg(&name)
                .limit(900))
        })
    });
    Ok(Prepared {
        version: install::version(&[PYTHON_NAME, "--version"]),
        units: units.collect(),
        notes: Vec::new(),
    })
}

/// Where the interpreter's modules are, the later ones over the earlier.
const PERL_LIBRARIES: [&str; 3] = [
    "/usr/share/perl/5.*",
    "/usr/lib/x86_64-linux-gnu/perl/5.*",
    "/usr/lib/x86_64-linux-gnu/perl-base",
];

fn perl(shop: &Shop) -> Result<Prepared> {
    let source = shop.debian_source("perl")?;
    let home = source.directory.clone();
    shop.once(&home, "modules", || {
        // The tests look for a perl and a lib beside them, as in a tree where it was built.
        let lib = home.join("lib");
        for pattern in PERL_LIBRARIES {
            let from = find(pattern).with_context(|| format!("there is no {pattern}"))?;
            shop.tool("cp")?.line("-aLf").arg(from.join(".")).arg(&lib).success()?;
        }
        let perl = find("perl").context("there is no perl")?;
        for link in ["perl", "t/perl"] {
            shop.tool("ln")?.arg("-sf").arg(&perl).arg(home.join(link)).success()?;
        }
        Ok(())
    })?;
    let quick = ["base", "cmd", "comp", "op"].as_slice();
    let all = [
        "base", "cmd", "comp", "io", "re", "opbasic", "op", "op/hook", "uni", "mro", "lib",
        "class", "perf", "win32",
    ];
    let mut units = Vec::new();
    for folder in shop.pick(quick, all.as_slice()) {
        let Ok(names) = stems(&home.join("t").join(folder), ".t") else { continue };
        for name in names {
            let (tests, file) = (home.join("t"), format!("{folder}/{name}.t"));
            units.push(Unit::new(file.clone(), tally::tap, move |stage| {
                // As the harness does: the taint switch of the first line comes before all others.
                let switches = taint(&tests.join(&file));
                Ok(stage
                    .process("perl")?
                    .args(switches)
                    .arg(&file)
                    .directory(&tests)
                    .env("PERL_CORE", "1")
                    .limit(900))
            }));
        }
    }
    Ok(Prepared { version: source.version, units, notes: Vec::new() })
}

/// The taint switch that a test's first line asks for.
fn taint(file: &Path) -> Option<&'static str> {
    let text = std::fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&text);
    let first = text.lines().next()?;
    let switches = first.strip_prefix("#!")?.split_whitespace().skip(1);
    let switches: Vec<&str> = switches.filter(|it| it.starts_with('-')).collect();
    let has = |letter| switches.iter().any(|switch| switch.contains(letter));
    match (has('T'), has('t')) {
        (true, _) => Some("-T"),
        (_, true) => Some("-t"),
        _ => None,
    }
}

/// Everything that makes, keeps or collects objects, and threads and processes.
const RUBY_QUICK: &str = "test_array test_hash test_string test_symbol test_proc test_gc \
    test_gc_compact test_objectspace test_thread test_thread_queue test_fiber test_marshal \
    test_bignum test_enumerator test_regexp test_weakmap test_weakkeymap test_struct test_sprintf \
    test_pack test_range test_class test_module test_method test_exception test_io test_m17n \
    test_ractor test_autoload test_iseq test_backtrace";

fn ruby(shop: &Shop) -> Result<Prepared> {
    let version = install::version(&["ruby", "--version"]);
    let name: String = version.split('.').take(2).collect::<Vec<_>>().join(".");
    let source = shop.debian_source(&format!("ruby{name}"))?;
    let interpreter = find("ruby").context("there is no ruby")?;
    let own = format!("--ruby={}", interpreter.display());
    let mut units = Vec::new();
    for name in stems(&source.directory.join("bootstraptest"), ".rb")? {
        if !name.starts_with("test_") {
            continue;
        }
        let (home, own) = (source.directory.clone(), own.clone());
        let file = format!("bootstraptest/{name}.rb");
        units.push(Unit::new(file.clone(), tally::ruby_bootstrap, move |stage| {
            let process = stage.process("ruby")?.arg("bootstraptest/runner.rb").args([&own, &file]);
            Ok(process.directory(&home).limit(600))
        }));
    }
    let quick = words(RUBY_QUICK);
    let all = shop.pick(false, true);
    for name in stems(&source.directory.join("test/ruby"), ".rb")? {
        if !name.starts_with("test_") || !(all || quick.contains(&name)) {
            continue;
        }
        let (home, own) = (source.directory.clone(), own.clone());
        let file = format!("test/ruby/{name}.rb");
        units.push(Unit::new(file.clone(), tally::ruby, move |stage| {
            let process = stage.process("ruby")?.arg("test/runner.rb").args([&own, &file]);
            Ok(process.directory(&home).limit(600))
        }));
    }
    Ok(Prepared { version: source.version, units, notes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_switches() {
        let directory = tempfile::tempdir().unwrap();
        let of = |line: &str| {
            let file = directory.path().join("x.t");
            std::fs::write(&file, format!("{line}\nprint 1;\n")).unwrap();
            taint(&file)
        };
        assert_eq!(of("#!./perl -T"), Some("-T"));
        assert_eq!(of("#!./perl -tw"), Some("-t"));
        assert_eq!(of("#!./perl -w"), None);
    }
}
