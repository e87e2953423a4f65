use proptest::prelude::*;
use serde_json::{Value, json};
use tidewatch_api::names::annotations;

use super::*;

fn manifest(kinds: &[(&str, &str)], default_cr: Option<(&str, &str)>) -> Manifest {
    let synced: Vec<Value> = kinds
        .iter()
        .enumerate()
        .map(|(n, (api_version, kind))| {
            let gvk = Gvk::of(api_version, kind);
            json!({"group": gvk.group, "version": gvk.version, "kind": kind, "name": format!("o{n}"), "namespace": ""})
        })
        .collect();
    let resource = default_cr.map(
        |(api_version, kind)| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "cr"}}),
    );
    let mut manifest = json!({"metadata": {"name": "m"},
        "spec": {"remote": false, "install": {"name": "raw-manifest", "source": {}}},
        "status": {"state": "Ready", "synced": synced}});
    if let Some(resource) = resource {
        manifest["spec"]["resource"] = resource;
    }
    serde_json::from_value(manifest).unwrap()
}

fn plural(_: &str, kind: &str) -> Option<String> {
    (!kind.is_empty()).then(|| format!("{}s", kind.to_lowercase()))
}

fn real_plural(group: &str, kind: &str) -> Option<String> {
    well_known(group, kind).map(str::to_owned).or_else(|| plural(group, kind))
}

fn names(derived: &Derived) -> Vec<&str> {
    derived.watches.iter().map(|w| w.name.as_str()).collect()
}

