//! `kubernetes.io/tls` Secrets.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{Issued, PrivateKeyPem};

/// Data key of the certificate.
pub const TLS_CRT: &str = "tls.crt";
/// Data key of the private key.
pub const TLS_KEY: &str = "tls.key";
/// Data key of the trust bundle.
pub const CA_CRT: &str = "ca.crt";
/// Secret type.
pub const SECRET_TYPE: &str = "kubernetes.io/tls";

/// Unparsed PEM texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tls.crt`
    pub cert_pem: String,
    /// `tls.key`
    pub key_pem: PrivateKeyPem,
    /// `ca.crt`
    pub ca_bundle_pem: String,
}

/// Error of a Secret, without values.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Absent or empty.
    #[error("Secret {secret} has no {key}: it needs tls.crt, tls.key and ca.crt")]
    Missing {
        /// `namespace/name`.
        secret: String,
        /// Entry.
        key: &'static str,
    },
    /// Not UTF-8.
    #[error("{key} of Secret {secret} is not text: put PEM there")]
    NotText {
        /// `namespace/name`.
        secret: String,
        /// Entry.
        key: &'static str,
    },
}

impl TlsFiles {
    /// An issued certificate, and the CAs that its holder trusts.
    pub fn of(issued: &Issued, ca_bundle_pem: &str) -> Self {
        Self {
            cert_pem: issued.cert_pem.clone(),
            key_pem: issued.key_pem.clone(),
            ca_bundle_pem: ca_bundle_pem.to_owned(),
        }
    }
}

/// Builds a Secret.
pub fn to_secret(name: &str, namespace: &str, files: &TlsFiles) -> Secret {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(BTreeMap::from([
            (TLS_CRT.to_owned(), bytes(&files.cert_pem)),
            (TLS_KEY.to_owned(), bytes(files.key_pem.as_str())),
            (CA_CRT.to_owned(), bytes(&files.ca_bundle_pem)),
        ])),
        ..Secret::default()
    }
}

/// Parses a Secret.
pub fn from_secret(secret: &Secret) -> Result<TlsFiles, SecretError> {
    Ok(TlsFiles {
        cert_pem: text(secret, TLS_CRT)?,
        key_pem: PrivateKeyPem::new(text(secret, TLS_KEY)?),
        ca_bundle_pem: text(secret, CA_CRT)?,
    })
}

/// Reads one entry.
pub fn text(secret: &Secret, key: &'static str) -> Result<String, SecretError> {
    let value = secret
        .data
        .as_ref()
        .and_then(|data| data.get(key))
        .filter(|value| !value.0.is_empty())
        .ok_or_else(|| SecretError::Missing { secret: id(secret), key })?;
    std::str::from_utf8(&value.0)
        .map(str::to_owned)
        .map_err(|_| SecretError::NotText { secret: id(secret), key })
}

fn id(secret: &Secret) -> String {
    let meta = &secret.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or("?"), meta.name.as_deref().unwrap_or("?"))
}
