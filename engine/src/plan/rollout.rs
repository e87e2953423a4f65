//! When each Kyma follows a central change: spread over a window, always the same for the same change.

use std::time::Duration;

/// How long this Kyma waits, in `[0, window)`, with the change that made this generation of a release or template
/// (its uid and generation in one text). Zero for a window of zero.
#[must_use]
pub fn delay(kyma: &str, change: &str, window: Duration) -> Duration {
    let hash = xxhash_rust::xxh3::xxh3_64(format!("{kyma}\n{change}").as_bytes());
    // The upper half of the bits as a fraction of 1.
    window.mul_f64(f64::from(u32::try_from(hash >> 32).unwrap_or_default()) / 4_294_967_296.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_waits_within_the_window_and_they_are_spread() {
        let window = Duration::from_mins(5);
        let delays: Vec<Duration> = (0..1000).map(|n| delay(&format!("k{n}"), "uid/2", window)).collect();
        assert!(delays.iter().all(|d| *d < window));
        for tenth in 0..10 {
            let (from, to) = (window * tenth / 10, window * (tenth + 1) / 10);
            let there = delays.iter().filter(|d| (from..to).contains(*d)).count();
            assert!((50..200).contains(&there), "{there} of 1000 in tenth {tenth}");
        }
        assert_eq!(delay("k1", "uid/2", window), delays[1]);
        assert_ne!(delay("k1", "uid/3", window), delays[1], "the next change does not meet the same first");
        assert_eq!(delay("k1", "uid/2", Duration::ZERO), Duration::ZERO);
    }
}
