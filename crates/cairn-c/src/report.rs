//! Text for people.

/// Writes to standard error.
pub(crate) fn line(text: &[u8]) {
    // SAFETY: the slice is valid for reading.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}
