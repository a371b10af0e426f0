//! What the figures depend on besides the allocators.

use rustix::system::{sysinfo, uname};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

/// Facts about this machine at the start of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Usable cores.
    pub cores: usize,
    /// RAM.
    pub memory_mib: u64,
    /// Kernel release and architecture.
    pub kernel: String,
    /// Transparent huge pages: always, madvise or never.
    pub thp: String,
    /// vm.overcommit_memory
    pub overcommit: String,
    /// Load averages: above zero, others were using the cores.
    pub load: String,
}

impl Machine {
    /// Looks around.
    pub fn read() -> Machine {
        let line = |path: &str| read_to_string(path).unwrap_or_default().trim().to_owned();
        let cpu = line("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let thp = line("/sys/kernel/mm/transparent_hugepage/enabled");
        let thp = thp.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let system = uname();
        let info = sysinfo();
        Machine {
            cpu: cpu.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: (info.totalram * u64::from(info.mem_unit)) >> 20,
            kernel: format!(
                "{} {}",
                system.release().to_string_lossy(),
                system.machine().to_string_lossy()
            ),
            thp: thp.map_or("unknown", |(setting, _)| setting).to_owned(),
            overcommit: line("/proc/sys/vm/overcommit_memory"),
            load: line("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let Machine { cpu, cores, memory_mib, kernel, thp, load, .. } = self;
        format!(
            "{cpu}, {cores} cores, {memory_mib} MiB, Linux {kernel}, THP {thp}, load before {load}"
        )
    }
}

/// Memory that could be used now, in MiB.
pub fn available_mib() -> f64 {
    cairn_workloads::process::field_kib("/proc/meminfo", "MemAvailable:").unwrap_or(4e6) / 1024.0
}
