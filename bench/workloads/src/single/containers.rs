//! Ordinary programs over the containers of their standard libraries, in Rust and in C++.
//!
//! The C++ program is a library of its own inside this executable, loaded when it is wanted: linked in the
//! usual way, libstdc++ would be loaded, and would allocate, in every process of the lab.
//! Loaded like this its `operator new` is still the preloaded one, if there is one.

use crate::case::{Results, Settings};
use rustix::fs::MemfdFlags;
use std::ffi::{CStr, CString};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Instant;

pub(crate) mod rust;

const ROUNDS: usize = 20;
const CHECKSUM: u64 = 16_695_040_647_630_440_651;

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/containers.so"));

type Round = unsafe extern "C" fn(u64) -> u64;

pub(crate) fn cxx(settings: &Settings) -> Results {
    let round = load();
    // SAFETY: the function takes any number and runs on this thread alone.
    let round = || assert_eq!(unsafe { round(1) }, CHECKSUM, "wrong contents");
    round();
    let start = Instant::now();
    let rounds = settings.scaled(ROUNDS);
    (0..rounds).for_each(|_| round());
    Results::ms(start.elapsed())
}

/// Loads the program; it stays loaded.
fn load() -> Round {
    let file = rustix::fs::memfd_create("containers", MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(file.expect("a file in memory"));
    file.write_all(LIBRARY).expect("a file in memory takes all");
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zeros");
    // SAFETY: both names are C strings; the library's initialisers are those of libstdc++, and
    // the function has the type `Round` (containers.cpp).
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            panic!("{}", CStr::from_ptr(libc::dlerror()).to_string_lossy());
        }
        let round = libc::dlsym(library, c"cairn_containers_round".as_ptr());
        assert!(!round.is_null());
        std::mem::transmute::<*mut libc::c_void, Round>(round)
    }
}
