//! Object references and API groups.

use std::fmt;

use serde_json::Value;

use crate::Manager;

/// Group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// Empty for core.
    pub group: String,
    /// For example `v1`.
    pub version: String,
    /// For example `Deployment`.
    pub kind: String,
}

impl Gvk {
    /// Whether this is the kind of CRDs.
    #[must_use]
    pub fn is_crd(&self) -> bool {
        self.group == "apiextensions.k8s.io" && self.kind == "CustomResourceDefinition"
    }

    /// Whether this is the kind of namespaces.
    #[must_use]
    pub fn is_namespace(&self) -> bool {
        self.group.is_empty() && self.kind == "Namespace"
    }

    /// Parses an `apiVersion` and a `kind`.
    #[must_use]
    pub fn of(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Whether group and kind are equal.
    #[must_use]
    pub fn same_kind(&self, other: &Self) -> bool {
        (&self.group, &self.kind) == (&other.group, &other.kind)
    }

    /// `group/version`, or `version` for core.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// Identity of an object in one cluster.
///
/// All versions of a kind name one object, so [`ObjectRef::same_object`] ignores the version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Kind.
    pub gvk: Gvk,
    /// Empty if cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectRef {
    /// Reads the identity of an object; `None` without apiVersion, kind or name.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let text = |v: &Value| v.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
        let metadata = &object["metadata"];
        Some(Self {
            gvk: Gvk::of(&text(&object["apiVersion"])?, &text(&object["kind"])?),
            namespace: text(&metadata["namespace"]).unwrap_or_default(),
            name: text(&metadata["name"])?,
        })
    }

    /// This object without the version of its kind, to compare and look up objects that are named in different versions.
    #[must_use]
    pub fn unversioned(&self) -> Self {
        let gvk = Gvk { version: String::new(), ..self.gvk.clone() };
        Self { gvk, ..self.clone() }
    }

    /// All objects of this one's kind, as events name them: without a name.
    #[must_use]
    pub fn all_of_kind(&self) -> Self {
        Self { namespace: String::new(), name: String::new(), ..self.unversioned() }
    }

    /// Whether this names all objects of its kind.
    #[must_use]
    pub fn is_all_of_kind(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether both name one object, in any version.
    #[must_use]
    pub fn same_object(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Whether this reference names an object found in a runtime.
    ///
    /// A cluster-scoped object matches any namespace: old inventories may record one for it.
    #[must_use]
    pub fn names(&self, found: &Self) -> bool {
        self.gvk.same_kind(&found.gvk)
            && self.name == found.name
            && (found.namespace.is_empty() || self.namespace == found.namespace)
    }

    /// Whether the names are valid, so that an API server can hold the object.
    ///
    /// The name must be a single path segment, as most kinds require.
    #[must_use]
    pub fn can_exist(&self) -> bool {
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
        let label = |text: &str| plain(text) && !text.contains('.');
        let part = |text: &str| !["", ".", ".."].contains(&text) && !text.contains(['/', '%']);
        let Gvk { group, version, kind } = &self.gvk;
        plain(group)
            && !version.is_empty()
            && label(version)
            && !kind.is_empty()
            && label(kind)
            && label(&self.namespace)
            && part(&self.name)
    }

    /// Group, kind, namespace and name.
    #[must_use]
    pub fn identity(&self) -> (&str, &str, &str, &str) {
        (&self.gvk.group, &self.gvk.kind, &self.namespace, &self.name)
    }
}

/// A hash of an object's group, kind, namespace and name: a small key for what is remembered of many objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(u64);

impl From<&ObjectRef> for ObjectId {
    fn from(object: &ObjectRef) -> Self {
        let (group, kind, namespace, name) = object.identity();
        Self(xxhash_rust::xxh3::xxh3_64(format!("{group}\n{kind}\n{namespace}\n{name}").as_bytes()))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.gvk.kind)?;
        if !self.gvk.group.is_empty() {
            write!(f, ".{}", self.gvk.group)?;
        }
        if self.namespace.is_empty() {
            write!(f, " {}", self.name)
        } else {
            write!(f, " {}/{}", self.namespace, self.name)
        }
    }
}

/// Whether `manager` names `object`. Without a namespace it matches `default` and cluster-scoped objects.
#[must_use]
pub fn is_manager(manager: &Manager, object: &ObjectRef) -> bool {
    let is_in_namespace = match manager.namespace.as_str() {
        "" => matches!(object.namespace.as_str(), "" | "default"),
        namespace => object.namespace == namespace,
    };
    is_in_namespace
        && object.gvk.group == manager.group
        && object.gvk.kind == manager.kind
        && object.name == manager.name
}

/// Dotted API groups that Kubernetes serves.
const KUBERNETES_GROUPS: [&str; 16] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Whether a CRD or an aggregated API server serves the group: its objects depend on a module.
#[must_use]
pub fn is_custom_group(group: &str) -> bool {
    group.contains('.') && !KUBERNETES_GROUPS.contains(&group)
}

/// Hash of an object's content. `serde_json` sorts map keys, so equal values have equal hashes.
#[must_use]
pub fn content_hash(value: &Value) -> u64 {
    xxhash_rust::xxh3::xxh3_64(value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_object_identities() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "b"}});
        let r = ObjectRef::of(&object).unwrap();
        assert_eq!(r.to_string(), "Deployment.apps b/a");
        assert_eq!(r.gvk.api_version(), "apps/v1");
        assert_eq!(Gvk::of("v1", "Pod").group, "");
        for bad in
            [json!({}), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": ""}}), json!([1])]
        {
            assert_eq!(ObjectRef::of(&bad), None, "{bad}");
        }
    }

    #[test]
    fn impossible_objects_are_detected_by_their_names() {
        let object = |api: &str, kind: &str, namespace: &str, name: &str| ObjectRef {
            gvk: Gvk::of(api, kind),
            namespace: namespace.into(),
            name: name.into(),
        };
        for present in [
            object("v1", "Pod", "default", "a"),
            object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "system:node"),
            object("a/v1beta1", "Crane", "", "A.b_c"),
        ] {
            assert!(present.can_exist(), "{present:?}");
        }
        for none in [
            object("a/b/c", "Pod", "", "a"),
            object("", "Pod", "", "a"),
            object("a/", "Pod", "", "a"),
            object("a b/v1", "Pod", "", "a"),
            object("v1", "", "", "a"),
            object("v1", "Po/d", "", "a"),
            object("v1", "Pod", "../kube-system", "a"),
            object("v1", "Pod", "", ""),
            object("v1", "Pod", "", ".."),
            object("v1", "Pod", "", "a/b"),
            object("v1", "Pod", "", "a%2Fb"),
        ] {
            assert!(!none.can_exist(), "{none:?}");
        }
    }

    #[test]
    fn versions_do_not_distinguish_objects() {
        let a = ObjectRef { gvk: Gvk::of("x.io/v1", "X"), namespace: String::new(), name: "n".into() };
        let b = ObjectRef { gvk: Gvk::of("x.io/v2", "X"), ..a.clone() };
        assert!(a != b && a.same_object(&b));
    }
}
