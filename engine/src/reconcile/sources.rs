//! Component descriptors, read once per version for the whole fleet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Shared as Joint, WeakShared},
    stream,
};
use parking_lot::Mutex;
use tidewatch_api::{Layer, SourceType};
use tidewatch_oci::{ComponentDescriptor, Credentials, OciError, Registry};
use tidewatch_planner::{
    kyma::{ComponentVersion, Source, SourceFault, Sources},
    versions::{Chosen, ResolvedModule},
};

use super::registry_limiter::RegistryLimiter;
use crate::{config::EngineConfig, error::Error, error::chain, kcp::Kcp, pace::next_try};

/// The resource that every module component has.
const RAW_MANIFEST: &str = "raw-manifest";

/// Descriptors kept. Versions are immutable (mission S1.1), so none goes stale.
const CACHED: usize = 4096;

/// Kept descriptors of components that runtimes name. Separate, so that they cannot evict the platform's.
const CACHED_FOR_TENANTS: usize = 256;

const AT_ONCE: usize = 8;

/// Number of reads beyond which abandoned ones are removed.
const SWEEP_AT: usize = 64;

type Known = Mutex<HashMap<ComponentVersion, Arc<Source>>>;
type Read = BoxFuture<'static, Result<Arc<Source>, OciError>>;
type Reads = Mutex<HashMap<ComponentVersion, WeakShared<Read>>>;

#[derive(Default)]
pub(crate) struct Descriptors {
    central: Known,
    tenants: Known,
    reads: Arc<Reads>,
}

impl Descriptors {
    /// Joins a descriptor's running read, or starts one with `begin`. A read lives while a reconcile waits for it.
    fn joined(&self, key: &ComponentVersion, begin: impl FnOnce() -> Read) -> Joint<Read> {
        let mut reads = self.reads.lock();
        if let Some(read) = reads.get(key).and_then(WeakShared::upgrade) {
            return read;
        }
        if reads.len() >= SWEEP_AT {
            reads.retain(|_, read| read.upgrade().is_some());
        }
        let (read, all, of) = (begin(), Arc::clone(&self.reads), key.clone());
        let read: Read = Box::pin(async move {
            let result = read.await;
            all.lock().remove(&of);
            result
        });
        let read = read.shared();
        if let Some(weak) = read.downgrade() {
            reads.insert(key.clone(), weak);
        }
        read
    }

    fn of(&self, local: bool) -> (&Known, usize) {
        if local { (&self.tenants, CACHED_FOR_TENANTS) } else { (&self.central, CACHED) }
    }
}

/// Further layers remembered per component.
const LAYERS: usize = 64;

fn packing(media_type: &str, type_: &str) -> SourceType {
    match type_ {
        "helmChart" => SourceType::HelmChart,
        _ if media_type.contains("helm.chart") => SourceType::HelmChart,
        "directoryTree" => SourceType::OciDir,
        _ if media_type.contains("tar") => SourceType::OciDir,
        _ => SourceType::OciRef,
    }
}

/// Layers that a template may name.
fn further(descriptor: &ComponentDescriptor) -> BTreeMap<String, Option<Layer>> {
    let mut layers = BTreeMap::new();
    for resource in &descriptor.resources {
        let Some((digest, media_type)) = resource.local_blob() else { continue };
        if layers.contains_key(&resource.name) {
            layers.insert(resource.name.clone(), None);
        } else if layers.len() < LAYERS && resource.name != RAW_MANIFEST {
            let type_ = packing(media_type, &resource.type_).as_str().to_owned();
            let layer = Layer { name: resource.name.clone(), ref_: digest.as_str().to_owned(), type_ };
            layers.insert(resource.name.clone(), Some(layer));
        }
    }
    layers
}

pub(crate) struct Registries {
    kcp: Kcp,
    config: Arc<EngineConfig>,
    registry: Registry,
    /// For components that runtimes name: no credentials, separate cache.
    tenants: Registry,
    descriptors: Descriptors,
    pub(super) limiter: RegistryLimiter,
}

impl Registries {
    /// Builds clients for the platform's registries and for those that runtimes name.
    pub(crate) fn new(kcp: Kcp, config: Arc<EngineConfig>) -> Result<Self, OciError> {
        Ok(Self {
            kcp,
            registry: Registry::new(config.registry.clone())?,
            tenants: Registry::new(config.registry.for_tenants())?,
            descriptors: Descriptors::default(),
            limiter: RegistryLimiter::new(config.limits.workers),
            config,
        })
    }

    pub(crate) fn set_credentials(&self, credentials: BTreeMap<String, Credentials>) {
        self.registry.set_credentials(credentials);
    }

