//! Percentiles.

use std::time::Duration;

/// Percentile `q` (0 to 1) by nearest rank, in milliseconds.
pub(super) fn percentile_ms(samples: &[Duration], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank among some hundred samples"
    )]
    let rank = ((q * sorted.len() as f64).ceil() as usize).max(1);
    sorted.get(rank - 1).map(|d| d.as_secs_f64() * 1e3)
}

/// Percentile from cumulative buckets `(upper bound, count)`, interpolated like Prometheus.
pub(super) fn percentile_of_buckets(buckets: &[(f64, f64)], q: f64) -> Option<f64> {
    let total = buckets.last()?.1;
    let wanted = q * total;
    let (mut low, mut below) = (0.0, 0.0);
    for &(bound, count) in buckets {
        if total > 0.0 && count >= wanted {
            let share = if count > below { (wanted - below) / (count - below) } else { 0.0 };
            return Some(if bound.is_finite() { low + (bound - low) * share } else { low });
        }
        (low, below) = (bound, count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_by_nearest_rank() {
        let samples: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile_ms(&samples, 0.5), Some(50.0));
        assert_eq!(percentile_ms(&samples, 0.99), Some(99.0));
        assert_eq!(percentile_ms(&samples[..1], 0.5), Some(100.0));
        assert_eq!(percentile_ms(&[], 0.5), None);
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "halves and quarters are exact")]
    fn percentiles_within_a_bucket() {
        let buckets = [(1.0, 2.0), (3.0, 4.0), (f64::INFINITY, 4.0)];
        assert_eq!(percentile_of_buckets(&buckets, 0.25), Some(0.5));
        assert_eq!(percentile_of_buckets(&buckets, 0.75), Some(2.0));
        assert_eq!(percentile_of_buckets(&[(1.0, 0.0)], 0.5), None);
        assert_eq!(percentile_of_buckets(&[], 0.5), None);
    }
}
