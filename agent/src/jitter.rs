use std::hash::{BuildHasher, Hasher, RandomState};

/// Low-quality randomness in `[0, 1)`.
pub(crate) fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::random;

    #[test]
    fn random_numbers_cover_the_unit_interval() {
        let numbers: Vec<f64> = (0..1000).map(|_| random()).collect();
        assert!(numbers.iter().all(|n| (0.0..1.0).contains(n)));
        assert!(numbers.iter().any(|n| *n < 0.1) && numbers.iter().any(|n| *n > 0.9));
    }
}
