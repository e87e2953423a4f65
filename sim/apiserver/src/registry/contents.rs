//! Registry state, without I/O.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Maximum open uploads; the oldest is dropped.
const UPLOADS: usize = 64;
/// For repository and tag names.
const MAX_NAME: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
    Ping,
    Tags(&'a str),
    Blob(&'a str, &'a str),
    Manifest(&'a str, &'a str),
    BeginUpload(&'a str),
    Upload(&'a str, &'a str),
}

/// The caller drops the body for HEAD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

/// Keyed by repository and digest.
type Stored<T> = BTreeMap<(String, String), T>;

#[derive(Debug, Default)]
pub(super) struct Contents {
    blobs: Stored<Bytes>,
    /// Media type, content.
    manifests: Stored<(String, Bytes)>,
    tags: BTreeMap<String, BTreeMap<String, String>>,
    /// Repositories by number.
    uploads: BTreeMap<u64, String>,
    begun: u64,
    /// Bytes.
    used: u64,
    limit: u64,
}

impl Contents {
    pub(super) fn with_limit(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// `digest` is from the query, `media` the body's type.
    pub(super) fn answer(
        &mut self,
        method: &str,
        call: &Call<'_>,
        digest: Option<&str>,
        media: &str,
        body: Bytes,
    ) -> Answer {
        match (method, call) {
            ("GET" | "HEAD", Call::Ping) => json_answer(200, &json!({})),
            ("GET" | "HEAD", Call::Tags(name)) => match self.tags.get(*name) {
                Some(tags) => {
                    json_answer(200, &json!({"name": name, "tags": tags.keys().collect::<Vec<_>>()}))
                }
                None => error(404, "NAME_UNKNOWN", "there is no such repository"),
            },
            ("GET" | "HEAD", Call::Blob(name, digest)) => {
                match self.blobs.get(&((*name).to_owned(), (*digest).to_owned())) {
                    Some(bytes) => content(bytes, "application/octet-stream", digest),
                    None => error(404, "BLOB_UNKNOWN", "the repository has no such blob"),
                }
            }
            ("GET" | "HEAD", Call::Manifest(name, reference)) => self.manifest(name, reference),
            ("PUT", Call::Manifest(name, reference)) => self.put_manifest(name, reference, media, body),
            ("POST", Call::BeginUpload(name)) => match digest {
                Some(digest) => self.put_blob(name, digest, body),
                None => self.begin(name),
            },
            ("PUT", Call::Upload(name, number)) => {
                let known = number.parse().ok().filter(|n| self.uploads.get(n).is_some_and(|of| of == name));
                match (known, digest) {
                    (Some(number), Some(digest)) => {
                        let answer = self.put_blob(name, digest, body);
                        self.uploads.remove(&number);
                        answer
                    }
                    (None, _) => error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload was begun"),
                    (_, None) => error(400, "DIGEST_INVALID", "an upload ends with ?digest=sha256:..."),
                }
            }
            _ => error(
                405,
                "UNSUPPORTED",
                "this registry takes whole uploads, and gives and keeps what it has",
            ),
        }
    }

    fn manifest(&self, name: &str, reference: &str) -> Answer {
        let tagged = || self.tags.get(name).and_then(|tags| tags.get(reference)).cloned();
        let digest = if reference.starts_with("sha256:") { Some(reference.to_owned()) } else { tagged() };
        let found = digest.and_then(|digest| {
            let (media, bytes) = self.manifests.get(&(name.to_owned(), digest.clone()))?;
            Some(content(bytes, media, &digest))
        });
        found.unwrap_or_else(|| error(404, "MANIFEST_UNKNOWN", "the repository has no such manifest"))
    }

    fn put_manifest(&mut self, name: &str, reference: &str, media: &str, body: Bytes) -> Answer {
        let digest = digest_of(&body);
        if !is_name(name) || !is_reference(reference) {
            return error(400, "NAME_INVALID", "neither a name nor a tag may look like this");
        }
        if reference.starts_with("sha256:") && reference != digest {
            return error(400, "DIGEST_INVALID", "the manifest has another digest");
        }
        let Ok(manifest) = serde_json::from_slice::<Value>(&body) else {
            return error(400, "MANIFEST_INVALID", "the manifest is no JSON");
        };
        let layers = manifest["layers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let needed: BTreeSet<&str> =
            layers.iter().chain([&manifest["config"]]).filter_map(|d| d["digest"].as_str()).collect();
        if needed.iter().any(|d| !self.blobs.contains_key(&(name.to_owned(), (*d).to_owned()))) {
            return error(400, "MANIFEST_BLOB_UNKNOWN", "the manifest names a blob that was not pushed");
        }
        let key = (name.to_owned(), digest.clone());
        if !self.manifests.contains_key(&key) {
            if !self.reserve(&body) {
                return full();
            }
            self.manifests.insert(key, (media.to_owned(), body));
        }
        if !reference.starts_with("sha256:") {
            let known = self.tags.get(name).is_some_and(|tags| tags.contains_key(reference));
            if !known && !self.reserve(&Bytes::new()) {
                return full();
            }
            self.tags.entry(name.to_owned()).or_default().insert(reference.to_owned(), digest.clone());
        }
        created(format!("/v2/{name}/manifests/{digest}"), digest)
    }

    fn begin(&mut self, name: &str) -> Answer {
        if !is_name(name) {
            return error(400, "NAME_INVALID", "a repository's name may not look like this");
        }
        if self.uploads.len() >= UPLOADS {
            self.uploads.pop_first();
        }
        self.begun += 1;
        self.uploads.insert(self.begun, name.to_owned());
        let location = format!("/v2/{name}/blobs/uploads/{}", self.begun);
        let headers = vec![("location", location), ("range", "0-0".to_owned())];
        Answer { code: 202, headers, body: Bytes::new() }
    }

    fn put_blob(&mut self, name: &str, digest: &str, body: Bytes) -> Answer {
        if !is_name(name) {
            return error(400, "NAME_INVALID", "a repository's name may not look like this");
        }
        if digest_of(&body) != digest {
            return error(400, "DIGEST_INVALID", "the blob has another digest");
        }
        let key = (name.to_owned(), digest.to_owned());
        if !self.blobs.contains_key(&key) {
            if !self.reserve(&body) {
                return full();
            }
            self.blobs.insert(key, body);
        }
        created(format!("/v2/{name}/blobs/{digest}"), digest.to_owned())
    }

    fn reserve(&mut self, body: &Bytes) -> bool {
        // Small entries also cost memory.
        let cost = body.len() as u64 + 1024;
        let fits = self.used + cost <= self.limit;
        if fits {
            self.used += cost;
        }
        fits
    }
}

pub(super) fn call(path: &str) -> Option<Call<'_>> {
    let rest = path.strip_prefix("/v2/").or_else(|| path.strip_prefix("/v2"))?;
    if rest.is_empty() {
        return Some(Call::Ping);
    }
    if let Some(name) = rest.strip_suffix("/tags/list") {
        return Some(Call::Tags(name));
    }
    if let Some((name, number)) = rest.split_once("/blobs/uploads") {
        return Some(match number.trim_start_matches('/') {
            "" => Call::BeginUpload(name),
            number => Call::Upload(name, number),
        });
    }
    if let Some((name, digest)) = rest.rsplit_once("/blobs/") {
        return Some(Call::Blob(name, digest));
    }
    rest.rsplit_once("/manifests/").map(|(name, reference)| Call::Manifest(name, reference))
}

fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    name.len() <= MAX_NAME && name.split('/').all(|part| !part.is_empty() && part.chars().all(good))
}

fn is_reference(reference: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    !reference.is_empty() && reference.len() <= MAX_NAME && reference.chars().all(good)
}

fn content(bytes: &Bytes, media: &str, digest: &str) -> Answer {
    let headers = vec![("content-type", media.to_owned()), ("docker-content-digest", digest.to_owned())];
    Answer { code: 200, headers, body: bytes.clone() }
}

fn created(location: String, digest: String) -> Answer {
    let headers = vec![("location", location), ("docker-content-digest", digest)];
    Answer { code: 201, headers, body: Bytes::new() }
}

fn json_answer(code: u16, body: &Value) -> Answer {
    let headers = vec![("content-type", "application/json".to_owned())];
    Answer { code, headers, body: body.to_string().into() }
}

pub(super) fn error(code: u16, word: &str, message: &str) -> Answer {
    json_answer(code, &json!({"errors": [{"code": word, "message": message}]}))
}

fn full() -> Answer {
    error(507, "DENIED", "the registry is full")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(contents: &mut Contents, method: &str, path: &str, digest: Option<&str>, body: &str) -> Answer {
        let call = call(path).unwrap();
        contents.answer(method, &call, digest, "application/x", Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn pushed_blobs_are_returned_and_digests_are_checked() {
        let mut contents = Contents::with_limit(1 << 20);
        let begun = ask(&mut contents, "POST", "/v2/a/b/blobs/uploads/", None, "");
        assert_eq!(begun.code, 202);
        let location = begun.headers[0].1.clone();
        let digest = digest_of(b"blob");
        assert_eq!(ask(&mut contents, "PUT", &location, Some("sha256:00"), "blob").code, 400);
        let begun = ask(&mut contents, "POST", "/v2/a/b/blobs/uploads", None, "");
        assert_eq!(ask(&mut contents, "PUT", &begun.headers[0].1, Some(&digest), "blob").code, 201);
        assert_eq!(ask(&mut contents, "PUT", &begun.headers[0].1, Some(&digest), "blob").code, 404);
        let path = format!("/v2/a/b/blobs/{digest}");
        assert_eq!(ask(&mut contents, "GET", &path, None, "").body, "blob");
        assert_eq!(ask(&mut contents, "GET", &format!("/v2/c/blobs/{digest}"), None, "").code, 404);

        let manifest = json!({"config": {"digest": digest}, "layers": []}).to_string();
        assert_eq!(ask(&mut contents, "PUT", "/v2/a/b/manifests/1.0.0", None, &manifest).code, 201);
        let by_tag = ask(&mut contents, "GET", "/v2/a/b/manifests/1.0.0", None, "");
        assert_eq!((by_tag.code, by_tag.body.as_ref()), (200, manifest.as_bytes()));
        let by_digest = format!("/v2/a/b/manifests/{}", by_tag.headers[1].1);
        assert_eq!(ask(&mut contents, "GET", &by_digest, None, "").body, manifest);
        let tags = ask(&mut contents, "GET", "/v2/a/b/tags/list", None, "").body;
        assert_eq!(serde_json::from_slice::<Value>(&tags).unwrap()["tags"], json!(["1.0.0"]));

        let incomplete = json!({"layers": [{"digest": digest_of(b"other")}]}).to_string();
        assert_eq!(ask(&mut contents, "PUT", "/v2/a/b/manifests/2.0.0", None, &incomplete).code, 400);
        assert_eq!(ask(&mut contents, "PATCH", &location, None, "x").code, 405);
    }

    #[test]
    fn the_registry_refuses_pushes_over_its_limit() {
        let mut contents = Contents::with_limit(1500);
        let push = |contents: &mut Contents, body: &str| {
            ask(contents, "POST", "/v2/a/blobs/uploads/", Some(&digest_of(body.as_bytes())), body).code
        };
        assert_eq!((push(&mut contents, "one"), push(&mut contents, "two")), (201, 507));
        assert_eq!(push(&mut contents, "one"), 201, "what is there needs no room");
        let tagged = ask(&mut contents, "PUT", "/v2/a/manifests/1.0.0", None, "{}");
        assert_eq!(tagged.code, 507, "manifests and tags need room, too");
        for _ in 0..UPLOADS * 2 {
            assert_eq!(ask(&mut contents, "POST", "/v2/a/blobs/uploads/", None, "").code, 202);
        }
        assert_eq!(contents.uploads.len(), UPLOADS);
    }
}
