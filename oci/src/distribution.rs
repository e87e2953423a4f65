//! Reads from the distribution API.
//!
//! `oci-client` reads manifests and error bodies without limit, drops `Retry-After`, and sends unchecked tokens in
//! headers.

use std::{collections::BTreeMap, fmt, num::NonZeroUsize, sync::Arc, time::Duration};

use lru::LruCache;
use parking_lot::{Mutex, RwLock};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, DATE, HeaderMap, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    OciError, Reference, Scheme,
    breaker::Breakers,
    reference::{Selector, allows_plain_http},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;
const MAX_TOKEN_ANSWER: u64 = 64 * 1024;
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);
/// Seconds, from the token specification.
const DEFAULT_TOKEN_LIFE: u64 = 60;
/// Seconds before expiry at which tokens are renewed, for requests in flight.
const TOKEN_SLACK: u64 = 10;
/// One per repository; engines have some hundred modules.
const TOKENS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// `User-Agent` of reads. Pushes have another one.
pub const USER_AGENT: &str = concat!("tidewatch/", env!("CARGO_PKG_VERSION"));

/// Authentication to a registry.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Credentials {
    /// Token services still issue tokens for public content.
    #[default]
    Anonymous,
    /// For basic authentication or the token service.
    Basic {
        /// User name.
        username: String,
        /// Password, never printed.
        password: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Basic { .. } => "Basic(redacted)",
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Manifest,
    Blob,
}

#[derive(Debug)]
pub(super) struct Distribution {
    https: Client,
    http: Client,
    insecure: Arc<[String]>,
    credentials: RwLock<BTreeMap<String, Credentials>>,
    tokens: Mutex<LruCache<String, Token>>,
    breakers: Breakers,
    /// Requests without an answer for longer have timed out.
    timeout: Duration,
}

#[derive(Clone)]
struct Token {
    secret: String,
    until: Instant,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(redacted)")
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
    #[serde(default)]
    expires_in: Option<u64>,
}

impl Distribution {
    pub(super) fn new(
        insecure: Arc<[String]>,
        credentials: BTreeMap<String, Credentials>,
        timeout: Duration,
    ) -> Result<Self, OciError> {
        let build = |proxy: bool| {
            let allowed = Arc::clone(&insecure);
            let redirects = reqwest::redirect::Policy::custom(move |attempt| {
                let followed =
                    attempt.previous().len() <= MAX_REDIRECTS && may_visit(attempt.url(), &allowed);
                if followed { attempt.follow() } else { attempt.stop() }
            });
            let builder = Client::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .redirect(redirects)
                .referer(false)
                .user_agent(USER_AGENT);
            let builder = if proxy { builder } else { builder.no_proxy() };
            builder.build().map_err(|source| OciError::Client { source: Arc::new(source) })
        };
        Ok(Self {
            https: build(true)?,
            http: build(false)?,
            credentials: RwLock::new(credentials),
            tokens: Mutex::new(LruCache::new(TOKENS)),
            breakers: Breakers::default(),
            insecure,
            timeout,
        })
    }

    pub(super) fn credentials(&self, registry: &str) -> Credentials {
        self.credentials.read().get(registry).cloned().unwrap_or_default()
    }

    /// Replaces all credentials, and drops tokens of the old ones.
    pub(super) fn set_credentials(&self, credentials: BTreeMap<String, Credentials>) {
        *self.credentials.write() = credentials;
        self.tokens.lock().clear();
    }

    /// Sends one GET, repeated with authentication after a 401. Fails while the breaker is open. Has no deadline.
    pub(super) async fn get(
        &self,
        reference: &Reference,
        part: Part,
        accept: &str,
        limit: u64,
    ) -> Result<Vec<u8>, OciError> {
        let admitted = self.breakers.admit(&reference.registry, self.timeout)?;
        let result = self.send(reference, part, accept, limit).await;
        admitted.ended(&result);
        result
    }

    pub(super) fn open_circuits(&self) -> Vec<String> {
        self.breakers.open()
    }

