use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::{
    BaseUrl, ComponentDescriptor, Credentials, Digest, OciError, Reference,
    cache::BlobCache,
    descriptor::MAX_DESCRIPTOR,
    distribution::{Distribution, Part, sibling},
    install_crypto_provider,
};

pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG_TYPE: &str = "application/vnd.ocm.software.component.config.v1+json";
/// A suffix follows: `+yaml+tar`, `+yaml` or `+json`.
pub(super) const DESCRIPTOR_TYPE: &str = "application/vnd.ocm.software.component-descriptor.v2";
const ANY: &str = "*/*";

const MAX_LAYER: u64 = 32 * 1024 * 1024;
/// Concurrent downloads, which bound memory to eight layers.
const DOWNLOADS: usize = 8;
/// Abandoned downloads are removed above this size, finished ones at once.
const SWEEP_AT: usize = 64;

/// Settings of a [`Registry`].
#[derive(Debug, Clone)]
pub struct RegistryConfig {
    /// Registries (`host[:port]`) without TLS, besides loopback.
    pub insecure: Vec<String>,
    /// Credentials by `host[:port]`. Other registries are used anonymously.
    pub credentials: BTreeMap<String, Credentials>,
    /// Memory budget of the layer cache in bytes. Default 64 MiB.
    pub memory_budget: u64,
    /// Cache folder, shareable by processes. Default none.
    pub disk: Option<PathBuf>,
    /// Budget of the folder in bytes. Default 1 GiB.
    pub disk_budget: u64,
    /// Deadline of a call. Default 30 s.
    pub deadline: Duration,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            insecure: Vec::new(),
            credentials: BTreeMap::new(),
            memory_budget: 64 * 1024 * 1024,
            disk: None,
            disk_budget: 1024 * 1024 * 1024,
            deadline: Duration::from_secs(30),
        }
    }
}

impl RegistryConfig {
    /// Settings for registries that tenants name: no credentials, no disk cache, at most 16 MiB in memory.
    #[must_use]
    pub fn for_tenants(&self) -> Self {
        Self {
            insecure: self.insecure.clone(),
            credentials: BTreeMap::new(),
            memory_budget: self.memory_budget.min(16 * 1024 * 1024),
            disk: None,
            disk_budget: 0,
            deadline: self.deadline,
        }
    }
}

/// Reads modules from registries. Clones share connections, tokens and cache. Calls are cancel-safe.
///
/// The cache is by content. Parties that must not learn of each other's downloads need separate instances.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    insecure: Arc<[String]>,
    deadline: Duration,
    distribution: Distribution,
    cache: BlobCache,
    permits: Semaphore,
    flights: Mutex<HashMap<Reference, WeakShared<Flight>>>,
}

type Flight = BoxFuture<'static, Result<Arc<[u8]>, OciError>>;

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("deadline", &self.inner.deadline).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
}

impl Registry {
    /// Creates a client without connecting. Calls [`install_crypto_provider`].
    pub fn new(config: RegistryConfig) -> Result<Self, OciError> {
        let RegistryConfig { insecure, credentials, memory_budget, disk, disk_budget, deadline } = config;
        install_crypto_provider();
        let insecure: Arc<[String]> = insecure.into();
        Ok(Self {
            inner: Arc::new(Inner {
                distribution: Distribution::new(Arc::clone(&insecure), credentials, deadline / 2)?,
                cache: BlobCache::new(memory_budget, disk, disk_budget),
                permits: Semaphore::new(DOWNLOADS),
                flights: Mutex::new(HashMap::new()),
                insecure,
                deadline,
            }),
        })
    }

    /// Reads a version's descriptor. Resolves the tag each time, since tags move. Limits: 1 MiB for manifest and
    /// descriptor each.
    pub async fn component_descriptor(
        &self,
        base_url: &str,
        component: &str,
        version: &str,
    ) -> Result<ComponentDescriptor, OciError> {
        let reference = self.base(base_url)?.component(component, version)?;
        let (bytes, media_type) =
            self.within(&reference.to_string(), self.inner.descriptor_layer(&reference)).await?;
        let descriptor = ComponentDescriptor::parse(&bytes, &media_type)?;
        if descriptor.name != component || descriptor.version != version {
            let reason = format!("it describes {}:{}", descriptor.name, descriptor.version);
            return Err(OciError::malformed(reference.to_string(), reason));
        }
        Ok(descriptor)
    }

    /// Reads a verified layer. Limit: 32 MiB. Concurrent calls share one download, which is cached.
    pub async fn layer(
        &self,
        base_url: &str,
        component: &str,
        digest: &Digest,
    ) -> Result<Arc<[u8]>, OciError> {
        if let Some(bytes) = self.inner.cache.in_memory(digest) {
            return Ok(bytes);
        }
        let reference = self.base(base_url)?.component_blob(component, digest.clone())?;
        self.within(&reference.to_string(), self.flight(&reference, digest)).await
    }

    /// Returns the registry (`host[:port]`) of a base URL.
    pub fn host(&self, base_url: &str) -> Option<String> {
        self.base(base_url).ok().map(|base| base.registry().to_owned())
    }

