//! Certificates in Secrets of type `kubernetes.io/tls`: `tls.crt`, `tls.key`, `ca.crt`.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use crate::{Issued, PrivateKeyPem};

/// The certificate's key in the Secret.
pub const TLS_CRT: &str = "tls.crt";
/// The private key's key in the Secret.
pub const TLS_KEY: &str = "tls.key";
/// The trust bundle's key in the Secret.
pub const CA_CRT: &str = "ca.crt";
/// The Secret's type.
pub const SECRET_TYPE: &str = "kubernetes.io/tls";

/// What a Secret holds, as PEM text; not parsed further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tls.crt`
    pub cert_pem: String,
    /// `tls.key`
    pub key_pem: PrivateKeyPem,
    /// `ca.crt`: one or more CA certificates
    pub ca_bundle_pem: String,
}

/// Why a Secret holds no usable certificate. Values never appear in it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// A key is absent or its value empty.
    #[error("Secret {secret} has no {key}: it needs tls.crt, tls.key and ca.crt")]
    Missing {
        /// `namespace/name` of the Secret.
        secret: String,
        /// The key that is missing.
        key: &'static str,
    },
    /// A value is not UTF-8, so it is not PEM.
    #[error("{key} of Secret {secret} is not text: put PEM there")]
    NotText {
        /// `namespace/name` of the Secret.
        secret: String,
        /// The key in question.
        key: &'static str,
    },
}

/// The Secret that holds `issued` and the bundle its owner trusts.
pub fn to_secret(name: &str, namespace: &str, issued: &Issued, ca_bundle_pem: &str) -> Secret {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(BTreeMap::from([
            (TLS_CRT.to_owned(), bytes(&issued.cert_pem)),
            (TLS_KEY.to_owned(), bytes(issued.key_pem.as_str())),
            (CA_CRT.to_owned(), bytes(ca_bundle_pem)),
        ])),
        ..Secret::default()
    }
}

/// Reads the three values back.
pub fn from_secret(secret: &Secret) -> Result<TlsFiles, SecretError> {
    Ok(TlsFiles {
        cert_pem: text(secret, TLS_CRT)?,
        key_pem: PrivateKeyPem::new(text(secret, TLS_KEY)?),
        ca_bundle_pem: text(secret, CA_CRT)?,
    })
}

fn text(secret: &Secret, key: &'static str) -> Result<String, SecretError> {
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
