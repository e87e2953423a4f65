use std::fmt;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::error::OciError;

/// Digest: `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

impl Digest {
    /// Hashes bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(format!("sha256:{}", hex::encode(Sha256::digest(bytes))))
    }

    /// Parses a digest. Only sha256 is accepted.
    pub fn parse(text: &str) -> Result<Self, OciError> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        if hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(invalid("digest", "it must be sha256: and 64 lower-case hex digits"))
        }
    }

    /// `sha256:...`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Hex digits.
    pub fn hex(&self) -> &str {
        self.0.trim_start_matches("sha256:")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Protocol of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// For loopback and insecure hosts.
    Http,
    /// For other hosts.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Registry address with an optional path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    scheme: Scheme,
    registry: String,
    path: String,
}

impl BaseUrl {
    /// Parses `[http://|https://]host[:port][/path]`. Refuses user names and queries.
    ///
    /// Only loopback and insecure hosts may use http. It is their default.
    pub fn parse(text: &str, insecure: &[String]) -> Result<Self, OciError> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Some(Scheme::Http), rest),
            Some(("https", rest)) => (Some(Scheme::Https), rest),
            Some(_) => return Err(invalid("registry address", "only http and https are known")),
            None => (None, text),
        };
        let (registry, path) =
            rest.trim_end_matches('/').split_once('/').unwrap_or((rest.trim_end_matches('/'), ""));
        check_host(registry)?;
        if !path.is_empty() {
            check_repository(path)?;
        }
        let plain = allows_plain_http(registry, insecure);
        let scheme = scheme.unwrap_or(if plain { Scheme::Http } else { Scheme::Https });
        if scheme == Scheme::Http && !plain {
            return Err(OciError::PlainHttp { registry: registry.to_owned() });
        }
        Ok(Self { scheme, registry: registry.to_owned(), path: path.to_owned() })
    }

    /// `host[:port]`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Protocol.
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// OCM repository context. Only plain http needs a scheme.
    pub(super) fn repository_context(&self) -> Value {
        let Self { scheme, registry, path } = self;
        let base_url = match scheme {
            Scheme::Http => format!("http://{registry}"),
            Scheme::Https => registry.clone(),
        };
        let mut context =
            json!({"type": "OCIRegistry", "componentNameMapping": "urlPath", "baseUrl": base_url});
        if !path.is_empty() {
            context["subPath"] = path.as_str().into();
        }
        context
    }

    /// Reference of a component's descriptor. OCI tags allow no `+`, so OCM writes `.build-`.
    pub fn component(&self, component: &str, version: &str) -> Result<Reference, OciError> {
        let tag = version.replace('+', ".build-");
        check_tag(&tag)?;
        self.in_component(component, Selector::Tag(tag))
    }

    /// Reference of a component's blob or manifest.
    pub fn component_blob(&self, component: &str, digest: Digest) -> Result<Reference, OciError> {
        self.in_component(component, Selector::Digest(digest))
    }

    fn in_component(&self, component: &str, selector: Selector) -> Result<Reference, OciError> {
        let mut repository = self.path.clone();
        if !repository.is_empty() {
            repository.push('/');
        }
        repository.push_str("component-descriptors/");
        repository.push_str(component);
        check_repository(&repository)?;
        Ok(Reference { scheme: self.scheme, registry: self.registry.clone(), repository, selector })
    }
}

/// Manifest or blob of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Movable name.
    Tag(String),
    /// Immutable content.
    Digest(Digest),
}

/// Resolved reference to an artifact or blob.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Protocol.
    pub scheme: Scheme,
    /// `host[:port]`.
    pub registry: String,
    /// Repository, without outer slashes.
    pub repository: String,
    /// Tag or digest.
    pub selector: Selector,
}

impl Reference {
    /// Parses `[scheme://]host[:port]/repository(:tag|@digest)`; see [`BaseUrl::parse`].
    pub fn parse(text: &str, insecure: &[String]) -> Result<Self, OciError> {
        let (name, selector) = if let Some((name, digest)) = text.rsplit_once('@') {
            (name, Selector::Digest(Digest::parse(digest)?))
        } else {
            match text.rsplit_once(':') {
                Some((name, tag)) if !tag.contains('/') => {
                    check_tag(tag)?;
                    (name, Selector::Tag(tag.to_owned()))
                }
                _ => return Err(invalid("reference", "it needs a tag or a digest")),
            }
        };
        let base = BaseUrl::parse(name, insecure)?;
        check_repository(&base.path)?;
        Ok(Self { scheme: base.scheme, registry: base.registry, repository: base.path, selector })
    }

