//! Checks the kinds that a Kyma's modules require against those the runtime serves.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_api::{GroupVersionKind, Kyma, Manifest, State, object::Gvk};
use tidewatch_planner::{
    requirements::{
        Unmet, WaitReport, defined_groups, is_name, kinds, lost, next_discovery, unmet, wait_report,
    },
    versions::ResolvedModule,
};

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    outcome::SERVED_AFTER,
    reconcile::kyma::KymaReconciler,
    trigger::{Trigger, Triggers, is_of_definition},
};

#[derive(Debug, Default)]
pub(crate) struct WaitingKymas(Mutex<HashMap<String, Known>>);

#[derive(Debug, Default, PartialEq)]
struct Known {
    since: BTreeMap<String, Timestamp>,
    /// Start of failing discovery.
    broken: Option<Timestamp>,
    again: Option<Timestamp>,
}

impl WaitingKymas {
    pub(crate) fn forget(&self, kyma: &str) {
        self.0.lock().remove(kyma);
    }

    /// Records the waiting modules and returns their reports. `before` returns a module's last report.
    pub(crate) fn waits<'a>(
        &self,
        kyma: &str,
        all: BTreeMap<String, Unmet>,
        patience: Duration,
        before: impl Fn(&str) -> Option<(State, &'a str)>,
        now: Timestamp,
    ) -> BTreeMap<String, WaitReport> {
        self.know(kyma, |known| {
            let since = std::mem::take(&mut known.since);
            let one = |(module, unmet): (String, Unmet)| {
                let since = since.get(&module).copied().unwrap_or(now);
                let waits = wait_report(&unmet, since, patience, before(&module), now);
                known.since.insert(module.clone(), since);
                (module, waits)
            };
            all.into_iter().map(one).collect()
        })
    }

    /// Next check of kinds whose discovery fails, if any.
    pub(crate) fn broken(&self, kyma: &str, any: bool, now: Timestamp) -> Option<Timestamp> {
        self.know(kyma, |known| {
            known.broken = any.then(|| known.broken.unwrap_or(now));
            known.broken.map(|since| next_discovery(since, now))
        })
    }

    /// Whether to discover kinds anew, since a CRD changed now or just before.
    pub(crate) fn is_doubtful(&self, kyma: &str, has_event: bool, now: Timestamp) -> bool {
        self.know(kyma, |known| {
            let due = known.again.is_some_and(|again| again <= now);
            if has_event {
                known.again = Some(now + SERVED_AFTER);
            } else if due {
                known.again = None;
            }
            has_event || due
        })
    }

    pub(crate) fn again(&self, kyma: &str) -> Option<Timestamp> {
        self.0.lock().get(kyma)?.again
    }

    fn know<T>(&self, kyma: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut all = self.0.lock();
        let mut known = all.remove(kyma).unwrap_or_default();
        let has_event = change(&mut known);
        if known != Known::default() {
            all.insert(kyma.to_owned(), known);
        }
        has_event
    }
}

#[derive(Debug)]
pub(super) struct Needs {
    pub(super) waits: BTreeMap<String, WaitReport>,
    pub(super) gone: BTreeMap<String, String>,
    pub(super) look_at: Option<Timestamp>,
}

impl KymaReconciler {
    /// Determines missing and lost requirements. Afterwards, CRDs of required kinds trigger the Kyma, served or not.
    pub(super) async fn needs_of(
        &self,
        kyma: &Kyma,
        name: &str,
        runtime: &Gated,
        choices: &[ResolvedModule],
        manifests: &[Manifest],
        triggers: Triggers<'_>,
    ) -> Result<Needs, ObjectError> {
        let needed = kinds(choices);
        let now = self.kcp.now();
        let has_event = !needed.is_empty() && triggers.may_include(is_of_definition);
        let doubtful =
            self.waiting.is_doubtful(name, has_event, now) || triggers.may_include(Trigger::is_full_look);
        // Before the discovery: earlier changes have no event.
        if self.await_kinds(name, &needed) || doubtful {
            for kind in &needed {
                objects::forget(runtime, &gvk_of(kind));
            }
        }
        let mut broken = BTreeSet::new();
        let served = served(runtime, &needed, &mut broken).await?;
        let before =
            |module: &str| kyma.module_status(module).map(|status| (status.state, status.message.as_str()));
        let unmet = unmet(choices, manifests, &served);
        let waits = self.waiting.waits(name, unmet, self.config.dependency_patience, before, now);
        // A kind whose discovery fails does not count as gone.
        let unknown = needed.iter().filter(|kind| broken.contains(&gvk_of(kind).api_version()));
        let there = served.iter().chain(unknown).cloned().collect();
        let gone = lost(choices, manifests, &there);
        let later = self.waiting.broken(name, !broken.is_empty(), now);
        let look_at = self.waiting.again(name).into_iter().chain(later).min();
        Ok(Needs { waits, gone, look_at })
    }

