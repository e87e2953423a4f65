//! Rollout turns, which spread a release over the fleet.
//!
//! The engine queues affected Kymas after this delay; user edits need no turn. After a restart, [`turn`] resumes the rollout.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleReleaseMeta, names::labels};
use xxhash_rust::xxh3::Xxh3;

/// Delay of `kyma` in `[0, window)` for `release`; zero for a zero window.
///
/// Each `release` (one change) has its own order, so no Kyma is always first to get a bad version. Delays are stable across machines and
/// versions.
#[must_use]
pub fn delay(kyma: &str, release: &str, window: Duration) -> Duration {
    let mut hash = Xxh3::new();
    // The length separates the names.
    hash.update(&u64::try_from(kyma.len()).unwrap_or(u64::MAX).to_le_bytes());
    hash.update(kyma.as_bytes());
    hash.update(release.as_bytes());
    // 64 bits of nanoseconds are 584 years. A product is unbiased, unlike a remainder.
    let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    let share = (u128::from(hash.digest()) * u128::from(nanos)) >> 64;
    Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX))
}

/// Names a change: uid and generation, or resourceVersion without generations.
#[must_use]
pub fn change_of(object: &impl ResourceExt) -> String {
    let generation = object.meta().generation.map(|generation| generation.to_string());
    let version = generation.or_else(|| object.resource_version()).unwrap_or_default();
    format!("{}/{version}", object.uid().unwrap_or_default())
}

/// Reduces managed fields, which are large, to the last change.
pub fn keep_time_of_change(meta: &mut ObjectMeta) {
    let entries = meta.managed_fields.take().unwrap_or_default();
    let written = entries.into_iter().filter(|entry| entry.subresource.as_deref().is_none_or(str::is_empty));
    let newest = written.filter_map(|entry| entry.time).max();
    meta.managed_fields =
        newest.map(|time| vec![ManagedFieldsEntry { time: Some(time), ..ManagedFieldsEntry::default() }]);
}

/// A Kyma's future turn in a rollout; `None` if up to date. The release comes from [`keep_time_of_change`]. A release in the future (clock
/// set back) causes no wait.
#[must_use]
pub fn turn(
    kyma: &str,
    manifest: &Manifest,
    release: &ModuleReleaseMeta,
    window: Duration,
    now: Timestamp,
) -> Option<Timestamp> {
    let changed = release.metadata.managed_fields.as_ref()?.first()?.time.as_ref()?.0;
    let wanted = if manifest.is_mandatory() {
        release.mandatory_version()
    } else {
        release.version_of(manifest.labels().get(labels::CHANNEL)?)
    };
    if wanted? == manifest.spec.version || manifest.metadata.deletion_timestamp.is_some() || changed > now {
        return None;
    }
    let turn = changed.checked_add(delay(kyma, &change_of(release), window)).ok()?;
    (turn > now).then_some(turn)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_mins(5);

    #[test]
    fn a_turn_is_the_same_in_every_version() {
        let turns = ["kyma-1", "kyma-2", "kyma-3"].map(|k| delay(k, "0b1c/7", WINDOW).as_millis());
        assert_eq!(turns, TURNS);
    }

    /// Fixed forever, so turns are predictable.
    const TURNS: [u128; 3] = [80_284, 117_362, 136_016];

    #[test]
    fn a_turn_outlives_a_restart() {
        let release = |changed: &str| {
            let mut release: ModuleReleaseMeta = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "beacon", "uid": "0b1c", "generation": 7, "managedFields": [
                    {"manager": "old", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
                    {"manager": "new", "time": changed},
                    {"manager": "says", "time": "2026-03-01T00:00:00Z", "subresource": "status"}]},
                "spec": {"moduleName": "beacon", "ocmComponentName": "example.org/beacon",
                         "channels": [{"channel": "regular", "version": "1.1.0"}, {"channel": "fast", "version": "1.0.0"}]}
            }))
            .unwrap();
            keep_time_of_change(&mut release.metadata);
            release
        };
        let manifest = |label: serde_json::Value, version: &str| -> Manifest {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "m", "labels": label},
                "spec": {"version": version, "install": {"name": "beacon", "source": {}}}
            }))
            .unwrap()
        };
        let (changed, now) = ("2026-02-01T00:00:00Z", "2026-02-01T00:01:00Z".parse().unwrap());
        let of = |channel: &str, version| manifest(serde_json::json!({labels::CHANNEL: channel}), version);
        let turn =
            |manifest: &Manifest, release: &ModuleReleaseMeta| turn("kyma-1", manifest, release, WINDOW, now);
        let due = "2026-02-01T00:01:20.284Z".parse::<Timestamp>().unwrap();
        let found = turn(&of("regular", "1.0.0"), &release(changed)).unwrap();
        assert_eq!(found.as_millisecond(), due.as_millisecond(), "the turn it had before");
        assert_eq!(turn(&of("regular", "1.1.0"), &release(changed)), None, "it is there already");
        assert_eq!(turn(&of("fast", "1.0.0"), &release(changed)), None, "another channel");
        assert_eq!(
            turn(&manifest(serde_json::json!({}), "1.0.0"), &release(changed)),
            None,
            "a version by number"
        );
        assert_eq!(turn(&of("regular", "1.0.0"), &release("2026-01-31T23:00:00Z")), None, "its turn is over");
        assert_eq!(
            turn(&of("regular", "1.0.0"), &release("2026-02-02T00:00:00Z")),
            None,
            "a clock was set back"
        );
    }

    #[test]
    fn without_a_window_the_delay_is_zero() {
        assert_eq!(delay("kyma-1", "0b1c/7", Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn kyma_and_release_names_are_hashed_separately() {
        assert_ne!(delay("ab", "c", WINDOW), delay("a", "bc", WINDOW));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_turn_is_within_the_window(kyma: String, release: String, window: Duration) {
            let turn = delay(&kyma, &release, window);
            prop_assert!(turn < window || window.is_zero());
            prop_assert_eq!(turn, delay(&kyma, &release, window));
        }

        /// 20 bins of 500 expected: an even spread exceeds 90 (19 degrees of freedom) once in 10^11 rollouts.
        #[test]
        fn turns_are_spread_evenly(release in "[a-f0-9-]{1,36}/[0-9]{1,4}", prefix in "[a-z]{0,8}-?", seconds in 1u64..100_000) {
            let window = Duration::from_secs(seconds);
            let mut parts = [0u32; 20];
            for n in 0..10_000 {
                let turn = delay(&format!("{prefix}{n}"), &release, window);
                parts[usize::try_from(turn.as_nanos() * 20 / window.as_nanos()).unwrap()] += 1;
            }
            let off: f64 = parts.iter().map(|n| (f64::from(*n) - 500.0).powi(2) / 500.0).sum();
            prop_assert!(off < 90.0, "{parts:?}");
        }

        /// Being early twice is chance.
        #[test]
        fn no_kyma_is_first_in_every_rollout(one in 0u32..1000, other in 1000u32..2000) {
            let first = |kyma: &str, release: u32| delay(kyma, &format!("uid/{release}"), WINDOW) < WINDOW / 10;
            let both = (0..10_000).map(|n| format!("kyma-{n}")).filter(|k| first(k, one) && first(k, other)).count();
            prop_assert!((30..=190).contains(&both), "{both} of 100 expected");
        }
    }
}
