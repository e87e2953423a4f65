//! Apply and removal order, for any two versions of a module.

use crate::prune::{prune, removal_rank};
use proptest::{prelude::*, sample::subsequence};

use super::*;

fn pool() -> Vec<Value> {
    let crd = |kind: &str, scope: &str| {
        let name = format!("{}s.x.dev", kind.to_lowercase());
        let mut crd = object("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, &name);
        crd["spec"] = json!({"group": "x.dev", "scope": scope, "names": {"kind": kind}});
        crd
    };
    vec![
        object("x.dev/v1", "Beacon", Some("s"), "b"),
        object("x.dev/v1", "Buoy", None, "b"),
        object("cert-manager.io/v1", "Certificate", Some("s"), "c"),
        object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", None, "w"),
        object("apiregistration.k8s.io/v1", "APIService", None, "v1.x.dev"),
        object("apps/v1", "Deployment", Some("s"), "d"),
        object("batch/v1", "Job", Some("t"), "j"),
        object("v1", "ConfigMap", None, "c"),
        object("v1", "Secret", Some("kyma-system"), "s"),
        object("v1", "ServiceAccount", Some("s"), "a"),
        object("v1", "Service", Some("t"), "s"),
        object("networking.k8s.io/v1", "NetworkPolicy", Some("s"), "n"),
        object("rbac.authorization.k8s.io/v1", "ClusterRole", None, "r"),
        object("rbac.authorization.k8s.io/v1", "RoleBinding", Some("s"), "r"),
        crd("Beacon", "Namespaced"),
        crd("Buoy", "Cluster"),
        object("v1", "Namespace", None, "s"),
        object("v1", "Namespace", None, "t"),
        object("v1", "Namespace", None, "kyma-system"),
    ]
}

fn version() -> impl Strategy<Value = Vec<Value>> {
    subsequence(pool(), 1..=pool().len()).prop_shuffle()
}

fn defined_by(crd: &ObjectRef, object: &ObjectRef) -> bool {
    is(&crd.gvk, CRD) && crd.name == format!("{}s.{}", object.gvk.kind.to_lowercase(), object.gvk.group)
}

fn is_namespace(gvk: &Gvk) -> bool {
    is(gvk, ("", "Namespace"))
}

proptest! {
    #[test]
    fn prerequisites_are_applied_first_and_no_object_is_lost(rendered in version()) {
        let bundle = bundle(NAME, rendered.clone(), &scopes()).unwrap();
        prop_assert_eq!(bundle.objects.len(), rendered.len());
        let of = |phase: &[Value]| -> Vec<ObjectRef> { phase.iter().filter_map(ObjectRef::of).collect() };
        let (first, main, custom) = (of(&bundle.first), of(&bundle.main), of(&bundle.custom));
        let mut all: Vec<ObjectRef> = [first.as_slice(), &main, &custom].concat();
        let mut objects = bundle.objects.clone();
        all.sort();
        objects.sort();
        prop_assert_eq!(all, objects, "each once");
        prop_assert!(first.iter().all(|o| is(&o.gvk, CRD) || is_namespace(&o.gvk)));
        prop_assert!(main.iter().chain(&custom).all(|o| !is(&o.gvk, CRD) && !is_namespace(&o.gvk)));
        // Only objects waiting for their own CRD follow the operator.
        prop_assert!(custom.iter().all(|o| first.iter().any(|crd| defined_by(crd, o))));
        prop_assert!(!main.iter().any(|o| first.iter().any(|crd| defined_by(crd, o))));
    }

    #[test]
    fn an_upgrade_prunes_exactly_the_obsolete_objects(old in version(), new in version()) {
        let ids = |rendered| bundle(NAME, rendered, &scopes()).unwrap().objects;
        let (old, new) = (ids(old), ids(new));
        // During an upgrade, the inventory has both versions.
        for inventory in [old.clone(), union(&old, &new)] {
            let gone = prune(&inventory, &new);
            let has = |all: &[ObjectRef], o: &ObjectRef| all.iter().any(|other| other.same_object(o));
            let home = |o: &ObjectRef| is_namespace(&o.gvk) && o.name == "kyma-system";
            for object in &old {
                prop_assert_eq!(has(&gone, object), !has(&new, object) && !home(object), "{}", object);
            }
            prop_assert!(gone.iter().all(|object| has(&old, object)), "nothing that was never there");
            prop_assert!(gone.iter().map(|o| removal_rank(&o.gvk)).is_sorted());
            for (at, object) in gone.iter().enumerate() {
                let before = &gone[..at];
                let inside = |o: &ObjectRef| is_namespace(&object.gvk) && o.namespace == object.name;
                let after = &gone[at..];
                prop_assert!(!after.iter().any(|o| inside(o) || defined_by(object, o)), "{} in {:?}", object, gone);
                let operators = before.iter().filter(|o| o.gvk.group == "apps" || o.gvk.group == "batch").count();
                let own = object.gvk.group == "x.dev" || object.gvk.group == "cert-manager.io";
                prop_assert!(!own || operators == 0, "{} in {:?}", object, gone);
            }
        }
        prop_assert!(prune(&new, &new).is_empty());
    }
}
