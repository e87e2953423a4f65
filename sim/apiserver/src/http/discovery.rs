//! Legacy and aggregated discovery.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use crate::{kinds::Kind, store::Cluster};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Review resources of built-in versions.
const REVIEWS: [(&str, &str, &str); 3] = [
    ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    ("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    ("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview"),
];

/// Served kinds by group and version.
#[derive(Debug)]
pub(crate) struct Served {
    groups: Groups,
}

/// `None`: delegated to a Service.
type Groups = BTreeMap<String, BTreeMap<Version, Option<Vec<Arc<Kind>>>>>;

/// Discovery order: `v2`, `v1`, `v1beta2`, `v1alpha1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    rank: (u8, std::cmp::Reverse<u32>, std::cmp::Reverse<u32>),
    name: String,
}

impl Version {
    fn new(name: &str) -> Self {
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        let after = name.strip_prefix('v').unwrap_or_default();
        let major = digits(after);
        let rest = after.get(major.len()..).unwrap_or_default();
        let number = |text: &str| std::cmp::Reverse(text.parse().unwrap_or_default());
        let rank = match (major.is_empty(), rest) {
            (true, _) => (3, number(""), number("")),
            (false, "") => (0, number(&major), number("")),
            (false, rest) => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
                (Some(minor), _) => (1, number(&major), number(minor)),
                (None, Some(minor)) => (2, number(&major), number(minor)),
                (None, None) => (3, number(""), number("")),
            },
        };
        Self { rank, name: name.to_owned() }
    }
}

