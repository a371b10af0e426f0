//! Owns: text on standard error, and the end of a process that misuses memory.
//! Idea: a line is put together in a small buffer on the stack and written at once.
//! Never: allocates or formats through `core::fmt`.
//! Threads: any; holds nothing.
//! Checked: the misuse tests compare whole lines.
//! Story: docs/misuse.md

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

    /// Adds text.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        for &b in text.as_bytes() {
            if let Some(slot) = self.bytes.get_mut(self.len) {
                *slot = b;
                self.len += 1;
            }
        }
        self
    }

    /// Adds a number in `base` 10 or 16, padded with spaces to `width`.
    fn digits(&mut self, mut n: usize, base: usize, width: usize) -> &mut Self {
        let mut digits = [b' '; 24];
        let mut at = digits.len();
        loop {
            at -= 1;
            if let Some(d) = digits.get_mut(at) {
                *d = b"0123456789abcdef".get(n % base).copied().unwrap_or(b'?');
            }
            n /= base;
            if n == 0 || at == 0 {
                break;
            }
        }
        let from = at.min(digits.len().saturating_sub(width));
        self.text(core::str::from_utf8(digits.get(from..).unwrap_or(&[])).unwrap_or(""))
    }

    /// Adds a decimal number.
    pub(crate) fn number(&mut self, n: usize) -> &mut Self {
        self.digits(n, 10, 0)
    }

    /// Adds a decimal number in a column of `width`.
    pub(crate) fn column(&mut self, n: usize, width: usize) -> &mut Self {
        self.digits(n, 10, width)
    }

    /// Adds an address.
    pub(crate) fn address(&mut self, address: usize) -> &mut Self {
        self.text("0x").digits(address, 16, 0)
    }

    /// What has been put together.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Says `cairn: CALL(POINTER): REASON` and aborts.
#[cold]
pub(crate) fn fatal(call: &str, pointer: *const u8, reason: &str) -> ! {
    let mut m = Message::new();
    m.text("cairn: ").text(call).text("(").address(pointer.addr()).text("): ").text(reason);
    m.text("\n");
    write_stderr(m.as_bytes());
    abort()
}
