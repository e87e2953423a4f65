//! The plan of one Manifest: what to apply in which order, what to prune, and what its status says.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;
use tidewatch_api::{
    Manifest, ManifestStatus, Resource, State,
    names::{self, conditions},
};

use super::{
    object::{Gvk, ObjectRef},
    readiness::Readiness,
    status::{self, Says},
    transform,
};

/// Where a kind lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// In the cluster.
    Cluster,
}

/// A module's objects, ready to be applied in three steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bundle {
    /// Namespaces and CRDs: what the others need.
    pub first: Vec<Value>,
    /// Everything else.
    pub main: Vec<Value>,
    /// Objects of kinds that `first` defines. They can wait for their CRD without holding `main` up.
    pub custom: Vec<Value>,
    /// Identities of all of them, in order.
    pub objects: Vec<ObjectRef>,
}

/// Why rendered objects make no bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Nothing was rendered. Applying it would prune everything.
    #[error(
        "the module's manifest has no objects; nothing is changed, so that nothing is removed by mistake"
    )]
    Empty,
    /// An object lacks its identity.
    #[error("object {0} of the module's manifest has no apiVersion, kind or metadata.name")]
    NoIdentity(usize),
    /// The same object twice.
    #[error("the module's manifest has {0} twice")]
    Twice(String),
}

fn owned(object: &ObjectRef) -> (String, String, String, String) {
    let (group, kind, namespace, name) = object.identity();
    (group.into(), kind.into(), namespace.into(), name.into())
}

const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");

fn is(gvk: &Gvk, group_kind: (&str, &str)) -> bool {
    (gvk.group.as_str(), gvk.kind.as_str()) == group_kind
}

/// Marks, strips, namespaces and orders a module's rendered objects. `scopes` tells the scope of kinds
/// that the runtime knows; kinds that the bundle itself defines are taken from their CRDs.
pub fn bundle(
    manifest: (&str, &str),
    rendered: Vec<Value>,
    scopes: &BTreeMap<Gvk, Scope>,
) -> Result<Bundle, BundleError> {
    if rendered.is_empty() {
        return Err(BundleError::Empty);
    }
    let defined = defined_kinds(&rendered);
    let mut bundle = Bundle::default();
    let mut seen = HashSet::new();
    for (index, mut object) in rendered.into_iter().enumerate() {
        let mut identity = ObjectRef::of(&object).ok_or(BundleError::NoIdentity(index))?;
        let own = defined.get(&(identity.gvk.group.clone(), identity.gvk.kind.clone())).copied();
        match own.or_else(|| scopes.get(&identity.gvk).copied()) {
            Some(Scope::Cluster) => {
                identity.namespace.clear();
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("namespace");
                }
            }
            Some(Scope::Namespaced) if identity.namespace.is_empty() => {
                identity.namespace = "default".into();
                object["metadata"]["namespace"] = "default".into();
            }
            _ => {}
        }
        if !seen.insert(owned(&identity)) {
            return Err(BundleError::Twice(identity.to_string()));
        }
        transform::strip(&mut object);
        transform::mark(&mut object, manifest);
        let phase = if is(&identity.gvk, CRD) || is(&identity.gvk, ("", "Namespace")) {
            &mut bundle.first
        } else if own.is_some() {
            &mut bundle.custom
        } else {
            &mut bundle.main
        };
        phase.push(object);
        bundle.objects.push(identity);
    }
    Ok(bundle)
}

/// Kinds of the rendered objects that the runtime must be asked about.
#[must_use]
pub fn foreign_kinds(rendered: &[Value]) -> Vec<Gvk> {
    let defined = defined_kinds(rendered);
    let mut kinds: Vec<Gvk> = rendered
        .iter()
        .filter_map(ObjectRef::of)
        .map(|o| o.gvk)
        .filter(|gvk| !defined.contains_key(&(gvk.group.clone(), gvk.kind.clone())))
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn defined_kinds(rendered: &[Value]) -> BTreeMap<(String, String), Scope> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    rendered
        .iter()
        .filter(|o| ObjectRef::of(o).is_some_and(|r| is(&r.gvk, CRD)))
        .map(|crd| {
            let spec = &crd["spec"];
            let scope =
                if spec["scope"].as_str() == Some("Cluster") { Scope::Cluster } else { Scope::Namespaced };
            ((text(&spec["group"]), text(&spec["names"]["kind"])), scope)
        })
        .collect()
}

/// The inventory as the planners see it.
#[must_use]
pub fn inventory(synced: &[Resource]) -> Vec<ObjectRef> {
    synced
        .iter()
        .map(|r| ObjectRef {
            gvk: Gvk { group: r.group.clone(), version: r.version.clone(), kind: r.kind.clone() },
            namespace: r.namespace.clone(),
            name: r.name.clone(),
        })
        .collect()
}

