//! The tests of other allocators, as far as they ask for what every malloc promises.
//!
//! jemalloc's and gperftools' programs are linked to their own libraries. With cairn preloaded the
//! malloc family is cairn's and the rest (`mallctl`, `MallocExtension`) stays theirs, so that what
//! looks into the other's books has to fail. scudo's and mimalloc's run on the system's malloc.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, stems, tally};
use crate::programs::install::Need;
use anyhow::{Context, Result};

pub(super) const JEMALLOC: Suite = Suite {
    name: "jemalloc",
    needs: &[Need::new("gcc", "gcc"), Need::new("g++", "g++"), Need::new("make", "make"), CARGO],
    what: "jemalloc's integration tests; without cairn they run on jemalloc",
    prepare: jemalloc,
    explained: &[
        (
            "aligned_alloc: test_alignment_errors",
            "wants EINVAL for an alignment that is no power of two; cairn rounds up, as glibc did \
             until 2.37",
        ),
        ("allocated: *", "compares with jemalloc's own count of bytes, which cairn's do not enter"),
        ("rallocx", "gives blocks of jemalloc's `rallocx` to `malloc_usable_size`, cairn's here"),
    ],
};

pub(super) const SCUDO: Suite = Suite {
    name: "scudo",
    needs: &[
        Need::new("clang++", "clang"),
        Need::new("/usr/include/gtest/gtest.h", "libgtest-dev"),
        CARGO,
    ],
    what: "scudo's tests of its C and C++ wrappers, each in a process of its own",
    prepare: scudo,
    explained: &[(
        "ScudoWrappersCDeathTest.Malloc*",
        "frees a small block twice and waits for the end of the process; cairn does not notice that \
         while the block's span lives (docs/guide/misuse.md)",
    )],
};

pub(super) const MIMALLOC: Suite = Suite {
    name: "mimalloc",
    needs: &[
        Need::new("gcc", "gcc"),
        Need::new("g++", "g++"),
        Need::new("dpkg-source", "dpkg-dev"),
    ],
    what: "mimalloc's stress test on the standard malloc, its test of overridden malloc and new",
    prepare: mimalloc,
    explained: &[],
};

pub(super) const GPERFTOOLS: Suite = Suite {
    name: "gperftools",
    needs: &[
        Need::new("g++", "g++"),
        Need::new("make", "make"),
        Need::new("autoreconf", "autoconf"),
        Need::new("automake", "automake"),
        Need::new("libtoolize", "libtool"),
        Need::new("dpkg-source", "dpkg-dev"),
    ],
    what: "gperftools' unit tests of malloc; without cairn they run on tcmalloc",
    prepare: gperftools,
    explained: &[
        (
            "tcmalloc_minimal_unittest",
            "all goes well up to the test that makes tcmalloc's own source of memory fail, which is \
             not cairn's",
        ),
        ("frag_unittest", BOOKS),
        ("markidle_unittest", BOOKS),
        ("malloc_extension_test", BOOKS),
        ("malloc_extension_c_test", "gives a block of `tc_malloc` to `free`, cairn's here"),
        (
            "memalign_unittest",
            "lowers RLIMIT_AS below what cairn has reserved, and does not look whether a block \
             aligned to 2 MiB came, which wants a new mapping (README.md, Limits)",
        ),
    ],
};

const BOOKS: &str = "asks tcmalloc about memory that cairn gave";

const CARGO: Need = Need::new("cargo", "cargo");

fn jemalloc(shop: &Shop) -> Result<Prepared> {
    let source = only(shop.crates(&["tikv-jemalloc-sys = \"0.7\""])?)?;
    let home = source.directory.join("jemalloc");
    shop.once(&source.directory, "build", || {
        shop.tool("cp")?.arg(source.directory.join("configure/configure")).arg(&home).success()?;
        shop.tool("sh")?
            .line("./configure --with-version=5.3.1-0-g0 --disable-doc")
            .directory(&home)
            .success()?;
        shop.tool("make")?.line("-j2 tests_integration").directory(&home).success()?;
        Ok(())
    })?;
    let mut units = Vec::new();
    for (folder, end) in [("test/integration", ".c"), ("test/integration/cpp", ".cpp")] {
        for name in stems(&home.join(folder), end)? {
            let (program, library) = (home.join(folder).join(&name), home.join("lib"));
            if !program.exists() {
                continue;
            }
            units.push(Unit::new(name, tally::jemalloc, move |stage| {
                Ok(stage.process(&program)?.env("LD_LIBRARY_PATH", &library))
            }));
        }
    }
    Ok(Prepared { version: source.version, units, notes: Vec::new() })
}

