//! The statistics for programs: as text, and single figures. docs/guide/statistics.md explains them.

use core::ffi::{CStr, c_char, c_int, c_void};

/// Who gets the text, in pieces.
pub(crate) type Writer = unsafe extern "C" fn(arg: *mut c_void, text: *const c_char, n: usize);

/// Text on its way there.
pub(crate) struct Pieces {
    writer: Writer,
    arg: *mut c_void,
    bytes: [u8; 1024],
    len: usize,
}

impl Pieces {
    /// None yet.
    pub(crate) fn new(writer: Writer, arg: *mut c_void) -> Self {
        Pieces { writer, arg, bytes: [0; 1024], len: 0 }
    }

    /// Adds a piece.
    #[inline(never)]
    pub(crate) fn add(&mut self, piece: &[u8]) {
        for &byte in piece {
            if self.len == self.bytes.len() {
                self.flush();
            }
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }

    /// Gives away what it has.
    pub(crate) fn flush(&mut self) {
        // SAFETY: the program's function, with what it asked to get.
        unsafe { (self.writer)(self.arg, self.bytes.as_ptr().cast(), self.len) };
        self.len = 0;
    }
}

/// The statistics as a JSON object, given to `writer` piece by piece.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_stats_json(writer: Writer, arg: *mut c_void) {
    let mut out = Pieces::new(writer, arg);
    cairn::write_json(|piece| out.add(piece));
    out.flush();
}

/// Single figures in Prometheus's text format, given to `writer` piece by piece.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_stats_prometheus(writer: Writer, arg: *mut c_void) {
    let mut out = Pieces::new(writer, arg);
    cairn::write_prometheus(|piece| out.add(piece));
    out.flush();
}

/// The figure of that name; 0 if there is none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cairn_stats_get(name: *const c_char, value: *mut usize) -> c_int {
    // SAFETY: the caller's contract: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str();
    let Some(figure) = name.ok().and_then(cairn::figure) else { return 0 };
    // SAFETY: the caller's contract: a place for it.
    unsafe { value.write(figure) };
    1
}
