//! What is said of a Manifest that is on its way is held for a moment: as a rule it is Ready soon, and nobody needs to be told of
//! each step on the way there. Each would cost a write, and a reconcile and two writes of its Kyma.

use std::time::Duration;

use kube::ResourceExt;
use parking_lot::Mutex;
use tidewatch_api::{Manifest, ManifestStatus};
use tokio::time::Instant;

use crate::{
    drive::{Finish, Lost, Shared},
    oci::lru::Lru,
    plan::manifest as plan,
};

/// How long at most.
const FOR: Duration = Duration::from_secs(5);
/// Manifests remembered, of the whole fleet. One that is forgotten is held once more.
const REMEMBERED: u64 = 20_000;

/// Since when something is to be said of Manifests, by uid.
#[derive(Debug)]
pub(in crate::drive) struct Holds(Mutex<Lru<String, Instant>>);

impl Default for Holds {
    fn default() -> Self {
        Self(Mutex::new(Lru::new(REMEMBERED)))
    }
}

impl Holds {
    /// How long it is still held; `None`: no longer, or it is not to be.
    fn left(&self, uid: &str, may: bool) -> Option<Duration> {
        let mut all = self.0.lock();
        if !may {
            all.remove(uid);
            return None;
        }
        let now = Instant::now();
        let since = all.get(uid).copied();
        if let Some(since) = since {
            let left = FOR.checked_sub(now.duration_since(since)).filter(|left| !left.is_zero());
            if left.is_none() {
                all.remove(uid);
            }
            return left;
        }
        all.insert(uid.to_owned(), now, 1);
        Some(FOR)
    }
}

/// A reconcile that waits for an event looks again once what is held is to be said.
pub(super) fn said_in_time(held: Option<Duration>, finish: Finish) -> Finish {
    match (held, finish) {
        (Some(left), Finish::Waiting(what)) => Finish::Again(left, what),
        (_, finish) => finish,
    }
}

impl Shared {
    /// Writes a Manifest's status if it differs, unless that can wait. Returns how long: by then, the Manifest has to be looked at
    /// again. `found`: it says what nobody but a look could find out, and is said at once.
    pub(super) async fn say(
        &self,
        manifest: &Manifest,
        status: &ManifestStatus,
        found: bool,
    ) -> Result<Option<Duration>, Lost> {
        let may = !found && plan::may_wait(manifest, status);
        let left = self.holds.left(&manifest.uid().unwrap_or_default(), may);
        if left.is_none() {
            self.write_manifest_status(manifest, status).await?;
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_said_though_no_event_comes() {
        let waits = || Finish::Waiting("for a kind".into());
        let again = said_in_time(Some(FOR), waits());
        assert!(matches!(again, Finish::Again(left, what) if left == FOR && what == "for a kind"));
        assert!(matches!(said_in_time(None, waits()), Finish::Waiting(_)));
        // It looks again soon, anyway.
        assert!(matches!(said_in_time(Some(FOR), Finish::Recheck("w".into())), Finish::Recheck(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn something_is_said_at_least_each_five_seconds() {
        let holds = Holds::default();
        assert_eq!(holds.left("u", true), Some(FOR));
        tokio::time::advance(FOR / 2).await;
        assert_eq!(holds.left("u", true), Some(FOR / 2));
        assert_eq!(holds.left("v", true), Some(FOR));
        tokio::time::advance(FOR / 2).await;
        assert_eq!(holds.left("u", true), None, "now it is said");
        assert_eq!(holds.left("u", true), Some(FOR), "what is said next waits again");
        assert_eq!(holds.left("u", false), None);
        assert_eq!(holds.left("u", true), Some(FOR), "it was said meanwhile");
    }
}
