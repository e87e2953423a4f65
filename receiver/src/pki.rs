//! The CA and the receiver's certificate, kept in Secrets of the control plane.
//!
//! The receiver creates both Secrets if they are missing, and renews its certificate at two thirds of its lifetime. Several receivers may
//! start at once: a Secret is created once, and replaced only in the version that was read.

use std::{net::IpAddr, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt, api::PostParams};
use tidewatch_api::names::{CA_SECRET, SERVER_SECRET};
use tidewatch_certs::{Ca, Error, Issued, PrivateKeyPem, ServerRequest, secret, validity};
use tidewatch_tls::Pem;

/// Annotation of [`SERVER_SECRET`]: the names in the certificate, sorted, with commas.
const NAMES: &str = "tidewatch.kyma-project.io/names";
/// Longest wait until the next look, so that changes by others are found.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// Settings of the receiver's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PkiSettings {
    /// DNS names and addresses that agents dial.
    pub server_names: Vec<String>,
    /// Lifetime of the receiver's certificate.
    pub server_lifetime: SignedDuration,
    /// Lifetime of a new CA.
    pub ca_lifetime: SignedDuration,
}

/// A failure with the Secrets.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Refused or unreachable API server.
    #[error("Secret {0} cannot be read or written; check the receiver's role in the control plane")]
    Api(&'static str, #[source] Box<kube::Error>),
    /// Unusable content.
    #[error("Secret {0} cannot be used; restore it, or delete it to have a new one made")]
    Secret(&'static str, #[source] secret::SecretError),
    /// An unusable CA.
    #[error(
        "the CA in Secret {CA_SECRET} cannot be used; restore it, or delete it, and every agent enrols again"
    )]
    Ca(#[source] Error),
    /// The certificate cannot be issued.
    #[error("the receiver's certificate cannot be issued; check --server-name and --agent-url")]
    Issue(#[source] Error),
    /// Another receiver keeps changing the Secret.
    #[error("Secret {0} is changed by another process again and again")]
    Conflict(&'static str),
}

/// The material in use.
pub struct Material {
    /// Signs agents' certificates.
    pub ca: Ca,
    /// Certificate and key of the receiver, and the CAs of agents.
    pub server: Pem,
    /// When to look again.
    pub renew_in: Duration,
}

/// The Secrets.
#[derive(Clone)]
pub struct Pki {
    secrets: Api<Secret>,
    settings: PkiSettings,
}

impl Pki {
    /// Secrets of a namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str, settings: PkiSettings) -> Self {
        Self { secrets: Api::namespaced(client, namespace), settings }
    }

    /// Reads both Secrets. Creates missing ones, and renews the receiver's certificate if it is due.
    pub async fn load(&self, now: Timestamp) -> Result<Material, PkiError> {
        let ca = self.ca(now).await?;
        // A conflict means that another receiver has written it; the second look takes that one.
        for _ in 0..3 {
            if let Some((server, renew_in)) = self.server(&ca, now).await? {
                return Ok(Material { ca, server, renew_in });
            }
        }
        Err(PkiError::Conflict(SERVER_SECRET))
    }

    async fn ca(&self, now: Timestamp) -> Result<Ca, PkiError> {
        for _ in 0..3 {
            if let Some(secret) = self.get(CA_SECRET).await? {
                let files = secret::from_secret(&secret).map_err(|e| PkiError::Secret(CA_SECRET, e))?;
                return Ca::from_pem(&files.cert_pem, files.key_pem.as_str()).map_err(PkiError::Ca);
            }
            let name = format!("tidewatch {}", now.strftime("%Y-%m-%d"));
            let ca = Ca::create(&name, self.settings.ca_lifetime, now).map_err(PkiError::Issue)?;
            let content = Issued {
                cert_pem: ca.cert_pem().to_owned(),
                key_pem: ca.key_pem().clone(),
                not_after: ca.not_after(),
            };
            if self.write(CA_SECRET, None, &content, ca.cert_pem(), None).await? {
                tracing::info!(secret = CA_SECRET, not_after = %ca.not_after(), "a CA was created");
                return Ok(ca);
            }
        }
        Err(PkiError::Conflict(CA_SECRET))
    }

    /// The receiver's certificate, and the time until the next look. `None` if another process has written it meanwhile.
    async fn server(&self, ca: &Ca, now: Timestamp) -> Result<Option<(Pem, Duration)>, PkiError> {
        let present = self.get(SERVER_SECRET).await?;
        let names = names(&self.settings.server_names);
        let known = present.as_ref().and_then(|secret| Some((secret::from_secret(secret).ok()?, secret)));
        if let Some((files, secret)) = known
            && secret.annotations().get(NAMES) == Some(&names)
            && files.ca_bundle_pem == ca.cert_pem()
            && let Ok(validity) = validity(files.cert_pem.as_bytes())
            && let Some(left) = left(validity.not_before, validity.not_after, now)
        {
            return Ok(Some((pem(ca, &files.cert_pem, &files.key_pem), left)));
        }
        let request = request(&self.settings);
        let issued = ca.issue_server(&request, now).map_err(PkiError::Issue)?;
        let version = present.and_then(|secret| secret.metadata.resource_version);
        if !self.write(SERVER_SECRET, version, &issued, ca.cert_pem(), Some(names)).await? {
            return Ok(None);
        }
        tracing::info!(secret = SERVER_SECRET, not_after = %issued.not_after, "the receiver has a new certificate");
        let left = left(now, issued.not_after, now).unwrap_or_default();
        Ok(Some((pem(ca, &issued.cert_pem, &issued.key_pem), left)))
    }

    async fn get(&self, name: &'static str) -> Result<Option<Secret>, PkiError> {
        self.secrets.get_opt(name).await.map_err(|error| PkiError::Api(name, Box::new(error)))
    }

    /// Creates a Secret, or replaces the one with this version. `false` if it exists, or has another version.
    async fn write(
        &self,
        name: &'static str,
        version: Option<String>,
        content: &Issued,
        bundle: &str,
        names: Option<String>,
    ) -> Result<bool, PkiError> {
        let namespace = self.secrets.namespace().unwrap_or_default();
        let mut secret = secret::to_secret(name, namespace, content, bundle);
        secret.metadata.annotations = names.map(|names| [(NAMES.to_owned(), names)].into());
        secret.metadata.resource_version = version;
        let params = PostParams::default();
        let written = match secret.metadata.resource_version {
            None => self.secrets.create(&params, &secret).await,
            Some(_) => self.secrets.replace(name, &params, &secret).await,
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(PkiError::Api(name, Box::new(error))),
        }
    }
}

fn pem(ca: &Ca, cert: &str, key: &PrivateKeyPem) -> Pem {
    Pem { ca: ca.cert_pem().into(), cert: cert.into(), key: key.as_str().into() }
}

/// The time until the renewal of a certificate at two thirds of its lifetime, at most an hour; `None` if it is due.
fn left(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> Option<Duration> {
    let lifetime = not_after.duration_since(not_before).as_secs();
    let due = not_before.checked_add(SignedDuration::from_secs(lifetime / 3 * 2)).ok()?;
    let left = Duration::try_from(due.duration_since(now)).ok()?;
    (!left.is_zero()).then(|| left.min(MAX_WAIT))
}

fn names(names: &[String]) -> String {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

fn request(settings: &PkiSettings) -> ServerRequest {
    let (addresses, dns_names): (Vec<_>, Vec<_>) =
        settings.server_names.iter().partition(|name| name.parse::<IpAddr>().is_ok());
    ServerRequest {
        common_name: "tidewatch-receiver".to_owned(),
        dns_names: dns_names.into_iter().cloned().collect(),
        ip_addrs: addresses.into_iter().filter_map(|address| address.parse().ok()).collect(),
        validity: settings.server_lifetime,
    }
}

#[cfg(test)]
mod tests;
