//! What the figures depend on besides the allocators.

use rustix::system::{sysinfo, uname};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

/// Facts about this machine at the start of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor; family and number, too, where there are such: in virtual machines
    /// several generations have one name.
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
        let cpu = processor(&line("/proc/cpuinfo"));
        let thp = line("/sys/kernel/mm/transparent_hugepage/enabled");
        let thp = thp.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let system = uname();
        let info = sysinfo();
        Machine {
            cpu,
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

/// The processor, from the text of `/proc/cpuinfo`.
fn processor(text: &str) -> String {
    let field = |name: &str| {
        let of_name = |line: &str| {
            Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned())
        };
        text.lines().find_map(of_name)
    };
    let name = field("model name").unwrap_or_else(|| "unknown".to_owned());
    match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        _ => name,
    }
}

/// Memory that could be used now, in MiB.
pub fn available_mib() -> f64 {
    cairn_workloads::process::field_kib("/proc/meminfo", "MemAvailable:").unwrap_or(4e6) / 1024.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn processors_have_names() {
        let text = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n";
        assert_eq!(super::processor(text), "AMD EPYC (family 25, model 17)");
        assert_eq!(super::processor("model name\t: ARMv8\nFeatures : fp"), "ARMv8");
        assert_eq!(super::processor("processor : 0"), "unknown");
    }
}