    async fn send(
        &self,
        reference: &Reference,
        part: Part,
        accept: &str,
        limit: u64,
    ) -> Result<Vec<u8>, OciError> {
        let endpoint = match part {
            Part::Manifest => "manifests",
            Part::Blob => "blobs",
        };
        let url = format!(
            "{}://{}/v2/{}/{endpoint}/{}",
            reference.scheme.as_str(),
            reference.registry,
            reference.repository,
            reference.selector_text(),
        );
        let scope = format!("{}/{}", reference.registry, reference.repository);
        let mut secret = self.known_token(&scope).map(Secret::Token);
        for attempt in 0..2 {
            let mut request = self.client(reference).get(&url).header(ACCEPT, accept);
            request = match &secret {
                Some(Secret::Token(token)) => request.bearer_auth(token),
                Some(Secret::Password(username, password)) => request.basic_auth(username, Some(password)),
                None => request,
            };
            let response = request.send().await.map_err(|error| unreachable(&reference.registry, error))?;
            if response.status() == StatusCode::UNAUTHORIZED && attempt == 0 {
                self.tokens.lock().pop(&scope);
                secret = Some(self.answer(reference, response.headers(), scope.clone()).await?);
                continue;
            }
            let response = Self::check(reference, response)?;
            return read(response, &reference.registry, &reference.to_string(), limit).await;
        }
        Err(unauthorized(reference))
    }

    fn client(&self, reference: &Reference) -> &Client {
        match reference.scheme {
            Scheme::Http => &self.http,
            Scheme::Https => &self.https,
        }
    }

    fn known_token(&self, scope: &str) -> Option<String> {
        let mut tokens = self.tokens.lock();
        let token = tokens.get(scope)?;
        (token.until > Instant::now()).then(|| token.secret.clone())
    }

    fn check(reference: &Reference, response: Response) -> Result<Response, OciError> {
        let registry = reference.registry.clone();
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(unauthorized(reference)),
            StatusCode::NOT_FOUND => Err(OciError::NotFound { subject: reference.to_string() }),
            StatusCode::TOO_MANY_REQUESTS => {
                Err(OciError::RateLimited { registry, retry_after: retry_after(response.headers()) })
            }
            status => Err(OciError::Status {
                registry,
                status: status.as_u16(),
                retry_after: retry_after(response.headers()),
            }),
        }
    }

    async fn answer(
        &self,
        reference: &Reference,
        headers: &HeaderMap,
        scope: String,
    ) -> Result<Secret, OciError> {
        let credentials = self.credentials(&reference.registry);
        let mut challenges = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .map(Challenge::parse);
        let challenge = challenges.find(|challenge| *challenge != Challenge::Unknown);
        match (challenge, credentials) {
            (Some(Challenge::Bearer { realm, service }), _) => {
                let token = self.fetch_token(reference, &realm, &service).await?;
                let secret = token.secret.clone();
                self.tokens.lock().put(scope, token);
                Ok(Secret::Token(secret))
            }
            (Some(Challenge::Basic), Credentials::Basic { username, password }) => {
                Ok(Secret::Password(username, password))
            }
            _ => Err(unauthorized(reference)),
        }
    }

    async fn fetch_token(
        &self,
        reference: &Reference,
        realm: &str,
        service: &str,
    ) -> Result<Token, OciError> {
        let malformed =
            |reason: &str| OciError::malformed(format!("token answer for {}", reference.registry), reason);
        let mut url = Url::parse(realm).map_err(|_| malformed("the token service's address is no URL"))?;
        // The registry chooses the recipient, so require encryption.
        if !may_visit(&url, &self.insecure) {
            return Err(OciError::PlainHttp { registry: url.host_str().unwrap_or_default().to_owned() });
        }
        url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", reference.repository));
        if !service.is_empty() {
            url.query_pairs_mut().append_pair("service", service);
        }
        let client = if url.scheme() == "http" { &self.http } else { &self.https };
        let mut request = client.get(url);
        if let Credentials::Basic { username, password } = self.credentials(&reference.registry) {
            request = request.basic_auth(username, Some(password));
        }
        let response = request.send().await.map_err(|error| unreachable(&reference.registry, error))?;
        let response = match Self::check(reference, response) {
            Err(OciError::NotFound { .. }) => return Err(unauthorized(reference)),
            checked => checked?,
        };
        let body = read(response, &reference.registry, "token answer", MAX_TOKEN_ANSWER).await?;
        let answer: TokenAnswer =
            serde_json::from_slice(&body).map_err(|_| malformed("it is not JSON with a token"))?;
        let secret = if answer.token.is_empty() { answer.access_token } else { answer.token };
        if secret.is_empty() || !secret.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(malformed("the token is empty or not printable"));
        }
        let life = answer.expires_in.unwrap_or(DEFAULT_TOKEN_LIFE).min(3600).saturating_sub(TOKEN_SLACK);
        Ok(Token { secret, until: Instant::now() + Duration::from_secs(life) })
    }
}