const COMMON: [(&str, &str); 12] = [
    ("v1", "Namespace"),
    ("v1", "ServiceAccount"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("apps/v1", "Deployment"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
];

#[test]
fn ten_modules_share_their_watches() {
    let of = |n: usize| {
        let mut kinds = COMMON.to_vec();
        match n {
            0 => kinds.extend([("apps/v1", "StatefulSet"), ("networking.k8s.io/v1", "NetworkPolicy")]),
            1 => kinds.extend([("apps/v1", "DaemonSet"), ("coordination.k8s.io/v1", "Lease")]),
            2 => kinds.extend([("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")]),
            3 => kinds.extend([("networking.istio.io/v1", "Gateway"), ("v1", "PersistentVolumeClaim")]),
            _ => {}
        }
        manifest(&kinds, Some((["a.dev/v1", "b.dev/v1", "c.dev/v1"][n % 3], "Beacon")))
    };
    let manifests: Vec<Manifest> = (0..10).map(of).collect();
    let derived = derive(&RequiredKinds::of(&manifests), real_plural, &[], MAX_DERIVED);
    insta::assert_yaml_snapshot!("ten_modules", json!({"watches": derived.watches}));
    assert!(derived.watches.len() <= 40 && derived.over_capacity.is_empty() && derived.missing.is_empty());
}

#[test]
fn an_awaited_kind_is_watched_without_label_selector() {
    let mut required = RequiredKinds::of([&manifest(&[("x.dev/v1", "Beacon")], None)]);
    let labelled = derive(&required, plural, &[], MAX_DERIVED);
    assert!(labelled.watches.iter().all(|w| !w.labels.is_empty()), "what users make is nobody's business");
    required.add_awaited(&Gvk::of("x.dev/v1", "Beacon"));
    let all = derive(&required, plural, &[], MAX_DERIVED);
    let without_labels: Vec<_> =
        all.watches.iter().filter(|w| w.labels.is_empty()).map(|w| w.name.as_str()).collect();
    assert_eq!(without_labels, ["engine.beacons.x.dev.spec"]);
    // A namespace's status names its blockers.
    required.add_awaited(&Gvk::of("v1", "Namespace"));
    let spaces = derive(&required, plural, &[], MAX_DERIVED);
    assert!(names(&spaces).contains(&"engine.namespaces.status"));
    required.add_definitions();
    let kinds = derive(&required, plural, &[], MAX_DERIVED);
    assert!(names(&kinds).contains(&"engine.customresourcedefinitions.apiextensions.k8s.io.spec"));
    assert!(names(&kinds).contains(&"engine.apiservices.apiregistration.k8s.io.status"));
}

#[test]
fn unmanaged_modules_and_secrets_are_not_watched() {
    let mut unmanaged = manifest(&[("v1", "ConfigMap")], Some(("x.dev/v1", "Beacon")));
    unmanaged.metadata.annotations = Some([(annotations::IS_UNMANAGED.to_owned(), "true".to_owned())].into());
    assert_eq!(RequiredKinds::of([&unmanaged]), RequiredKinds::default());
    let mut secrets =
        RequiredKinds::of([&manifest(&[("v1", "Secret"), ("coordination.k8s.io/v1", "Lease")], None)]);
    secrets.add_awaited(&Gvk::of("v1", "Secret"));
    assert_eq!(secrets, RequiredKinds::default());
}

#[test]
fn kinds_a_watcher_covers_are_not_watched_twice() {
    let required = RequiredKinds::of([&manifest(&[("apps/v1", "Deployment")], None)]);
    let all = derive(&required, plural, &[], MAX_DERIVED);
    assert_eq!(names(&all), ["engine.deployments.apps.spec", "engine.deployments.apps.status"]);
    let other = |change: fn(&mut AgentWatch)| {
        let mut other =
            AgentWatch { name: "kcp-system.d".into(), labels: BTreeMap::new(), ..all.watches[0].clone() };
        change(&mut other);
        derive(&required, plural, &[other], MAX_DERIVED).watches.len()
    };
    assert_eq!(other(|_| {}), 1);
    assert_eq!(other(|w| w.labels = [("app".into(), "x".into())].into()), 2, "it sees some of them only");
    assert_eq!(other(|w| w.route = "keeper".into()), 2, "another hears of it");
}

/// Otherwise users' changes go unnoticed.
#[test]
fn the_runtime_kyma_is_always_covered_by_a_watch() {
    let mut required = RequiredKinds::of([&manifest(&[("apps/v1", "Deployment")], None)]);
    required.add_engine_owned(false);
    let alone = derive(&required, real_plural, &[], 1);
    assert_eq!(names(&alone), ["engine.kymas.operator.kyma-project.io.spec"], "before all else");
    assert!(alone.watches[0].labels.is_empty());
    let with_agent_watch = |version: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
        let (name, version) = ("kcp-system.kyma".to_owned(), version.to_owned());
        let other = AgentWatch { name, version, labels, ..alone.watches[0].clone() };
        names(&derive(&required, real_plural, &[other], MAX_DERIVED))
            .contains(&alone.watches[0].name.as_str())
    };
    assert!(!with_agent_watch("v1beta2", &[]) && with_agent_watch("v1alpha1", &[]), "nobody serves that");
    let external = |labels: &[(&str, &str)]| with_agent_watch("*", labels);
    assert!(!external(&[]));
    assert!(!external(&KYMA_LABELS[..1]), "that of the Go manager: the engine puts its label back");
    assert!(external(&[(labels::WATCHED_BY, "somebody")]));
    assert!(external(&[KYMA_LABELS[0], ("team", "harbour")]), "nobody puts that one back");
}

/// Otherwise only the safety resync finds changes.
#[test]
fn the_engines_own_kinds_are_always_watched() {
    let watched = |takes_templates: bool| {
        let mut required = RequiredKinds::default();
        required.add_engine_owned(takes_templates);
        let derived = derive(&required, real_plural, &[], MAX_DERIVED);
        assert!(derived.missing.is_empty() && derived.over_capacity.is_empty(), "{derived:?}");
        derived
    };
    let engine_owned = watched(false);
    assert_eq!(
        names(&engine_owned),
        [
            "engine.customresourcedefinitions.apiextensions.k8s.io.spec",
            "engine.kymas.operator.kyma-project.io.spec",
            "engine.modulereleasemetas.operator.kyma-project.io.spec",
            "engine.moduletemplates.operator.kyma-project.io.spec",
            "engine.namespaces.spec",
        ]
    );
    let all = |derived: &Derived| {
        let all = derived.watches.iter().filter(|watch| watch.labels.is_empty());
        all.map(|watch| watch.resource.clone()).collect::<Vec<_>>()
    };
    assert_eq!(all(&engine_owned), ["kymas"], "what users have made of the other kinds is theirs");
    assert_eq!(all(&watched(true)), ["kymas", "moduletemplates"], "where their templates count");
}

#[test]
fn the_least_important_watches_over_the_limit_are_named() {
    let mut required = RequiredKinds::of([&manifest(&COMMON, Some(("x.dev/v1", "Beacon")))]);
    required.add_awaited(&Gvk::of("y.dev/v1", "Quay"));
    let derived = derive(&required, plural, &[], 5);
    assert_eq!(
        names(&derived),
        [
            "engine.customresourcedefinitions.apiextensions.k8s.io.spec",
            "engine.customresourcedefinitions.apiextensions.k8s.io.status",
            "engine.deployments.apps.spec",
            "engine.deployments.apps.status",
            "engine.quays.y.dev.spec",
        ]
    );
    assert_eq!(derived.over_capacity.len(), 11);
    assert!(
        derived.over_capacity.contains(&"Beacon.x.dev (status)".to_owned()),
        "{:?}",
        derived.over_capacity
    );
    let none = derive(&required, |group, kind| plural(group, kind).filter(|_| group != "y.dev"), &[], 5);
    assert_eq!(none.missing, ["Quay.y.dev"]);
}

fn any_kind() -> impl Strategy<Value = (&'static str, &'static str)> {
    let more = [("x.dev/v1", "Beacon"), ("x.dev/v2", "Beacon"), ("y.dev/v1", "Quay"), ("v1", "Pod")];
    prop::sample::select(COMMON.into_iter().chain(more).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn every_kind_is_watched_or_named_in_any_order(
        modules in prop::collection::vec((prop::collection::vec(any_kind(), 0..12), prop::option::of(any_kind())), 0..6),
        awaited in prop::collection::vec(any_kind(), 0..3),
        capacity in 0..40_usize,
        unserved in any_kind(),
    ) {
        let manifests: Vec<Manifest> = modules.iter().map(|(kinds, cr)| manifest(kinds, *cr)).collect();
        let required = |manifests: &mut dyn Iterator<Item = &Manifest>, awaited: &mut dyn Iterator<Item = &(&str, &str)>| {
            let mut required = RequiredKinds::of(manifests);
            awaited.for_each(|(api_version, kind)| required.add_awaited(&Gvk::of(api_version, kind)));
            required
        };
        let present = required(&mut manifests.iter(), &mut awaited.iter());
        prop_assert_eq!(&present, &required(&mut manifests.iter().rev(), &mut awaited.iter().rev()));
        let is_missing = |group: &str, kind: &str| (Gvk::of(unserved.0, unserved.1).group.as_str(), unserved.1) == (group, kind);
        let derived = derive(&present, |g, k| plural(g, k).filter(|_| !is_missing(g, k)), &[], capacity);
        prop_assert!(derived.watches.len() <= capacity);
        let mut seen = BTreeSet::new();
        for watch in &derived.watches {
            prop_assert!(watch.resource != "secrets" && watch.name.len() <= 63);
            prop_assert!(seen.insert(&watch.name), "{} twice", watch.name);
        }
        let all = modules.iter().flat_map(|(kinds, cr)| kinds.iter().chain(cr)).chain(&awaited);
        for (api_version, kind) in all.filter(|(_, kind)| *kind != "Secret") {
            let (group, resource) = (Gvk::of(api_version, kind).group, plural("", kind).unwrap());
            let watched = derived.watches.iter().any(|w| w.group == group && w.resource == resource);
            let name = full_name(&group, kind);
            let named = derived.missing.contains(&name)
                || derived.over_capacity.iter().any(|left| left.starts_with(&format!("{name} (")));
            prop_assert!(watched || named, "{name}");
        }
    }
}
