//! Finds an event's reconciles. Pure.

use std::{sync::Arc, time::Duration};

use tidewatch_api::{
    names,
    object::{Gvk, ObjectRef},
};
use tidewatch_engine::{Engine, Trigger, WorkKey, index::KcpState, queue::Class, spans::EventSpan};
use tidewatch_planner::{
    engine_owned,
    watches::{self, PREFIX},
};
use tidewatch_wire::v3;

use crate::forward::{Owner, Table, target::Target};

/// Watch and epoch of v2 events, which have neither.
pub const V2: &str = "v2";
/// Delay of a second reconcile.
pub const SECOND_LOOK: Duration = Duration::from_secs(20);

/// An event without the object's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedEvent {
    /// The runtime's Kyma, by certificate.
    pub kyma: String,
    /// The agent's epoch, or [`V2`].
    pub epoch: String,
    /// Number in the epoch.
    pub seq: u64,
    /// The watch.
    pub watch: String,
    /// The object, or a resync's kind.
    pub object: ObjectRef,
    /// A resync of a kind.
    pub of_kind: bool,
    /// Part of a full report.
    pub listed: bool,
}

/// An event's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// This engine.
    Engine,
    /// Another manager.
    Manager(Arc<Target>),
    /// Refused; with the watch's manager, if another's.
    Refused(Refused, Option<String>),
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Watch without a Watcher.
    UnknownWatch,
    /// Another API group than the watch's.
    OtherKind,
    /// Certificate too large for a header.
    Certificate,
}

impl Refused {
    /// Returns the metrics label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::UnknownWatch => "unknown_watch",
            Self::OtherKind => "other_kind",
            Self::Certificate => "certificate",
        }
    }
}

/// Returns an event's destination. Watches without KCP's namespace as prefix are the engine's: derived, or the agent's own.
#[must_use]
pub fn direction(table: &Table, namespace: &str, watch: &str, group: &str) -> Direction {
    let Some((owner, of)) = table.watch(watch) else {
        let by_watcher = watch.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('.'))
            && !watch.starts_with(PREFIX);
        return if by_watcher { Direction::Refused(Refused::UnknownWatch, None) } else { Direction::Engine };
    };
    match owner {
        Owner::Own if of == group => Direction::Engine,
        Owner::Manager(target) if of == group => Direction::Manager(Arc::clone(target)),
        Owner::Own => Direction::Refused(Refused::OtherKind, None),
        Owner::Manager(target) => Direction::Refused(Refused::OtherKind, Some(target.manager.clone())),
    }
}

/// Returns the reconciles for any event.
#[must_use]
pub fn wanted(event: &ReportedEvent, state: &KcpState) -> Vec<WorkKey> {
    let ReportedEvent { kyma, watch, object, of_kind, .. } = event;
    if watch == v3::CANARY {
        return vec![WorkKey::EventPath { kyma: kyma.clone() }];
    }
    if *of_kind {
        return targets_of_kind(kyma, &object.gvk.group, &object.gvk.kind, state);
    }
    targets(kyma, object, state)
}

/// Returns a reconcile's urgency.
#[must_use]
pub fn class(event: &ReportedEvent, key: &WorkKey) -> Class {
    if event.watch == v3::CANARY {
        Class::Path
    } else if matches!(key, WorkKey::Catalog { .. }) {
        // No module waits for it.
        Class::Catalog
    } else if event.listed || event.of_kind {
        // After a restored backup, whole fleets report.
        Class::Resync
    } else {
        Class::UserEdit
    }
}

/// Returns a reconcile's cause.
#[must_use]
pub fn cause(event: &ReportedEvent) -> Trigger {
    let ReportedEvent { epoch, seq, watch, object, .. } = event;
    Trigger::Event {
        epoch: epoch.clone(),
        seq: *seq,
        watch: watch.clone(),
        object: object.clone(),
        span: EventSpan::current(),
    }
}

/// Requests a second reconcile: v2 events come from admission webhooks, before the commit.
pub fn reconcile_again(engine: &Engine, key: WorkKey, event: &ReportedEvent) {
    let (class, object) = (class(event, &key), event.object.clone());
    engine.queue().push_later(key, class, Some(Trigger::SecondLook { object }), SECOND_LOOK);
}

