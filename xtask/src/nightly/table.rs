//! The steps, in the order in which they are run.

use std::process::{Command, Stdio};

/// One step.
pub(super) struct Step {
    pub(super) name: String,
    /// For a shell, in the workspace.
    pub(super) line: String,
    /// Far beyond what it takes on two cores: longer is a failure.
    pub(super) minutes: u64,
    pub(super) needs: &'static [Need],
}

/// Something that a step cannot do without.
pub(super) struct Need {
    /// A line for a shell that ends well if it is there.
    check: &'static str,
    /// What is missing, and how it comes.
    missing: &'static str,
}

impl Need {
    pub(super) const fn new(check: &'static str, missing: &'static str) -> Need {
        Need { check, missing }
    }

    /// What to say of it if it is not there.
    pub(super) fn is_missing(&self) -> Option<String> {
        let mut command = Command::new("sh");
        command.args(["-c", self.check]).current_dir(crate::library::workspace());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let is_there = command.status().is_ok_and(|status| status.success());
        (!is_there).then(|| format!("needs {}", self.missing))
    }
}

const ROOT: Need = Need::new("test $(id -u) = 0", "root");
const NIGHTLY: Need = Need::new("cargo +nightly --version", "rustup toolchain install nightly");
const MIRI: Need = Need::new(
    "cargo +nightly miri --version && test -d $(rustc +nightly --print sysroot)/lib/rustlib/src",
    "rustup component add --toolchain nightly miri rust-src",
);
const STD: Need = Need::new(
    "test -d $(rustc +nightly --print sysroot)/lib/rustlib/src",
    "rustup component add --toolchain nightly rust-src",
);
const VALGRIND: Need = Need::new("valgrind --version", "apt-get install valgrind");
const FUZZ: Need = Need::new("cargo fuzz --version", "cargo install cargo-fuzz");
const QEMU: Need =
    Need::new("qemu-aarch64 --version && qemu-s390x --version", "apt-get install qemu-user");
const AARCH64: Need = Need::new(
    "aarch64-linux-gnu-g++ --version && \
     test -d $(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu",
    "apt-get install g++-aarch64-linux-gnu; rustup target add aarch64-unknown-linux-gnu",
);
const S390X: Need = Need::new(
    "s390x-linux-gnu-gcc --version && \
     test -d $(rustc --print sysroot)/lib/rustlib/s390x-unknown-linux-gnu",
    "apt-get install gcc-s390x-linux-gnu; rustup target add s390x-unknown-linux-gnu",
);
const MUSL: Need = Need::new(
    "test -d $(rustc --print sysroot)/lib/rustlib/x86_64-unknown-linux-musl",
    "rustup target add x86_64-unknown-linux-musl",
);
const DEBIAN: Need = Need::new("mmdebstrap --version", "apt-get install mmdebstrap");
/// What tests demand with `CAIRN_TEST_ALL`.
const TESTS: Need = Need::new(
    "for program in chromium clang cmake fish g++ gcc make meson musl-gcc ninja pkg-config python3 redis-server \
     setcap strace zsh; do command -v $program || exit 1; done",
    "the packages of .ci/run, and clang",
);
const PACKAGES: Need = Need::new(
    "buildah --version && systemd-analyze --version && conan --version",
    "apt-get install buildah systemd; conan from PyPI",
);
const SOURCES: Need = Need::new(
    "command -v dpkg-source && command -v make && command -v patch",
    "apt-get install dpkg-dev make patch",
);

