//! Has commands live with less than this machine's kernel gives: under tools that cannot do
//! with more, and as a test of what cairn does there.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a command write no core files.
pub(crate) fn no_core_files(command: &mut Command) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: between fork and exec only `setrlimit` is called.
    unsafe { command.pre_exec(move || done(libc::setrlimit(libc::RLIMIT_CORE, &none))) };
}

/// Has a command, and all that it starts, live with a kernel that refuses reservations of 12 GiB
/// and more: qemu before 8.0 and memcheck note every page of a mapping in a table, which is
/// gigabytes of it for each process with the usual reservation.
pub(crate) fn small(command: &mut Command) {
    // SAFETY: between fork and exec only `prctl` is called.
    unsafe { command.pre_exec(install_filter) };
}

fn install_filter() -> io::Result<()> {
    const WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k: u32| libc::sock_filter { code, jt, jf, k };
    // Where `struct seccomp_data` has the number, and the upper halves of the arguments.
    let high = |argument: u32| 16 + 8 * argument + if cfg!(target_endian = "big") { 0 } else { 4 };
    let refuse = |error: i32| libc::SECCOMP_RET_ERRNO | error as u32;
    let filter = [
        op(WORD, 0, 0, 0),
        op(EQUAL, 1, 0, libc::SYS_mmap as u32),
        op(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(WORD, 0, 0, high(1)),
        op(AT_LEAST, 0, 1, 3),
        op(ANSWER, 0, 0, refuse(libc::ENOMEM)),
        op(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program is valid for reading as long as the calls take.
    unsafe {
        let on: libc::c_ulong = 1;
        let none: libc::c_ulong = 0;
        done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, none, none, none))?;
        let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
        done(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program))
    }
}

/// What a call that answers 0 for success has answered.
fn done(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
