//! Runs the subject under ptrace and counts what it executes between its marks.

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What one call executed inside the library under test.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub(super) struct Counts {
    /// Instructions of any kind; a `rep` string instruction is one.
    pub(super) instructions: u64,
    /// Instructions that read memory; `ret` apart.
    pub(super) loads: u64,
    /// Instructions that write memory; the return address a `call` pushes apart.
    pub(super) stores: u64,
    /// Jumps, conditional or not.
    pub(super) branches: u64,
    /// Calls.
    pub(super) calls: u64,
    /// Instructions in other libraries on the way: `memset`, the loader's TLS helper.
    #[serde(skip_deserializing)]
    pub(super) outside: u64,
}

/// One marked stretch of the subject.
pub(super) struct Stretch {
    /// Which of the subject's series it belongs to.
    pub(super) series: u64,
    /// What it executed.
    pub(super) counts: Counts,
}

/// Whose instructions are counted.
#[derive(Clone)]
pub(super) enum Target {
    /// The C library the subject is linked with.
    Glibc,
    /// A library to preload, as an absolute path without symbolic links.
    Preload(PathBuf),
}

/// The values of rax at the subject's marks.
const BEGIN: u64 = 1;
const END: u64 = 2;
/// The exit status of a subject that did not find one of its functions.
const ABSENT: i32 = 77;
/// No x86 instruction is longer.
const LONGEST_INSTRUCTION: usize = 15;

/// Runs `subject` with `arguments` and returns its stretches in order; `None` when the
/// function called is not the target's own.
pub(super) fn run(
    subject: &Path,
    arguments: &[String],
    target: &Target,
) -> Result<Option<Vec<Stretch>>> {
    let mut tracee = Tracee::start(subject, arguments, target)?;
    let mut map = None;
    let mut stretches = Vec::new();
    loop {
        match tracee.resume(Step::ToNextStop)? {
            Stop::Exited(0) => return Ok(Some(stretches)),
            Stop::Exited(ABSENT) => return Ok(None),
            Stop::Exited(status) => bail!("the traced program exited with status {status}"),
            Stop::Trapped => {}
        }
        let registers = tracee.registers()?;
        if registers.rax != BEGIN {
            continue;
        }
        if map.is_none() {
            map = Some(Map::read(tracee.pid, subject, target)?);
        }
        let map = map.as_ref().context("the memory map was just read")?;
        if !map.in_library(registers.rsi) {
            return Ok(None);
        }
        stretches.push(Stretch { series: registers.rdi, counts: tracee.count(map)? });
    }
}

/// What an instruction counts as.
#[derive(Clone, Copy)]
struct Kind {
    load: bool,
    store: bool,
    branch: bool,
    call: bool,
    /// A repeated string instruction: each turn is one step, all of them one instruction.
    repeated: bool,
    /// int3, the subject's mark.
    mark: bool,
}

impl Kind {
    fn of(bytes: &[u8], address: u64, factory: &mut InstructionInfoFactory) -> Self {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        let flow = instruction.flow_control();
        let call = matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
        let ret = flow == FlowControl::Return;
        let (mut load, mut store) = (false, false);
        for memory in factory.info(&instruction).used_memory() {
            use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
            let access = memory.access();
            load |= !ret && matches!(access, Read | CondRead | ReadWrite | ReadCondWrite);
            store |= !call && matches!(access, Write | CondWrite | ReadWrite | ReadCondWrite);
        }
        let branch = matches!(
            flow,
            FlowControl::ConditionalBranch
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
        );
        let repeated = instruction.is_string_instruction()
            && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
        Self { load, store, branch, call, repeated, mark: instruction.mnemonic() == Mnemonic::Int3 }
    }
}

/// The executable mappings that matter.
struct Map {
    library: Vec<Range<u64>>,
    subject: Vec<Range<u64>>,
}

impl Map {
    fn read(pid: libc::pid_t, subject: &Path, target: &Target) -> Result<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/maps"))
            .context("cannot read the traced program's memory map")?;
        let is_library = |path: &Path| match target {
            Target::Glibc => path.file_name().is_some_and(|name| name == "libc.so.6"),
            Target::Preload(library) => path == library,
        };
        let map = Self {
            library: executable(&text, is_library),
            subject: executable(&text, |path| path == subject),
        };
        ensure!(!map.library.is_empty(), "the library under test was not loaded");
        Ok(map)
    }

    fn in_library(&self, address: u64) -> bool {
        self.library.iter().any(|range| range.contains(&address))
    }

    fn in_subject(&self, address: u64) -> bool {
        self.subject.iter().any(|range| range.contains(&address))
    }
}

