//! The tests of Rust's library and of crates that live by allocating: on the system's malloc with
//! cairn preloaded, and with cairn as the global allocator.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, tally};
use crate::library::workspace;
use crate::programs::install::{self, Need};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

const CARGO: &[Need] = &[Need::new("cargo", "cargo"), Need::new("gcc", "gcc")];

pub(super) const LIBRARY: Suite = Suite {
    name: "rust-library",
    needs: CARGO,
    what: "alloc's and std's own tests, from the sources of the nightly toolchain",
    prepare: library,
    explained: &[],
};

pub(super) const CRATES: Suite = Suite {
    name: "rust-crates",
    needs: CARGO,
    what: "the crates' own tests, on the system's malloc and with cairn preloaded",
    prepare: |shop| crates(shop, false),
    explained: &[],
};

pub(super) const CRATES_LINKED: Suite = Suite {
    name: "rust-crates-linked",
    needs: CARGO,
    what: "the same tests with cairn as #[global_allocator]",
    prepare: |shop| crates(shop, true),
    explained: &[],
};

/// The crates, and what cargo is told about each.
const QUICK: [(&str, &str); 7] = [
    ("hashbrown = \"0.16\"", ""),
    ("crossbeam-epoch = \"0.9\"", ""),
    ("crossbeam-deque = \"0.8\"", ""),
    ("crossbeam-queue = \"0.3\"", ""),
    ("bytes = \"1\"", ""),
    ("smallvec = \"1\"", ""),
    ("rayon-core = \"1\"", ""),
];

const MORE: [(&str, &str); 6] = [
    ("crossbeam-channel = \"0.5\"", ""),
    ("crossbeam-utils = \"0.8\"", ""),
    ("rayon = \"1\"", ""),
    ("im = \"15\"", ""),
    ("bumpalo = \"3\"", "--features collections,boxed"),
    ("tokio = \"1\"", "--features full"),
];

/// What makes cairn the allocator of a crate and of everything that is linked to it.
const GLOBAL: &str = "\n#[global_allocator]\nstatic ON_CAIRN: cairn::Cairn = cairn::Cairn;\n";

fn crates(shop: &Shop, linked: bool) -> Result<Prepared> {
    let chosen: Vec<(&str, &str)> =
        shop.pick(QUICK.to_vec(), QUICK.iter().chain(&MORE).copied().collect());
    let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
    let sources = shop.crates(&names)?;
    let (mut units, mut versions, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for ((crate_name, options), source) in chosen.iter().zip(&sources) {
        let name = crate_name.split_whitespace().next().unwrap_or(crate_name);
        let plain = match executables(shop, None, &source.directory, options, "plain") {
            Ok(plain) => plain,
            Err(error) => {
                let why = format!("{error:#}");
                let why = why.lines().find(|line| line.starts_with("error")).unwrap_or(&why);
                notes.push(format!("the tests of {name} {} do not build: {why}", source.version));
                continue;
            }
        };
        versions.push(format!("{name} {}", source.version));
        let on_cairn = match linked {
            true => with_cairn(shop, &source.directory, options)?,
            false => plain.clone(),
        };
        for (test, program) in plain {
            let other = on_cairn.iter().find(|(name, _)| *name == test);
            let Some((_, other)) = other.cloned() else { continue };
            let directory = source.directory.clone();
            units.push(Unit::new(format!("{name} {test}"), tally::libtest, move |stage| {
                let on_cairn = linked && stage.has_library();
                let process = stage.process(if on_cairn { &other } else { &program })?;
                let process = if on_cairn { process.without_env("LD_PRELOAD") } else { process };
                Ok(process.directory(&directory).limit(900))
            }));
        }
    }
    ensure!(!units.is_empty(), "no crate's tests build: {notes:?}");
    Ok(Prepared { version: versions.join(", "), units, notes })
}

/// The same tests of a copy of the crate whose allocator is cairn.
fn with_cairn(shop: &Shop, plain: &Path, options: &str) -> Result<Vec<(String, PathBuf)>> {
    let name = plain.file_name().context("a crate is in a directory")?.to_string_lossy();
    let copy = plain.with_file_name(format!("{name}-on-cairn"));
    shop.once(plain.parent().context("there is a parent")?, &format!("{name}-on-cairn"), || {
        shop.copy(plain, &copy)?;
        let manifest = copy.join("Cargo.toml");
        let cairn = workspace().join("crates/cairn");
        let dependency = format!("\n[dependencies.cairn-malloc]\npath = \"{}\"\n", cairn.display());
        fs::write(&manifest, fs::read_to_string(&manifest)? + &dependency)?;
        let root = copy.join("src/lib.rs");
        fs::write(&root, fs::read_to_string(&root)? + GLOBAL)?;
        Ok(())
    })?;
    let mut built = executables(shop, None, &copy, options, "linked")?;
    // A test that uses nothing of the crate is linked without it, and so without its allocator.
    built.retain(|(_, program)| fs::read(program).is_ok_and(|text| has_cairn(&text)));
    ensure!(!built.is_empty(), "no test of {name} has cairn in it");
    Ok(built)
}

/// The message for a bad pointer is in every program that has the allocator.
fn has_cairn(program: &[u8]) -> bool {
    program.windows(7).any(|bytes| bytes == b"cairn: ")
}

/// Builds test executables without running them, and names them. What does not build is missing:
/// a test with a global allocator of its own, for one, cannot have cairn's as well.
fn executables(
    shop: &Shop,
    toolchain: Option<&str>,
    directory: &Path,
    options: &str,
    target: &str,
) -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = shop.tool("cargo")?;
    if let Some(toolchain) = toolchain {
        cargo = cargo.arg(toolchain).without_env("RUSTUP_TOOLCHAIN").without_env("CARGO");
    }
    let built = cargo
        .line("build --tests --keep-going --quiet --jobs 2 --message-format json")
        .line(options)
        .arg("--target-dir")
        .arg(shop.shared(&format!("rust-target-{target}"))?)
        .directory(directory)
        .env("CARGO_PROFILE_TEST_DEBUG", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .without_env("RUSTFLAGS")
        .run()?;
    let mut found = Vec::new();
    for line in built.text().lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let (Some(program), Some(name)) =
            (message["executable"].as_str(), message["target"]["name"].as_str())
            && message["profile"]["test"] == true
        {
            let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
            found.push((format!("{kind} {name}"), PathBuf::from(program)));
        }
    }
    let place = directory.display();
    ensure!(!found.is_empty(), "cargo built no test in {place}:\n{}", built.stderr);
    found.sort();
    Ok(found)
}

