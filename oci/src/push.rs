//! Pushes packed modules.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::stream::{self, Stream};
use oci_client::{
    client::{ClientConfig, ClientProtocol},
    errors::{OciDistributionError, OciErrorCode},
    secrets::RegistryAuth,
};

use super::{
    Credentials, Digest, ModulePackage, OciError, Packed, PackedBlob, Reference, Registry, Scheme, pack,
    reference::Selector,
    registry::{MANIFEST_TYPE, within},
};

/// A few blobs, with several requests each.
const PUSH_DEADLINE: Duration = Duration::from_mins(2);
/// Slower connections exceed the deadline.
const MIN_BYTES_PER_SECOND: u64 = 64 * 1024;
/// Bytes between progress reports.
const CHUNK: usize = 64 * 1024;

/// Result of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Digest of the image manifest.
    pub digest: Digest,
    /// Digest of the `raw-manifest` layer.
    pub raw_manifest_digest: Digest,
}

/// Packs a module and pushes it to `<base>/component-descriptors/<component>:<version>`.
///
/// Skips existing blobs, and moves an existing tag. Deadline: two minutes, plus a second per 64 KiB. Failed pushes
/// are repeatable. For tools only: answers are less bounded than by [`Registry`].
pub async fn push(registry: &Registry, base_url: &str, package: &ModulePackage) -> Result<Pushed, OciError> {
    push_with(registry, base_url, package, &PushOptions { overwrite: true, ..PushOptions::default() }).await
}

/// Like [`push`], but keeps an existing version with other content.
///
/// # Errors
/// [`OciError::Exists`] for such a version.
pub async fn push_new(
    registry: &Registry,
    base_url: &str,
    package: &ModulePackage,
) -> Result<Pushed, OciError> {
    push_with(registry, base_url, package, &PushOptions::default()).await
}

/// Receives sent and total bytes.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Options of a push.
#[derive(Clone, Default)]
pub struct PushOptions {
    /// Whether to replace a version with other content.
    pub overwrite: bool,
    /// Progress observer.
    pub progress: Option<Progress>,
}

impl fmt::Debug for PushOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushOptions").field("overwrite", &self.overwrite).finish_non_exhaustive()
    }
}

/// [`push`] or [`push_new`], by option.
pub async fn push_with(
    registry: &Registry,
    base_url: &str,
    package: &ModulePackage,
    options: &PushOptions,
) -> Result<Pushed, OciError> {
    let home = registry.base(base_url)?;
    let packed = pack(package, &home)?;
    let target = home.component(&package.component_name, &package.version)?;
    let upload = Upload::new(&packed, options);
    let deadline = PUSH_DEADLINE + Duration::from_secs(upload.size / MIN_BYTES_PER_SECOND);
    within(deadline, &format!("pushing {target}"), upload.run(registry, &target)).await?;
    Ok(Pushed { digest: packed.digest, raw_manifest_digest: packed.raw_manifest_digest })
}

struct Upload<'a> {
    packed: &'a Packed,
    options: &'a PushOptions,
    size: u64,
    sent: Arc<AtomicU64>,
}

impl<'a> Upload<'a> {
    fn new(packed: &'a Packed, options: &'a PushOptions) -> Self {
        let size = packed.blobs().map(|blob| blob.data.len() as u64).sum();
        Self { packed, options, size, sent: Arc::default() }
    }