/// Name, command, minutes, needs. What stands in brackets in a command is for the hardened build: the step is run
/// with it, too, under a name of its own.
type Row = (&'static str, &'static str, u64, &'static [Need]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("tests", "CAIRN_TEST_ALL=1 cargo test --workspace --no-fail-fast", 180, &[ROOT, TESTS, PACKAGES]),
    ("tests-hardened", "CAIRN_TEST_ALL=1 cargo test -p cairn-malloc -p cairn-c -p cairn-models --features hardened --no-fail-fast", 180, &[ROOT, TESTS]),
    ("optimised", "cargo test --profile library -p cairn-malloc --lib[ --features hardened]", 60, &[]),
    ("miri", "cargo xtask miri[ --hardened]", 240, &[NIGHTLY, MIRI]),
    ("models", "cargo xtask models --full[ --hardened]", 240, &[]),
    ("seeds-protocol", "cargo xtask models --seeded protocol::", 300, &[]),
    ("seeds-whole", "cargo xtask models --seeded whole::", 300, &[]),
    ("whole", "CAIRN_MODEL_SECONDS=120 cargo test -p cairn-models --test whole[ --features hardened]", 180, &[]),
    ("every-fault", "cargo test --profile library -p cairn-malloc --lib[ --features hardened] -- --ignored every_fault", 60, &[]),
    ("failing-calls", "cargo test --release -p cairn-c --test faults[ --features hardened] -- --ignored", 60, &[]),
    ("storms", "cargo test --release -p cairn-c --test process[ --features hardened] -- --ignored", 60, &[]),
    ("oracle", "CAIRN_STRESS_SECONDS=300 cargo test --profile library -p cairn-malloc --test oracle --test traffic[ --features hardened]", 60, &[]),
    ("campaign", "cargo xtask fuzz --campaign 500000000[ --hardened]", 120, &[]),
    ("fuzz", "cargo xtask fuzz --seconds 150[ --hardened]", 60, &[NIGHTLY, FUZZ]),
    ("soak", "cargo xtask soak --minutes 30[ --hardened]", 90, &[]),
    ("address-sanitizer", "cargo xtask sanitizers address[ --hardened]", 120, &[NIGHTLY, STD]),
    ("thread-sanitizer", "cargo xtask sanitizers thread[ --hardened]", 180, &[NIGHTLY, STD]),
    ("memcheck", "cargo xtask sanitizers valgrind[ --hardened]", 180, &[VALGRIND]),
    ("helgrind", "cargo xtask sanitizers helgrind[ --hardened]", 30, &[VALGRIND]),
    ("aarch64", "cargo xtask targets aarch64[ --hardened]", 240, &[QEMU, AARCH64]),
    ("s390x", "cargo xtask targets s390x[ --hardened]", 240, &[QEMU, S390X]),
    ("musl", "cargo xtask targets musl[ --hardened]", 60, &[MUSL]),
    ("programs", "cargo xtask programs[ --hardened]", 180, &[ROOT]),
    ("suites", "cargo xtask suites --quick[ --hardened]", 300, &[ROOT]),
    ("redis", "CAIRN_TEST_ALL=1 cargo test -p cairn-c --test examples -- --ignored redis", 60, &[ROOT, SOURCES]),
    ("fresh", "cargo xtask fresh", 180, &[ROOT, DEBIAN]),
    ("dist", "cargo xtask dist --check", 60, &[]),
    ("install", "CAIRN_TEST_ALL=1 cargo test -p xtask --test install --test crates -- --ignored", 60, &[ROOT, TESTS]),
    ("deploy", "CAIRN_TEST_ALL=1 cargo test -p xtask --test deploy --test conan", 60, &[ROOT, PACKAGES]),
    ("tidy", "cargo xtask tidy", 10, &[]),
    ("fast-path", "cargo xtask fast-path", 30, &[]),
    ("scaling", "cargo xtask scaling", 120, &[]),
    ("counts", "cargo xtask counts", 30, &[VALGRIND]),
];

/// All of them, each row with its builds.
pub(super) fn all() -> Vec<Step> {
    let steps = |&(name, line, minutes, needs): &Row| {
        let step = |name: String, line: String| Step { name, line, minutes, needs };
        let Some((begin, rest)) = line.split_once('[') else {
            return vec![step(name.to_owned(), line.to_owned())];
        };
        let (hardened, end) = rest.split_once(']').expect("it ends");
        vec![
            step(name.to_owned(), format!("{begin}{end}")),
            step(format!("{name}-hardened"), format!("{begin}{hardened}{end}")),
        ]
    };
    ROWS.iter().flat_map(steps).collect()
}