    /// Registries (`host[:port]`) with an open breaker.
    pub fn open_circuits(&self) -> Vec<String> {
        self.inner.distribution.open_circuits()
    }

    pub(super) fn base(&self, base_url: &str) -> Result<BaseUrl, OciError> {
        BaseUrl::parse(base_url, &self.inner.insecure)
    }

    /// Replaces all credentials (by `host[:port]`) for new calls.
    pub fn set_credentials(&self, credentials: BTreeMap<String, Credentials>) {
        self.inner.distribution.set_credentials(credentials);
    }

    pub(super) fn credentials(&self, registry: &str) -> Credentials {
        self.inner.distribution.credentials(registry)
    }

    async fn within<T>(
        &self,
        subject: &str,
        work: impl Future<Output = Result<T, OciError>>,
    ) -> Result<T, OciError> {
        within(self.inner.deadline, &format!("reading {subject}"), work).await
    }

    /// Joins or starts a download. Its own deadline prevents late callers from keeping it alive for ever.
    fn flight(&self, reference: &Reference, digest: &Digest) -> Shared<Flight> {
        let mut flights = self.inner.flights.lock();
        if let Some(flight) = flights.get(reference).and_then(WeakShared::upgrade) {
            return flight;
        }
        if flights.len() >= SWEEP_AT {
            flights.retain(|_, flight| flight.upgrade().is_some());
        }
        let (inner, reference_, digest) = (Arc::clone(&self.inner), reference.clone(), digest.clone());
        let download: Flight = Box::pin(async move {
            let work = inner.download(&reference_, &digest, MAX_LAYER);
            let result = within(inner.deadline, &format!("reading {reference_}"), work).await;
            inner.flights.lock().remove(&reference_);
            result
        });
        let flight = download.shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(reference.clone(), weak);
        }
        flight
    }
}

impl Inner {
    async fn descriptor_layer(&self, reference: &Reference) -> Result<(Arc<[u8]>, String), OciError> {
        let malformed = |reason: String| OciError::malformed(format!("manifest of {reference}"), reason);
        let bytes = self.distribution.get(reference, Part::Manifest, MANIFEST_TYPE, MAX_DESCRIPTOR).await?;
        let manifest: Manifest = serde_json::from_slice(&bytes)
            .map_err(|e| malformed(format!("no image manifest (line {})", e.line())))?;
        if manifest.schema_version != 2 {
            return Err(malformed("its schema version is not 2".to_owned()));
        }
        if manifest.config.media_type != CONFIG_TYPE {
            return Err(malformed("it is no OCM component: the config has another media type".to_owned()));
        }
        let is_descriptor = |layer: &&Descriptor| {
            layer.media_type.strip_prefix(DESCRIPTOR_TYPE).is_some_and(|rest| rest.starts_with('+'))
        };
        let mut layers = manifest.layers.iter().filter(is_descriptor);
        let (Some(layer), None) = (layers.next(), layers.next()) else {
            return Err(malformed("it does not have exactly one component descriptor layer".to_owned()));
        };
        let digest =
            Digest::parse(&layer.digest).map_err(|_| malformed("a layer has no sha256 digest".to_owned()))?;
        if layer.size > MAX_DESCRIPTOR {
            return Err(OciError::TooLarge {
                subject: format!("descriptor of {reference}"),
                limit: MAX_DESCRIPTOR,
            });
        }
        let blob = sibling(reference, digest.clone());
        let bytes = self.download(&blob, &digest, MAX_DESCRIPTOR).await?;
        if bytes.len() as u64 != layer.size {
            return Err(malformed(format!("the descriptor has {} bytes, not {}", bytes.len(), layer.size)));
        }
        Ok((bytes, layer.media_type.clone()))
    }

    async fn download(
        &self,
        reference: &Reference,
        digest: &Digest,
        limit: u64,
    ) -> Result<Arc<[u8]>, OciError> {
        // Another download may have ended meanwhile.
        if let Some(bytes) = self.cache.in_memory(digest) {
            return Ok(bytes);
        }
        if let Some(bytes) = self.cache.on_disk(digest, limit).await {
            return Ok(bytes);
        }
        let bytes = self.fetch(reference, digest, limit).await?;
        self.cache.store(digest, &bytes).await;
        Ok(bytes)
    }

    async fn fetch(&self, reference: &Reference, digest: &Digest, limit: u64) -> Result<Arc<[u8]>, OciError> {
        // Never closed. Otherwise, continue without a permit.
        let _permit = self.permits.acquire().await.ok();
        let bytes = self.distribution.get(reference, Part::Blob, ANY, limit).await?;
        let found = Digest::of(&bytes);
        if found != *digest {
            let (subject, expected) = (reference.to_string(), digest.clone());
            return Err(OciError::DigestMismatch { subject, expected, found });
        }
        Ok(bytes.into())
    }
}

pub(super) async fn within<T>(
    deadline: Duration,
    subject: &str,
    work: impl Future<Output = Result<T, OciError>>,
) -> Result<T, OciError> {
    match tokio::time::timeout(deadline, work).await {
        Ok(result) => result,
        Err(_) => Err(OciError::Timeout { subject: subject.to_owned(), after: deadline }),
    }
}
