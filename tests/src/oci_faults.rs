//! Broken modules: a registry that damages blobs, and a component with an invalid YAML manifest.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, StatusCode, Uri, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use parking_lot::Mutex;
use tidewatch_oci::{BaseUrl, Digest, ModulePackage, Packed, pack};
use tokio::{net::TcpListener, task::JoinSet};

/// Limit on a forwarded blob's bytes.
const MAX_BLOB: usize = 16 * 1024 * 1024;
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Rate limiting (429): `Retry-After` seconds, and the count of rejected requests.
#[derive(Debug, Default)]
struct Limit {
    seconds: Mutex<Option<u64>>,
    sent_away: AtomicUsize,
}

/// A registry proxy that flips bits in chosen blobs and can reject all requests. It lives in its tokio
/// runtime until dropped.
#[derive(Debug)]
pub struct DamagingRegistry {
    host: String,
    damaged: Arc<Mutex<BTreeSet<String>>>,
    limit: Arc<Limit>,
    _serving: JoinSet<()>,
}

impl DamagingRegistry {
    /// Starts a proxy before `upstream` (`host:port`, plain HTTP).
    pub async fn start(upstream: &str) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let host = listener.local_addr()?.to_string();
        let damaged: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let limit: Arc<Limit> = Arc::default();
        let (upstream, theirs, their_limit) = (upstream.to_owned(), Arc::clone(&damaged), Arc::clone(&limit));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let (upstream, damaged) = (upstream.clone(), Arc::clone(&theirs));
                let limit = Arc::clone(&their_limit);
                let service = service_fn(move |request| {
                    let (upstream, damaged) = (upstream.clone(), Arc::clone(&damaged));
                    let limit = Arc::clone(&limit);
                    async move {
                        if let Some(seconds) = *limit.seconds.lock() {
                            limit.sent_away.fetch_add(1, Ordering::SeqCst);
                            return Ok::<_, Infallible>(too_many(seconds));
                        }
                        Ok(pass_on(&upstream, &damaged, request).await)
                    }
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move { drop(connection.await) });
            }
        });
        Ok(Self { host, damaged, limit, _serving: serving })
    }

    /// Returns `127.0.0.1:port`, as in an image reference.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Rejects all requests with this `Retry-After`; `None` stops it.
    pub fn limit(&self, seconds: Option<u64>) {
        *self.limit.seconds.lock() = seconds;
    }

    /// Returns the number of rejected requests.
    pub fn sent_away(&self) -> usize {
        self.limit.sent_away.load(Ordering::SeqCst)
    }

    /// Flips one bit in this blob.
    pub fn damage(&self, digest: &Digest) {
        self.damaged.lock().insert(digest.as_str().to_owned());
    }

    /// Serves this blob unchanged.
    pub fn repair(&self, digest: &Digest) {
        self.damaged.lock().remove(digest.as_str());
    }
}

fn too_many(seconds: u64) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    answer
}

