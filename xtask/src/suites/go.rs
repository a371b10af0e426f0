//! Go's own tests of cgo: C memory, C threads and signals under the Go runtime.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, tally};
use crate::programs::install::{self, Need, find};
use crate::programs::process::SYSTEM_PATH;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

pub(super) const CGO: Suite = Suite {
    name: "go-cgo",
    needs: &[Need::new("go", "golang-go"), Need::new("gcc", "gcc")],
    what: "Go's tests of cgo, built by `go test -c` and run in their directories",
    prepare,
    explained: &[],
};

/// Packages, and the tests of each, `.` being all.
const QUICK: [(&str, &str); 7] = [
    ("runtime/cgo", "."),
    ("cmd/cgo/internal/test", "."),
    ("cmd/cgo/internal/teststdio", "."),
    ("cmd/cgo/internal/testlife", "."),
    ("cmd/cgo/internal/testtls", "."),
    ("cmd/cgo/internal/testso", "."),
    ("os/user", "."),
];

const MORE: [(&str, &str); 8] = [
    ("runtime", "Cgo|CGO|SignalForward|Segv|Dlopen|NeedmDeadlock"),
    ("cmd/cgo/internal/testcarchive", "."),
    ("cmd/cgo/internal/testcshared", "."),
    ("cmd/cgo/internal/testplugin", "."),
    ("cmd/cgo/internal/testnocgo", "."),
    ("cmd/cgo/internal/testerrors", "."),
    ("cmd/cgo/internal/testgodefs", "."),
    ("net", "Cgo|LookupHost|LookupPort"),
];

fn prepare(shop: &Shop) -> Result<Prepared> {
    let go = find("go").context("there is no go")?;
    let root = shop.tool(&go)?.line("env GOROOT").success()?.text();
    let sources = Path::new(root.trim()).join("src");
    let path = format!("{}:{SYSTEM_PATH}", Path::new(root.trim()).join("bin").display());
    let (cache, bin) = (shop.directory("cache")?, shop.directory("bin")?);
    let environment: Vec<(&str, String)> = vec![
        ("PATH", path),
        ("GOCACHE", cache.display().to_string()),
        ("GOPATH", shop.directory("path")?.display().to_string()),
        ("GOTOOLCHAIN", "local".to_owned()),
        ("GOPROXY", "off".to_owned()),
        ("GOFLAGS", String::new()),
        ("CGO_ENABLED", "1".to_owned()),
    ];
    let chosen: Vec<(&str, &str)> =
        shop.pick(QUICK.to_vec(), QUICK.iter().chain(&MORE).copied().collect());
    let (mut units, mut notes) = (Vec::new(), Vec::new());
    for (package, tests) in chosen {
        let program = bin.join(package.replace('/', "-"));
        let directory = sources.join(package);
        let mut build = shop.tool(&go)?.line("test -c -o").arg(&program).arg(package);
        for (name, value) in &environment {
            build = build.env(name, value);
        }
        let built = build.directory(&sources).run()?;
        if !program.exists() {
            let why = built.stderr.lines().last().unwrap_or_default().to_owned();
            notes.push(format!("{package} does not build: {why}"));
            continue;
        }
        units.push(unit(package, tests, program, directory, environment.clone()));
    }
    Ok(Prepared { version: install::version(&["go", "version"]), units, notes })
}

fn unit(
    package: &str,
    tests: &'static str,
    program: PathBuf,
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
) -> Unit {
    Unit::new(package, tally::go, move |stage| {
        let mut process = stage
            .process(&program)?
            .line("-test.v -test.short -test.timeout 20m -test.run")
            .arg(tests)
            .directory(&directory)
            .limit(1260);
        for (name, value) in &environment {
            process = process.env(name, value);
        }
        Ok(process)
    })
}
