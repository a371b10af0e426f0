//! A process under ptrace.

use crate::decode::LONGEST;
use crate::{Registers, Step};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::InstructionInfoFactory;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use proc_maps::MapRange;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::rc::Rc;

/// A process some of whose threads stand still but while they execute one instruction. They share the tracing thread's
/// core: turns are then taken without a message between cores. The process is killed when this is dropped.
pub struct Tracee {
    child: Child,
    /// The process has ended, and its number may be another's.
    ended: bool,
    memory: File,
    threads: Vec<Pid>,
    code: HashMap<u64, Rc<Step>>,
    factory: InstructionInfoFactory,
    /// The cores that the tracing thread may use when it does not trace.
    cores: CpuSet,
}

/// Why a thread that was let go has stopped.
pub enum Stop {
    /// At a breakpoint, behind it.
    Breakpoint,
    /// The process has ended, with this status.
    Exited(i32),
}

impl Tracee {
    /// Starts a program; its one thread, number 0, stands at its first instruction. Addresses are
    /// the same in each run, where the system allows it.
    pub fn start(command: &mut Command) -> Result<Tracee> {
        let prepare = || {
            // Where it is refused, counts only lose some of their repeatability.
            let _ = personality::set(Persona::ADDR_NO_RANDOMIZE);
            Ok(ptrace::traceme()?)
        };
        // SAFETY: between fork and exec two system calls are made.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().context("cannot start the program")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let mut tracee = Tracee::new(child)?;
        tracee.threads.push(pid);
        let stopped = matches!(tracee.wait(0, None)?, WaitStatus::Stopped(_, Signal::SIGTRAP));
        ensure!(stopped, "the program did not stop at exec");
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)?;
        tracee.share_a_core()?;
        Ok(tracee)
    }

    /// Stops threads of a child that runs, at whatever they do.
    pub fn attach(child: Child, threads: &[i32]) -> Result<Tracee> {
        let mut tracee = Tracee::new(child)?;
        for (at, &thread) in threads.iter().enumerate() {
            let thread = Pid::from_raw(thread);
            ptrace::seize(thread, ptrace::Options::PTRACE_O_EXITKILL)
                .context("cannot trace a child process")?;
            tracee.threads.push(thread);
            ptrace::interrupt(thread)?;
            let status = tracee.wait(at, None)?;
            ensure!(is_stop(&status), "a thread did not stop: {status:?}");
        }
        tracee.share_a_core()?;
        Ok(tracee)
    }

    fn new(child: Child) -> Result<Tracee> {
        let memory = format!("/proc/{}/mem", child.id());
        Ok(Tracee {
            child,
            ended: false,
            memory: OpenOptions::new().read(true).write(true).open(memory)?,
            threads: Vec::new(),
            code: HashMap::new(),
            factory: InstructionInfoFactory::new(),
            cores: sched_getaffinity(Pid::from_raw(0))?,
        })
    }

    fn share_a_core(&self) -> Result<()> {
        let mut core = CpuSet::new();
        core.set(sched_getcpu()?)?;
        for &thread in self.threads.iter().chain([&Pid::from_raw(0)]) {
            sched_setaffinity(thread, &core)?;
        }
        Ok(())
    }

    /// The registers of a thread.
    pub fn registers(&self, at: usize) -> Result<Registers> {
        ptrace::getregs(self.threads[at]).context("cannot read the registers")
    }

    /// Sets the registers of a thread that is in no system call.
    pub fn set_registers(&self, at: usize, registers: Registers) -> Result<()> {
        ptrace::setregs(self.threads[at], registers).context("cannot set the registers")
    }

    /// Executes one instruction of a thread and returns its registers then. One that `may_block` is
    /// not waited for: there may be none, and [`Tracee::poll`] has them later.
    pub fn step(&mut self, at: usize, may_block: bool) -> Result<Option<Registers>> {
        ptrace::step(self.threads[at], None).context("cannot step")?;
        if may_block {
            return self.poll(at);
        }
        let status = self.wait(at, None)?;
        self.stopped(at, status)
    }

    /// Looks whether a thread that sleeps in a system call goes on.
    pub fn poll(&mut self, at: usize) -> Result<Option<Registers>> {
        let status = self.wait(at, Some(WaitPidFlag::WNOHANG))?;
        self.stopped(at, status)
    }

    fn stopped(&self, at: usize, status: WaitStatus) -> Result<Option<Registers>> {
        if status == WaitStatus::StillAlive {
            return Ok(None);
        }
        ensure!(is_stop(&status), "a traced thread ended or failed: {status:?}");
        self.registers(at).map(Some)
    }

    /// Lets thread 0 go until the next breakpoint in it, or its end.
    pub fn resume(&mut self) -> Result<Stop> {
        ptrace::cont(self.threads[0], None).context("cannot resume")?;
        match self.wait(0, None)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => Ok(Stop::Breakpoint),
            WaitStatus::Exited(_, status) => Ok(Stop::Exited(status)),
            other => bail!("the traced program failed: {other:?}"),
        }
    }

    fn wait(&mut self, at: usize, flag: Option<WaitPidFlag>) -> Result<WaitStatus> {
        let flags = WaitPidFlag::__WALL | flag.unwrap_or(WaitPidFlag::empty());
        let status = waitpid(self.threads[at], Some(flags))?;
        let ended = matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..));
        self.ended |= ended && self.threads[at].as_raw() as u32 == self.child.id();
        Ok(status)
    }

    /// The instruction at an address.
    pub fn decoded(&mut self, address: u64) -> Result<Rc<Step>> {
        if let Some(step) = self.code.get(&address) {
            return Ok(Rc::clone(step));
        }
        let mut bytes = [0; LONGEST];
        let read = self.read(address, &mut bytes)?;
        let step = Rc::new(Step::decode(&bytes[..read], address, &mut self.factory));
        self.code.insert(address, Rc::clone(&step));
        Ok(step)
    }

    /// Reads memory, as much of it as there is.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<usize> {
        self.memory.read_at(bytes, address).with_context(|| format!("cannot read at {address:#x}"))
    }

    /// Writes memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let written = self.memory.write_all_at(bytes, address);
        written.with_context(|| format!("cannot write at {address:#x}"))
    }

    /// What is mapped now.
    pub fn mappings(&self) -> Result<Vec<MapRange>> {
        Ok(proc_maps::get_process_maps(i32::try_from(self.child.id())?)?)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.ended {
            // A process that is gone already is as good.
            let _ = self.child.kill();
            for &thread in &self.threads {
                // Its stop, if it has one to report, and its end.
                while let Ok(WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)) =
                    waitpid(thread, Some(WaitPidFlag::__WALL))
                {}
            }
            let _ = self.child.wait();
        }
        let _ = sched_setaffinity(Pid::from_raw(0), &self.cores);
    }
}

fn is_stop(status: &WaitStatus) -> bool {
    matches!(status, WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(_, Signal::SIGTRAP))
}