    /// The platform's registry, whether it is suspended, and the number of other suspended registries.
    pub(crate) fn suspended_registries(&self) -> (String, bool, usize) {
        let host = self.registry.host(&self.config.modules).unwrap_or_default();
        let open = self.registry.open_circuits();
        let is_open = open.contains(&host);
        (host, is_open, open.len() - usize::from(is_open) + self.tenants.open_circuits().len())
    }

    pub(crate) async fn sources_of(&self, choices: &[ResolvedModule]) -> Result<Sources, Error> {
        self.sources_for(choices.iter().filter_map(|c| c.outcome.as_ref().ok())).await
    }

    pub(crate) async fn sources_for<'a>(
        &self,
        versions: impl Iterator<Item = &'a Chosen> + Send,
    ) -> Result<Sources, Error> {
        let keys: BTreeSet<ComponentVersion> = versions.map(ComponentVersion::of).collect();
        let read = stream::iter(keys)
            .map(|key| async move {
                let source = self.source_of(&key).await;
                (key, source)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>();
        let crowded = |_| Error::Crowded("a registry is slow to tell what modules consist of".to_owned());
        let read = self.limiter.wait(read).await.map_err(crowded)?;
        Ok(read.into_iter().collect())
    }

    /// The registry client of the platform, or of runtimes (`local`).
    pub(crate) const fn registry(&self, local: bool) -> &Registry {
        if local { &self.tenants } else { &self.registry }
    }

    async fn source_of(&self, key: &ComponentVersion) -> Result<Source, SourceFault> {
        let (known, _) = self.descriptors.of(key.local);
        if let Some(known) = known.lock().get(key) {
            return Ok(Source::clone(known));
        }
        let ComponentVersion { component, version, local, registry: named } = key;
        let place = self.config.registry_of(named.as_deref());
        let read = self.descriptors.joined(key, || {
            read(self.registry(*local).clone(), place.address(&self.config).to_owned(), key.clone()).boxed()
        });
        let source = read.await.map_err(|error| {
            let (retry_after, why) = (error.retry_after(), chain(&error));
            let next = next_try(self.kcp.now(), retry_after);
            let besides = place.remark();
            SourceFault {
                message: format!("component {component}:{version} cannot be read: {why}{besides}; {next}"),
                // A wrong or missing descriptor can be pushed again, and registries send no events.
                retryable: true,
                retry_after,
            }
        })?;
        self.keep_source(key, &source);
        Ok(Source::clone(&source))
    }

    fn keep_source(&self, key: &ComponentVersion, source: &Arc<Source>) {
        let (known, kept) = self.descriptors.of(key.local);
        let mut known = known.lock();
        if known.len() >= kept {
            known.clear();
        }
        known.insert(key.clone(), Arc::clone(source));
    }
}

/// When a retry makes sense; `None`: at any time.
pub(crate) fn rest_of(found: &Sources) -> Option<Duration> {
    let faults = found.faults().filter(|fault| fault.retryable);
    faults.map(|fault| fault.retry_after.unwrap_or_default()).min().filter(|wait| !wait.is_zero())
}

#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    /// The platform's registry; the template may name another one.
    Central {
        instead_of: Option<&'a str>,
    },
    External(&'a str),
}

impl<'a> Place<'a> {
    fn address(&self, config: &'a EngineConfig) -> &'a str {
        match self {
            Self::Central { .. } => &config.modules,
            Self::External(registry) => registry,
        }
    }

    fn remark(&self) -> String {
        match self {
            Self::Central { instead_of: Some(registry) } => format!(
                " (its ModuleTemplate names the registry '{registry}', which is not among those that templates may name, \
                 --external-registry, so that of the platform was asked)"
            ),
            _ => String::new(),
        }
    }
}

impl EngineConfig {
    /// The registry for a template's component. A registry that is not allowed is ignored: Go managers read everything from one registry.
    fn registry_of<'a>(&'a self, named: Option<&'a str>) -> Place<'a> {
        let named = named.filter(|named| *named != self.modules);
        match self.external_registries.iter().find(|allowed| named == Some(allowed.as_str())) {
            Some(allowed) => Place::External(allowed),
            None => Place::Central { instead_of: named },
        }
    }
}

async fn read(registry: Registry, modules: String, key: ComponentVersion) -> Result<Arc<Source>, OciError> {
    let ComponentVersion { component, version, .. } = &key;
    let descriptor = registry.component_descriptor(&modules, component, version).await?;
    let resource = descriptor.raw_manifest()?;
    let (digest, media_type) = resource.local_blob().ok_or_else(|| OciError::Malformed {
        subject: format!("the descriptor of {component}:{version}"),
        reason: "its raw-manifest is not a local blob".into(),
    })?;
    Ok(Arc::new(Source {
        repo: modules,
        layer: digest.as_str().to_owned(),
        type_: packing(media_type, &resource.type_),
        further: further(&descriptor),
        images: descriptor.images().map(str::to_owned).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tidewatch_oci::{Access, Digest, Resource};

    use super::*;

    fn key(component: &str) -> ComponentVersion {
        let (component, version) = (component.into(), "1.0.0".into());
        ComponentVersion { component, version, registry: None, local: false }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_read_a_descriptor_once() {
        let (sources, reads) = (Descriptors::default(), Arc::new(AtomicUsize::new(0)));
        let ask = |component: &str| {
            let reads = Arc::clone(&reads);
            sources.joined(&key(component), || {
                Box::pin(async move {
                    reads.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Err(OciError::NotFound { subject: "it".into() })
                })
            })
        };
        let all = (0..1000).map(|_| ask("tide")).chain([ask("other")]);
        for result in futures::future::join_all(all).await {
            assert_eq!(result.unwrap_err().metric_label(), "not_found");
        }
        assert_eq!(reads.load(Ordering::SeqCst), 2);
        assert!(ask("tide").await.is_err(), "a failure is not kept here");
        assert_eq!(reads.load(Ordering::SeqCst), 3);
        for name in 0..500 {
            drop(ask(&name.to_string()));
        }
        assert!(sources.reads.lock().len() <= SWEEP_AT, "those that nobody waits for go");
    }

    #[test]
    fn the_earliest_retry_after_decides_the_next_attempt() {
        let fault = |seconds: Option<u64>| {
            let retry_after = seconds.map(Duration::from_secs);
            Err(SourceFault { message: String::new(), retryable: true, retry_after })
        };
        let found = |faults: &[Option<u64>]| -> Sources {
            faults.iter().enumerate().map(|(n, wait)| (key(&n.to_string()), fault(*wait))).collect()
        };
        assert_eq!(rest_of(&found(&[])), None);
        assert_eq!(rest_of(&found(&[Some(600), Some(60)])), Some(Duration::from_mins(1)));
        assert_eq!(rest_of(&found(&[Some(600), None])), None, "one of them says nothing");
    }

    #[test]
    fn only_allowed_registries_replace_the_platforms_registry() {
        let config = EngineConfig {
            modules: "central.example/modules".into(),
            external_registries: vec!["guests.example:5000/kyma".into()],
            ..EngineConfig::default()
        };
        for (named, address, remark) in [
            (None, "central.example/modules", ""),
            (Some("central.example/modules"), "central.example/modules", ""),
            (Some("guests.example:5000/kyma"), "guests.example:5000/kyma", ""),
            (Some("guests.example:5000"), "central.example/modules", "'guests.example:5000'"),
            (Some("evil.example"), "central.example/modules", "'evil.example'"),
        ] {
            let place = config.registry_of(named);
            assert_eq!(place.address(&config), address, "{named:?}");
            assert!(place.remark().contains(remark) && place.remark().is_empty() == remark.is_empty());
        }
    }

    #[test]
    fn layers_are_found_by_name() {
        let digest = |text: &str| Digest::of(text.as_bytes());
        let blob = |name: &str, type_: &str, media_type: &str, content: &str| Resource {
            name: name.into(),
            type_: type_.into(),
            version: "1.0.0".into(),
            access: Access::LocalBlob { local_reference: digest(content), media_type: media_type.into() },
        };
        let image = Resource {
            name: "web".into(),
            type_: "ociArtifact".into(),
            version: "1.0.0".into(),
            access: Access::OciArtifact { image_reference: "example.test/web:1".into() },
        };
        let tar = "application/x-tar";
        let descriptor = ComponentDescriptor {
            name: "example.test/module".into(),
            version: "1.0.0".into(),
            resources: vec![
                blob("raw-manifest", "directoryTree", tar, "a"),
                blob("crds", "directoryTree", tar, "b"),
                blob("plain", "yaml", "application/yaml", "c"),
                blob("chart", "helmChart", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "d"),
                blob("twice", "yaml", "application/yaml", "e"),
                blob("twice", "yaml", "application/yaml", "f"),
                image,
            ],
        };
        let source = Source {
            repo: String::new(),
            layer: String::new(),
            type_: SourceType::OciDir,
            images: Vec::new(),
            further: further(&descriptor),
        };
        let layers = source.layers(&["plain".into(), "crds".into(), "chart".into()]).unwrap();
        let found: Vec<_> =
            layers.iter().map(|l| (l.name.as_str(), l.ref_.clone(), l.type_.as_str())).collect();
        let of = |text: &str| digest(text).as_str().to_owned();
        assert_eq!(
            found,
            [("plain", of("c"), "oci-ref"), ("crds", of("b"), "oci-dir"), ("chart", of("d"), "helm-chart")]
        );
        for (name, says) in
            [("twice", "several"), ("web", "no resource 'web'"), ("raw-manifest", "no resource")]
        {
            let why = source.layers(&[name.into()]).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