enum Secret {
    Token(String),
    Password(String, String),
}

#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Bearer { realm: String, service: String },
    Basic,
    Unknown,
}

impl Challenge {
    fn parse(header: &str) -> Self {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Self::Basic;
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Self::Unknown;
        }
        let (mut realm, mut service, mut rest) = (String::new(), String::new(), rest);
        while let Some((key, value)) = rest.split_once('=') {
            let key = key.trim_matches([' ', ',']);
            let (value, next) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
                None => value.split_once(',').unwrap_or((value, "")),
            };
            match key.to_ascii_lowercase().as_str() {
                "realm" => value.clone_into(&mut realm),
                "service" => value.clone_into(&mut service),
                _ => {}
            }
            rest = next;
        }
        if realm.is_empty() { Self::Unknown } else { Self::Bearer { realm, service } }
    }
}

fn may_visit(url: &Url, insecure: &[String]) -> bool {
    let host = url.host_str().unwrap_or_default();
    let registry = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    match url.scheme() {
        "https" => true,
        "http" => allows_plain_http(&registry, insecure),
        _ => false,
    }
}

async fn read(
    mut response: Response,
    registry: &str,
    subject: &str,
    limit: u64,
) -> Result<Vec<u8>, OciError> {
    let too_large = || OciError::TooLarge { subject: subject.to_owned(), limit };
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(registry, error))? {
        if (body.len() + chunk.len()) as u64 > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Dates are relative to the answer's `Date`, so the local clock does not matter.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let parse = |text| jiff::fmt::rfc2822::parse(text).ok().map(|zoned| zoned.timestamp());
        let now = parse(headers.get(DATE)?.to_str().ok()?)?;
        Duration::try_from(parse(text)?.duration_since(now)).ok()?
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// Drops the URL, because storage behind registries signs URLs with secrets.
fn unreachable(registry: &str, error: reqwest::Error) -> OciError {
    OciError::Unreachable { registry: registry.to_owned(), source: Arc::new(error.without_url()) }
}

fn unauthorized(reference: &Reference) -> OciError {
    OciError::Unauthorized { registry: reference.registry.clone(), repository: reference.repository.clone() }
}

pub(super) fn sibling(reference: &Reference, digest: super::Digest) -> Reference {
    Reference { selector: Selector::Digest(digest), ..reference.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_challenges_are_parsed() {
        assert_eq!(
            Challenge::parse(
                "Bearer realm=\"https://auth.example/token\",service=\"reg, istry\",scope=\"a:b:pull\""
            ),
            Challenge::Bearer { realm: "https://auth.example/token".into(), service: "reg, istry".into() }
        );
        assert_eq!(
            Challenge::parse("bearer service=x, realm=https://a"),
            Challenge::Bearer { realm: "https://a".into(), service: "x".into() }
        );
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Challenge::Basic);
        for text in ["", "Bearer", "Bearer realm", "Bearer realm=\"\"", "Negotiate x=\"y", "Bearer =\"=\"=\""]
        {
            assert_eq!(Challenge::parse(text), Challenge::Unknown, "{text}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let headers = |retry: &str, date: Option<&str>| {
            let mut map = HeaderMap::new();
            map.insert(RETRY_AFTER, retry.parse().unwrap());
            if let Some(date) = date {
                map.insert(DATE, date.parse().unwrap());
            }
            retry_after(&map).map(|wait| wait.as_secs())
        };
        assert_eq!(headers("7", None), Some(7));
        assert_eq!(headers("999999", None), Some(3600));
        let date = Some("Wed, 21 Oct 2026 07:28:00 GMT");
        assert_eq!(headers("Wed, 21 Oct 2026 07:28:30 GMT", date), Some(30));
        assert_eq!(headers("Wed, 21 Oct 2026 07:27:30 GMT", date), None, "in the past");
        assert_eq!(headers("Wed, 21 Oct 2026 07:28:30 GMT", None), None);
        assert_eq!(headers("soon", date), None);
    }

    #[test]
    fn secrets_are_not_printed() {
        let credentials = Credentials::Basic { username: "user".into(), password: "hunter2".into() };
        let token = Token { secret: "hunter2".into(), until: Instant::now() };
        assert!(!format!("{credentials:?}{token:?}").contains("hunter2"));
    }
}
