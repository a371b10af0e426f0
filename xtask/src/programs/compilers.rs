//! C and C++ compilers: the same source must become the same object, and a program that runs.

use super::generate::{Numbers, file_fingerprint, fingerprint};
use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::Result;
use std::fmt::Write as _;

pub(super) const GCC: Program = Program {
    name: "gcc",
    quick: true,
    needs: &[Need::new("gcc", "gcc")],
    version: &["gcc", "--version"],
    what: "a generated C file at -O0 -g and -O2; objects compared, result run",
    loaded_in: &["cc1", "result"],
    prepare: |stage| stage.write_input("large.c", c_source(stage.pick(200, 1_000))),
    run: |stage| compile(stage, "gcc", "large.c", &["-O0 -g", "-O2"]),
};

pub(super) const GXX: Program = Program {
    name: "g++",
    quick: true,
    needs: &[Need::new("g++", "g++")],
    version: &["g++", "--version"],
    what: "generated C++ on std templates at -O0 -g and -O2; objects compared, result run",
    loaded_in: &["cc1plus", "result"],
    prepare: |stage| stage.write_input("large.cc", cxx_source(stage.pick(3, 24))),
    run: |stage| compile(stage, "g++", "large.cc", &["-std=c++17 -O0 -g", "-std=c++17 -O2"]),
};

pub(super) const CLANG: Program = Program {
    name: "clang",
    quick: false,
    needs: &[Need::new("clang", "clang"), Need::new("clang++", "clang"), Need::new("g++", "g++")],
    version: &["clang", "--version"],
    what: "the generated C and C++ files at -O2; objects compared, results run",
    loaded_in: &["clang", "result"],
    prepare: |stage| {
        stage.write_input("large.c", c_source(stage.pick(200, 1_000)))?;
        stage.write_input("large.cc", cxx_source(stage.pick(3, 24)))
    },
    run: |stage| {
        let mut evidence = compile(stage, "clang", "large.c", &["-O2"])?;
        let more = compile(stage, "clang++", "large.cc", &["-std=c++17 -O2"])?;
        evidence.facts.extend(more.facts);
        evidence.summary = format!("{}; {}", evidence.summary, more.summary);
        Ok(evidence)
    },
};

/// Compiles `file` once per set of options, links the last object and runs it.
fn compile(stage: &Stage, compiler: &str, file: &str, options: &[&str]) -> Result<Evidence> {
    let mut evidence = Evidence::default();
    let mut bytes = 0;
    for line in options {
        let finished = stage
            .process(compiler)?
            .line(line)
            .line("-c -o large.o")
            .arg(stage.input.join(file))
            .limit(600)
            .success()?;
        let object = stage.work.join("large.o");
        bytes = object.metadata()?.len();
        let name = format!("{compiler} {line}");
        evidence = evidence
            .fact(format!("{name}: object"), file_fingerprint(&object)?)
            .fact(format!("{name}: messages"), finished.stderr);
    }
    stage.process(compiler)?.line("large.o -o result").success()?;
    let result = stage.process(stage.work.join("result").to_string_lossy().as_ref())?.success()?;
    let answer = result.text();
    evidence.summary = format!("object of {} KiB, answer {}", bytes / 1024, answer.trim());
    Ok(evidence.fact(format!("{compiler}: answer"), fingerprint(answer.as_bytes())))
}

/// One huge `main` would only show how optimisers fare on functions of that size, so nothing is
/// put into it: functions with loops, switches and structures, and a `main` that calls all of them.
fn c_source(functions: u64) -> String {
    let mut numbers = Numbers::new(5);
    let mut text = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
        #include <math.h>\n#define APART __attribute__((noinline))\ntypedef unsigned long word;\n\
        struct cell { struct cell *next; word key; char name[24]; };\n"
        .to_owned();
    for i in 0..functions {
        let _ = write!(
            text,
            "APART static word f{i}(word x, const double *table) {{\n  word sum = x;\n"
        );
        let _ = writeln!(text, "  switch (x % {}) {{", 5 + numbers.below(12));
        for case in 0..4 + numbers.below(6) {
            let (a, b, shift) = (numbers.below(1 << 20), numbers.below(997), numbers.below(17));
            let _ = writeln!(
                text,
                "  case {case}: for (word i = 0; i < {b} % 7; i++) sum = sum * {a} + (sum >> \
                 {shift}) + (word)(table[(sum + i) % 16] * {b}.5); break;"
            );
        }
        let _ = write!(
            text,
            "  default: sum ^= {}; }}\n  struct cell *list = 0;\n  \
             for (int i = 0; i < {}; i++) {{ struct cell *c = malloc(sizeof *c); c->key = sum + i; \
             snprintf(c->name, sizeof c->name, \"%lu\", c->key); c->next = list; list = c; }}\n  \
             while (list) {{ struct cell *c = list; list = c->next; \
             sum += strlen(c->name) * c->key; free(c); }}\n  return sum;\n}}\n",
            numbers.next() >> 1,
            2 + numbers.below(30)
        );
    }
    text.push_str(
        "int main(void) {\n  double table[16];\n  for (int i = 0; i < 16; i++) table[i] = i * 0.5;\n  \
         word x = 1;\n  for (int round = 0; round < 400; round++) {\n",
    );
    for i in 0..functions {
        let _ = writeln!(text, "    x = f{i}(x, table);");
    }
    text.push_str("  }\n  printf(\"%lx\\n\", x);\n  return 0;\n}\n");
    text
}

/// Many instances of templates from the standard library.
fn cxx_source(parts: u64) -> String {
    let mut numbers = Numbers::new(6);
    let mut text = include_str!("scripts/template.cc").to_owned();
    for i in 0..parts {
        let (keys, depth) = (200 + numbers.below(800), 3 + numbers.below(12));
        let _ = writeln!(
            text,
            "struct Tag{i} {{ static constexpr unsigned long value = {}; }};\n\
             __attribute__((noinline)) static unsigned long part{i}() {{ return work<Tag{i}, {depth}>({keys}); }}",
            numbers.below(1 << 30)
        );
    }
    text.push_str("int main() {\n  unsigned long sum = 0;\n  for (int i = 0; i < 20; i++) {\n");
    for i in 0..parts {
        let _ = writeln!(text, "    sum = sum * 31 + part{i}();");
    }
    text.push_str("  }\n  std::cout << std::hex << sum << \"\\n\";\n}\n");
    text
}