/// The address ranges of the executable mappings of the files that `wanted` accepts,
/// from the text of a `/proc/PID/maps`.
fn executable(maps: &str, wanted: impl Fn(&Path) -> bool) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [range, permissions, _, _, _, path] = fields[..] else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let bounds = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16));
        if let (Ok(start), Ok(end)) = bounds
            && permissions.contains('x')
            && wanted(Path::new(path.trim_start()))
        {
            found.push(start..end);
        }
    }
    found
}

/// How far a stopped program is let go.
enum Step {
    One,
    ToNextStop,
}

/// Why it stopped again.
enum Stop {
    Trapped,
    Exited(i32),
}

/// A traced child; killed when dropped.
struct Tracee {
    pid: libc::pid_t,
    memory: File,
    known: HashMap<u64, Kind>,
    factory: InstructionInfoFactory,
    running: bool,
}

impl Tracee {
    /// Starts the subject; it stands at its first instruction.
    fn start(subject: &Path, arguments: &[String], target: &Target) -> Result<Self> {
        let mut command = Command::new(subject);
        command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
        if let Target::Preload(library) = target {
            command.env("LD_PRELOAD", library);
        }
        // SAFETY: the closure runs between fork and exec and makes two system calls,
        // both async-signal-safe; it allocates nothing.
        unsafe { command.pre_exec(ask_to_be_traced) };
        let pid = libc::pid_t::try_from(command.spawn().context("cannot start the subject")?.id())?;
        let memory = File::open(format!("/proc/{pid}/mem"))
            .context("cannot open the traced program's memory")?;
        let (known, factory) = (HashMap::new(), InstructionInfoFactory::new());
        let mut tracee = Self { pid, memory, known, factory, running: true };
        match tracee.wait()? {
            Waited::Stopped(libc::SIGTRAP) => {}
            _ => bail!("the subject did not stop at exec"),
        }
        ptrace(libc::PTRACE_SETOPTIONS, pid, libc::PTRACE_O_EXITKILL as usize)
            .context("cannot set the ptrace options")?;
        Ok(tracee)
    }

    /// Counts from the present mark to the next.
    fn count(&mut self, map: &Map) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut previous = 0;
        loop {
            let mut registers = self.registers()?;
            let address = registers.rip;
            let kind = self.kind(address)?;
            if kind.mark && map.in_subject(address) {
                ensure!(registers.rax == END, "a mark inside a counted stretch");
                registers.rip += 1;
                self.set_registers(&registers)?;
                return Ok(counts);
            }
            let again = kind.repeated && address == previous;
            if map.in_library(address) && !again {
                counts.instructions += 1;
                counts.loads += u64::from(kind.load);
                counts.stores += u64::from(kind.store);
                counts.branches += u64::from(kind.branch);
                counts.calls += u64::from(kind.call);
            } else if !map.in_subject(address) && !again {
                counts.outside += 1;
            }
            previous = address;
            if let Stop::Exited(status) = self.resume(Step::One)? {
                bail!("the traced program ended inside a call, with status {status}");
            }
        }
    }

    fn kind(&mut self, address: u64) -> Result<Kind> {
        if let Some(kind) = self.known.get(&address) {
            return Ok(*kind);
        }
        let mut bytes = [0; LONGEST_INSTRUCTION];
        let read = self
            .memory
            .read_at(&mut bytes, address)
            .with_context(|| format!("cannot read the code at {address:#x}"))?;
        let kind = Kind::of(&bytes[..read], address, &mut self.factory);
        self.known.insert(address, kind);
        Ok(kind)
    }

    /// Lets the program go until its next SIGTRAP or its end; other signals reach it.
    fn resume(&mut self, step: Step) -> Result<Stop> {
        let request = match step {
            Step::One => libc::PTRACE_SINGLESTEP,
            Step::ToNextStop => libc::PTRACE_CONT,
        };
        let mut signal = 0;
        loop {
            ptrace(request, self.pid, usize::try_from(signal)?)
                .context("cannot resume the subject")?;
            match self.wait()? {
                Waited::Stopped(libc::SIGTRAP) => return Ok(Stop::Trapped),
                Waited::Stopped(other) => signal = other,
                Waited::Exited(status) => return Ok(Stop::Exited(status)),
                Waited::Killed(by) => bail!("the traced program died of signal {by}"),
            }
        }
    }

    fn wait(&mut self) -> Result<Waited> {
        let mut status = 0;
        // SAFETY: `status` is a live int that the call may write.
        let waited = unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) };
        ensure!(waited == self.pid, "waitpid: {}", std::io::Error::last_os_error());
        if libc::WIFSTOPPED(status) {
            return Ok(Waited::Stopped(libc::WSTOPSIG(status)));
        }
        self.running = false;
        Ok(if libc::WIFEXITED(status) {
            Waited::Exited(libc::WEXITSTATUS(status))
        } else {
            Waited::Killed(libc::WTERMSIG(status))
        })
    }

    fn registers(&self) -> Result<libc::user_regs_struct> {
        let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
        ptrace(libc::PTRACE_GETREGS, self.pid, registers.as_mut_ptr().expose_provenance())
            .context("cannot read the registers")?;
        // SAFETY: the structure is integers alone, so the zeroes it began with are a valid
        // value, and so is what the kernel wrote over them.
        Ok(unsafe { registers.assume_init() })
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
        let address = std::ptr::from_ref(registers).expose_provenance();
        ptrace(libc::PTRACE_SETREGS, self.pid, address).context("cannot set the registers")
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.running {
            // SAFETY: the pid is that of our child, not yet waited for, so it names no
            // other process.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            while self.running && self.wait().is_ok() {}
        }
    }
}

