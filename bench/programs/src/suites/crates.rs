//! The tests of Rust's library and of crates that live by allocating: on the system's malloc with
//! cairn preloaded, and with cairn as the global allocator.

use super::sources::Shop;
use super::{Prepared, Unit, workspace};
use crate::generate::Variables;
use crate::packages;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates, and what cargo is told about each; the first are the quick ones.
const CRATES: [(&str, &str); 13] = [
    ("hashbrown = \"0.16\"", ""),
    ("crossbeam-epoch = \"0.9\"", ""),
    ("crossbeam-deque = \"0.8\"", ""),
    ("crossbeam-queue = \"0.3\"", ""),
    ("bytes = \"1\"", ""),
    ("smallvec = \"1\"", ""),
    ("rayon-core = \"1\"", ""),
    ("crossbeam-channel = \"0.5\"", ""),
    ("crossbeam-utils = \"0.8\"", ""),
    ("rayon = \"1\"", ""),
    ("im = \"15\"", ""),
    ("bumpalo = \"3\"", "--features collections,boxed"),
    ("tokio = \"1\"", "--features full"),
];

/// What makes cairn the allocator of a crate and of everything that is linked to it.
const GLOBAL: &str = "\n#[global_allocator]\nstatic ON_CAIRN: cairn::Cairn = cairn::Cairn;\n";

pub(super) fn crates(shop: &Shop<'_>, variables: &Variables, linked: bool) -> Result<Prepared> {
    let chosen = &CRATES[..variables["crates"].parse()?];
    let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).collect();
    let sources = shop.crates(&names)?;
    let (mut units, mut versions, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for ((krate, options), source) in chosen.iter().zip(&sources) {
        let name = krate.split_whitespace().next().unwrap_or(krate);
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
            let directory = Some(source.directory.display().to_string());
            let unit = unit(format!("{name} {test}"), &program);
            units.push(Unit { linked: linked.then_some(other), directory, ..unit });
        }
    }
    ensure!(!units.is_empty(), "no crate's tests build: {notes:?}");
    Ok(Prepared { version: versions.join(", "), units, notes })
}

fn unit(name: String, program: &Path) -> Unit {
    Unit {
        name,
        words: vec![program.display().to_string()],
        linked: None,
        env: Variables::new(),
        directory: None,
        account: None,
        limit: 900,
        reads: "libtest".to_owned(),
    }
}

/// The same tests of a copy of the crate whose allocator is cairn.
fn with_cairn(shop: &Shop<'_>, plain: &Path, options: &str) -> Result<Vec<(String, PathBuf)>> {
    let name = plain.file_name().context("a crate is in a directory")?.to_string_lossy();
    let copy = plain.with_file_name(format!("{name}-on-cairn"));
    shop.once(plain.parent().context("there is a parent")?, &format!("{name}-on-cairn"), || {
        shop.copy(plain, &copy)?;
        let manifest = copy.join("Cargo.toml");
        let cairn = workspace().join("crates/cairn");
        let dependency = format!("\n[dependencies.cairn-malloc]\npath = \"{}\"\n", cairn.display());
        fs::write(&manifest, fs::read_to_string(&manifest)? + &dependency)?;
        let root = copy.join("src/lib.rs");
        Ok(fs::write(&root, fs::read_to_string(&root)? + GLOBAL)?)
    })?;
    let mut built = executables(shop, None, &copy, options, "linked")?;
    // A test that uses nothing of the crate is linked without it, and so without its allocator.
    // The message for a bad pointer is in every program that has the allocator.
    let has_cairn = |program: &[u8]| program.windows(7).any(|bytes| bytes == b"cairn: ");
    built.retain(|(_, program)| fs::read(program).is_ok_and(|program| has_cairn(&program)));
    ensure!(!built.is_empty(), "no test of {name} has cairn in it");
    Ok(built)
}

/// Builds test executables without running them, and names them. What does not build is missing:
/// a test with a global allocator of its own, for one, cannot have cairn's as well.
fn executables(
    shop: &Shop<'_>,
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
        let target = &message["target"];
        if let (Some(program), Some(name)) =
            (message["executable"].as_str(), target["name"].as_str())
            && message["profile"]["test"] == true
        {
            let kind = target["kind"][0].as_str().unwrap_or_default();
            found.push((format!("{kind} {name}"), PathBuf::from(program)));
        }
    }
    let place = directory.display();
    ensure!(!found.is_empty(), "cargo built no test in {place}:\n{}", built.stderr);
    found.sort();
    Ok(found)
}

/// Tests of std that build outside of it, in a package of their own.
const STD_MANIFEST: &str = "[package]\nname = \"stdtests\"\nversion = \"0.0.0\"\n\
    edition = \"2024\"\nautotests = false\n[lib]\npath = \"empty.rs\"\n[workspace]\n\
    [dev-dependencies]\n\
    rand = { version = \"0.9.0\", default-features = false, features = [\"alloc\"] }\n\
    rand_xorshift = \"0.4.0\"\n\
    [[test]]\nname = \"thread_local\"\npath = \"tests/thread_local/lib.rs\"\n\
    [[test]]\nname = \"thread\"\npath = \"tests/thread.rs\"\n";

pub(super) fn library(shop: &Shop<'_>) -> Result<Prepared> {
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
        fs::write(home.join("std/empty.rs"), "")?;
        Ok(fs::write(home.join("std/Cargo.toml"), STD_MANIFEST)?)
    })?;
    let nightly = Some("+nightly");
    let mut tests = executables(shop, nightly, &home.join("alloctests"), "", "nightly")?;
    tests.extend(executables(shop, nightly, &home.join("std"), "", "nightly")?);
    let version = packages::version("rustc +nightly --version");
    Ok(Prepared {
        version: format!("nightly, rustc {version}"),
        units: tests.into_iter().map(|(name, program)| unit(name, &program)).collect(),
        notes: Vec::new(),
    })
}
