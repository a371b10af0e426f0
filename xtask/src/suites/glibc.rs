//! glibc's own tests, built against the glibc that is installed and run one by one.
//!
//! They include headers and call helpers of glibc's tree. The helpers (`support/`) are compiled as
//! far as they compile outside of it, and the few private headers that the system does not have
//! are given to them; tests that need more than that are left out and named.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, stems, tally};
use crate::programs::install::Need;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const NEEDS: &[Need] = &[
    Need::new("gcc", "gcc"),
    Need::new("ar", "binutils"),
    Need::new("/usr/include/malloc.h", "libc6-dev"),
    Need::new("dpkg-source", "dpkg-dev"),
];

pub(super) const MALLOC: Suite = Suite {
    name: "glibc-malloc",
    needs: NEEDS,
    what: "every program of glibc's malloc/ that builds outside of it",
    prepare: |shop| programs(shop, &["malloc"], |_| true),
    explained: &[
        (
            "tst-malloc-backtrace",
            "writes in front of a freed block and waits for glibc to find its own list damaged; \
             cairn keeps nothing there, and the write is lost or, with nothing mapped there, ends \
             the program",
        ),
        (
            "tst-malloc-stats-cancellation",
            "looks for the words `max mmap bytes` in what malloc_stats prints; cairn prints its \
             ledger",
        ),
        (
            "tst-malloc-thread-fail",
            "reads errno after posix_memalign has failed, which returns the error instead and \
             leaves errno alone on cairn, as the manual says",
        ),
        (
            "tst-malloc-fork-deadlock",
            "a limit: fork takes stdio's locks after those of the pthread_atfork handlers, cairn's \
             among them, and waits for ever if another thread allocates under a stream's lock while \
             a third flushes all streams; jemalloc 5.3.0 stops in the same way",
        ),
        (
            "tst-safe-linking",
            "damages the links of glibc's own free lists and waits for glibc to notice",
        ),
        ("tst-tcfree1", SECOND_FREE),
        ("tst-tcfree2", SECOND_FREE),
    ],
};

pub(super) const THREADS: Suite = Suite {
    name: "glibc-threads",
    needs: NEEDS,
    what: "glibc's programs for threads: creation, exit, cancellation, fork, thread-local storage",
    prepare: |shop| {
        let all = shop.pick(false, true);
        let quick = |name: &str| QUICK_THREADS.iter().any(|part| name.contains(part));
        programs(shop, &["nptl", "sysdeps/pthread"], |name| all || quick(name))
    },
    explained: &[],
};

const SECOND_FREE: &str = "frees a small block twice and waits to be aborted; cairn does not notice \
    that while the block's span lives (docs/guide/misuse.md)";

/// What has to do with memory that threads leave behind.
const QUICK_THREADS: [&str; 7] = ["fork", "exit", "create", "tls", "stack", "cancel1", "tsd"];

/// How the programs are compiled. A compiler that knows what malloc does would do away with calls.
const OPTIONS: &str = "-std=gnu11 -O2 -g -w -fno-builtin -fcommon -D_GNU_SOURCE -DTEST_NO_MALLOPT \
    -DTIMEOUTFACTOR=1 -Dlibc_hidden_proto(x)= -include limits.h";

/// Places in a build tree, which is not there.
const PLACES: [&str; 10] = [
    "SRCDIR",
    "OBJDIR",
    "OBJDIR_ELF_LDSO",
    "INSTDIR",
    "LIBDIR",
    "BINDIR",
    "SBINDIR",
    "SLIBDIR",
    "ROOTSBINDIR",
    "COMPLOCALEDIR",
];

/// Seconds that a program may take; its own limit of 20 is stretched to come before this one.
const LIMIT: u64 = 900;

fn programs(shop: &Shop, directories: &[&str], wanted: impl Fn(&str) -> bool) -> Result<Prepared> {
    let source = shop.debian_source("glibc")?;
    let headers = headers(shop, &source.directory)?;
    let support = support(shop, &source.directory, &headers)?;
    let (mut units, mut left_out) = (Vec::new(), Vec::new());
    for directory in directories {
        let folder = source.directory.join(directory);
        let bin = shop.directory(&directory.replace('/', "-"))?;
        for name in stems(&folder, ".c")?.into_iter().filter(|name| wanted(name)) {
            let file = folder.join(format!("{name}.c"));
            if !is_test(&name, &file)? {
                continue;
            }
            match compile(shop, &source.directory, &file, &name, [&headers, &support, &bin])? {
                Some(program) => units.push(unit(name, program)),
                None => left_out.push(name),
            }
        }
    }
    let mut notes = Vec::new();
    if !left_out.is_empty() {
        notes.push(format!(
            "{} programs are left out, as they use what exists inside glibc's tree only: {}",
            left_out.len(),
            left_out.join(", ")
        ));
    }
    Ok(Prepared { version: source.version, units, notes })
}