/// The inventory as the Manifest's status keeps it.
#[must_use]
pub fn synced(objects: &[ObjectRef]) -> Vec<Resource> {
    objects
        .iter()
        .map(|o| Resource {
            name: o.name.clone(),
            namespace: o.namespace.clone(),
            group: o.gvk.group.clone(),
            version: o.gvk.version.clone(),
            kind: o.gvk.kind.clone(),
        })
        .collect()
}

/// What is in the inventory and not wanted any more, in the order in which it should go. The namespace
/// `kyma-system` is never pruned (contract, section 5.3).
#[must_use]
pub fn prune(inventory: &[ObjectRef], wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    let wanted: HashSet<_> = wanted.iter().map(ObjectRef::identity).collect();
    let mut gone: Vec<ObjectRef> = inventory
        .iter()
        .filter(|o| !wanted.contains(&o.identity()))
        .filter(|o| !(is(&o.gvk, ("", "Namespace")) && o.name == names::RUNTIME_NAMESPACE))
        .cloned()
        .collect();
    gone.sort_by_key(|o| removal_rank(&o.gvk));
    gone
}

/// The order of removal: custom resources first, while their operator still runs; then the operator; what others need, last.
pub(crate) fn removal_rank(gvk: &Gvk) -> u8 {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps" | "batch", _) | ("", "Pod") => 1,
        ("" | "networking.k8s.io" | "autoscaling" | "policy" | "discovery.k8s.io", kind)
            if kind != "Namespace" =>
        {
            2
        }
        ("admissionregistration.k8s.io" | "apiregistration.k8s.io" | "scheduling.k8s.io", _) => 2,
        ("rbac.authorization.k8s.io", _) => 3,
        CRD => 4,
        ("", "Namespace") => 5,
        _ => 0,
    }
}

/// The inventory to write before the apply: all that was there and all that will be.
#[must_use]
pub fn union(inventory: &[ObjectRef], wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    let known: HashSet<_> = wanted.iter().map(ObjectRef::identity).collect();
    wanted.iter().chain(inventory.iter().filter(|o| !known.contains(&o.identity()))).cloned().collect()
}

/// What became of a Manifest in one reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something failed before or while its objects were applied.
    Failed {
        /// Error, or Warning if what is installed still works.
        state: State,
        /// The cause and what ends it.
        message: String,
    },
    /// Objects are applied, but not everything is there yet.
    Waiting(String),
    /// All objects are applied; the workloads say this.
    Applied(Readiness),
    /// It is being removed.
    Deleting(String),
}

