//! A plugin with an allocator of its own, for hosts in any language: `crate-type = ["cdylib"]`. What it allocates
//! it frees itself, and it stays loaded when the host closes it.

#[global_allocator]
static ALLOCATOR: cairn::Cairn = cairn::Cairn;

/// How many words the text has.
///
/// # Safety
/// A C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_words(text: *const std::ffi::c_char) -> usize {
    // SAFETY: the caller's.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned();
    text.split_whitespace().map(str::to_owned).collect::<Vec<String>>().len()
}