fn unit(name: String, program: PathBuf) -> Unit {
    Unit::new(name, tally::exit, move |stage| {
        Ok(stage.process(&program)?.env("TIMEOUTFACTOR", "2").limit(LIMIT))
    })
}

/// Programs with a `main`, their own or the harness's.
fn is_test(name: &str, file: &Path) -> Result<bool> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let marks = ["test-driver.c", "test-skeleton.c", "main (", "-skeleton.c"];
    let starts = ["tst-", "bug", "mallocbug"].iter().any(|start| name.starts_with(start));
    Ok(starts && !name.contains("skeleton") && marks.iter().any(|mark| text.contains(mark)))
}

/// glibc's private headers that the system has nothing in the place of, and the way to `support/`.
fn headers(shop: &Shop, glibc: &Path) -> Result<PathBuf> {
    let home = shop.shared("glibc-headers")?;
    shop.once(&home, "headers", || {
        let system = [Path::new("/usr/include"), Path::new("/usr/include/x86_64-linux-gnu")];
        for name in stems(&glibc.join("include"), ".h")? {
            let name = format!("{name}.h");
            if !system.iter().any(|place| place.join(&name).exists()) {
                fs::copy(glibc.join("include").join(&name), home.join(&name))?;
            }
        }
        let link = home.join("support");
        if !link.exists() {
            symlink(glibc.join("support"), link)?;
        }
        Ok(())
    })?;
    Ok(home)
}

/// Where private headers are found; those of `sysdeps/generic` only if nobody else has them.
fn includes(glibc: &Path, headers: &Path) -> Vec<String> {
    let (support, generic) = (glibc.join("support"), glibc.join("sysdeps/generic"));
    [("-I", headers), ("-I", &support), ("-idirafter", &generic)]
        .map(|(option, path)| format!("{option}{}", path.display()))
        .to_vec()
}

/// The helpers as an archive.
fn support(shop: &Shop, glibc: &Path, headers: &Path) -> Result<PathBuf> {
    let home = shop.shared("glibc-support")?;
    let archive = home.join("libsupport.a");
    shop.once(&home, "support", || {
        let mut objects = Vec::new();
        for name in stems(&glibc.join("support"), ".c")? {
            let object = home.join(format!("{name}.o"));
            let compiled = shop
                .tool("gcc")?
                .line(OPTIONS)
                .args(PLACES.map(|place| format!("-D{place}_PATH=\"/\"")))
                .line("-c -o")
                .arg(&object)
                .args(includes(glibc, headers))
                .arg(glibc.join("support").join(format!("{name}.c")))
                .run()?;
            // Main functions of tools, and what works on glibc's insides.
            if compiled.status.success() && !name.ends_with("-run") && !TOOLS.contains(&&*name) {
                objects.push(object);
            }
        }
        ensure!(objects.len() > 50, "only {} helpers compile", objects.len());
        shop.tool("ar")?.arg("rcs").arg(&archive).args(objects).success()?;
        Ok(())
    })?;
    Ok(archive)
}

/// Programs among the helpers.
const TOOLS: [&str; 6] = [
    "echo-container",
    "shell-container",
    "true-container",
    "test-container",
    "links-dso-program",
    "links-dso-program-c",
];

/// One program, or `None` if it does not build. Both are remembered.
fn compile(
    shop: &Shop,
    glibc: &Path,
    file: &Path,
    name: &str,
    [headers, support, bin]: [&Path; 3],
) -> Result<Option<PathBuf>> {
    let (program, failed) = (bin.join(name), bin.join(format!("{name}.failed")));
    if program.exists() || failed.exists() {
        return Ok(program.exists().then_some(program));
    }
    let mut gcc = shop.tool("gcc")?.line(OPTIONS).arg("-o").arg(&program);
    gcc = gcc.args(includes(glibc, headers)).arg(file);
    if let Some(kind) = name.split("interpose-").nth(1) {
        let kind = kind.trim_start_matches("static-");
        gcc = gcc.arg(file.with_file_name(format!("tst-interpose-aux-{kind}.c")));
    }
    let built = gcc.arg(support).line("-pthread -ldl -lrt -lm").run()?;
    if built.status.success() {
        return Ok(Some(program));
    }
    fs::write(failed, built.stderr)?;
    Ok(None)
}