    /// Has CRDs of these kinds trigger the Kyma. Returns whether there are new ones.
    fn await_kinds(&self, kyma: &str, kinds: &BTreeSet<GroupVersionKind>) -> bool {
        let groups = defined_groups(kinds);
        let before = self.kcp.index().kymas.waits(kyma).groups.clone();
        if before == groups {
            return false;
        }
        let more = !groups.is_subset(&before);
        if let Some(waits) = self.kcp.index_mut().kymas.waits_mut(kyma) {
            waits.groups = groups;
        }
        self.followups.agent_config(kyma, &[]);
        more
    }
}

pub(crate) fn gvk_of(kind: &GroupVersionKind) -> Gvk {
    let GroupVersionKind { group, version, kind } = kind.clone();
    Gvk { group, version, kind }
}

/// Returns the served kinds. A kind whose discovery fails counts as not served and blocks only the modules that need it. Group versions in
/// `broken` are not requested again.
pub(crate) async fn served(
    runtime: &Gated,
    kinds: impl IntoIterator<Item = &GroupVersionKind>,
    broken: &mut BTreeSet<String>,
) -> Result<BTreeSet<GroupVersionKind>, ObjectError> {
    let mut served = BTreeSet::new();
    for wanted in kinds.into_iter().filter(|kind| is_name(kind)) {
        let gvk = gvk_of(wanted);
        if broken.contains(&gvk.api_version()) {
            continue;
        }
        match objects::scope(runtime, &gvk).await {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tidewatch_api::object::ObjectRef;
    use tidewatch_api::{KymaSpec, ModuleReleaseMeta, ModuleTemplate};
    use tidewatch_planner::versions::{Catalog, choose};

    use super::*;
    use crate::{
        engine::Engine,
        reconcile::tests::{Requests, engine_on, not_found},
        scripted,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A runtime that answers every discovery like this, and its requests.
    fn runtime(answer: &Arc<Mutex<(u16, Value)>>) -> (Gated, Requests) {
        let requests = Requests::default();
        let (recorder, answer) = (Arc::clone(&requests), Arc::clone(answer));
        let runtime = scripted::runtime(move |asked| {
            recorder.lock().push(asked.path.clone());
            answer.lock().clone()
        });
        (runtime, requests)
    }

    #[derive(Debug)]
    struct OneModule(Arc<ModuleReleaseMeta>, Arc<ModuleTemplate>);

    impl Catalog for OneModule {
        fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
            (module == "lighthouse").then(|| Arc::clone(&self.0))
        }
        fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
            (name == "lighthouse-1.0.0").then(|| Arc::clone(&self.1))
        }
        fn templates_of(&self, _: &str) -> Vec<Arc<ModuleTemplate>> {
            vec![Arc::clone(&self.1)]
        }
    }

    /// Lighthouse, which requires a kind of this group, in the list of the Kyma `harbour`.
    fn choices(group: &str) -> Vec<ResolvedModule> {
        let release = json!({"metadata": {"name": "lighthouse"}, "spec": {
            "moduleName": "lighthouse", "ocmComponentName": "tidewatch.dev/module/lighthouse",
            "channels": [{"channel": "regular", "version": "1.0.0"}]}});
        let template = json!({"metadata": {"name": "lighthouse-1.0.0", "generation": 1}, "spec": {
            "moduleName": "lighthouse", "version": "1.0.0", "descriptor": {},
            "requires": {"apis": [{"group": group, "version": "v1", "kind": "Hook"}]}}});
        let catalog = OneModule(
            Arc::new(serde_json::from_value(release).unwrap()),
            Arc::new(serde_json::from_value(template).unwrap()),
        );
        let wanted = json!({"channel": "regular", "modules": [{"name": "lighthouse"}]});
        choose(&serde_json::from_value::<KymaSpec>(wanted).unwrap(), &catalog, &[])
    }

    fn kyma() -> Kyma {
        let kyma = json!({"metadata": {"name": "harbour", "uid": "u"}, "spec": {"channel": "regular"}});
        serde_json::from_value(kyma).unwrap()
    }

    /// The lost requirements of the installed lighthouse 1.0.0, and the next check.
    async fn found(
        engine: &Engine,
        runtime: &Gated,
        group: &str,
        causes: &[Trigger],
    ) -> (Option<String>, Option<i64>) {
        let manifest: Manifest = serde_json::from_value(json!({
            "metadata": {"name": "m", "labels": {"operator.kyma-project.io/module-name": "lighthouse"}},
            "spec": {"version": "1.0.0", "install": {"name": "lighthouse", "source": {}}}}))
        .unwrap();
        let (choices, kyma) = (choices(group), kyma());
        let manifests = std::slice::from_ref(&manifest);
        let triggers = Triggers { listed: causes, count: causes.len() };
        let mut needs = engine
            .dispatcher
            .reconcilers
            .kyma
            .needs_of(&kyma, "harbour", runtime, &choices, manifests, triggers)
            .await
            .unwrap();
        assert!(needs.waits.is_empty());
        (needs.gone.remove("lighthouse"), needs.look_at.map(Timestamp::as_second))
    }

    #[tokio::test]
    async fn an_installed_module_reports_a_lost_required_kind() {
        let (engine, _) = engine_on(|_, _| not_found());
        drop(engine.dispatcher.kcp.index_mut().apply_kyma(kyma()));
        let served = (
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "x.dev/v1", "resources": [
                {"name": "hooks", "singularName": "", "namespaced": true, "kind": "Hook", "verbs": ["get"]}]}),
        );
        let answer = Arc::new(Mutex::new(served));
        let (runtime, requests) = runtime(&answer);
        let has_event = [Trigger::Event {
            epoch: "e".into(),
            seq: 1,
            watch: "w".into(),
            object: ObjectRef {
                gvk: Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
                namespace: String::new(),
                name: "hooks.x.dev".into(),
            },
            span: crate::spans::EventSpan::default(),
        }];
        assert_eq!(found(&engine, &runtime, "x.dev", &[]).await, (None, None));
        assert!(engine.dispatcher.kcp.index().kymas.waits("harbour").for_definition(Some("hooks.x.dev")));
        *answer.lock() = not_found();
        assert_eq!(found(&engine, &runtime, "x.dev", &[]).await, (None, None), "nobody has said so");
        assert_eq!(requests.lock().len(), 1, "what is known is not asked for");
        let (gone, look_at) = found(&engine, &runtime, "x.dev", &has_event).await;
        assert!(gone.unwrap().contains("the kind Hook of x.dev/v1 (not served)"));
        assert_eq!(look_at, Some(2), "the API server may be a moment behind");

        // A kind whose discovery fails does not count as gone.
        *answer.lock() =
            (503, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 503}));
        let (gone, look_at) = found(&engine, &runtime, "x.dev", &[Trigger::SafetyResync]).await;
        assert_eq!((gone, look_at), (None, Some(2)));

        requests.lock().clear();
        let (gone, _) = found(&engine, &runtime, "no/such.group", &has_event).await;
        assert!(gone.unwrap().contains("no API can have that name"));
        assert!(
            requests.lock().is_empty()
                && engine.dispatcher.kcp.index().kymas.waits("harbour").groups.is_empty()
        );
    }

    #[test]
    fn a_definition_is_rechecked_after_its_event() {
        let waiting = WaitingKymas::default();
        assert!(!waiting.is_doubtful("pier", false, at(0)));
        assert!(waiting.is_doubtful("pier", true, at(10)));
        assert_eq!(waiting.again("pier"), Some(at(12)));
        assert!(!waiting.is_doubtful("pier", false, at(11)), "not yet");
        assert!(waiting.is_doubtful("pier", false, at(12)));
        assert_eq!((waiting.again("pier"), waiting.is_doubtful("pier", false, at(13))), (None, false));
        assert!(waiting.0.lock().is_empty(), "nothing is kept of who waits for nothing");
    }

    #[test]
    fn a_failing_api_server_is_asked_with_growing_backoff() {
        let waiting = WaitingKymas::default();
        let looked = |any, minute: i64| {
            waiting.broken("pier", any, at(minute * 60)).map(|next| next.as_second() / 60 - minute)
        };
        assert_eq!([0, 1, 2, 4, 300].map(|minute| looked(true, minute)), [1, 1, 2, 4, 60].map(Some));
        assert_eq!(looked(false, 301), None);
        assert_eq!(looked(true, 302), Some(1));
    }
}
