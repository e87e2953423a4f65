//! What the modules of a Kyma wait for, by what the runtime serves now.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_api::{GroupVersionKind, Kyma, Manifest};

use crate::{
    drive::{
        Shared,
        apply::{self, ObjectError},
        gate::Gated,
    },
    key::Cause,
    plan::{
        needs::{Waits, kinds, unmet, waits},
        object::Gvk,
        versions::Choice,
        watches,
    },
};

/// A kind may be served a moment after its definition has said so, of which nothing tells.
const SERVED_AFTER: Duration = Duration::from_secs(2);
/// After this, kinds are looked for again that could not be.
const BROKEN_AGAIN: Duration = Duration::from_mins(1);

/// Since when each module of each Kyma waits, as far as this process knows.
#[derive(Debug, Default)]
pub(in crate::drive) struct Waiting(Mutex<HashMap<String, BTreeMap<String, Timestamp>>>);

impl Waiting {
    pub(in crate::drive) fn forget(&self, kyma: &str) {
        self.0.lock().remove(kyma);
    }

    /// Keeps those that wait now, and tells since when.
    fn since<'a>(
        &self,
        kyma: &str,
        modules: impl Iterator<Item = &'a String>,
        now: Timestamp,
    ) -> BTreeMap<String, Timestamp> {
        let mut all = self.0.lock();
        let before = all.remove(kyma).unwrap_or_default();
        let since: BTreeMap<String, Timestamp> =
            modules.map(|module| (module.clone(), before.get(module).copied().unwrap_or(now))).collect();
        if !since.is_empty() {
            all.insert(kyma.to_owned(), since.clone());
        }
        since
    }
}

impl Shared {
    /// What the modules of a Kyma wait for, and when to look again though nothing has changed. From then on, a definition of
    /// a kind that one of them needs is an event for the Kyma.
    pub(super) async fn waits_of(
        &self,
        kyma: &Kyma,
        name: &str,
        runtime: &Gated,
        (choices, manifests): (&[Choice], &[Manifest]),
        causes: &[Cause],
    ) -> Result<(BTreeMap<String, Waits>, Option<Timestamp>), ObjectError> {
        let needed = kinds(choices, manifests);
        let mut broken = BTreeSet::new();
        let mut served = served(runtime, &needed, &mut broken).await?;
        if served.len() < needed.len() {
            self.await_kinds(name, needed.difference(&served)).await;
            // What came before that was awaited is not told.
            served.extend(self::served(runtime, needed.difference(&served), &mut broken).await?);
        }
        self.await_kinds(name, needed.difference(&served)).await;
        let unmet = unmet(choices, manifests, &served);
        let now = self.now();
        let since = self.waiting.since(name, unmet.keys(), now);
        let told = |cause: &Cause| matches!(cause, Cause::Event { object, .. } if object.starts_with(watches::CRD.1));
        let soon = unmet.values().any(|unmet| unmet.apis) && causes.iter().any(told);
        let all = unmet.into_iter().map(|(module, unmet)| {
            let before = kyma.module_status(&module).map(|status| (status.state, status.message.as_str()));
            let since = since.get(&module).copied().unwrap_or(now);
            let waits = waits(&unmet, since, self.config.patience, before, now);
            (module, waits)
        });
        // No event tells that a server behind the API server is well again.
        let later = (!broken.is_empty()).then(|| now + BROKEN_AGAIN);
        Ok((all.collect(), soon.then(|| now + SERVED_AFTER).or(later)))
    }

    /// Has definitions of such kinds told to the Kyma, and of no others.
    async fn await_kinds<'a>(&self, kyma: &str, kinds: impl Iterator<Item = &'a GroupVersionKind> + Send) {
        let groups: BTreeSet<String> = kinds.map(|kind| kind.group.clone()).collect();
        let is_known = self.look("awaited").await.awaits(kyma) == groups;
        if is_known {
            return;
        }
        self.change("await").await.await_kinds(kyma, groups);
        self.want_agent(kyma, &[]).await;
    }
}

/// Those of some kinds that the runtime serves. One that cannot be looked for is none of them: it holds up the module that needs it,
/// and nobody else. Each of `broken`, the group versions of which that is known, is asked for once.
async fn served(
    runtime: &Gated,
    kinds: impl IntoIterator<Item = &GroupVersionKind>,
    broken: &mut BTreeSet<String>,
) -> Result<BTreeSet<GroupVersionKind>, ObjectError> {
    let mut served = BTreeSet::new();
    for wanted in kinds {
        let GroupVersionKind { group, version, kind } = wanted.clone();
        let gvk = Gvk { group, version, kind };
        if broken.contains(&gvk.api_version()) {
            continue;
        }
        match apply::scope(runtime, &gvk).await {
            Ok(Some(_)) => {
                served.insert(wanted.clone());
            }
            Ok(None) => {}
            Err(error) if error.is_of_one_kind() => {
                let (api, error) = (gvk.api_version(), error.message());
                tracing::warn!(api, error, "a kind that a module needs cannot be looked for");
                broken.insert(api);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(served)
}
