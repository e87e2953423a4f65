//! Authorization requests and refusals.

use crate::store::refusal::Refusal;
use crate::store::target::{Query, Target};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Resource {
        verb: String,
        target: Target,
    },
    /// Non-resource path.
    Path {
        /// Lower-case HTTP method.
        verb: String,
        /// Relative to the cluster.
        path: String,
    },
}

impl Ask {
    pub(crate) fn of(verb: &str, target: &Target, query: &Query) -> Self {
        let mut target = target.clone();
        // Only the subresource's first step is authorized.
        if let Some((first, _)) = target.subresource.split_once('/') {
            target.subresource = first.to_owned();
        }
        // A namespace belongs to itself.
        if target.group.is_empty() && target.resource == "namespaces" && !target.name.is_empty() {
            target.namespace.clone_from(&target.name);
        }
        // A list or watch of one name is authorized by name.
        if target.name.is_empty() && matches!(verb, "list" | "watch") {
            let named =
                query.list.field_selector.split(',').find_map(|one| one.strip_prefix("metadata.name="));
            let named = named.map(|name| name.trim_start_matches('='));
            if let Some(name) =
                named.filter(|name| !name.contains(['/', '%']) && !matches!(*name, "." | ".."))
            {
                name.clone_into(&mut target.name);
            }
        }
        Self::Resource { verb: verb.to_owned(), target }
    }

    pub(crate) fn path(verb: &str, path: &str) -> Self {
        Self::Path { verb: verb.to_owned(), path: path.to_owned() }
    }

    /// Kubernetes' wording. `why` is optional.
    pub(crate) fn refusal(&self, user: &str, why: &str) -> Refusal {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        match self {
            Self::Path { verb, path } => {
                let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}{why}");
                Refusal::new(403, "Forbidden", message).bare()
            }
            Self::Resource { verb, target } => {
                let scope = if target.namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace \"{}\"", target.namespace)
                };
                let message = format!(
                    "User \"{user}\" cannot {verb} resource \"{}\" in API group \"{}\" {scope}{why}",
                    qualified(target),
                    target.group
                );
                Refusal::forbidden(&target.resource, &target.group, &target.name, &message)
            }
        }
    }

    /// Self-reviews are allowed for all authenticated users.
    pub(super) fn is_self_review(&self) -> bool {
        let Self::Resource { verb, target } = self else { return false };
        let resource = (target.group.as_str(), target.resource.as_str());
        verb == "create"
            && matches!(
                resource,
                ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
                    | ("authentication.k8s.io", "selfsubjectreviews")
            )
    }
}

pub(super) fn qualified(target: &Target) -> String {
    if target.subresource.is_empty() {
        target.resource.clone()
    } else {
        format!("{}/{}", target.resource, target.subresource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::target::ListOptions;

    fn target(path: [&str; 5]) -> Target {
        let [group, resource, namespace, name, subresource] = path.map(str::to_owned);
        Target { group, version: "v1".into(), resource, namespace, name, subresource }
    }

    #[test]
    fn a_list_of_one_name_is_authorized_by_name() {
        let named = |verb: &str, selector: &str| {
            let list = ListOptions { field_selector: selector.to_owned(), ..ListOptions::default() };
            let query = Query { list, ..Query::default() };
            match Ask::of(verb, &target(["", "configmaps", "a", "", ""]), &query) {
                Ask::Resource { target, .. } => target.name,
                Ask::Path { .. } => panic!("it is about objects"),
            }
        };
        assert_eq!(named("list", "metadata.name=x"), "x");
        assert_eq!(named("watch", "metadata.namespace=a,metadata.name==x"), "x");
        assert_eq!(named("list", "metadata.name!=x"), "");
        assert_eq!(named("deletecollection", "metadata.name=x"), "");
        let namespace = Ask::of("get", &target(["", "namespaces", "", "a", ""]), &Query::default());
        assert_eq!(
            namespace.refusal("u", "").message,
            "namespaces \"a\" is forbidden: User \"u\" cannot get resource \"namespaces\" in API group \"\" in the \
             namespace \"a\""
        );
    }

    #[test]
    fn refusals_name_user_verb_resource_and_namespace() {
        let message = |verb: &str, path: [&str; 5]| {
            Ask::of(verb, &target(path), &Query::default()).refusal("u", "").message
        };
        assert_eq!(
            message("list", ["apps", "deployments", "y", "", ""]),
            "deployments.apps is forbidden: User \"u\" cannot list resource \"deployments\" in API group \"apps\" in \
             the namespace \"y\""
        );
        assert_eq!(
            message("patch", ["apps", "deployments", "y", "d", "status"]),
            "deployments.apps \"d\" is forbidden: User \"u\" cannot patch resource \"deployments/status\" in API group \
             \"apps\" in the namespace \"y\""
        );
        assert_eq!(
            message("list", ["", "nodes", "", "", ""]),
            "nodes is forbidden: User \"u\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"
        );
        assert_eq!(
            Ask::path("get", "/metrics").refusal("u", "").message,
            "forbidden: User \"u\" cannot get path \"/metrics\""
        );
    }
}
