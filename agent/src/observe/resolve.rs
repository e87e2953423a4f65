//! Resolves kinds by discovery.

use crate::config;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::{Client, api::ApiResource};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(15);

/// A watchable kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Group, version, kind and plural name.
    pub resource: ApiResource,
    /// Whether it is namespaced.
    pub namespaced: bool,
}

/// Resolution errors.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The kind is not served (yet).
    #[error(
        "the API server does not serve {resource} in group {group:?}, version {version}; waiting for the kind"
    )]
    NotServed {
        /// Plural name.
        resource: String,
        /// API group.
        group: String,
        /// Configured version.
        version: String,
    },
    /// The kind lacks list or watch.
    #[error("{0} cannot be listed and watched; remove this watch from the configuration")]
    NotWatchable(String),
    /// The API server refused or is unreachable.
    #[error("discovery failed")]
    Api(#[source] kube::Error),
    /// No answer in time.
    #[error("discovery had no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// Resolves a kind. `*` takes the preferred version first; versions in `unconverted` come last.
pub async fn resolve(
    client: &Client,
    watch: &config::Watch,
    unconverted: &[String],
) -> Result<Resolved, ResolveError> {
    let mut versions = versions(client, watch).await?;
    versions.sort_by_key(|version| unconverted.iter().position(|other| other == version));
    for version in versions {
        let list = if watch.group.is_empty() {
            limited(client.list_core_api_resources(&version)).await?
        } else {
            limited(client.list_api_group_resources(&format!("{}/{version}", watch.group))).await?
        };
        if let Some(resolved) = list.and_then(|list| find(&list, watch, &version)) {
            return resolved;
        }
    }
    Err(ResolveError::NotServed {
        resource: watch.resource.clone(),
        group: watch.group.clone(),
        version: watch.version.clone(),
    })
}

async fn versions(client: &Client, watch: &config::Watch) -> Result<Vec<String>, ResolveError> {
    if watch.version != "*" {
        return Ok(vec![watch.version.clone()]);
    }
    if watch.group.is_empty() {
        return Ok(limited(client.list_core_api_versions())
            .await?
            .map_or_else(Vec::new, |list| list.versions));
    }
    let groups = limited(client.list_api_groups()).await?.map_or_else(Vec::new, |list| list.groups);
    let Some(group) = groups.into_iter().find(|group| group.name == watch.group) else {
        return Ok(Vec::new());
    };
    let mut versions: Vec<String> =
        group.preferred_version.into_iter().map(|version| version.version).collect();
    for version in group.versions {
        if !versions.contains(&version.version) {
            versions.push(version.version);
        }
    }
    Ok(versions)
}

/// Maps 404 to `None`.
async fn limited<T>(request: impl Future<Output = kube::Result<T>>) -> Result<Option<T>, ResolveError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(error)) => Err(ResolveError::Api(error)),
        Err(_) => Err(ResolveError::Timeout),
    }
}

fn find(
    list: &APIResourceList,
    watch: &config::Watch,
    version: &str,
) -> Option<Result<Resolved, ResolveError>> {
    let found = list.resources.iter().find(|resource| resource.name == watch.resource)?;
    if !["list", "watch"].iter().all(|verb| found.verbs.iter().any(|v| v == verb)) {
        return Some(Err(ResolveError::NotWatchable(watch.resource.clone())));
    }
    let api_version = match watch.group.as_str() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    let resource = ApiResource {
        group: watch.group.clone(),
        version: version.to_owned(),
        api_version,
        kind: found.kind.clone(),
        plural: found.name.clone(),
    };
    Some(Ok(Resolved { resource, namespaced: found.namespaced }))
}
