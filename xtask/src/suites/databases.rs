//! The tests of redis, SQLite and PostgreSQL.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, stems, tally, words};
use crate::programs::install::Need;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

const SOURCE: Need = Need::new("dpkg-source", "dpkg-dev");

pub(super) const REDIS: Suite = Suite {
    name: "redis",
    needs: &[Need::new("tclsh", "tcl"), Need::new("make", "make"), Need::new("gcc", "gcc"), SOURCE],
    what: "redis's own tests, file by file, of a server built with MALLOC=libc",
    prepare: redis,
    explained: &[],
};

pub(super) const SQLITE: Suite = Suite {
    name: "sqlite",
    needs: &[
        Need::new("tclsh", "tcl"),
        Need::new("/usr/include/tcl*/tcl.h", "tcl-dev"),
        Need::new("make", "make"),
        Need::new("gcc", "gcc"),
        SOURCE,
    ],
    what: "SQLite's own tests by its testfixture",
    prepare: sqlite,
    explained: &[],
};

pub(super) const POSTGRES: Suite = Suite {
    name: "postgresql",
    needs: &[
        Need::new("/usr/lib/postgresql/*/bin/postgres", "postgresql"),
        Need::new("make", "make"),
        Need::new("gcc", "gcc"),
        Need::new("bison", "bison"),
        Need::new("flex", "flex"),
        Need::new("perl", "perl"),
        SOURCE,
    ],
    what: "pg_regress against the packaged server, started for it",
    prepare: postgres,
    explained: &[],
};

/// Every type of value, expiry, scripts, saving, replication's buffers, lazy frees.
const REDIS_QUICK: &str = "unit/type/string unit/type/list unit/type/set unit/type/zset \
    unit/type/hash unit/type/stream unit/type/incr unit/dump unit/scan unit/expire unit/quit \
    unit/lazyfree unit/scripting unit/functions unit/sort unit/multi unit/pubsub unit/bitops \
    unit/geo unit/hyperloglog unit/memefficiency unit/maxmemory unit/querybuf unit/obuf-limits \
    unit/introspection unit/limits unit/tracking integration/rdb integration/aof";

fn redis(shop: &Shop) -> Result<Prepared> {
    let source = shop.debian_source("redis")?;
    let home = source.directory.clone();
    shop.once(&home, "build", || {
        shop.tool("make")?
            .line("-C src -j2 MALLOC=libc USE_SYSTEMD=no redis-server redis-cli redis-benchmark")
            .line("redis-check-aof redis-check-rdb redis-sentinel")
            .directory(&home)
            .success()?;
        Ok(())
    })?;
    let helper = fs::read_to_string(home.join("tests/test_helper.tcl"))?;
    let list = helper.split_once("set ::all_tests {").and_then(|(_, rest)| rest.split_once('}'));
    let (list, _) = list.context("test_helper.tcl has no list of tests")?;
    let quick = words(REDIS_QUICK);
    let all = shop.pick(false, true);
    let mut units = Vec::new();
    for name in list.split_whitespace().filter(|name| all || quick.contains(*name)) {
        let (home, test) = (home.clone(), name.to_owned());
        units.push(Unit::new(name, tally::redis, move |stage| {
            Ok(stage
                .process("tclsh")?
                .line("tests/test_helper.tcl --clients 1 --timeout 240 --single")
                .arg(&test)
                .directory(&home)
                .limit(1800))
        }));
    }
    ensure!(!units.is_empty(), "the list of tests names none of the wanted");
    Ok(Prepared { version: source.version, units, notes: Vec::new() })
}

/// Files of SQLite's tests by the beginning of their names.
const SQLITE_QUICK: [&str; 40] = [
    "select",
    "insert",
    "update",
    "delete",
    "join",
    "index",
    "where",
    "func",
    "expr",
    "trans",
    "vacuum",
    "blob",
    "cast",
    "collate",
    "json",
    "window",
    "with",
    "malloc.",
    "malloc3",
    "malloc5",
    "pager1",
    "thread",
    "shared",
    "memdb",
    "memsubsys",
    "mutex",
    "softheap",
    "zeroblob",
    "bigrow",
    "types",
    "trigger",
    "view",
    "sort",
    "savepoint",
    "fkey1",
    "analyze",
    "backup",
    "wal.",
    "fts3aa",
    "printf",
];

fn sqlite(shop: &Shop) -> Result<Prepared> {
    let source = shop.debian_source("sqlite3")?;
    let build = shop.directory("build")?;
    shop.once(&build, "testfixture", || {
        let configure = source.directory.join("configure");
        shop.tool("sh")?.arg(&configure).arg("--enable-all").directory(&build).success()?;
        shop.tool("make")?.line("-j2 testfixture").directory(&build).success()?;
        Ok(())
    })?;
    let (fixture, tests) = (build.join("testfixture"), source.directory.join("test"));
    let files = if shop.pick(true, false) {
        let wanted = |name: &String| {
            let name = format!("{name}.");
            SQLITE_QUICK.iter().any(|start| name.starts_with(start))
        };
        stems(&tests, ".test")?.into_iter().filter(wanted).collect()
    } else {
        vec!["veryquick".to_owned()]
    };
    let units = files.into_iter().map(|name| {
        let (fixture, file) = (fixture.clone(), tests.join(format!("{name}.test")));
        Unit::new(name, tally::sqlite, move |stage| {
            Ok(stage.process(&fixture)?.arg(&file).limit(5400))
        })
    });
    Ok(Prepared { version: source.version, units: units.collect(), notes: Vec::new() })
}

fn postgres(shop: &Shop) -> Result<Prepared> {
    let server = crate::programs::install::find("/usr/lib/postgresql/*/bin/postgres")
        .context("there is no server")?;
    let bin = server.parent().context("a file is in a directory")?.to_owned();
    let major = bin.parent().and_then(Path::file_name).context("a version is in the path")?;
    let source = shop.debian_source(&format!("postgresql-{}", major.to_string_lossy()))?;
    let home = source.directory.clone();
    shop.once(&home, "build", || {
        shop.tool("sh")?
            .line("./configure --without-readline --without-zlib --without-icu")
            .directory(&home)
            .success()?;
        shop.tool("make")?.line("-C src/test/regress -j2 all").directory(&home).success()?;
        Ok(())
    })?;
    let tests = home.join("src/test/regress");
    let unit = Unit::new("parallel_schedule", tally::pg_regress, move |stage| {
        let account = stage.account(&["postgres", "nobody"])?;
        let output = stage.work.join("regress");
        if output.exists() {
            fs::remove_dir_all(&output)?;
        }
        let output = stage.directory_for("regress", account)?;
        let settings = stage.work.join("settings");
        fs::write(&settings, "fsync = off\njit = off\nlisten_addresses = ''\n")?;
        let option = |name: &str, value: &Path| format!("--{name}={}", value.display());
        Ok(stage
            .process(tests.join("pg_regress"))?
            .line("--no-locale --encoding=UTF8 --max-concurrent-tests=20")
            .arg(option("bindir", &bin))
            .arg(option("inputdir", &tests))
            .arg(option("dlpath", &tests))
            .arg(option("outputdir", &output))
            .arg(option("temp-instance", &output.join("instance")))
            .arg(option("temp-config", &settings))
            .arg(option("schedule", &tests.join("parallel_schedule")))
            .directory(&output)
            .env("HOME", &output)
            .account(account)
            .limit(3600))
    });
    Ok(Prepared { version: source.version, units: vec![unit], notes: Vec::new() })
}