/// Builds an object reference.
pub fn object(group: &str, version: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        gvk: Gvk { group: group.into(), version: version.into(), kind: kind.into() },
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// Returns the reconciles for an object; empty if nothing depends on it.
pub fn targets(kyma: &str, object: &ObjectRef, state: &KcpState) -> Vec<WorkKey> {
    let (group, kind) = (&object.gvk.group, &object.gvk.kind);
    let in_kyma_namespace = object.namespace == names::RUNTIME_NAMESPACE;
    if group == names::GROUP && kind == "Kyma" {
        let is_list_of_modules = in_kyma_namespace && object.name == names::RUNTIME_KYMA_NAME;
        return if is_list_of_modules { vec![WorkKey::Kyma { kyma: kyma.to_owned() }] } else { Vec::new() };
    }
    if kind == "CertificateSigningRequest" && object.name == names::AGENT_SIGNING_REQUEST {
        return vec![WorkKey::AgentCertificate { kyma: kyma.to_owned() }];
    }
    let manifests = state.owners.interested(kyma, object);
    keys(kyma, Changed { group, kind, name: Some(&object.name), in_kyma_namespace }, manifests, state)
}

/// Returns the reconciles for all objects of a kind.
pub fn targets_of_kind(kyma: &str, group: &str, kind: &str, state: &KcpState) -> Vec<WorkKey> {
    if group == names::GROUP && kind == "Kyma" {
        return vec![WorkKey::Kyma { kyma: kyma.to_owned() }];
    }
    let manifests = state.owners.interested_in_kind(kyma, group, kind);
    keys(kyma, Changed { group, kind, name: None, in_kyma_namespace: true }, manifests, state)
}

/// A changed object; without a name, any of its kind.
struct Changed<'a> {
    group: &'a str,
    kind: &'a str,
    name: Option<&'a str>,
    /// It is, or may be, in the namespace of the runtime's Kyma.
    in_kyma_namespace: bool,
}

fn keys(kyma: &str, changed: Changed<'_>, manifests: Vec<String>, state: &KcpState) -> Vec<WorkKey> {
    let Changed { group, kind, name, in_kyma_namespace } = changed;
    let of_kyma = is_template(group, kind) && in_kyma_namespace && takes_templates(kyma, state)
        || is_definition(group, kind) && state.kymas.waits(kyma).for_definition(name)
        || engine_owned::is_prepared(group, kind, name) && state.kymas.contains(kyma);
    let of_mandatory = is_definition(group, kind) && state.kymas.waits(kyma).mandatory_for_definition(name);
    let of_catalog =
        engine_owned::is_of_catalog(group, kind) && in_kyma_namespace && state.kymas.contains(kyma);
    let of_agent = is_definition(group, kind) && state.kymas.waits(kyma).lacks_kinds;
    let kyma = || kyma.to_owned();
    let manifests = manifests.into_iter().map(|name| WorkKey::Manifest { kyma: kyma(), name });
    let of_kyma = of_kyma.then(|| WorkKey::Kyma { kyma: kyma() });
    let of_catalog = of_catalog.then(|| WorkKey::Catalog { kyma: kyma() });
    let of_agent = of_agent.then(|| WorkKey::AgentConfig { kyma: kyma() });
    let of_mandatory = of_mandatory.then(|| WorkKey::Mandatory { kyma: kyma() });
    of_kyma.into_iter().chain(of_mandatory).chain(of_catalog).chain(of_agent).chain(manifests).collect()
}

fn is_template(group: &str, kind: &str) -> bool {
    group == names::GROUP && kind == "ModuleTemplate"
}

fn is_definition(group: &str, kind: &str) -> bool {
    watches::SERVES.contains(&(group, kind))
}

