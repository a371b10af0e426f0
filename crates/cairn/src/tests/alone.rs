//! A process for a test that looks at the allocator's state as a whole.

use crate::heap::{COUNTING, EMPTY, GONE, Heap, StandIn};
use crate::map::Block;
use crate::spans::span::marked::Marked;
use crate::spans::{Keep, Span};
use crate::store::filling::READY;
use crate::store::{Bits, Filling};
use core::ptr::null_mut;
use std::any::type_name;
use std::path::PathBuf;
use std::process::Command;
use std::string::String;
use std::vec::Vec;

/// After this a test counts as hung: far beyond what any needs on a busy machine.
const HUNG_AFTER_SECONDS: u32 = 300;

/// Runs `body`, which a test consists of, in a process in which nothing has been allocated.
pub(super) fn alone<F: FnOnce()>(body: F) {
    if std::env::var_os("CAIRN_ALONE").is_some() {
        // SAFETY: no preconditions.
        unsafe { libc::alarm(HUNG_AFTER_SECONDS) };
        body();
        return stand_ins_are_as_made();
    }
    // cairn::tests::arena::some_test::{{closure}}
    let path = type_name::<F>();
    let name = path.trim_start_matches("cairn::").trim_end_matches("::{{closure}}");
    let output = only(name).env("CAIRN_ALONE", "1").output().expect("this program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "CAIRN_ALONE=1 cargo test -p cairn-malloc --lib -- --exact {name} --nocapture\n{}\n\
         {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
    );
}

/// Nobody writes into a stand-in: each has the other's bytes still, and new heaps are copies of one.
fn stand_ins_are_as_made() {
    // SAFETY: they are bytes of statics, those between fields too; what writes there would be the failure.
    let bytes = |one: &StandIn| unsafe {
        core::slice::from_raw_parts(one.heap().cast::<u8>().cast_const(), size_of::<Heap>())
            .to_vec()
    };
    // What lies between fields is nobody's for Miri.
    if !cfg!(miri) {
        assert!(
            bytes(&EMPTY) == bytes(&GONE) && bytes(&GONE) == bytes(&COUNTING),
            "a stand-in has been written"
        );
    }
}

/// This program, with one test.
pub(super) fn only(test: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    // A program of another machine starts by way of its simulator (`cargo xtask targets`).
    let simulator = std::env::var("CAIRN_TEST_SIMULATOR").unwrap_or_default();
    let mut words = simulator.split_whitespace().map(PathBuf::from).chain([program]);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).args(["--exact", test, "--nocapture", "--test-threads", "1"]);
    command
}

/// Whether the process is shared with a simulator or a sanitizer, which have mappings of their own
/// and may need more at any time.
pub(super) fn shares_its_address_space() -> bool {
    ["CAIRN_TEST_SIMULATOR", "TSAN_OPTIONS"].iter().any(|name| std::env::var_os(name).is_some())
}

/// xorshift64*, from a seed that is not 0.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % n
    }
}

/// Whether `f` panics.
pub(super) fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

/// Blocks that a span has at home in the hardened build, handed out; by address.
pub(super) fn taken(span: &mut Span, count: u32) -> Vec<*mut Block> {
    let (mut taken, mut left) = (Vec::new(), count);
    while left > 0 {
        let mut ready = [null_mut(); READY as usize];
        let mut filling =
            Filling { ready: ready.as_mut_ptr(), count: 0, random: u64::from(left) << 1 | 1 };
        Marked::fill(span, left.min(READY), &mut filling);
        // SAFETY: free blocks of the test's span.
        ready[..filling.count].iter().for_each(|block| unsafe { Bits::hand_out(block.cast()) });
        taken.extend(&ready[..filling.count]);
        left -= filling.count as u32;
    }
    taken.sort();
    taken
}
