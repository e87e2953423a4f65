//! Selections by seed. Pure.

use tidewatch_fake_apiserver::script::chance;

/// `count` elements in a seeded order.
pub(super) fn some(seed: u64, words: &str, from: &[usize], count: usize) -> Vec<usize> {
    let mut all: Vec<(f64, usize)> =
        from.iter().map(|one| (chance(seed, &format!("{words}, runtime {one}")), *one)).collect();
    all.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    all.into_iter().take(count).map(|(_, one)| one).collect()
}

pub(super) fn one(seed: u64, step: usize, runtime: usize, from: &[usize]) -> Option<usize> {
    let chance = chance(seed, &format!("step {step}, in runtime {runtime}"));
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of modules is far below 2^52"
    )]
    let index = (chance * from.len() as f64) as usize;
    from.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_selects_distinct_items() {
        let all: Vec<usize> = (0..1000).collect();
        let chosen = some(7, "3", &all, 10);
        assert_eq!(chosen.len(), 10);
        assert_eq!(chosen, some(7, "3", &all, 10));
        assert_ne!(chosen, some(8, "3", &all, 10));
        assert_ne!(chosen, some(7, "4", &all, 10));
        assert_eq!(chosen[..5], some(7, "3", &all, 5), "fewer are among them");
        let mut each = some(7, "3", &all, 1000);
        each.sort_unstable();
        assert_eq!(each, all, "each once");
        assert!(one(7, 3, 5, &all).is_some());
        assert_eq!(one(7, 3, 5, &[]), None);
    }
}
