//! Go with cgo: goroutines move between threads, so blocks are freed far from where they were
//! made.

use super::install::Need;
use super::{Evidence, Program};

pub(super) const CGO: Program = Program {
    name: "cgo",
    quick: false,
    needs: &[Need::new("go", "golang-go"), Need::new("gcc", "gcc")],
    version: &["go", "version"],
    what: "64 goroutines, C malloc, realloc, aligned_alloc and free of blocks passed by channels",
    loaded_in: &["workload"],
    prepare: |stage| {
        stage.write_input("main.go", include_str!("scripts/cgo.go"))?;
        stage.write_input("go.mod", "module workload\n\ngo 1.18\n")?;
        stage
            .process("go")?
            .line("build -o workload main.go")
            .directory(&stage.input)
            .env("CGO_ENABLED", "1")
            .env("GOTOOLCHAIN", "local")
            .env("GOPROXY", "off")
            .env("GOCACHE", stage.work.join("go-cache"))
            .env("GOPATH", stage.work.join("go-path"))
            .success()?;
        Ok(())
    },
    run: |stage| {
        let answer = stage
            .process(stage.input.join("workload").to_string_lossy().as_ref())?
            .arg(stage.pick("10000", "150000"))
            .success()?
            .text();
        Ok(Evidence::summary(answer.trim()).fact("answer", answer))
    },
};