enum Waited {
    Stopped(i32),
    Exited(i32),
    Killed(i32),
}

/// Runs in the child before exec. A fixed address layout makes two runs alike; where it
/// is refused the counts only lose some of their repeatability.
fn ask_to_be_traced() -> std::io::Result<()> {
    // SAFETY: neither call takes a pointer.
    unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    ptrace(libc::PTRACE_TRACEME, 0, 0)
}

/// One ptrace request with its `data` argument. The caller passes the address of a live
/// `user_regs_struct` for GETREGS and SETREGS, a number for every other request.
fn ptrace(request: libc::c_uint, pid: libc::pid_t, data: usize) -> std::io::Result<()> {
    // SAFETY: the requests used here touch no memory of ours but the register structure
    // that the two callers above keep alive through the call.
    let result = unsafe { libc::ptrace(request, pid, 0_usize, data) };
    if result == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(bytes: &[u8]) -> (bool, bool, bool, bool) {
        let kind = Kind::of(bytes, 0x1000, &mut InstructionInfoFactory::new());
        (kind.load, kind.store, kind.branch, kind.call)
    }

    #[test]
    fn instructions_are_classified() {
        assert_eq!(kind(&[0x48, 0x8b, 0x07]), (true, false, false, false), "mov rax, [rdi]");
        assert_eq!(kind(&[0x48, 0x89, 0x07]), (false, true, false, false), "mov [rdi], rax");
        assert_eq!(kind(&[0x48, 0xff, 0x07]), (true, true, false, false), "inc [rdi]");
        assert_eq!(kind(&[0x48, 0x8d, 0x07]), (false, false, false, false), "lea rax, [rdi]");
        assert_eq!(kind(&[0x53]), (false, true, false, false), "push rbx");
        assert_eq!(kind(&[0x5b]), (true, false, false, false), "pop rbx");
        assert_eq!(kind(&[0xe8, 0, 0, 0, 0]), (false, false, false, true), "call");
        assert_eq!(kind(&[0xff, 0x17]), (true, false, false, true), "call [rdi]");
        assert_eq!(kind(&[0xc3]), (false, false, false, false), "ret");
        assert_eq!(kind(&[0x74, 0x00]), (false, false, true, false), "je");
        assert_eq!(kind(&[0xff, 0x27]), (true, false, true, false), "jmp [rdi]");
        assert_eq!(kind(&[0x0f, 0x1f, 0x00]), (false, false, false, false), "nop [rax]");
    }

    #[test]
    fn only_executable_mappings_of_the_wanted_file_count() {
        let maps = "1000-2000 r--p 00000000 08:01 7 /lib/x.so\n\
                    2000-3000 r-xp 00001000 08:01 7           /lib/x.so\n\
                    3000-4000 r-xp 00000000 08:01 8 /lib/y.so\n\
                    4000-5000 rw-p 00000000 00:00 0\n";
        let found = executable(maps, |path| path == Path::new("/lib/x.so"));
        assert_eq!((found.len(), found[0].clone()), (1, 0x2000..0x3000));
    }
}
