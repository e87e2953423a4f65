//! Delays the status writes of a Manifest in progress: it is usually Ready soon.
//!
//! Each write would also cost a reconcile and two writes of its Kyma.

use std::{num::NonZeroUsize, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use lru::LruCache;
use parking_lot::Mutex;
use tidewatch_api::{Manifest, ManifestStatus};
use tidewatch_planner::manifest;

use crate::{error::Error, reconcile::manifest::ManifestReconciler};

/// Maximum delay.
const FOR: SignedDuration = SignedDuration::from_secs(5);
/// Manifests remembered in the fleet. An evicted one is delayed once more.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();

/// Start of the delay, by Manifest uid.
#[derive(Debug)]
pub(crate) struct Holds(Mutex<LruCache<String, Timestamp>>);

impl Default for Holds {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Holds {
    /// Returns when the delay began.
    pub(super) fn since(&self, manifest: &Manifest) -> Option<Timestamp> {
        self.0.lock().get(&manifest.uid()?).copied()
    }

    /// Returns the remaining delay; `None`: write.
    fn left(&self, uid: &str, may: bool, now: Timestamp) -> Option<Duration> {
        let mut all = self.0.lock();
        if !may {
            all.pop(uid);
            return None;
        }
        // A clock that was set back restarts the delay.
        let since = all.get(uid).copied().filter(|since| *since <= now);
        let left = FOR - since.map_or(SignedDuration::ZERO, |since| now.duration_since(since));
        let left = Duration::try_from(left).ok().filter(|left| !left.is_zero());
        if left.is_none() {
            all.pop(uid);
        } else if since.is_none() {
            all.put(uid.to_owned(), now);
        }
        left
    }
}

impl ManifestReconciler {
    /// Writes a changed status, or returns how long it may wait.
    ///
    pub(super) async fn write_status(
        &self,
        manifest: &Manifest,
        status: &ManifestStatus,
        may_delay: bool,
    ) -> Result<Option<Duration>, Error> {
        let may = may_delay && manifest::may_wait(manifest, status);
        let left = self.holds.left(&manifest.uid().unwrap_or_default(), may, self.kcp.now());
        if left.is_none() {
            self.kcp.write_manifest_status(manifest, status).await?;
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Duration = Duration::from_secs(5);

    #[test]
    fn something_is_said_at_least_each_five_seconds() {
        let holds = Holds::default();
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        assert_eq!(holds.left("u", true, at(10_000)), Some(HELD));
        assert_eq!(holds.left("u", true, at(12_500)), Some(HELD / 2));
        assert_eq!(holds.left("v", true, at(12_500)), Some(HELD));
        assert_eq!(holds.left("u", true, at(15_000)), None, "now it is said");
        assert_eq!(holds.left("u", true, at(15_000)), Some(HELD), "what is said next waits again");
        assert_eq!(holds.left("u", false, at(15_000)), None);
        assert_eq!(holds.left("u", true, at(16_000)), Some(HELD), "it was said meanwhile");
        assert_eq!(holds.left("u", true, at(17_000)), Some(Duration::from_secs(4)));
        assert_eq!(holds.left("u", true, at(2_000)), Some(HELD), "the clock was set back");
        assert_eq!(holds.left("u", true, at(7_000)), None);
    }
}
