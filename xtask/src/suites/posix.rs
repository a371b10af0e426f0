//! The Open POSIX Test Suite, of what has to do with memory, threads and processes.

use super::shop::Shop;
use super::{Ended, Prepared, Suite, Unit, stems, tally};
use crate::programs::install::Need;
use anyhow::Result;
use std::fs;
use std::path::Path;
use tally::Tally;

pub(super) const POSIX: Suite = Suite {
    name: "posixtestsuite",
    needs: &[Need::new("gcc", "gcc"), Need::new("dpkg-source", "dpkg-dev")],
    what: "the Open POSIX Test Suite's conformance programs for memory, threads, fork and signals",
    prepare,
    explained: &[(
        "pthread_key_create/2-1",
        "reads the value of a key before it has made one, from a variable that nobody has set; it \
         is 0, which is cairn's own key by then",
    )],
};

/// Interfaces by the beginning of their names.
const QUICK: [&str; 11] = [
    "fork",
    "mmap",
    "munmap",
    "mlock",
    "munlock",
    "pthread_atfork",
    "pthread_create",
    "pthread_exit",
    "pthread_key",
    "pthread_cancel",
    "pthread_cleanup",
];

const MORE: [&str; 6] = ["pthread_", "sem_", "shm_", "sigaction", "sigaltstack", "mq_"];

fn prepare(shop: &Shop) -> Result<Prepared> {
    let source = shop.debian_source("posixtestsuite")?;
    let interfaces = source.directory.join("conformance/interfaces");
    let bin = shop.directory("bin")?;
    let wanted = shop.pick(QUICK.to_vec(), [QUICK.as_slice(), &MORE].concat());
    let (mut units, mut left_out) = (Vec::new(), 0);
    for folder in stems(&interfaces, "")? {
        if !wanted.iter().any(|start| folder.starts_with(start)) {
            continue;
        }
        for name in stems(&interfaces.join(&folder), ".c")? {
            // Numbers of an assertion and of a test; others are parts of tests.
            if !name.starts_with(|c: char| c.is_ascii_digit()) {
                continue;
            }
            let program = bin.join(format!("{folder}-{name}"));
            let file = interfaces.join(&folder).join(format!("{name}.c"));
            if !build(shop, &file, &program, &source.directory)? {
                left_out += 1;
                continue;
            }
            units.push(Unit::new(format!("{folder}/{name}"), read, move |stage| {
                Ok(stage.process(&program)?.limit(120))
            }));
        }
    }
    let notes = match left_out {
        0 => Vec::new(),
        _ => vec![format!("{left_out} programs do not build with this system's headers")],
    };
    Ok(Prepared { version: source.version, units, notes })
}

/// Builds one program, once, and says whether it is there.
fn build(shop: &Shop, file: &Path, program: &Path, home: &Path) -> Result<bool> {
    let failed = program.with_extension("failed");
    if !program.exists() && !failed.exists() {
        let built = shop
            .tool("gcc")?
            .line("-std=gnu99 -O2 -w -fcommon -D_GNU_SOURCE -o")
            .arg(program)
            .arg("-I")
            .arg(home.join("include"))
            .arg(file)
            .line("-pthread -lrt -lm")
            .directory(file.parent().unwrap_or(home))
            .run()?;
        if !built.status.success() {
            fs::write(&failed, built.stderr)?;
        }
    }
    Ok(program.exists())
}

/// Status 1 is a failure; 2, 4 and 5 are "unresolved", "unsupported" and "untested".
fn read(ended: &Ended) -> Tally {
    match ended.code {
        Some(2 | 4 | 5) => Tally { skipped: true, ..Tally::default() },
        _ => tally::exit(ended),
    }
}
