//! Medians and their spread.

/// What several runs say about one number.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The result.
    pub median: f64,
    /// Median distance from the median, as a share of it.
    pub spread: f64,
    /// All values, in order of time.
    pub samples: Vec<f64>,
}

impl Summary {
    /// None of no samples.
    pub fn of(samples: Vec<f64>) -> Option<Summary> {
        let middle = median(&samples)?;
        let distances: Vec<f64> = samples.iter().map(|x| (x - middle).abs()).collect();
        let spread = if middle == 0.0 { 0.0 } else { median(&distances)? / middle };
        Some(Summary { median: middle, spread, samples })
    }
}

/// None of no samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The geometric mean; none of no values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|x| x.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

/// To so many digits.
pub fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.*e}", digits - 1).parse().expect("a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_spreads_and_means() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let summary = Summary::of(vec![10.0, 12.0, 8.0, 30.0]).unwrap();
        assert_eq!((summary.median, summary.spread), (11.0, 2.0 / 11.0));
        assert_eq!(geometric_mean(&[]), None);
        assert!((geometric_mean(&[1.0, 4.0]).unwrap() - 2.0).abs() < 1e-12);
    }
}
