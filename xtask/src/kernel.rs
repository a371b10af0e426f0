//! Has commands live with less than this machine's kernel gives: under tools that cannot do
//! with more, and as a test of what cairn does there.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has a command, and all that it starts, live with a kernel that refuses reservations of 12 GiB
/// and more: qemu before 8.0 and memcheck note every page of a mapping in a table, which is
/// gigabytes of it for each process with the usual reservation.
pub(crate) fn small(command: &mut Command) {
    let length = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ge, 12 << 30);
    let rule = length.and_then(|length| SeccompRule::new(vec![length]));
    let filter = rule.and_then(|rule| {
        let rules = BTreeMap::from([(libc::SYS_mmap, vec![rule])]);
        let refuse = SeccompAction::Errno(libc::ENOMEM as u32);
        let machine = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, machine)?.try_into()
    });
    let program: BpfProgram = filter.expect("a valid filter");
    // SAFETY: between fork and exec only `prctl` and `seccomp` are called; nothing is allocated.
    unsafe {
        command.pre_exec(move || seccompiler::apply_filter(&program).map_err(io::Error::other));
    }
}