async fn pass_on(
    upstream: &str,
    damaged: &Mutex<BTreeSet<String>>,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    match fetch(upstream, request).await {
        Ok(mut answer) => {
            let digest = path.rsplit('/').next().unwrap_or_default();
            if path.contains("/blobs/") && damaged.lock().contains(digest) {
                let mut bytes = answer.body().to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last ^= 1;
                }
                *answer.body_mut() = bytes.into();
            }
            answer.map(Full::new)
        }
        Err(error) => {
            let mut answer = Response::new(Full::new(format!("{error:#}").into()));
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            answer
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
async fn fetch(upstream: &str, request: Request<Incoming>) -> Result<Response<Bytes>> {
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
    let mut onward = Request::builder().method(request.method()).uri(format!("http://{upstream}{path}"));
    for value in request.headers().get_all(header::ACCEPT) {
        onward = onward.header(header::ACCEPT, value);
    }
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let (parts, body) = client.request(onward.body(Full::default())?).await?.into_parts();
    let body = Limited::new(body, MAX_BLOB).collect().await.map_err(|e| anyhow::anyhow!(e))?.to_bytes();
    let mut answer = Response::builder().status(parts.status);
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::ETAG] {
        if let Some(value) = parts.headers.get(&name) {
            answer = answer.header(name, value);
        }
    }
    Ok(answer.body(body)?)
}

/// Packs a module with an invalid manifest: replaces `good` with `bad`.
///
/// Both have the same length and `good` occurs once, so the archive stays valid. All digests are recomputed.
pub fn pack_with_fault(package: &ModulePackage, good: &str, bad: &str) -> Result<Packed> {
    ensure!(good.len() == bad.len(), "both texts must have the same length");
    let mut packed = pack(package, &BaseUrl::parse("registry.example.org", &[])?)?;
    let old = packed.raw_manifest_digest.clone();
    let layer = packed.layers.iter_mut().find(|l| l.digest == old).context("no layer with the manifest")?;
    layer.data = replaced(&layer.data, good, bad)?;
    layer.digest = Digest::of(&layer.data);
    packed.raw_manifest_digest = layer.digest.clone();
    let new = layer.digest.clone();

    let descriptor = packed.layers.first_mut().context("no descriptor")?;
    let old_descriptor = descriptor.digest.clone();
    descriptor.data = replaced(&descriptor.data, old.hex(), new.hex())?;
    descriptor.digest = Digest::of(&descriptor.data);
    let new_descriptor = descriptor.digest.clone();

    let old_config = packed.config.digest.clone();
    packed.config.data = replaced(&packed.config.data, old_descriptor.hex(), new_descriptor.hex())?;
    packed.config.digest = Digest::of(&packed.config.data);

    for (from, to) in [(&old, &new), (&old_descriptor, &new_descriptor), (&old_config, &packed.config.digest)]
    {
        packed.manifest = replaced(&packed.manifest, from.hex(), to.hex())?;
    }
    packed.digest = Digest::of(&packed.manifest);
    Ok(packed)
}

/// Replaces the only occurrence.
fn replaced(data: &[u8], from: &str, to: &str) -> Result<Vec<u8>> {
    let (mut data, from, to) = (data.to_vec(), from.as_bytes(), to.as_bytes());
    let places: Vec<usize> =
        data.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at).collect();
    ensure!(!places.is_empty(), "what is to be replaced is not there");
    for at in places {
        data[at..at + to.len()].copy_from_slice(to);
    }
    Ok(data)
}

/// Pushes a package to `host:port[/path]` without validation.
pub async fn push_packed(registry: &str, package: &ModulePackage, packed: &Packed) -> Result<()> {
    let ModulePackage { component_name, version, .. } = package;
    let (host, place) =
        registry.split_once('/').map_or((registry, String::new()), |(h, p)| (h, format!("{p}/")));
    let repository = format!("http://{host}/v2/{place}component-descriptors/{component_name}");
    for blob in packed.layers.iter().chain([&packed.config]) {
        let begun = request("POST", &format!("{repository}/blobs/uploads/"), "", Bytes::new()).await?;
        let location =
            begun.headers().get(header::LOCATION).context("an upload has no location")?.to_str()?;
        let target: Uri = location.parse()?;
        let path = target.path_and_query().context("an upload's location has no path")?.as_str();
        let and = if path.contains('?') { '&' } else { '?' };
        let url = format!("http://{host}{path}{and}digest={}", blob.digest.as_str());
        request("PUT", &url, "application/octet-stream", blob.data.clone().into()).await?;
    }
    let url = format!("{repository}/manifests/{version}");
    request("PUT", &url, MANIFEST_TYPE, packed.manifest.clone().into()).await?;
    Ok(())
}

async fn request(method: &str, url: &str, content_type: &str, body: Bytes) -> Result<Response<Incoming>> {
    let mut request = Request::builder().method(method).uri(url);
    if !content_type.is_empty() {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let answer = client.request(request.body(Full::new(body))?).await?;
    if !answer.status().is_success() {
        bail!("{method} {url} answered {}", answer.status());
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use tidewatch_oci::{ComponentDescriptor, manifests_of};

    use super::*;

    #[test]
    fn a_packed_fault_affects_only_the_manifest() {
        let package = ModulePackage {
            sources: Vec::new(),
            component_name: "tidewatch.dev/module/garbled".to_owned(),
            version: "1.0.0".to_owned(),
            raw_manifest: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {}\n".to_owned(),
            default_cr: None,
            images: Vec::new(),
        };
        let packed = pack_with_fault(&package, "data: {}", "data: {{").unwrap();
        let layer = packed.layers.iter().find(|l| l.digest == packed.raw_manifest_digest).unwrap();
        assert_eq!(Digest::of(&layer.data), layer.digest);
        assert!(
            manifests_of(&layer.data, &layer.media_type).unwrap_err().to_string().contains("invalid YAML")
        );
        let descriptor = &packed.layers[0];
        let parsed = ComponentDescriptor::parse(&descriptor.data, &descriptor.media_type).unwrap();
        assert_eq!(parsed.raw_manifest().unwrap().local_blob().unwrap().0, &packed.raw_manifest_digest);
        assert!(String::from_utf8(packed.manifest).unwrap().contains(packed.config.digest.as_str()));
    }
}
