//! Parses paths and queries.

use std::collections::BTreeSet;

use crate::store::target::{Query, Target};

/// A path relative to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// `/version`
    Version,
    /// `/healthz`, `/livez`, `/readyz`, optionally `/ping`
    Health,
    /// `/metrics`: request counts.
    Metrics,
    /// Other server information.
    NotSimulated(&'static str),
    /// `/`
    Root,
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(String),
    /// `/api/v1` or `/apis/<group>/<version>`
    Resources(String, String),
    /// `/openapi/v2`
    OldOpenApi,
    /// `/openapi/v3`
    OpenApi,
    /// `/openapi/v3/<...>`
    OpenApiOf(String),
    Objects(Target),
    /// Below `/watch/`: an old-form watch.
    OldWatch(Target),
    /// Bare `/watch`.
    BareWatch,
    Unknown,
}

impl Path {
    pub(crate) fn parse(path: &str) -> Self {
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let parts: Vec<String> = path.split('/').map(decoded).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            [""] => Self::Root,
            ["version"] => Self::Version,
            ["healthz" | "livez" | "readyz"] | ["healthz" | "livez" | "readyz", "ping"] => Self::Health,
            ["healthz" | "livez" | "readyz", ..] => Self::NotSimulated("single health checks"),
            ["metrics"] => Self::Metrics,
            ["metrics" | "flagz" | "statusz" | "configz", ..] => {
                Self::NotSimulated("information about the server")
            }
            ["logs" | "debug", ..] => Self::NotSimulated("logs and profiles"),
            [".well-known" | "openid", ..] => Self::NotSimulated("the keys of service accounts"),
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group((*group).to_owned()),
            ["api", version] => Self::Resources(String::new(), (*version).to_owned()),
            ["apis", group, version] => Self::Resources((*group).to_owned(), (*version).to_owned()),
            ["openapi", "v2"] => Self::OldOpenApi,
            ["openapi", "v3"] => Self::OpenApi,
            ["openapi", "v3", rest @ ..] => Self::OpenApiOf(rest.join("/")),
            ["api", _, "watch"] | ["apis", _, _, "watch"] => Self::BareWatch,
            ["api", version, "watch", rest @ ..] => Self::objects("", version, rest).watched(),
            ["apis", group, version, "watch", rest @ ..] => Self::objects(group, version, rest).watched(),
            ["api", version, rest @ ..] => Self::objects("", version, rest),
            ["apis", group, version, rest @ ..] => Self::objects(group, version, rest),
            _ => Self::Unknown,
        }
    }

    fn watched(self) -> Self {
        match self {
            Self::Objects(target) => Self::OldWatch(target),
            other => other,
        }
    }

    fn objects(group: &str, version: &str, rest: &[&str]) -> Self {
        let (namespace, rest) = match rest {
            // The namespace's own subresources.
            ["namespaces", name, "status" | "finalize"] => ("", &["namespaces", *name, rest[2]][..]),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (resource, name, subresource) = match rest {
            [resource] => (*resource, "", String::new()),
            [resource, name] => (*resource, *name, String::new()),
            [resource, name, more @ ..] => (*resource, *name, more.join("/")),
            [] => return Self::Unknown,
        };
        // Empty steps match nothing, except all namespaces.
        let resource = if rest.contains(&"") { "" } else { resource };
        Self::Objects(Target {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource,
        })
    }
}

/// Authorization verb, before validation.
pub(crate) fn verb_name(method: &str, path: &str, is_watch: bool) -> &'static str {
    let target = match Path::parse(path) {
        Path::Objects(target) => target,
        Path::OldWatch(_) => return "watch",
        _ => return "discovery",
    };
    let collection = target.name.is_empty();
    match method {
        "GET" | "HEAD" if is_watch && collection => "watch",
        "GET" | "HEAD" if collection => "list",
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if collection => "deletecollection",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// Parsed query parameters.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) query: Query,
    /// `watch`
    pub(crate) is_watch: bool,
    /// `includeObject`
    pub(crate) include: String,
}