    async fn run(&self, registry: &Registry, target: &Reference) -> Result<(), OciError> {
        let failed = |error| failure(target, error);
        let Target { client, image, auth } = connect(registry, target).await?;
        if !self.options.overwrite {
            match client.fetch_manifest_digest(&image, &auth).await.map_err(failed) {
                Ok(existing) if existing != self.packed.digest.as_str() => {
                    return Err(OciError::Exists { subject: target.to_string() });
                }
                Ok(_) | Err(OciError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for blob in self.packed.blobs() {
            let (digest, size) = (blob.digest.as_str(), blob.data.len() as u64);
            if client.blob_exists(&image, digest).await.map_err(failed)? {
                report(self.options.progress.as_ref(), &self.sent, size, self.size);
            } else {
                let chunks = self.chunks(blob);
                client.push_blob_stream(&image, chunks, digest, Some(size)).await.map_err(failed)?;
            }
        }
        let content_type = http::HeaderValue::from_static(MANIFEST_TYPE);
        let manifest = self.packed.manifest.clone();
        client.push_manifest_raw(&image, manifest, content_type).await.map_err(failed)?;
        Ok(())
    }

    /// Chunks of a blob, each reported when requested.
    fn chunks(
        &self,
        blob: &PackedBlob,
    ) -> impl Stream<Item = Result<Bytes, OciDistributionError>> + Send + use<> {
        let (progress, sent, total) = (self.options.progress.clone(), Arc::clone(&self.sent), self.size);
        let mut rest = Bytes::from(blob.data.clone());
        stream::iter(std::iter::from_fn(move || {
            let chunk = rest.split_to(rest.len().min(CHUNK));
            report(progress.as_ref(), &sent, chunk.len() as u64, total);
            (!chunk.is_empty()).then_some(Ok(chunk))
        }))
    }
}

fn report(progress: Option<&Progress>, sent: &AtomicU64, more: u64, total: u64) {
    let sent = sent.fetch_add(more, Ordering::Relaxed) + more;
    if let Some(progress) = progress {
        progress(sent, total);
    }
}

struct Target {
    client: oci_client::Client,
    image: oci_client::Reference,
    auth: RegistryAuth,
}

async fn connect(registry: &Registry, target: &Reference) -> Result<Target, OciError> {
    let config = ClientConfig {
        protocol: match target.scheme {
            Scheme::Http => ClientProtocol::Http,
            Scheme::Https => ClientProtocol::Https,
        },
        use_monolithic_push: true,
        connect_timeout: Some(Duration::from_secs(10)),
        ..ClientConfig::default()
    };
    let client = oci_client::Client::try_from(config).map_err(|error| failure(target, error))?;
    let auth = match registry.credentials(&target.registry) {
        Credentials::Anonymous => RegistryAuth::Anonymous,
        Credentials::Basic { username, password } => RegistryAuth::Basic(username, password),
    };
    client.store_auth_if_needed(&target.registry, &auth).await;
    let Selector::Tag(tag) = &target.selector else {
        return Err(OciError::Invalid { subject: "push target", reason: "it has no tag".to_owned() });
    };
    let image =
        oci_client::Reference::with_tag(target.registry.clone(), target.repository.clone(), tag.clone());
    Ok(Target { client, image, auth })
}

/// Drops the library's messages, which contain URLs and whole answers.
fn failure(target: &Reference, error: OciDistributionError) -> OciError {
    let registry = target.registry.clone();
    match error {
        OciDistributionError::UnauthorizedError { .. } | OciDistributionError::AuthenticationFailure(_) => {
            OciError::Unauthorized { registry, repository: target.repository.clone() }
        }
        OciDistributionError::ServerError { code, .. } => by_status(target, code),
        OciDistributionError::RequestError(error) => match error.status() {
            Some(status) => by_status(target, status.as_u16()),
            None => OciError::Unreachable { registry, source: Arc::new(error.without_url()) },
        },
        OciDistributionError::ImageManifestNotFoundError(_) => {
            OciError::NotFound { subject: target.to_string() }
        }
        OciDistributionError::RegistryError { envelope, .. }
            if envelope.errors.iter().any(|error| is_missing(&error.code)) =>
        {
            OciError::NotFound { subject: target.to_string() }
        }
        OciDistributionError::RegistryError { envelope, .. }
            if envelope.errors.iter().any(|error| is_denial(&error.code)) =>
        {
            OciError::Unauthorized { registry, repository: target.repository.clone() }
        }
        OciDistributionError::RegistryError { envelope, .. } => {
            let codes: Vec<_> = envelope.errors.iter().map(|error| format!("{:?}", error.code)).collect();
            OciError::Refused { registry, reason: format!("it says {}", codes.join(", ")) }
        }
        _ => OciError::Refused { registry, reason: "its answer is not one that a registry gives".to_owned() },
    }
}

/// Codes for a missing tag or repository.
const fn is_missing(code: &OciErrorCode) -> bool {
    matches!(code, OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown | OciErrorCode::NotFound)
}

const fn is_denial(code: &OciErrorCode) -> bool {
    matches!(code, OciErrorCode::Denied | OciErrorCode::Unauthorized)
}

fn by_status(target: &Reference, status: u16) -> OciError {
    let registry = target.registry.clone();
    match status {
        401 | 403 => OciError::Unauthorized { registry, repository: target.repository.clone() },
        404 => OciError::NotFound { subject: target.to_string() },
        429 => OciError::RateLimited { registry, retry_after: None },
        status => OciError::Status { registry, status, retry_after: None },
    }
}
