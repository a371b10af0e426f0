//! Medians and their spread.

use serde::Serialize;

/// What several runs say about one number.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The result.
    pub median: f64,
    /// Median distance from the median.
    pub mad: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// All values, in order of time.
    pub samples: Vec<f64>,
}

impl Summary {
    /// None of no samples.
    pub fn of(samples: Vec<f64>) -> Option<Summary> {
        let middle = median(&samples)?;
        let distances: Vec<f64> = samples.iter().map(|x| (x - middle).abs()).collect();
        Some(Summary {
            median: middle,
            mad: median(&distances)?,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            samples,
        })
    }

    /// Spread as a share of the median.
    pub fn relative_mad(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { self.mad / self.median }
    }
}

fn median(samples: &[f64]) -> Option<f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let summary = Summary::of(vec![10.0, 12.0, 11.0, 30.0]).unwrap();
        assert_eq!((summary.median, summary.mad, summary.max), (11.5, 1.0, 30.0));
    }

    #[test]
    fn means() {
        assert_eq!(geometric_mean(&[]), None);
        assert!((geometric_mean(&[1.0, 4.0]).unwrap() - 2.0).abs() < 1e-12);
    }
}