/// First duplicates count.
pub(crate) fn parameters(text: &str) -> Parameters {
    let Parameters { mut query, mut is_watch, mut include } = Parameters::default();
    let list = &mut query.list;
    let mut seen = BTreeSet::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name), decoded(value.replace('+', " ")));
        let is_list = name == "dryRun";
        if !is_list && !seen.insert(name.clone()) {
            continue;
        }
        let yes = !matches!(value.as_str(), "false" | "0");
        match name.as_str() {
            "labelSelector" => list.label_selector = value,
            "fieldSelector" => list.field_selector = value,
            "limit" => {
                list.limit = number(&value, &mut query.unreadable).try_into().unwrap_or_default();
            }
            "continue" => list.continue_token = value,
            "resourceVersion" => list.resource_version = value,
            "resourceVersionMatch" => list.resource_version_match = value,
            "timeoutSeconds" => {
                let seconds = number(&value, &mut query.unreadable);
                list.timeout_seconds = seconds.try_into().ok().filter(|seconds| *seconds > 0);
            }
            "allowWatchBookmarks" => list.bookmarks = yes,
            "sendInitialEvents" => list.initial_events = Some(yes),
            "fieldManager" => query.field_manager = value,
            "force" => query.force = Some(yes),
            "dryRun" => query.dry_run.push(value),
            "fieldValidation" => query.field_validation = value,
            "propagationPolicy" => query.propagation = Some(value),
            "orphanDependents" => query.orphan = Some(yes),
            "gracePeriodSeconds" => _ = number(&value, &mut query.unreadable_grace),
            "watch" => is_watch = yes,
            "includeObject" => include = value,
            _ => {}
        }
    }
    Parameters { query, is_watch, include }
}

/// Like Go; 0 if malformed.
fn number(text: &str, unreadable: &mut Option<String>) -> i64 {
    text.parse().unwrap_or_else(|_| {
        let quoted = serde_json::Value::from(text);
        unreadable.get_or_insert(format!("strconv.ParseInt: parsing {quoted}: invalid syntax"));
        0
    })
}

/// Replaces invalid UTF-8.
fn decoded(text: impl AsRef<str>) -> String {
    let bytes = text.as_ref().as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        let code = bytes.get(index + 1..index + 3).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                index += 3;
            }
            None => {
                out.push(byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> [String; 6] {
        match Path::parse(path) {
            Path::Objects(t) => [t.group, t.version, t.resource, t.namespace, t.name, t.subresource],
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn object_paths_are_parsed() {
        assert_eq!(target("/api/v1/namespaces/a/configmaps/b"), ["", "v1", "configmaps", "a", "b", ""]);
        assert_eq!(target("/api/v1/namespaces/a"), ["", "v1", "namespaces", "", "a", ""]);
        assert_eq!(target("/api/v1/namespaces/a/status"), ["", "v1", "namespaces", "", "a", "status"]);
        assert_eq!(target("/api/v1/namespaces"), ["", "v1", "namespaces", "", "", ""]);
        assert_eq!(
            target("/apis/apps/v1/namespaces/a/deployments/b/scale"),
            ["apps", "v1", "deployments", "a", "b", "scale"]
        );
        assert_eq!(target("/apis/g.io/v1/foos/system%3Ax"), ["g.io", "v1", "foos", "", "system:x", ""]);
        let watched =
            |path| matches!(Path::parse(path), Path::OldWatch(target) if target.resource == "namespaces");
        assert!(watched("/api/v1/watch/namespaces/a"));
        assert_eq!(Path::parse("/api/v1/watch/"), Path::BareWatch);
        assert!(!watched("/api/v1/namespaces/watch") && !watched("/api/v1/namespaces/a/namespaces/watch"));
        assert_eq!(target("/api/v1/namespaces//configmaps/"), ["", "v1", "configmaps", "", "", ""]);
        assert_eq!(target("/api/v1//configmaps"), ["", "v1", "", "", "configmaps", ""]);
        assert_eq!(Path::parse("/"), Path::Root);
        assert_eq!(Path::parse("/apis/apps/v1"), Path::Resources("apps".into(), "v1".into()));
    }

    #[test]
    fn requests_map_to_kubernetes_verbs() {
        let of = |method, path| verb_name(method, path, false);
        assert_eq!(of("GET", "/api/v1/namespaces/a/configmaps"), "list");
        assert_eq!(of("GET", "/api/v1/namespaces/a/configmaps/b"), "get");
        assert_eq!(of("PATCH", "/api/v1/namespaces/a/configmaps/b"), "patch");
        assert_eq!(of("DELETE", "/api/v1/namespaces/a/configmaps"), "deletecollection");
        assert_eq!(of("GET", "/apis/apps/v1"), "discovery");
        assert_eq!(verb_name("GET", "/api/v1/configmaps", true), "watch");
        assert_eq!(of("GET", "/api/v1/watch/configmaps"), "watch");
        assert_eq!(verb_name("GET", "/api/v1/namespaces/a", true), "get");
    }

    #[test]
    fn query_parameters_are_parsed() {
        let Parameters { query, is_watch, .. } =
            parameters("watch=1&labelSelector=a%3Db%2Cc&limit=5&sendInitialEvents=true&dryRun=All");
        assert!(is_watch);
        let list = &query.list;
        assert_eq!((list.label_selector.as_str(), list.limit, list.initial_events), ("a=b,c", 5, Some(true)));
        assert_eq!(query.dry_run, ["All"]);
    }
}