    /// Tag or digest.
    pub fn selector_text(&self) -> &str {
        match &self.selector {
            Selector::Tag(tag) => tag,
            Selector::Digest(digest) => digest.as_str(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if matches!(self.selector, Selector::Tag(_)) { ':' } else { '@' };
        write!(f, "{}/{}{separator}{}", self.registry, self.repository, self.selector_text())
    }
}

pub(super) fn allows_plain_http(registry: &str, insecure: &[String]) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => registry,
    };
    matches!(host, "localhost" | "127.0.0.1" | "[::1]") || insecure.iter().any(|listed| listed == registry)
}

fn check_host(registry: &str) -> Result<(), OciError> {
    let (host, port) = if registry.starts_with('[') {
        let (host, rest) = registry.split_once(']').unwrap_or_default();
        let known = host.trim_start_matches('[').parse::<std::net::Ipv6Addr>().is_ok();
        (if known { "v6" } else { "" }, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("443")))
    } else {
        match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, Some("443")),
        }
    };
    let host_ok = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
    let port_ok = port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if host_ok && port_ok { Ok(()) } else { Err(invalid("registry address", "it must be host[:port]")) }
}

/// Grammar of the distribution specification. Keeps `..` and `?` out of URLs.
fn check_repository(repository: &str) -> Result<(), OciError> {
    let part_ok = |part: &str| {
        let bytes = part.as_bytes();
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        edge(bytes.first())
            && edge(bytes.last())
            && !part.contains("..")
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(b))
    };
    if repository.len() <= 255 && repository.split('/').all(part_ok) {
        Ok(())
    } else {
        Err(invalid("repository", "it must be lower-case names joined by '/', at most 255 characters"))
    }
}

fn check_tag(tag: &str) -> Result<(), OciError> {
    let mut bytes = tag.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    if first && tag.len() <= 128 && bytes.all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b)) {
        Ok(())
    } else {
        Err(invalid(
            "version",
            "it must be usable as an OCI tag: letters, digits, '_', '.', '-', at most 128",
        ))
    }
}

fn invalid(subject: &'static str, reason: &str) -> OciError {
    OciError::Invalid { subject, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_used_only_where_allowed() {
        let insecure = ["registry.lab:5000".to_owned()];
        let scheme = |text: &str| BaseUrl::parse(text, &insecure).map(|base| base.scheme.as_str());
        for (text, expected) in [
            ("localhost:5111", Some("http")),
            ("http://127.0.0.1:5111/", Some("http")),
            ("http://[::1]:80", Some("http")),
            ("https://localhost:5111", Some("https")),
            ("registry.lab:5000", Some("http")),
            ("registry.lab", Some("https")),
            ("europe-docker.pkg.dev/kyma-project/prod", Some("https")),
            ("http://registry.lab", None),
            ("http://localhost.evil.example", None),
            ("http://localhost:80@evil.example", None),
            ("http://127.0.0.1.evil.example", None),
        ] {
            assert_eq!(scheme(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn refuses_references_altering_the_url() {
        for text in [
            "",
            "ftp://registry",
            "registry/..",
            "registry/a/../b",
            "registry/A",
            "registry//a",
            "user:secret@registry/a",
            "registry:0",
            "registry:99999",
            "registry?x=1",
            "[::1",
            "[zz]:1",
        ] {
            assert!(BaseUrl::parse(text, &[]).is_err(), "{text}");
        }
        let base = BaseUrl::parse("registry.example", &[]).unwrap();
        for component in ["", "../x", "a//b", "a?b", "a/", "A"] {
            assert!(base.component(component, "1.0.0").is_err(), "{component}");
        }
        for version in ["", "../1", "1 0", "-1", "a/b"] {
            assert!(base.component("a", version).is_err(), "{version}");
        }
    }

    #[test]
    fn component_references_round_trip() {
        let base = BaseUrl::parse("europe-docker.pkg.dev/kyma-project/prod", &[]).unwrap();
        let reference = base.component("kyma-project.io/module/template-operator", "1.0.5+build7").unwrap();
        assert_eq!(
            reference.to_string(),
            "europe-docker.pkg.dev/kyma-project/prod/component-descriptors/kyma-project.io/module/\
             template-operator:1.0.5.build-build7"
        );
        assert_eq!(Reference::parse(&reference.to_string(), &[]).unwrap(), reference);
        let blob = base.component_blob("kyma-project.io/a", Digest::of(b"x")).unwrap();
        assert_eq!(Reference::parse(&blob.to_string(), &[]).unwrap(), blob);
    }

    #[test]
    fn digests_are_parsed_and_validated() {
        let digest = Digest::of(b"");
        assert_eq!(
            digest.as_str(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(Digest::parse(digest.as_str()).unwrap(), digest);
        for text in ["", "sha256:", "sha512:00", &digest.as_str().to_uppercase(), &digest.as_str()[..70]] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
    }
}