/// Tests of std that build outside of it.
const STD_TESTS: [&str; 2] = ["thread_local/lib.rs", "thread.rs"];

fn library(shop: &Shop) -> Result<Prepared> {
    let sysroot = shop.tool("rustup")?.line("run nightly rustc --print sysroot").success()?.text();
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if !sources.join("alloctests/Cargo.toml").exists() {
        bail!("needs the sources of the nightly toolchain (rustup component add rust-src)");
    }
    let home = shop.directory("library")?;
    shop.once(&home, "sources", || {
        for part in ["alloc", "alloctests", "std/tests"] {
            let to = home.join(part);
            fs::create_dir_all(to.parent().unwrap_or(&home))?;
            shop.copy(&sources.join(part), &to)?;
        }
        let manifest = home.join("alloctests/Cargo.toml");
        fs::write(&manifest, fs::read_to_string(&manifest)? + "\n[workspace]\n")?;
        let mut text = "[package]\nname = \"stdtests\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
            autotests = false\n[lib]\npath = \"empty.rs\"\n[workspace]\n[dev-dependencies]\n\
            rand = { version = \"0.9.0\", default-features = false, features = [\"alloc\"] }\n\
            rand_xorshift = \"0.4.0\"\n"
            .to_owned();
        for test in STD_TESTS {
            let name = test.trim_end_matches("/lib.rs").trim_end_matches(".rs");
            text += &format!("[[test]]\nname = \"{name}\"\npath = \"tests/{test}\"\n");
        }
        fs::write(home.join("std/empty.rs"), "")?;
        fs::write(home.join("std/Cargo.toml"), text)?;
        Ok(())
    })?;
    let nightly = Some("+nightly");
    let mut tests = executables(shop, nightly, &home.join("alloctests"), "", "nightly")?;
    tests.extend(executables(shop, nightly, &home.join("std"), "", "nightly")?);
    let units = tests.into_iter().map(|(name, program)| {
        Unit::new(name, tally::libtest, move |stage| Ok(stage.process(&program)?.limit(900)))
    });
    Ok(Prepared {
        version: format!(
            "nightly, rustc {}",
            install::version(&["rustc", "+nightly", "--version"])
        ),
        units: units.collect(),
        notes: Vec::new(),
    })
}