fn scudo(shop: &Shop) -> Result<Prepared> {
    let source = only(shop.crates(&["scudo-sys = \"0.2\""])?)?;
    let home = source.directory.join("scudo-standalone");
    let program = source.directory.join("wrappers");
    shop.once(&source.directory, "build", || {
        let main = source.directory.join("main.cc");
        std::fs::write(&main, include_str!("scripts/scudo.cc"))?;
        shop.tool("clang++")?
            .line("-std=c++17 -O1 -g -w -fno-builtin -pthread -o")
            .arg(&program)
            .arg("-I")
            .arg(&home)
            .arg("-I")
            .arg(home.join("include"))
            .args(
                ["wrappers_c_test.cpp", "wrappers_cpp_test.cpp"]
                    .map(|it| home.join("tests").join(it)),
            )
            .arg(main)
            .line("-lgtest")
            .success()?;
        Ok(())
    })?;
    let listed = shop.tool(&program)?.arg("--gtest_list_tests").success()?.text();
    let mut group = "";
    let mut units = Vec::new();
    for line in listed.lines() {
        if !line.starts_with(' ') {
            group = line.trim();
            continue;
        }
        let (name, program) = (format!("{group}{}", line.trim()), program.clone());
        units.push(Unit::new(name.clone(), tally::googletest, move |stage| {
            Ok(stage.process(&program)?.arg(format!("--gtest_filter={name}")).limit(120))
        }));
    }
    Ok(Prepared { version: source.version, units, notes: Vec::new() })
}

fn mimalloc(shop: &Shop) -> Result<Prepared> {
    let source = shop.debian_source("mimalloc")?;
    let (home, bin) = (source.directory.as_path(), shop.directory("bin")?);
    let include = home.join("include");
    shop.once(&bin, "build", || {
        let c = |arguments: &str| {
            Ok::<_, anyhow::Error>(shop.tool("gcc")?.line(arguments).arg("-I").arg(&include))
        };
        c("-O2 -w -DUSE_STD_MALLOC -pthread")?
            .arg("-o")
            .arg(bin.join("stress"))
            .arg(home.join("test/test-stress.c"))
            .success()?;
        c("-O2 -w -c")?
            .arg("-o")
            .arg(bin.join("mimalloc.o"))
            .arg(home.join("src/static.c"))
            .success()?;
        c("-O2 -w -fno-builtin -pthread")?
            .arg("-o")
            .arg(bin.join("override"))
            .args([home.join("test/main-override.c"), bin.join("mimalloc.o")])
            .success()?;
        shop.tool("g++")?
            .line("-std=c++17 -O2 -w -fno-builtin -pthread -o")
            .arg(bin.join("override-cpp"))
            .arg("-I")
            .arg(&include)
            .args([home.join("test/main-override.cpp"), bin.join("mimalloc.o")])
            .success()?;
        Ok(())
    })?;
    let program = |name: &str, arguments: &'static str| {
        let program = bin.join(name);
        let name = format!("{name} {arguments}");
        Unit::new(name.trim(), tally::exit, move |stage| {
            Ok(stage.process(&program)?.line(arguments).limit(900))
        })
    };
    let mut units = vec![program("override", ""), program("override-cpp", "")];
    // Threads, scale in per cent, rounds.
    for arguments in shop.pick(["4 25 8", "32 10 4"], ["8 50 50", "64 25 20"]) {
        units.push(program("stress", arguments));
    }
    Ok(Prepared { version: source.version, units, notes: Vec::new() })
}

/// gperftools' programs for the malloc without profilers, built by its own makefile.
const GPERFTOOLS_PROGRAMS: &str = "tcmalloc_minimal_unittest tcmalloc_minimal_large_unittest \
    tcmalloc_minimal_large_heap_fragmentation_unittest frag_unittest markidle_unittest \
    current_allocated_bytes_test malloc_hook_test malloc_extension_test malloc_extension_c_test \
    memalign_unittest realloc_unittest thread_dealloc_unittest min_per_thread_cache_size_test";

fn gperftools(shop: &Shop) -> Result<Prepared> {
    let source = shop.debian_source("google-perftools")?;
    let home = source.directory.clone();
    shop.once(&home, "build", || {
        if !home.join("configure").exists() {
            shop.tool("autoreconf")?.arg("-i").directory(&home).success()?;
        }
        shop.tool("sh")?
            .line("./configure --enable-minimal --disable-static --disable-dependency-tracking")
            .directory(&home)
            .success()?;
        // One that does not build is missed below.
        shop.tool("make")?.line("-j2 -k").line(GPERFTOOLS_PROGRAMS).directory(&home).run()?;
        Ok(())
    })?;
    let (mut units, mut missed) = (Vec::new(), Vec::new());
    for name in GPERFTOOLS_PROGRAMS.split_whitespace() {
        let (program, library) = (home.join(".libs").join(name), home.join(".libs"));
        if !program.exists() {
            missed.push(name);
            continue;
        }
        units.push(Unit::new(name, tally::exit, move |stage| {
            Ok(stage.process(&program)?.env("LD_LIBRARY_PATH", &library).limit(900))
        }));
    }
    let notes = match missed[..] {
        [] => Vec::new(),
        _ => vec![format!("did not build: {}", missed.join(", "))],
    };
    Ok(Prepared { version: source.version, units, notes })
}

fn only<T>(all: Vec<T>) -> Result<T> {
    all.into_iter().next().context("one crate was asked for")
}
