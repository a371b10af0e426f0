//! The curve of resident and live memory: whether it rises, and its file.

/// Bytes resident now.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number");
    // SAFETY: no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// One second.
pub(crate) struct Sample {
    pub(crate) at: f64,
    pub(crate) cycle: usize,
    pub(crate) phase: &'static str,
    pub(crate) resident: u64,
    pub(crate) live: u64,
}

/// Of each cycle, resident bytes over live bytes.
pub(crate) fn ratios(samples: &[Sample]) -> Vec<f64> {
    let cycles = samples.last().map_or(0, |last| last.cycle + 1);
    let ratio = |cycle| {
        let of_it = || samples.iter().filter(move |sample| sample.cycle == cycle);
        let sum = |of: fn(&Sample) -> u64| of_it().map(of).sum::<u64>() as f64;
        sum(|s| s.resident) / sum(|s| s.live).max(1.0)
    };
    (0..cycles).map(ratio).collect()
}

/// The least-squares line through equally spaced values: how much it rises from end to end,
/// relative to their mean.
pub(crate) fn rise(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let (middle, mean) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let at = |i: usize| i as f64 - middle;
    let slope = values.iter().enumerate().map(|(i, v)| at(i) * (v - mean)).sum::<f64>()
        / (0..values.len()).map(|i| at(i) * at(i)).sum::<f64>();
    slope * (n - 1.0) / mean
}

pub(crate) const MIB: f64 = 1048576.0;

/// Every so-manieth second, so that the longest run is some 900 lines.
pub(crate) fn write_curve(path: &str, samples: &[Sample]) {
    let mut text = String::from("second,phase,resident_mib,live_mib\n");
    for sample in samples.iter().step_by(samples.len().div_ceil(900).max(1)) {
        let (resident, live) = (sample.resident as f64 / MIB, sample.live as f64 / MIB);
        text += &format!("{:.0},{},{resident:.1},{live:.1}\n", sample.at, sample.phase);
    }
    std::fs::write(path, text).expect("the curve's file can be written");
}
