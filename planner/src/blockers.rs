//! User objects that block a module's removal. Without its operator they are neither reconciled nor finalized.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tidewatch_api::{
    Manifest, TermsError,
    object::{Gvk, ObjectRef, is_custom_group},
};

/// Maximum objects named.
pub const MAX_NAMED: usize = 20;
/// Status prefix that lists blocking objects.
pub const CRS_WAITED_FOR: &str = "waiting for module crs deletion";
/// Blocking kinds of the template and the default CR, sorted, regardless of version.
pub fn declared(manifest: &Manifest) -> Result<Vec<Gvk>, TermsError> {
    let terms = manifest.terms()?;
    let named = terms.associated_resources.into_iter().map(|k| Gvk {
        group: k.group,
        version: k.version,
        kind: k.kind,
    });
    let default_cr = manifest.spec.resource.as_ref().map(|cr| Gvk::of(cr.api_version(), cr.kind()));
    let kinds: BTreeMap<(String, String), Gvk> = named
        .chain(default_cr)
        .filter(|gvk| is_custom_group(&gvk.group))
        .map(|gvk| ((gvk.group.clone(), gvk.kind.clone()), gvk))
        .collect();
    Ok(kinds.into_values().collect())
}

/// Returns whether the module's `own` objects own an object: it goes with them, and the operator would recreate it.
#[must_use]
pub fn is_owned(object: &ObjectRef, owners: &[OwnerReference], module_objects: &[ObjectRef]) -> bool {
    owners.iter().any(|owner| {
        let gvk = Gvk::of(&owner.api_version, &owner.kind);
        module_objects.iter().any(|own| {
            (&own.gvk.group, &own.gvk.kind, &own.name) == (&gvk.group, &gvk.kind, &owner.name)
                && (own.namespace.is_empty() || own.namespace == object.namespace)
        })
    })
}

/// Existing user objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserObjects {
    /// At most [`MAX_NAMED`], by kind, namespace and name.
    pub first: Vec<ObjectRef>,
    /// Total.
    pub count: u64,
    /// Their kinds.
    pub kinds: Vec<Gvk>,
}

impl UserObjects {
    /// Adds one kind's first objects and total.
    pub fn add(&mut self, kind: &Gvk, first: impl IntoIterator<Item = ObjectRef>, count: u64) {
        if count > 0 {
            self.kinds.push(kind.clone());
        }
        let remaining = MAX_NAMED.saturating_sub(self.first.len());
        self.first.extend(first.into_iter().take(remaining));
        self.count = self.count.saturating_add(count);
    }

