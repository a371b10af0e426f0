//! The Rust compiler on a generated crate, and a Rust program on the system's malloc.

use super::generate::{Numbers, file_fingerprint};
use super::install::{Need, find};
use super::process::SYSTEM_PATH;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

pub(super) const RUSTC: Program = Program {
    name: "cargo",
    quick: true,
    needs: &[Need::new("cargo", "cargo"), Need::new("rustc", "rustc")],
    version: &["rustc", "--version"],
    what: "cargo build of a generated crate in both profiles; libraries compared",
    loaded_in: &["cargo", "rustc"],
    prepare: |stage| stage.write_input("lib.rs", crate_source(stage.pick(15, 120))),
    run: build,
};

pub(super) const RUST_PROGRAM: Program = Program {
    name: "rust-program",
    quick: true,
    needs: &[Need::new("rustc", "rustc")],
    version: &["rustc", "--version"],
    what: "maps, strings and vectors handed between threads, on the system's malloc",
    loaded_in: &["workload"],
    prepare: |stage| {
        stage.write_input("workload.rs", include_str!("scripts/workload.rs"))?;
        tool(stage, "rustc")?
            .line("--edition 2021 -O -o")
            .args([stage.input.join("workload"), stage.input.join("workload.rs")])
            .success()?;
        Ok(())
    },
    run: |stage| {
        let answer = stage
            .process(stage.input.join("workload").to_string_lossy().as_ref())?
            .arg(stage.pick("40", "300"))
            .success()?
            .text();
        Ok(Evidence::summary(answer.trim()).fact("answer", answer))
    },
};

/// A process of the toolchain itself, past the proxy that chooses one.
fn tool<'a>(stage: &'a Stage, name: &str) -> Result<super::process::Process<'a>> {
    let path = toolchain()?.join("bin").join(name);
    stage.process(path.to_string_lossy().as_ref())
}

fn toolchain() -> Result<PathBuf> {
    // Cargo's own, for Debian has packages of either without the other.
    let beside = find("cargo").map(|cargo| cargo.with_file_name("rustc"));
    let beside = beside.filter(|rustc| rustc.is_file());
    let rustc = beside.or_else(|| find("rustc")).context("there is no rustc")?;
    let output = Command::new(rustc).args(["--print", "sysroot"]).output()?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn build(stage: &Stage) -> Result<Evidence> {
    std::fs::create_dir(stage.work.join("src"))?;
    std::fs::copy(stage.input.join("lib.rs"), stage.work.join("src/lib.rs"))?;
    let manifest = "[package]\nname = \"generated\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
    std::fs::write(stage.work.join("Cargo.toml"), manifest)?;
    let path = format!("{}:{SYSTEM_PATH}", toolchain()?.join("bin").display());
    let mut evidence = Evidence::default();
    let mut bytes = 0;
    for (option, folder) in [("--offline", "debug"), ("--release", "release")] {
        tool(stage, "cargo")?
            .line("build --quiet --offline --jobs 2")
            .args((option != "--offline").then_some(option))
            .env("PATH", &path)
            // Incremental objects are not the same twice, with any malloc.
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_HOME", stage.work.join("cargo-home"))
            .success()?;
        let library = stage.work.join("target").join(folder).join("libgenerated.rlib");
        bytes = library.metadata()?.len();
        evidence = evidence.fact(format!("{folder} library"), file_fingerprint(&library)?);
    }
    evidence.summary = format!("library of {} KiB", bytes / 1024);
    Ok(evidence)
}

/// Modules with traits, generics, iterators and formatting.
fn crate_source(modules: u64) -> String {
    let mut numbers = Numbers::new(8);
    let mut text =
        "//! Generated.\npub trait Shape { fn area(&self) -> f64; fn name(&self) -> String; }\n"
            .to_owned();
    for i in 0..modules {
        let (a, b) = (1 + numbers.below(99), 1 + numbers.below(99));
        let _ = write!(
            text,
            "pub mod m{i} {{
    use super::Shape;
    use std::collections::{{BTreeMap, HashMap}};
    #[derive(Clone, Debug, PartialEq, PartialOrd, Default)]
    pub struct Item<T> {{ pub key: u64, pub values: Vec<T>, pub name: String }}
    #[derive(Clone, Debug)]
    pub enum Kind {{ One(u64), Two {{ left: String, right: Box<Kind> }}, Three(Vec<Kind>) }}
    impl Kind {{
        pub fn depth(&self) -> usize {{
            match self {{
                Kind::One(n) if *n > {a} => 2,
                Kind::One(_) => 1,
                Kind::Two {{ left, right }} => left.len() % {b} + right.depth(),
                Kind::Three(all) => all.iter().map(Kind::depth).max().unwrap_or({a}),
            }}
        }}
    }}
    impl<T: Clone + Into<f64>> Shape for Item<T> {{
        fn area(&self) -> f64 {{ self.values.iter().cloned().map(Into::into).fold({a}.0, |x, y: f64| x * {b}.5 + y) }}
        fn name(&self) -> String {{ format!(\"{{}}-{{:>{b}}}\", self.name, self.key) }}
    }}
    pub fn group(items: &[Item<f32>]) -> BTreeMap<String, Vec<u64>> {{
        let mut by_key: HashMap<u64, Vec<&Item<f32>>> = HashMap::new();
        for item in items {{ by_key.entry(item.key % {b}).or_default().push(item); }}
        by_key.into_iter().map(|(key, all)| (format!(\"{{key}}\"), all.iter().map(|i| i.key * {a}).collect())).collect()
    }}
    pub fn shapes(n: u64) -> Vec<Box<dyn Shape>> {{
        (0..n).map(|key| Box::new(Item {{ key, values: vec![key as f32; {b}], name: key.to_string() }}) as Box<dyn Shape>).collect()
    }}
}}
"
        );
    }
    text
}