/// The status of a Manifest after a reconcile.
#[must_use]
pub fn manifest_status(
    manifest: &Manifest,
    progress: &Progress,
    objects: &[ObjectRef],
    module_cr: Option<bool>,
    now: Timestamp,
) -> ManifestStatus {
    let before = manifest.status.clone().unwrap_or_default();
    let generation = manifest.metadata.generation;
    let now = status::whole_seconds(now);
    let (state, text) = match progress {
        Progress::Failed { state, message } => (*state, message.clone()),
        Progress::Applied(Readiness::Ready) => (State::Ready, "resources are ready".to_owned()),
        Progress::Waiting(what) | Progress::Applied(Readiness::Processing(what)) => {
            (State::Processing, what.clone())
        }
        Progress::Applied(Readiness::Error(what)) => (State::Error, what.clone()),
        Progress::Deleting(what) => (State::Deleting, what.clone()),
    };
    let available = !matches!(progress, Progress::Failed { .. });
    let mut says = vec![
        Says {
            type_: conditions::RESOURCES,
            holds: available,
            reason: conditions::REASON_RESOURCES_AVAILABLE,
            message: if available { "resources are parsed and ready for use".into() } else { text.clone() },
        },
        Says {
            type_: conditions::INSTALLATION,
            holds: state == State::Ready,
            reason: conditions::REASON_READY,
            message: if state == State::Ready {
                "installation is ready and resources can be used".into()
            } else {
                text.clone()
            },
        },
    ];
    if let Some(created) = module_cr {
        says.push(Says {
            type_: conditions::MODULE_CR,
            holds: created,
            reason: conditions::REASON_MODULE_CR_CREATED,
            message: if created { "module CR was created" } else { "module CR is not created yet" }.into(),
        });
    }
    ManifestStatus {
        state,
        conditions: says
            .into_iter()
            .map(|s| status::condition(&before.conditions, s, generation, now))
            .collect(),
        synced: synced(objects),
        last_operation: Some(status::operation(before.last_operation.as_ref(), text, now)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAME: (&str, &str) = ("kcp-system", "m");

    fn object(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Value {
        let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = namespace.into();
        }
        object
    }

    fn rendered() -> Vec<Value> {
        let mut crd = object("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "beacons.x.dev");
        crd["spec"] = json!({"group": "x.dev", "scope": "Namespaced", "names": {"kind": "Beacon"}});
        vec![
            object("x.dev/v1", "Beacon", None, "b"),
            object("apps/v1", "Deployment", Some("s"), "d"),
            object("rbac.authorization.k8s.io/v1", "ClusterRole", Some("wrong"), "r"),
            object("v1", "ConfigMap", None, "c"),
            crd,
            object("v1", "Namespace", None, "s"),
        ]
    }

    fn scopes() -> BTreeMap<Gvk, Scope> {
        BTreeMap::from([
            (Gvk::of("apps/v1", "Deployment"), Scope::Namespaced),
            (Gvk::of("v1", "ConfigMap"), Scope::Namespaced),
            (Gvk::of("v1", "Namespace"), Scope::Cluster),
            (Gvk::of("rbac.authorization.k8s.io/v1", "ClusterRole"), Scope::Cluster),
            (Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"), Scope::Cluster),
        ])
    }

    fn names(objects: &[Value]) -> Vec<&str> {
        objects.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect()
    }

    #[test]
    fn objects_are_ordered_and_namespaced() {
        let bundle = bundle(NAME, rendered(), &scopes()).unwrap();
        assert_eq!(names(&bundle.first), ["beacons.x.dev", "s"]);
        assert_eq!(names(&bundle.main), ["d", "r", "c"]);
        assert_eq!(names(&bundle.custom), ["b"]);
        let text: Vec<String> = bundle.objects.iter().map(ToString::to_string).collect();
        assert_eq!(
            text[..4],
            [
                "Beacon.x.dev default/b",
                "Deployment.apps s/d",
                "ClusterRole.rbac.authorization.k8s.io r",
                "ConfigMap default/c"
            ]
        );
        assert_eq!(bundle.main[0]["metadata"]["labels"]["operator.kyma-project.io/managed-by"], "kyma");
    }

    #[test]
    fn the_runtime_is_asked_about_kinds_that_the_bundle_does_not_define() {
        let kinds = foreign_kinds(&rendered());
        assert!(kinds.contains(&Gvk::of("apps/v1", "Deployment")));
        assert!(!kinds.contains(&Gvk::of("x.dev/v1", "Beacon")));
    }

    #[test]
    fn an_empty_or_broken_render_is_an_error() {
        assert_eq!(bundle(NAME, vec![], &scopes()), Err(BundleError::Empty));
        assert_eq!(bundle(NAME, vec![json!({"kind": "X"})], &scopes()), Err(BundleError::NoIdentity(0)));
        let twice =
            vec![object("v1", "ConfigMap", None, "c"), object("v1", "ConfigMap", Some("default"), "c")];
        assert!(matches!(bundle(NAME, twice, &scopes()), Err(BundleError::Twice(_))));
    }

    #[test]
    fn pruning_is_the_difference_in_a_safe_order() {
        let old = bundle(NAME, rendered(), &scopes()).unwrap().objects;
        let keep: Vec<ObjectRef> = old.iter().filter(|o| o.name == "c").cloned().collect();
        let order: Vec<String> = prune(&old, &keep).into_iter().map(|o| o.name).collect();
        assert_eq!(order, ["b", "d", "r", "beacons.x.dev", "s"]);
        assert!(prune(&old, &old).is_empty());
        let home = ObjectRef {
            gvk: Gvk::of("v1", "Namespace"),
            namespace: String::new(),
            name: "kyma-system".into(),
        };
        assert!(prune(&[home], &[]).is_empty());
    }

    #[test]
    fn a_new_version_of_a_kind_is_the_same_object() {
        let old = ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: "b".into() };
        let new = ObjectRef { gvk: Gvk::of("x.dev/v2", "Beacon"), ..old.clone() };
        assert!(prune(std::slice::from_ref(&old), std::slice::from_ref(&new)).is_empty());
        assert_eq!(union(&[old], std::slice::from_ref(&new)), [new]);
    }

    #[test]
    fn the_status_names_the_cause_and_keeps_the_inventory() {
        let manifest = Manifest::default();
        let objects = bundle(NAME, rendered(), &scopes()).unwrap().objects;
        let failed = Progress::Failed { state: State::Error, message: "digest mismatch".into() };
        let status = manifest_status(&manifest, &failed, &objects, None, Timestamp::UNIX_EPOCH);
        assert_eq!(status.state, State::Error);
        assert_eq!(status.last_operation.unwrap().operation, "digest mismatch");
        assert_eq!(inventory(&status.synced), objects);
        let ready = Progress::Applied(Readiness::Ready);
        let status = manifest_status(&manifest, &ready, &objects, Some(true), Timestamp::UNIX_EPOCH);
        assert!(status.conditions.iter().all(|c| c.status == "True"));
        assert_eq!(status.conditions.len(), 3);
    }
}