    /// Status message; `None` without objects.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        self.named().map(|named| format!("{CRS_WAITED_FOR}: {named}"))
    }

    /// First names and total; `None` without objects.
    #[must_use]
    pub fn named(&self) -> Option<String> {
        if self.count == 0 {
            return None;
        }
        let names: Vec<String> = self
            .first
            .iter()
            .map(|o| {
                if o.namespace.is_empty() {
                    format!("{} {}", o.gvk.kind, o.name)
                } else {
                    format!("{} {}/{}", o.gvk.kind, o.namespace, o.name)
                }
            })
            .collect();
        let more = if self.count > names.len() as u64 { ", …" } else { "" };
        Some(format!("{}{more} ({})", names.join(", "), self.count))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::names::annotations;

    use super::*;

    fn users(count: usize) -> UserObjects {
        let object = |n: usize| ObjectRef {
            gvk: Gvk::of("x.dev/v1", "Beacon"),
            namespace: "quay".into(),
            name: format!("b{n}"),
        };
        let mut users = UserObjects::default();
        users.add(&Gvk::of("x.dev/v1", "Beacon"), (0..count.min(MAX_NAMED + 1)).map(object), count as u64);
        users
    }

    #[test]
    fn objects_owned_by_the_module_are_not_user_objects() {
        let object = |kind: &str, namespace: &str, name: &str| ObjectRef {
            gvk: Gvk::of("x.dev/v1", kind),
            namespace: namespace.into(),
            name: name.into(),
        };
        let owner = |api_version: &str, kind: &str, name: &str| OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            ..OwnerReference::default()
        };
        let own = [object("Beacon", "quay", "default"), object("Lamp", "", "all")];
        let beam = object("Beam", "quay", "b");
        assert!(!is_owned(&beam, &[], &own));
        assert!(is_owned(&beam, &[owner("x.dev/v2", "Beacon", "default")], &own), "in whatever version");
        assert!(is_owned(&beam, &[owner("v1", "Pod", "p"), owner("x.dev/v1", "Lamp", "all")], &own));
        for other in [
            ("x.dev/v1", "Beacon", "mine"),
            ("y.dev/v1", "Beacon", "default"),
            ("x.dev/v1", "Lamp", "default"),
        ] {
            assert!(!is_owned(&beam, &[owner(other.0, other.1, other.2)], &own), "{other:?}");
        }
        let elsewhere = object("Beam", "harbour", "b");
        assert!(
            !is_owned(&elsewhere, &[owner("x.dev/v1", "Beacon", "default")], &own),
            "owners are in one's own namespace"
        );
    }

    #[test]
    fn the_message_names_twenty_objects_and_counts_all() {
        assert_eq!(users(0).message(), None);
        assert_eq!(users(1).message().unwrap(), "waiting for module crs deletion: Beacon quay/b0 (1)");
        let of = |count| users(count).message().unwrap();
        assert!(of(20).ends_with("Beacon quay/b18, Beacon quay/b19 (20)"), "{}", of(20));
        assert!(of(21).ends_with("Beacon quay/b19, … (21)"), "{}", of(21));
        assert!(of(500).ends_with("Beacon quay/b19, … (500)"), "{}", of(500));
        assert_eq!(of(500).matches("Beacon").count(), MAX_NAMED);
    }

    #[test]
    fn several_kinds_share_the_twenty_named_objects() {
        let mut all = users(19);
        let cluster = |name: &str| ObjectRef {
            gvk: Gvk::of("x.dev/v1", "Quay"),
            namespace: String::new(),
            name: name.into(),
        };
        let [quay, empty] = ["Quay", "Pier"].map(|kind| Gvk::of("x.dev/v1", kind));
        all.add(&quay, [cluster("one"), cluster("two")], 2);
        all.add(&empty, [], 0);
        assert_eq!(
            all.kinds,
            [Gvk::of("x.dev/v1", "Beacon"), quay],
            "nobody is told of a kind without objects"
        );
        assert!(all.message().unwrap().ends_with("Beacon quay/b18, Quay one, … (21)"));
    }

    #[test]
    fn kinds_come_from_the_template_and_the_default_cr() {
        let mut manifest: Manifest = serde_json::from_value(json!({"spec": {"remote": false,
            "install": {"name": "n", "source": {}},
            "resource": {"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b"}}}}))
        .unwrap();
        let kinds = |manifest: &Manifest| -> Vec<String> {
            declared(manifest).unwrap().iter().map(|k| format!("{}/{}", k.group, k.kind)).collect()
        };
        assert_eq!(kinds(&manifest), ["x.dev/Beacon"]);
        let terms = json!({"associatedResources": [
            {"group": "y.dev", "version": "v1", "kind": "Quay"}, {"group": "x.dev", "version": "v1beta1", "kind": "Beacon"},
            {"group": "", "version": "v1", "kind": "Secret"}, {"group": "apps", "version": "v1", "kind": "Deployment"},
            {"group": "rbac.authorization.k8s.io", "version": "v1", "kind": "Role"},
            {"group": "gateway.networking.k8s.io", "version": "v1", "kind": "Gateway"}]});
        manifest.metadata.annotations =
            Some([(annotations::MODULE_TERMS.to_owned(), terms.to_string())].into());
        assert_eq!(
            kinds(&manifest),
            ["gateway.networking.k8s.io/Gateway", "x.dev/Beacon", "y.dev/Quay"],
            "objects of Kubernetes itself do not depend on a module"
        );
        manifest.metadata.annotations = Some([(annotations::MODULE_TERMS.to_owned(), "{".to_owned())].into());
        assert!(declared(&manifest).is_err(), "what cannot be read is not nothing");
    }
}
