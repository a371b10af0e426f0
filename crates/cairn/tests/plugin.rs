//! A plugin in Rust, with an allocator of its own, in a program that has another.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

/// `examples/plugin.rs`, built.
fn plugin() -> CString {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    // What is built for a machine that cargo was told lies in a folder of its name.
    let name = target.file_name().and_then(|name| name.to_str()).expect("a folder");
    let (folder, machine) = match name.ends_with("-linux-gnu") {
        true => (target.parent().expect("target"), vec!["--target", name]),
        false => (target, Vec::new()),
    };
    let built = Command::new(cargo)
        .args(["build", "--quiet", "-p", "cairn-malloc", "--example", "plugin"])
        .args(machine)
        .arg("--target-dir")
        .arg(folder)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("CARGO_BUILD_TARGET")
        // It is an ordinary plugin, whatever the host is built with.
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "no plugin:\n{}", String::from_utf8_lossy(&built.stderr));
    let file = target.join("debug/examples/libplugin.so");
    CString::new(file.into_os_string().into_encoded_bytes()).expect("no NUL")
}

fn open(path: &CStr) -> *mut c_void {
    // SAFETY: a C string; the plugin's constructors do nothing that is not theirs.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{}", path.to_string_lossy());
    handle
}

fn close(handle: *mut c_void) {
    // SAFETY: an open handle.
    assert_eq!(unsafe { libc::dlclose(handle) }, 0);
}

fn words(handle: *mut c_void) -> usize {
    // SAFETY: the plugin's function has this type.
    unsafe {
        let function = libc::dlsym(handle, c"plugin_words".as_ptr());
        type Words = unsafe extern "C" fn(*const c_char) -> usize;
        let words: Option<Words> = std::mem::transmute(function);
        words.expect("a function")(c"to have and to hold".as_ptr())
    }
}

/// A host closes it while threads live that have used it, and forks.
#[test]
fn it_stays_when_it_is_closed() {
    let path = plugin();
    for _ in 0..3 {
        let (used, closed) = (Barrier::new(4), Barrier::new(4));
        let handle = open(&path);
        let address = handle.expose_provenance();
        let work = || {
            assert_eq!(words(std::ptr::with_exposed_provenance_mut(address)), 5);
            used.wait();
            closed.wait();
        };
        std::thread::scope(|scope| {
            let threads: [_; 3] = std::array::from_fn(|_| scope.spawn(work));
            used.wait();
            close(handle);
            closed.wait();
            // The scope's end does not wait for a thread's last words.
            threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        });
        // SAFETY: the child ends at once.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            let mut status = -1;
            assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
        }
    }
}
