//! The probe under ptrace: all its threads but the main one, each stopped but while it
//! executes one instruction.

use crate::coherence::Line;
use crate::interpret::Memory;
use crate::probe::{Order, Ready, Users};
use anyhow::{Context, Result, bail, ensure};
use libc::user_regs_struct as Registers;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use procfs::process::{MemoryMaps, Process};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process under ptrace; killed when dropped.
pub struct Tracee {
    /// What the probe said of itself.
    pub ready: Ready,
    child: Child,
    process: Process,
    memory: File,
    threads: Vec<Pid>,
    /// The cores that this thread may use when it does not trace.
    cores: CpuSet,
}

impl Tracee {
    /// Starts the probe (this program's own executable, or `probe`) on `library`, waits
    /// until it is warm, and stops its threads.
    pub fn start(probe: &Path, order: &Order, library: Option<&Path>) -> Result<Tracee> {
        let mut child = spawn(probe, order, library)?;
        let ready = greeting(&mut child);
        // Without its greeting there is nothing to be traced.
        let ready = ready.inspect_err(|_| drop(child.kill().and_then(|()| child.wait())))?;
        let pid = i32::try_from(child.id())?;
        let mut tracee = Tracee {
            threads: ready.threads.iter().map(|&thread| Pid::from_raw(thread)).collect(),
            ready,
            child,
            process: Process::new(pid)?,
            memory: OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?,
            cores: sched_getaffinity(Pid::from_raw(0))?,
        };
        tracee.stop()?;
        Ok(tracee)
    }

    /// Stops all threads and puts them on this thread's core: turns are then taken without
    /// a message between cores.
    fn stop(&mut self) -> Result<()> {
        let mut core = CpuSet::new();
        core.set(sched_getcpu()?)?;
        for &thread in &self.threads {
            ptrace::seize(thread, ptrace::Options::PTRACE_O_EXITKILL)
                .context("cannot trace a child process")?;
            ptrace::interrupt(thread)?;
            let status = waitpid(thread, Some(WaitPidFlag::__WALL))?;
            ensure!(is_stop(&status), "a thread did not stop: {status:?}");
        }
        for &thread in self.threads.iter().chain([&Pid::from_raw(0)]) {
            sched_setaffinity(thread, &core)?;
        }
        self.memory.write_all_at(&[0], self.ready.noting).context("cannot write to the probe")
    }

    /// The registers of a stopped thread.
    pub fn registers(&self, core: usize) -> Result<Registers> {
        ptrace::getregs(self.threads[core]).context("cannot read the registers")
    }

    /// Sets the registers of a stopped thread.
    pub fn set_registers(&self, core: usize, registers: &Registers) -> Result<()> {
        // A system call interrupted long ago is not to begin again.
        let registers = Registers { orig_rax: u64::MAX, ..*registers };
        ptrace::setregs(self.threads[core], registers).context("cannot set the registers")
    }

    /// Executes one instruction; only system calls `may_block`. `None` while one sleeps.
    pub fn step(&self, core: usize, may_block: bool) -> Result<Option<Registers>> {
        ptrace::step(self.threads[core], None).context("cannot step")?;
        if !may_block {
            let status = waitpid(self.threads[core], Some(WaitPidFlag::__WALL))?;
            return self.stopped(core, &status);
        }
        loop {
            if let Some(registers) = self.poll(core)? {
                return Ok(Some(registers));
            }
            let task = self.process.task_from_tid(self.threads[core].as_raw())?;
            if task.stat()?.state == 'S' {
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }

    /// Looks whether a blocked thread goes on.
    pub fn poll(&self, core: usize) -> Result<Option<Registers>> {
        match waitpid(self.threads[core], Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => Ok(None),
            status => self.stopped(core, &status),
        }
    }

    fn stopped(&self, core: usize, status: &WaitStatus) -> Result<Option<Registers>> {
        ensure!(is_stop(status), "a thread of the probe ended or failed: {status:?}");
        self.registers(core).map(Some)
    }

    /// Reads memory, as much of it as there is.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<usize> {
        self.memory.read_at(bytes, address).with_context(|| format!("cannot read at {address:#x}"))
    }

    /// Who used the line of a block last before the tracing began.
    pub fn last_user(&self, line: Line) -> Option<usize> {
        let mut entry = [0; 2];
        let read = self.read(self.ready.users + Users::offset(line), &mut entry).ok()?;
        if read == entry.len() { Users::user(entry) } else { None }
    }

    /// The process's mappings.
    pub fn maps(&self) -> Result<MemoryMaps> {
        Ok(self.process.maps()?)
    }
}

impl Memory for &Tracee {
    fn load(&self, address: u64, size: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let read = self.memory.read_at(&mut bytes[..size], address).ok()?;
        (read == size).then(|| u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, size: usize, value: u64) -> Option<()> {
        let written = self.memory.write_at(&value.to_le_bytes()[..size], address).ok()?;
        (written == size).then_some(())
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // A process that is gone already is as good.
        let _ = self.child.kill();
        for &thread in &self.threads {
            // Its stop, if it has one to report, and its end.
            while let Ok(WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)) =
                waitpid(thread, Some(WaitPidFlag::__WALL))
            {}
        }
        let _ = self.child.wait();
        let _ = sched_setaffinity(Pid::from_raw(0), &self.cores);
    }
}

fn is_stop(status: &WaitStatus) -> bool {
    use nix::sys::signal::Signal;
    matches!(status, WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(_, Signal::SIGTRAP))
}

fn spawn(probe: &Path, order: &Order, library: Option<&Path>) -> Result<Child> {
    let mut command = Command::new(probe);
    command.arg("probe").arg(order.shape.name());
    command.args([order.threads as u64, order.size as u64, order.warm_up].map(|n| n.to_string()));
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    // Two libraries ask how many cores there are; they are told what they would make of one
    // for each thread.
    command.env("MALLOC_CONF", format!("narenas:{}", 4 * order.threads));
    // Time goes on while threads stand still: nothing is given back by it.
    command.env("CAIRN_PURGE_DELAY", "1000000000s");
    command.env("GLIBC_TUNABLES", format!("glibc.malloc.arena_max={}", 8 * order.threads));
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command.spawn().with_context(|| format!("cannot start {}", probe.display()))
}

/// The probe's one line, which says that it is warm.
fn greeting(child: &mut Child) -> Result<Ready> {
    let output = child.stdout.as_mut().context("the probe's output is a pipe")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the probe ended early");
    }
    serde_json::from_str(&line).context("cannot understand the probe")
}
