//! Java: the compiler, and a program whose native side (zip, direct buffers, threads) is malloc's.

use super::generate::{Numbers, tree_fingerprint};
use super::install::Need;
use super::{Evidence, Program};
use std::fmt::Write as _;

const JAVA_NEEDS: &[Need] =
    &[Need::new("javac", "default-jdk-headless"), Need::new("java", "default-jdk-headless")];

pub(super) const JAVAC: Program = Program {
    name: "javac",
    quick: false,
    needs: JAVA_NEEDS,
    version: &["javac", "--version"],
    what: "generated classes; class files compared",
    loaded_in: &["javac"],
    prepare: |stage| stage.write_input("Generated.java", classes(stage.pick(200, 3_000))),
    run: |stage| {
        stage
            .process("javac")?
            .line("-nowarn -d classes")
            .arg(stage.input.join("Generated.java"))
            .success()?;
        let classes = stage.work.join("classes");
        let count = std::fs::read_dir(&classes)?.count();
        Ok(Evidence::summary(format!("{count} classes"))
            .fact("classes", tree_fingerprint(&classes)?))
    },
};

pub(super) const JAVA: Program = Program {
    name: "java",
    quick: false,
    needs: JAVA_NEEDS,
    version: &["java", "--version"],
    what: "deflate and inflate, zip files, direct buffers, short-lived threads",
    loaded_in: &["java"],
    prepare: |stage| {
        stage.write_input("Workload.java", include_str!("scripts/Workload.java"))?;
        stage
            .process("javac")?
            .arg("-d")
            .args([&stage.input, &stage.input.join("Workload.java")])
            .success()?;
        Ok(())
    },
    run: |stage| {
        let answer = stage
            .process("java")?
            .line("-Xmx512m -cp")
            .arg(&stage.input)
            .arg("Workload")
            .arg(stage.pick("8", "150"))
            .success()?
            .text();
        Ok(Evidence::summary(answer.chars().take(16).collect::<String>()).fact("answer", answer))
    },
};

fn classes(count: u64) -> String {
    let mut numbers = Numbers::new(11);
    let mut text = "import java.util.*;\nimport java.util.function.*;\n".to_owned();
    for i in 0..count {
        let (a, b) = (numbers.below(1000), 1 + numbers.below(50));
        let _ = write!(
            text,
            "class C{i}<T extends Comparable<T>> {{
  enum Kind {{ ONE, TWO, THREE }}
  final Map<String, List<T>> all = new TreeMap<>();
  int f(Kind kind, int x) {{
    switch (kind) {{ case ONE: return x * {a}; case TWO: return x % {b}; default: return -x; }}
  }}
  T largest(Collection<? extends T> from) {{
    Function<T, String> name = t -> t + \"{a}\";
    T best = null;
    for (T one : from) {{
      if (best == null || one.compareTo(best) > 0) best = one;
      all.computeIfAbsent(name.apply(one), key -> new ArrayList<>({b})).add(one);
    }}
    return best;
  }}
}}
"
        );
    }
    text
}
