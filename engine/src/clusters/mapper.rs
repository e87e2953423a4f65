//! Maps kinds to API paths of a runtime.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResourceList};
use kube::{
    Api,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use parking_lot::Mutex;

use super::{
    client::RuntimeClient,
    error::{ErrorClass, RuntimeError},
};
use crate::pool;

/// Group versions cached per runtime; beyond that, the oldest is dropped. A module uses about ten.
const MAX_GROUP_VERSIONS: usize = 128;

/// Versions of a kind that are tried.
const MAX_VERSIONS: usize = 8;

/// REST mapping of one runtime: discovers a group version on first use and caches it.
#[derive(Debug)]
pub struct Mapper {
    /// Oldest first. Shared pointers, since thousands of mappers hold the same content.
    cached: Mutex<Vec<Arc<Kinds>>>,
    pool: Pool,
}

/// The kinds that a runtime serves of a group version.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Kinds {
    api_version: String,
    mapped: BTreeMap<String, Mapped>,
}

/// Content shared by mappers, since most runtimes serve the same kinds. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool(Arc<Mutex<pool::Pool<Kinds>>>);

impl Pool {
    fn share(&self, kinds: Kinds) -> Arc<Kinds> {
        self.0.lock().share(kinds)
    }
}

/// Whether objects of a kind live in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// Cluster-wide.
    Cluster,
}

/// Where a kind is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mapped {
    /// For dynamic APIs.
    pub resource: ApiResource,
    /// Scope of its objects.
    pub scope: Scope,
    /// Whether its objects can be listed and watched.
    pub watchable: bool,
}

/// Why there is no mapping.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The runtime does not serve the kind yet. Its CRD may follow.
    #[error(
        "the cluster does not know the kind {kind} of {api_version}; is its CustomResourceDefinition installed?"
    )]
    KindMissing {
        /// Kind.
        kind: String,
        /// Group and version.
        api_version: String,
    },
    /// Discovery failed; the kind may exist.
    #[error("the kinds of the cluster could not be read")]
    Discovery(#[source] RuntimeError),
}

/// The cause of a 404.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The kind is served; only this object is missing.
    Object,
    /// The kind is not served.
    Kind,
}

impl Mapped {
    /// Returns an API for objects of the kind. The namespace counts for namespaced kinds only.
    pub fn api(&self, client: &RuntimeClient, namespace: &str) -> Api<DynamicObject> {
        match self.scope {
            Scope::Namespaced => Api::namespaced_with(client.kube(), namespace, &self.resource),
            Scope::Cluster => Api::all_with(client.kube(), &self.resource),
        }
    }
}

impl Default for Mapper {
    fn default() -> Self {
        Self::new()
    }
}

impl Mapper {
    /// Returns an empty mapper.
    pub fn new() -> Self {
        Self::sharing(Pool::default())
    }

    /// Returns an empty mapper that shares its content with others of this pool.
    pub(super) fn sharing(pool: Pool) -> Self {
        Self { cached: Mutex::default(), pool }
    }

    /// Returns the mapping of a kind, from the cache or by one request for its group version. A missing kind is never cached, since its
    /// CRD may be installed meanwhile. `client` must be the runtime's own.
    pub async fn resolve(&self, client: &RuntimeClient, gvk: &GroupVersionKind) -> Result<Mapped, MapError> {
        let api_version = gvk.api_version();
        if let Some(mapped) = self.cached_kind(&api_version, &gvk.kind) {
            return Ok(mapped);
        }
        let missing = || MapError::KindMissing { kind: gvk.kind.clone(), api_version: api_version.clone() };
        let mapped = discover(client, gvk).await?.ok_or_else(missing)?;
        let found = mapped.get(&gvk.kind).cloned();
        self.cache(Kinds { api_version: api_version.clone(), mapped });
        found.ok_or_else(missing)
    }

    fn cached_kind(&self, api_version: &str, kind: &str) -> Option<Mapped> {
        let cached = self.cached.lock();
        cached.iter().find(|kinds| kinds.api_version == api_version)?.mapped.get(kind).cloned()
    }

    fn cache(&self, kinds: Kinds) {
        let kinds = self.pool.share(kinds);
        let mut cached = self.cached.lock();
        cached.retain(|other| other.api_version != kinds.api_version);
        if cached.len() >= MAX_GROUP_VERSIONS {
            cached.remove(0);
        }
        cached.push(kinds);
    }

    /// Like [`Self::resolve`], for existing objects: if their version is no longer served, returns another served version. Costs one more
    /// request if the kind is missing in its version.
    pub async fn resolve_any(
        &self,
        client: &RuntimeClient,
        gvk: &GroupVersionKind,
    ) -> Result<Mapped, MapError> {
        let missing = match self.resolve(client, gvk).await {
            Err(missing @ MapError::KindMissing { .. }) if !gvk.group.is_empty() => missing,
            answer => return answer,
        };
        for version in versions(client, &gvk.group).await?.into_iter().take(MAX_VERSIONS) {
            let other = GroupVersionKind { version, ..gvk.clone() };
            match self.resolve(client, &other).await {
                Err(MapError::KindMissing { .. }) => {}
                answer => return answer,
            }
        }
        Err(missing)
    }

