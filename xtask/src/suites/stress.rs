//! stress-ng's stressors of memory, processes and threads, each verifying what it wrote.

use super::shop::Shop;
use super::{Prepared, Suite, Unit, tally};
use crate::programs::install::{self, Need};
use anyhow::Result;

pub(super) const STRESS_NG: Suite = Suite {
    name: "stress-ng",
    needs: &[Need::new("stress-ng", "stress-ng"), Need::new("prlimit", "util-linux")],
    what: "stressors with --verify, 2 of each at a time",
    prepare,
    explained: &[],
};

/// Take all that they can get, so they get 2 GiB of address space: cairn grows step by step then.
const GREEDY: [&str; 6] = ["malloc", "malloc --malloc-touch", "brk", "stack", "bigheap", "mmap"];

/// The others, with options that keep them within a small machine.
const STRESSORS: [&str; 41] = [
    "malloc --malloc-bytes 4M --malloc-max 128 --malloc-touch",
    "malloc --malloc-pthreads 4 --malloc-bytes 1M --malloc-max 4096",
    "malloc --malloc-pthreads 4 --malloc-zerofree --malloc-bytes 1M --malloc-max 2048",
    "malloc --malloc-thresh 16K --malloc-bytes 256K --malloc-max 512",
    "vm --vm-bytes 64M",
    "vm-rw --vm-rw-bytes 16M",
    "mmap --mmap-bytes 32M",
    "mmapfork",
    "mmapmany",
    "mremap --mremap-bytes 16M",
    "fork",
    "vfork",
    "vforkmany",
    "clone",
    "daemon",
    "exec",
    "spawn",
    "zombie",
    "dynlib",
    "memthrash",
    "memcpy",
    "memfd --memfd-bytes 16M",
    "mlock",
    "mincore",
    "madvise",
    "mprotect",
    "msync",
    "pthread",
    "mutex",
    "hsearch",
    "tsearch",
    "lsearch",
    "bsearch",
    "qsort",
    "heapsort",
    "mergesort",
    "tree",
    "list",
    "str",
    "wcs",
    "switch",
];

fn prepare(shop: &Shop) -> Result<Prepared> {
    let seconds = shop.pick(3, 20);
    let unit = |stressor: &'static str, greedy: bool| {
        Unit::new(stressor, tally::exit, move |stage| {
            let limits = if greedy { "--as=2147483648 --core=0" } else { "--core=0" };
            Ok(stage
                .process("prlimit")?
                .line(limits)
                .line("stress-ng --verify --oomable --metrics-brief -t")
                .arg(format!("{seconds}s"))
                .line(&first_with_count(stressor))
                .limit(10 * seconds + 120))
        })
    };
    let greedy = GREEDY.into_iter().map(|stressor| unit(stressor, true));
    let units = greedy.chain(STRESSORS.into_iter().map(|stressor| unit(stressor, false)));
    Ok(Prepared {
        version: install::version(&["stress-ng", "--version"]),
        units: units.collect(),
        notes: vec![format!("every stressor for {seconds} s a side")],
    })
}

/// `malloc --malloc-trim` as `--malloc 2 --malloc-trim`.
fn first_with_count(stressor: &str) -> String {
    match stressor.split_once(' ') {
        Some((name, options)) => format!("--{name} 2 {options}"),
        None => format!("--{stressor} 2"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        assert_eq!(first_with_count("brk"), "--brk 2");
        assert_eq!(first_with_count("vm --vm-bytes 1M"), "--vm 2 --vm-bytes 1M");
    }
}
