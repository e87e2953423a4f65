//! The CA and the receiver's certificate, kept in Secrets of the control plane.
//!
//! The receiver creates both Secrets if they are missing, and renews its certificate at two thirds of its lifetime. Several receivers may
//! start at once: a Secret is created once, and replaced only in the version that was read.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, ResourceExt, api::PostParams};
use tidewatch_api::names::{CA_SECRET, ROTATE_CA, SERVER_SECRET};
use tidewatch_certs::{
    Ca, Error, PrivateKeyPem, ServerRequest,
    rotation::{self, Action, Rotation, Step, renewal},
    secret::{self, TlsFiles},
    validity,
};
use tidewatch_tls::Pem;

/// Annotation of [`SERVER_SECRET`]: the names in the certificate, sorted, with commas.
const NAMES: &str = "tidewatch.kyma-project.io/names";
/// Annotation of [`CA_SECRET`]: the [`Step`] of a rotation.
pub const STEP: &str = "tidewatch.kyma-project.io/rotation-step";
/// Annotation of [`CA_SECRET`]: the start of the step.
pub const SINCE: &str = "tidewatch.kyma-project.io/rotation-since";
/// Data keys of [`CA_SECRET`] during [`Step::Publishing`].
const NEXT_CRT: &str = "next.crt";
const NEXT_KEY: &str = "next.key";

/// The issuer of the CA and of the receiver's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PkiIssuer {
    /// The receiver.
    #[default]
    BuiltIn,
    /// cert-manager. The receiver reads both Secrets and writes none. The CA must keep its key.
    CertManager,
}