    /// Finds the cause of an object's 404: forgets the mapping and discovers the kind again.
    pub async fn missing(
        &self,
        client: &RuntimeClient,
        gvk: &GroupVersionKind,
    ) -> Result<Missing, RuntimeError> {
        self.forget(gvk);
        match self.resolve(client, gvk).await {
            Ok(_) => Ok(Missing::Object),
            Err(MapError::KindMissing { .. }) => Ok(Missing::Kind),
            Err(MapError::Discovery(error)) => Err(error),
        }
    }

    /// Forgets the kind's group version, such as after a CRD was written or deleted.
    pub fn forget(&self, gvk: &GroupVersionKind) {
        let api_version = gvk.api_version();
        self.cached.lock().retain(|kinds| kinds.api_version != api_version);
    }
}

/// Returns the served versions of a group, the preferred one first; empty for an unknown group.
async fn versions(client: &RuntimeClient, group: &str) -> Result<Vec<String>, MapError> {
    let call = format!("discover {group}");
    if !is_plain(group) {
        return Err(MapError::Discovery(RuntimeError::new(ErrorClass::Invalid, call, None)));
    }
    let request = http::Request::get(format!("/apis/{group}")).body(Vec::new());
    let answer = match request {
        Ok(request) => client.call(&call, client.kube().request::<APIGroup>(request)).await,
        Err(_) => Err(RuntimeError::new(ErrorClass::Invalid, call, None)),
    };
    match answer {
        Ok(group) => {
            let preferred = group.preferred_version.map(|preferred| preferred.version);
            let mut versions: Vec<String> = group.versions.into_iter().map(|one| one.version).collect();
            versions.sort_by_key(|version| Some(version) != preferred.as_ref());
            Ok(versions)
        }
        Err(error) if error.class == ErrorClass::NotFound => Ok(Vec::new()),
        Err(error) => Err(MapError::Discovery(error)),
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
}

async fn discover(
    client: &RuntimeClient,
    gvk: &GroupVersionKind,
) -> Result<Option<BTreeMap<String, Mapped>>, MapError> {
    let api_version = gvk.api_version();
    let call = format!("discover {api_version}");
    if !is_plain(&gvk.group) || !is_plain(&gvk.version) || gvk.version.is_empty() {
        return Err(MapError::Discovery(RuntimeError::new(ErrorClass::Invalid, call, None)));
    }
    let kube = client.kube();
    let answer = if gvk.group.is_empty() {
        client.call(&call, kube.list_core_api_resources(&gvk.version)).await
    } else {
        client.call(&call, kube.list_api_group_resources(&api_version)).await
    };
    match answer {
        Ok(list) => Ok(Some(kinds_of(gvk, list))),
        Err(error) if error.class == ErrorClass::NotFound => Ok(None),
        Err(error) => Err(MapError::Discovery(error)),
    }
}

fn kinds_of(gvk: &GroupVersionKind, list: APIResourceList) -> BTreeMap<String, Mapped> {
    // Subresources have a slash; some have the kind of their parent.
    let resources = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
    let mapped = resources.map(|resource| {
        let scope = if resource.namespaced { Scope::Namespaced } else { Scope::Cluster };
        let api = ApiResource {
            group: gvk.group.clone(),
            version: gvk.version.clone(),
            api_version: gvk.api_version(),
            kind: resource.kind.clone(),
            plural: resource.name,
        };
        let watchable = ["list", "watch"].iter().all(|verb| resource.verbs.iter().any(|v| v == verb));
        (resource.kind, Mapped { resource: api, scope, watchable })
    });
    mapped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(api_version: &str, plural: &str) -> Kinds {
        let resource = ApiResource {
            group: String::new(),
            version: api_version.into(),
            api_version: api_version.into(),
            kind: "Beam".into(),
            plural: plural.into(),
        };
        let beam = Mapped { resource, scope: Scope::Cluster, watchable: true };
        Kinds { api_version: api_version.into(), mapped: BTreeMap::from([("Beam".to_owned(), beam)]) }
    }

    #[test]
    fn equal_discovery_results_share_memory_while_in_use() {
        let pool = Pool::default();
        let one = pool.share(kinds("v1", "beams"));
        assert!(Arc::ptr_eq(&one, &pool.share(kinds("v1", "beams"))));
        let other = pool.share(kinds("v1", "beamen"));
        assert!(!Arc::ptr_eq(&one, &other), "a runtime may serve other content");
        drop(one);
        let again = pool.share(kinds("v1", "beams"));
        assert_eq!(*again, kinds("v1", "beams"));
    }

    #[test]
    fn a_mapper_remembers_recent_group_versions() {
        let mapper = Mapper::new();
        let version = |n: usize| format!("v{n}");
        let plural = |n: usize| mapper.cached_kind(&version(n), "Beam").map(|mapped| mapped.resource.plural);
        (0..MAX_GROUP_VERSIONS).for_each(|n| mapper.cache(kinds(&version(n), "beams")));
        mapper.cache(kinds(&version(0), "beamen"));
        assert_eq!(plural(0).as_deref(), Some("beamen"), "a new discovery replaces the old one");
        assert_eq!(plural(1).as_deref(), Some("beams"), "and evicts no other one");
        mapper.cache(kinds(&version(MAX_GROUP_VERSIONS), "beams"));
        assert_eq!(plural(1), None, "the oldest one is evicted");
        assert_eq!(mapper.cached.lock().len(), MAX_GROUP_VERSIONS);
        mapper.forget(&GroupVersionKind::gvk("", &version(0), "Beam"));
        assert_eq!(plural(0), None);
        assert_eq!(mapper.cached_kind(&version(2), "Mast"), None, "not served at its discovery");
    }
}
