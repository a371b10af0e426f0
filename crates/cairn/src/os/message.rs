//! Owns: text on standard error, and the end of a process that misuses memory.
//! Idea: a line is put together in a small buffer on the stack and written at once.
//! Never: allocates or formats through `core::fmt`.
//! Threads: any; holds nothing.
//! Checked: the misuse tests compare whole lines.
//! Story: docs/guide/misuse.md

use super::{abort, write_stderr};

/// One line (or a few) in the making; what does not fit is cut.
pub(crate) struct Message {
    bytes: [u8; 256],
    len: usize,
}

impl Message {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }

    /// `cairn: CALL(ADDRESS): ` is what it begins with.
    #[inline(never)]
    pub(crate) fn about(call: &str, address: usize) -> Self {
        let mut m = Self::new();
        m.text("cairn: ").text(call).text("(").address(address).text("): ");
        m
    }

    /// Adds text.
    #[inline(never)]
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// Adds an address.
    #[inline(never)]
    pub(crate) fn address(&mut self, address: usize) -> &mut Self {
        self.text("0x");
        let last = (address | 1).ilog2() / 4;
        for place in (0..=last).rev() {
            let digit = address >> (place * 4) & 15;
            self.text("0123456789abcdef".get(digit..=digit).unwrap_or("?"));
        }
        self
    }

    /// Adds a number.
    #[inline(never)]
    pub(crate) fn number(&mut self, number: usize) -> &mut Self {
        let mut unit = 10usize.pow(number.max(1).ilog10());
        while unit > 0 {
            let digit = number / unit % 10;
            self.text("0123456789".get(digit..=digit).unwrap_or("?"));
            unit /= 10;
        }
        self
    }

    /// Adds bytes as they are.
    #[inline(never)]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        for &b in bytes {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = b;
                self.len += 1;
            }
        }
        self
    }

    /// What has been put together.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Says `cairn: CALL(POINTER): REASON` and aborts.
#[cold]
pub(crate) fn fatal(call: &str, pointer: *const u8, reason: &str) -> ! {
    let mut m = Message::about(call, pointer.addr());
    m.text(reason).text("\n");
    write_stderr(m.as_bytes());
    abort()
}

/// Calls a function of the program's inside an allocation. Through that no panic may pass: it ends the process.
#[inline(always)]
pub(crate) fn without_panic<R>(call: impl FnOnce() -> R) -> R {
    struct Panicked;
    impl Drop for Panicked {
        fn drop(&mut self) {
            write_stderr(b"cairn: a function that is called inside of allocations has panicked\n");
            abort()
        }
    }
    let panicked = Panicked;
    let result = call();
    core::mem::forget(panicked);
    result
}

/// Says `cairn: REASON` and aborts: an invariant does not hold, most likely because the program has
/// freed a block twice, or written where it must not.
#[cold]
pub(crate) fn broken(reason: &str) -> ! {
    let mut m = Message::new();
    m.text("cairn: heap corrupted: ").text(reason).text("\n");
    write_stderr(m.as_bytes());
    abort()
}