impl Served {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut groups = Groups::new();
        for (group, _, _) in REVIEWS {
            groups.entry(group.to_owned()).or_default().insert(Version::new("v1"), Some(Vec::new()));
        }
        for kind in cluster.kinds() {
            let versions = groups.entry(kind.group.clone()).or_default();
            let kinds = versions.entry(Version::new(&kind.version)).or_default();
            kinds.get_or_insert_default().push(Arc::clone(kind));
        }
        for (group, version) in cluster.delegated() {
            groups.entry(group).or_default().insert(Version::new(&version), None);
        }
        Self { groups }
    }

    /// The core group is empty.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.groups.iter().flat_map(|(group, versions)| {
            versions.keys().map(move |version| (group.as_str(), version.name.as_str()))
        })
    }

    /// `None`: unknown or delegated.
    pub(crate) fn kinds(&self, group: &str, version: &str) -> Option<&[Arc<Kind>]> {
        self.groups.get(group)?.get(&Version::new(version))?.as_deref()
    }

    /// `/apis`
    pub(crate) fn group_list(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .keys()
            .filter(|group| !group.is_empty())
            .filter_map(|group| self.group(group))
            .collect();
        let bare = |mut group: Value| {
            if let Some(map) = group.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            group
        };
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.into_iter().map(bare).collect::<Vec<_>>()})
    }

    /// `/apis/<group>`
    pub(crate) fn group(&self, group: &str) -> Option<Value> {
        let of = |version: &Version| json!({"groupVersion": format!("{group}/{}", version.name), "version": version.name});
        let versions: Vec<Value> = self.groups.get(group)?.keys().map(of).collect();
        let preferred = versions.first().cloned();
        Some(
            json!({"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions, "preferredVersion": preferred}),
        )
    }

    /// `/api/v1`, `/apis/<group>/<version>`
    pub(crate) fn resources(&self, group: &str, version: &str) -> Option<Value> {
        let mut all = Vec::new();
        for kind in self.kinds(group, version)? {
            let mut resource = json!({
                "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
                "verbs": verbs(kind), "storageVersionHash": "",
            });
            named(&mut resource, kind);
            all.push(resource);
            if kind.has_approval() {
                all.push(json!({
                    "name": format!("{}/approval", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                    "kind": kind.kind, "verbs": ["get", "patch", "update"],
                }));
            }
            if kind.has_tokens() {
                all.push(json!({
                    "name": format!("{}/token", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                    "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest", "verbs": ["create"],
                }));
            }
            if kind.has_status {
                all.push(json!({
                    "name": format!("{}/status", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                    "kind": kind.kind, "verbs": ["get", "patch", "update"],
                }));
            }
            if kind.scale.is_some() {
                all.push(json!({
                    "name": format!("{}/scale", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                    "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get", "patch", "update"],
                }));
            }
        }
        for (_, plural, kind) in REVIEWS.iter().filter(|(of, _, _)| *of == group) {
            let singular = kind.to_lowercase();
            all.push(json!({"name": plural, "singularName": singular, "namespaced": false, "kind": kind, "verbs": ["create"]}));
        }
        let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let mut list = json!({"kind": "APIResourceList", "groupVersion": name, "resources": all});
        // Kubernetes omits it for the core group.
        if !group.is_empty() {
            list["apiVersion"] = "v1".into();
        }
        Some(list)
    }

    /// Aggregated `/api` and `/apis`.
    pub(crate) fn aggregated(&self, core: bool) -> Value {
        let groups = self.groups.iter().filter(|(group, _)| group.is_empty() == core);
        let items: Vec<Value> = groups
            .map(|(group, versions)| {
                let versions: Vec<Value> = versions
                    .iter()
                    .map(|(version, kinds)| {
                        let Some(kinds) = kinds else {
                            return json!({"version": version.name, "freshness": "Stale"});
                        };
                        let mut resources: Vec<Value> = kinds.iter().map(|kind| aggregated(kind)).collect();
                        resources.extend(REVIEWS.iter().filter(|(of, _, _)| of == group).map(|(of, plural, kind)| {
                            json!({"resource": plural, "singularResource": kind.to_lowercase(), "scope": "Cluster",
                                "responseKind": {"group": of, "version": "v1", "kind": kind}, "verbs": ["create"]})
                        }));
                        json!({"version": version.name, "freshness": "Current", "resources": resources})
                    })
                    .collect();
                let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
                json!({"metadata": metadata, "versions": versions})
            })
            .collect();
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
    }
}

fn verbs(kind: &Kind) -> Vec<&'static str> {
    if !kind.is_builtin() {
        return vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    }
    let collections = !kind.is("", "namespaces");
    VERBS.into_iter().filter(|verb| collections || *verb != "deletecollection").collect()
}

fn named(resource: &mut Value, kind: &Kind) {
    if !kind.short.is_empty() {
        resource["shortNames"] = json!(kind.short);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
}

fn aggregated(kind: &Kind) -> Value {
    let response = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let mut subresources = Vec::new();
    if kind.has_approval() {
        subresources.push(
            json!({"subresource": "approval", "responseKind": response, "verbs": ["get", "patch", "update"]}),
        );
    }
    if kind.has_tokens() {
        let token = json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"});
        subresources.push(json!({"subresource": "token", "responseKind": token, "verbs": ["create"]}));
    }
    if kind.scale.is_some() {
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        subresources.push(
            json!({"subresource": "scale", "responseKind": scale, "verbs": ["get", "patch", "update"]}),
        );
    }
    if kind.has_status {
        subresources.push(
            json!({"subresource": "status", "responseKind": response, "verbs": ["get", "patch", "update"]}),
        );
    }
    let mut resource = json!({
        "resource": kind.plural, "responseKind": response, "singularResource": kind.singular,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" }, "verbs": verbs(kind),
    });
    named(&mut resource, kind);
    if !subresources.is_empty() {
        resource["subresources"] = Value::Array(subresources);
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_discovery_orders_them() {
        let mut all: Vec<Version> =
            ["v1alpha1", "v1", "v1beta2", "v10", "foo", "v1beta10", "v2"].map(Version::new).into();
        all.sort();
        let names: Vec<&str> = all.iter().map(|version| version.name.as_str()).collect();
        assert_eq!(names, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]);
    }
}