fn takes_templates(kyma: &str, state: &KcpState) -> bool {
    state.kymas.get(kyma).is_some_and(|kyma| kyma.uses_runtime_templates())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidewatch_api::{
        Kyma, KymaSpec, Watcher, WatcherSpec,
        watcher::{Service, WatchableGvr},
    };
    use tidewatch_engine::index::owners::Speaker;

    use super::*;

    #[test]
    fn an_events_watch_decides_its_route() {
        let watcher = |name: &str, manager: &str, group: &str| {
            let mut watcher = Watcher::new(
                name,
                WatcherSpec {
                    manager: manager.into(),
                    service_info: Service { name: "svc".into(), namespace: "ops".into(), port: 80 },
                    resource_to_watch: WatchableGvr { group: group.into(), ..WatchableGvr::default() },
                    ..WatcherSpec::default()
                },
            );
            watcher.metadata.namespace = Some("kcp".into());
            Arc::new(watcher)
        };
        let all = [watcher("a", "ours", "g"), watcher("b", "keeper", "h"), watcher("c", "other", "h")];
        let name = |ns: &str, name: &str| format!("{ns}.{name}");
        let table = Table::read(1, "ours", &all, &BTreeMap::new(), name).0;
        let to = |watch: &str, group: &str| direction(&table, "kcp", watch, group);
        assert_eq!(to("kcp.a", "g"), Direction::Engine);
        let Direction::Manager(target) = to("kcp.b", "h") else { panic!("{:?}", to("kcp.b", "h")) };
        assert_eq!(target.manager, "keeper");
        let Direction::Manager(target) = to("kcp.c", "h") else { panic!("{:?}", to("kcp.c", "h")) };
        assert_eq!(target.manager, "other");
        assert_eq!(to("kcp.a", "h"), Direction::Refused(Refused::OtherKind, None));
        assert_eq!(to("kcp.b", "g"), Direction::Refused(Refused::OtherKind, Some("keeper".into())));
        assert_eq!(to("kcp.gone", "h"), Direction::Refused(Refused::UnknownWatch, None));
        for of_the_file in ["kyma", "kcp", "kcpx.a", "b", "engine.deployments.apps.spec"] {
            assert_eq!(to(of_the_file, "h"), Direction::Engine, "{of_the_file}");
        }
        let derived = direction(&table, "engine", "engine.deployments.apps.spec", "apps");
        assert_eq!(derived, Direction::Engine, "even if a namespace has that name");
    }

    fn texts(keys: &[WorkKey]) -> Vec<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn runtime_templates_concern_catalog_and_allowed_kymas() {
        let mut state = KcpState::default();
        let mut kyma = Kyma::new("harbour", KymaSpec::default());
        let mine =
            object(names::GROUP, names::VERSION, "ModuleTemplate", names::RUNTIME_NAMESPACE, "raft-mine");
        let stray = ObjectRef { namespace: "default".into(), ..mine.clone() };
        assert!(targets("harbour", &mine, &state).is_empty(), "nobody knows that Kyma");
        state.apply_kyma(kyma.clone());
        let of_kind =
            |state: &KcpState| texts(&targets_of_kind("harbour", names::GROUP, "ModuleTemplate", state));
        assert_eq!(texts(&targets("harbour", &mine, &state)), ["Catalog/harbour"]);
        assert_eq!(of_kind(&state), ["Catalog/harbour"]);
        kyma.metadata.labels =
            Some(BTreeMap::from([(names::labels::RUNTIME_TEMPLATES.to_owned(), "true".to_owned())]));
        state.apply_kyma(kyma);
        let both = ["Kyma/harbour", "Catalog/harbour"];
        assert_eq!(texts(&targets("harbour", &mine, &state)), both);
        assert!(targets("harbour", &stray, &state).is_empty());
        assert_eq!(of_kind(&state), both);
        let event = ReportedEvent {
            kyma: "harbour".into(),
            epoch: "e".into(),
            seq: 1,
            watch: "kyma".into(),
            object: mine.clone(),
            of_kind: false,
            listed: false,
        };
        let classes =
            targets("harbour", &mine, &state).iter().map(|key| class(&event, key)).collect::<Vec<_>>();
        assert_eq!(classes, [Class::UserEdit, Class::Catalog], "no module waits for the catalog");
    }

    #[test]
    fn objects_the_engine_prepares_concern_the_kyma() {
        let mut state = KcpState::default();
        let (group, kind) = watches::CRD;
        let crd = |name: &str| object(group, "v1", kind, "", name);
        let namespace = |name: &str| object("", "v1", "Namespace", "", name);
        let ours = [crd(engine_owned::CRDS[1]), namespace(names::RUNTIME_NAMESPACE)];
        assert!(ours.iter().all(|object| targets("harbour", object, &state).is_empty()));
        state.apply_kyma(Kyma::new("harbour", KymaSpec::default()));
        for object in &ours {
            assert_eq!(texts(&targets("harbour", object, &state)), ["Kyma/harbour"]);
            let Gvk { group, kind, .. } = &object.gvk;
            assert_eq!(texts(&targets_of_kind("harbour", group, kind, &state)), ["Kyma/harbour"]);
        }
        for other in [crd("beams.x.dev"), namespace("default")] {
            assert!(targets("harbour", &other, &state).is_empty(), "{other}");
        }
    }

    #[test]
    fn a_definition_concerns_the_kyma_awaiting_its_kind() {
        let mut state = KcpState::default();
        state.apply_kyma(Kyma::new("harbour", KymaSpec::default()));
        let beams = object(watches::CRD.0, "v1", watches::CRD.1, "", "beams.x.dev");
        assert!(targets("harbour", &beams, &state).is_empty());
        state.kymas.waits_mut("harbour").unwrap().groups = ["x.dev".to_owned()].into();
        let whole = [WorkKey::Kyma { kyma: "harbour".into() }];
        assert_eq!(targets("harbour", &beams, &state), whole);
        let other = ObjectRef { name: "beams.y.dev".into(), ..beams };
        assert!(targets("harbour", &other, &state).is_empty());
        // The definition may be of a lacking kind.
        assert!(
            state.kymas.set_lacks_kinds("harbour", true) && !state.kymas.set_lacks_kinds("harbour", true)
        );
        let agent = [WorkKey::AgentConfig { kyma: "harbour".into() }];
        assert_eq!(targets("harbour", &other, &state), agent);
        state.kymas.set_lacks_kinds("harbour", false);
        assert!(targets("harbour", &other, &state).is_empty());
        let (group, kind) = watches::API_SERVICE;
        let served = object(group, "v1", kind, "", "v1.x.dev");
        assert_eq!(targets("harbour", &served, &state), whole, "another server brings it");
        assert!(targets("harbour", &ObjectRef { name: "v1.y.dev".into(), ..served }, &state).is_empty());
    }

    #[test]
    fn an_event_finds_its_objects_owners() {
        let mut state = KcpState::default();
        let deployment = object("apps", "v1", "Deployment", "s", "d");
        state.owners.claim(Speaker::Watch, "harbour", "m", std::slice::from_ref(&deployment));
        let of = |kyma: &str, o: &ObjectRef| -> Vec<String> {
            targets(kyma, o, &state).iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("harbour", &deployment), ["Manifest/m"]);
        assert!(of("other", &deployment).is_empty(), "a runtime speaks for itself only");
        let kyma = object("operator.kyma-project.io", "v1beta2", "Kyma", "kyma-system", "default");
        assert_eq!(of("harbour", &kyma), ["Kyma/harbour"]);
        let stray = object("operator.kyma-project.io", "v1beta2", "Kyma", "default", "default");
        assert!(of("harbour", &stray).is_empty());
        assert!(of("harbour", &object("", "v1", "ConfigMap", "s", "d")).is_empty());
        let of_kind = |kyma: &str, group: &str, kind: &str| -> Vec<String> {
            targets_of_kind(kyma, group, kind, &state).iter().map(ToString::to_string).collect()
        };
        assert_eq!(of_kind("harbour", "apps", "Deployment"), ["Manifest/m"]);
        assert_eq!(of_kind("harbour", "operator.kyma-project.io", "Kyma"), ["Kyma/harbour"]);
        assert!(of_kind("other", "apps", "Deployment").is_empty());
    }

    #[test]
    fn a_users_object_concerns_the_manifest_awaiting_its_end() {
        let mut state = KcpState::default();
        let beacon = object("x.dev", "v1", "Beacon", "default", "users");
        assert!(targets("harbour", &beacon, &state).is_empty());
        state.owners.wait_for("harbour", "m", [&beacon.gvk]);
        let text = |keys: Vec<WorkKey>| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(targets("harbour", &beacon, &state)), ["Manifest/m"]);
        assert_eq!(text(targets_of_kind("harbour", "x.dev", "Beacon", &state)), ["Manifest/m"]);
        assert!(targets("other", &beacon, &state).is_empty());
    }
}