/// Settings of the receiver's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PkiSettings {
    /// The issuer.
    pub issuer: PkiIssuer,
    /// DNS names and addresses that agents dial.
    pub server_names: Vec<String>,
    /// Lifetime of the receiver's certificate.
    pub server_lifetime: SignedDuration,
    /// Lifetime of a new CA.
    pub ca_lifetime: SignedDuration,
    /// Limits of a rotation of the CA.
    pub rotation: rotation::Limits,
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
    /// cert-manager has not made it.
    #[error("there is no Secret {0}; cert-manager makes it: look at the Certificate of this name")]
    Missing(&'static str),
    /// Another receiver keeps changing the Secret.
    #[error("Secret {0} is changed by another process again and again")]
    Conflict(&'static str),
}

/// The material in use.
pub struct Material {
    /// The CA.
    pub ca: CaRecord,
    /// Certificate and key of the receiver, and the CAs of agents.
    pub server: Pem,
    /// When to renew the receiver's certificate.
    pub renew_at: Timestamp,
}

/// Content of the CA's Secret.
#[derive(Clone, Debug)]
pub struct CaRecord {
    /// The CA that signs, its key, and all CAs that receiver and agents trust.
    pub files: TlsFiles,
    /// The published CA, in [`Step::Publishing`].
    next: Option<(String, PrivateKeyPem)>,
    /// The rotation.
    pub rotation: Rotation,
    metadata: ObjectMeta,
}

impl CaRecord {
    fn read(secret: &Secret) -> Result<Self, PkiError> {
        let unusable = |error| PkiError::Secret(CA_SECRET, error);
        let files = secret::from_secret(secret).map_err(unusable)?;
        let annotation = |name: &str| secret.annotations().get(name);
        let step = annotation(STEP).and_then(|text| Step::ALL.into_iter().find(|step| step.label() == text));
        let step = step.unwrap_or(Step::Stable);
        let next = if step == Step::Publishing {
            let key = secret::text(secret, NEXT_KEY).map_err(unusable)?;
            Some((secret::text(secret, NEXT_CRT).map_err(unusable)?, PrivateKeyPem::new(key)))
        } else {
            None
        };
        let ca = validity(files.cert_pem.as_bytes()).map_err(PkiError::Ca)?;
        let since = annotation(SINCE).and_then(|text| text.parse().ok()).unwrap_or(ca.not_before);
        let requested = annotation(ROTATE_CA).is_some();
        let rotation = Rotation { step, since, ca, requested };
        Ok(Self { files, next, rotation, metadata: secret.metadata.clone() })
    }

    /// The CA that signs.
    pub fn ca(&self) -> Result<Ca, PkiError> {
        Ca::from_pem(&self.files.cert_pem, self.files.key_pem.as_str()).map_err(PkiError::Ca)
    }

    /// The Secret after a step of the rotation. `create` makes a new CA.
    fn after(
        &self,
        action: Action,
        now: Timestamp,
        create: impl FnOnce() -> Result<Ca, Error>,
    ) -> Result<Option<CaContent>, Error> {
        let TlsFiles { cert_pem, key_pem, ca_bundle_pem } = self.files.clone();
        let content = match (action, &self.next) {
            (Action::Publish, None) => {
                let next = create()?;
                let bundle = format!("{}\n{}", ca_bundle_pem.trim_end(), next.cert_pem());
                let files = TlsFiles { cert_pem, key_pem, ca_bundle_pem: bundle };
                let next = Some((next.cert_pem().to_owned(), next.key_pem().clone()));
                CaContent { files, next, step: Step::Publishing, since: now }
            }
            // The text of the bundle stays, so that agents have nothing to read again.
            (Action::Switch, Some((cert_pem, key_pem))) => {
                let files = TlsFiles { cert_pem: cert_pem.clone(), key_pem: key_pem.clone(), ca_bundle_pem };
                CaContent { files, next: None, step: Step::Retiring, since: now }
            }
            (Action::Retire, None) => {
                let files = TlsFiles { ca_bundle_pem: cert_pem.clone(), cert_pem, key_pem };
                CaContent { files, next: None, step: Step::Stable, since: now }
            }
            (Action::Replace, _) => CaContent::new(&create()?, now),
            (Action::Wait(_) | Action::Publish | Action::Switch | Action::Retire, _) => return Ok(None),
        };
        Ok(Some(content))
    }
}

/// New content of the CA's Secret.
struct CaContent {
    files: TlsFiles,
    next: Option<(String, PrivateKeyPem)>,
    step: Step,
    since: Timestamp,
}

impl CaContent {
    fn new(ca: &Ca, now: Timestamp) -> Self {
        let files = TlsFiles {
            cert_pem: ca.cert_pem().to_owned(),
            key_pem: ca.key_pem().clone(),
            ca_bundle_pem: ca.cert_pem().to_owned(),
        };
        Self { files, next: None, step: Step::Stable, since: now }
    }

    /// `before`: metadata of the Secret, whose other labels and annotations stay.
    fn secret(&self, namespace: &str, before: ObjectMeta) -> Secret {
        let mut secret = secret::to_secret(CA_SECRET, namespace, &self.files);
        if let (Some((cert, key)), Some(data)) = (&self.next, &mut secret.data) {
            data.insert(NEXT_CRT.to_owned(), ByteString(cert.as_bytes().to_vec()));
            data.insert(NEXT_KEY.to_owned(), ByteString(key.as_str().as_bytes().to_vec()));
        }
        let mut annotations = before.annotations.unwrap_or_default();
        annotations.insert(STEP.to_owned(), self.step.label().to_owned());
        annotations.insert(SINCE.to_owned(), self.since.to_string());
        // A request during a rotation waits for its end.
        if self.step == Step::Publishing {
            annotations.remove(ROTATE_CA);
        }
        secret.metadata.annotations = Some(annotations);
        secret.metadata.labels = before.labels;
        secret.metadata.resource_version = before.resource_version;
        secret
    }
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

    /// The end of a rotation's step, if the receiver rotates the CA.
    pub(crate) fn deadline(&self, ca: &CaRecord) -> Option<Timestamp> {
        match self.settings.issuer {
            PkiIssuer::BuiltIn => ca.rotation.deadline(self.settings.rotation),
            PkiIssuer::CertManager => None,
        }
    }

    /// Reads both Secrets. Creates missing ones, and renews the receiver's certificate if it is due.
    pub async fn load(&self, now: Timestamp) -> Result<Material, PkiError> {
        if self.settings.issuer == PkiIssuer::CertManager {
            return self.read().await;
        }
        let ca = self.ca(now).await?;
        // A conflict means that another receiver has written it; the second look takes that one.
        for _ in 0..3 {
            if let Some((server, renew_at)) = self.server(&ca, now).await? {
                return Ok(Material { ca, server, renew_at });
            }
        }
        Err(PkiError::Conflict(SERVER_SECRET))
    }

    /// Reads the Secrets of cert-manager, which renews them.
    async fn read(&self) -> Result<Material, PkiError> {
        let present = async |name| self.get(name).await?.ok_or(PkiError::Missing(name));
        let mut ca = CaRecord::read(&present(CA_SECRET).await?)?;
        ca.ca()?;
        // A self-signed CA is its own bundle.
        ca.files.ca_bundle_pem.clone_from(&ca.files.cert_pem);
        let server = secret::from_secret(&present(SERVER_SECRET).await?);
        let server = server.map_err(|error| PkiError::Secret(SERVER_SECRET, error))?;
        let ends = validity(server.cert_pem.as_bytes()).map_err(PkiError::Issue)?.not_after;
        Ok(Material { server: pem(&ca, &server.cert_pem, &server.key_pem), ca, renew_at: ends })
    }

    async fn ca(&self, now: Timestamp) -> Result<CaRecord, PkiError> {
        // An ended CA may be published, switched, and replaced.
        for _ in 0..4 {
            if let Some(secret) = self.get(CA_SECRET).await? {
                let record = CaRecord::read(&secret)?;
                // An unusable key stops the start.
                record.ca()?;
                if record.rotation.ca.not_after > now {
                    return Ok(record);
                }
                tracing::warn!(ended = %record.rotation.ca.not_after, "the CA has ended; every agent enrols again");
                self.rotate(&record, false, now).await?;
                continue;
            }
            let ca = self.new_ca(now).map_err(PkiError::Issue)?;
            if self.write(CaContent::new(&ca, now).secret(self.namespace(), ObjectMeta::default())).await? {
                tracing::info!(secret = CA_SECRET, not_after = %ca.not_after(), "a CA was created");
            }
        }
        Err(PkiError::Conflict(CA_SECRET))
    }

    fn new_ca(&self, now: Timestamp) -> Result<Ca, Error> {
        Ca::create(
            &format!("tidewatch {}", now.strftime("%Y-%m-%d %H:%M:%S")),
            self.settings.ca_lifetime,
            now,
        )
    }

    /// Does the next step of a rotation, if it is due. `trusted`: all agents trust the published CA. Returns whether the Secret was written;
    /// then [`Pki::load`] it. A conflict does nothing: the change is seen in the next look.
    pub async fn rotate(&self, ca: &CaRecord, trusted: bool, now: Timestamp) -> Result<bool, PkiError> {
        if self.settings.issuer == PkiIssuer::CertManager {
            return Ok(false);
        }
        let action = ca.rotation.next(trusted, self.settings.rotation, now);
        let content = ca.after(action, now, || self.new_ca(now)).map_err(PkiError::Issue)?;
        let Some(content) = content else { return Ok(false) };
        let written = self.write(content.secret(self.namespace(), ca.metadata.clone())).await?;
        if written {
            tracing::info!(step = content.step.label(), trusted, "the CA is rotated");
        }
        Ok(written)
    }

    /// The receiver's certificate, and the time of its renewal. `None` if another process has written it meanwhile.
    async fn server(&self, ca: &CaRecord, now: Timestamp) -> Result<Option<(Pem, Timestamp)>, PkiError> {
        let present = self.get(SERVER_SECRET).await?;
        let names = names(&self.settings.server_names);
        let known = present.as_ref().and_then(|secret| Some((secret::from_secret(secret).ok()?, secret)));
        if let Some((files, secret)) = known
            && secret.annotations().get(NAMES) == Some(&names)
            && files.ca_bundle_pem == ca.files.cert_pem
            && let Ok(validity) = validity(files.cert_pem.as_bytes())
            // Nothing is gained by a certificate that ends with its CA as well.
            && (renewal(validity) > now || validity.not_after >= ca.rotation.ca.not_after)
        {
            return Ok(Some((pem(ca, &files.cert_pem, &files.key_pem), renewal(validity))));
        }
        let request = request(&self.settings);
        let issued = ca.ca()?.issue_server(&request, now).map_err(PkiError::Issue)?;
        let files = TlsFiles::of(&issued, &ca.files.cert_pem);
        let mut secret = secret::to_secret(SERVER_SECRET, self.namespace(), &files);
        secret.metadata.annotations = Some([(NAMES.to_owned(), names)].into());
        secret.metadata.resource_version = present.and_then(|secret| secret.metadata.resource_version);
        if !self.write(secret).await? {
            return Ok(None);
        }
        tracing::info!(secret = SERVER_SECRET, not_after = %issued.not_after, "the receiver has a new certificate");
        let due = renewal(validity(issued.cert_pem.as_bytes()).map_err(PkiError::Issue)?);
        Ok(Some((pem(ca, &issued.cert_pem, &issued.key_pem), due)))
    }

    async fn get(&self, name: &'static str) -> Result<Option<Secret>, PkiError> {
        self.secrets.get_opt(name).await.map_err(|error| PkiError::Api(name, Box::new(error)))
    }

    fn namespace(&self) -> &str {
        self.secrets.namespace().unwrap_or_default()
    }

    /// Creates a Secret, or replaces the one with its version. `false` if it exists, or has another version.
    async fn write(&self, secret: Secret) -> Result<bool, PkiError> {
        let name = if secret.name_any() == CA_SECRET { CA_SECRET } else { SERVER_SECRET };
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

fn pem(ca: &CaRecord, cert: &str, key: &PrivateKeyPem) -> Pem {
    Pem { ca: ca.files.ca_bundle_pem.as_str().into(), cert: cert.into(), key: key.as_str().into() }
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
