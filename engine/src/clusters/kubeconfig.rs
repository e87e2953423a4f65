//! Parses a runtime's kubeconfig: inline data only. Pure.

use std::fmt;

use http::Uri;
use k8s_openapi::ByteString;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::Value;
use tidewatch_api::yaml;

use super::policy::AddressPolicy;

/// Largest accepted kubeconfig, in bytes.
const MAX_SIZE: usize = 64 * 1024;
const MAX_NODES: usize = 5000;
/// Deepest nesting: a kubeconfig has 5 levels, and its extensions a few more.
const MAX_DEPTH: usize = 32;

const REFUSED_USER: &[&str] = &[
    "exec",
    "auth-provider",
    "tokenFile",
    "client-certificate",
    "client-key",
    "username",
    "password",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
];
const REFUSED_CLUSTER: &[&str] = &["certificate-authority", "proxy-url", "insecure-skip-tls-verify"];

/// Why a kubeconfig is refused. Names fields, never values, so it is safe to show.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    /// Larger than 64 KiB.
    #[error("the kubeconfig is larger than {MAX_SIZE} bytes")]
    TooLarge,
    /// Not YAML; line 0 if unknown.
    #[error("the kubeconfig is no valid YAML (line {line})")]
    Syntax {
        /// Line, counted from 1.
        line: u64,
    },
    /// A required field is missing.
    #[error("the kubeconfig has no {field}; put it inline into the Secret")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// A field that is never followed.
    #[error(
        "the kubeconfig uses {field}, which is not allowed; use inline CA, token or client certificate data"
    )]
    NotAllowed {
        /// Name of the field.
        field: &'static str,
    },
    /// A field has unusable content.
    #[error("the kubeconfig's {field} is not valid: {reason}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// The expected content.
        reason: &'static str,
    },
    /// The server is on the deny-list.
    #[error("the kubeconfig's server is denied by rule {rule}")]
    Denied {
        /// The rule from the configuration.
        rule: String,
    },
}

impl KubeconfigError {
    /// A stable label for metrics; one per variant.
    pub const fn metric_label(&self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Syntax { .. } => "syntax",
            Self::Missing { .. } => "missing",
            Self::NotAllowed { .. } => "not_allowed",
            Self::Invalid { .. } => "invalid",
            Self::Denied { .. } => "denied",
        }
    }
}

/// Address and credentials of one runtime. Debug output shows the server only.
#[derive(Clone)]
pub struct RuntimeAccess {
    pub(super) server: Uri,
    pub(super) tls_server_name: Option<ServerName<'static>>,
    /// `None`: the system's roots, as for a server with a public certificate.
    pub(super) ca: Option<Vec<CertificateDer<'static>>>,
    pub(super) token: Option<String>,
    pub(super) identity: Option<Identity>,
    pub(super) namespace: String,
}

#[derive(Clone)]
pub(super) struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key_pem: Vec<u8>,
}

impl fmt::Debug for RuntimeAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeAccess").field("server", &self.server).finish_non_exhaustive()
    }
}

impl RuntimeAccess {
    /// Parses the current context of a kubeconfig. Ignores other entries. Limit 64 KiB.
    pub fn parse(kubeconfig: &str, policy: &AddressPolicy) -> Result<Self, KubeconfigError> {
        if kubeconfig.len() > MAX_SIZE {
            return Err(KubeconfigError::TooLarge);
        }
        let read = yaml::read(kubeconfig, yaml::options(MAX_NODES, MAX_DEPTH), |text, options| {
            serde_saphyr::from_str_with_options::<Value>(text, options)
        });
        let (config, _) = read
            .map_err(|error| KubeconfigError::Syntax { line: error.location().map_or(0, |at| at.line()) })?;
        let current =
            text(&config, "current-context")?.ok_or(KubeconfigError::Missing { field: "current-context" })?;
        let context = entry(&config, "contexts", "context", &current)?;
        let cluster_name = text(context, "cluster")?.ok_or(KubeconfigError::Missing { field: "cluster" })?;
        let user_name = text(context, "user")?.ok_or(KubeconfigError::Missing { field: "user" })?;
        let cluster = entry(&config, "clusters", "cluster", &cluster_name)?;
        let user = entry(&config, "users", "user", &user_name)?;
        refuse(cluster, REFUSED_CLUSTER)?;
        refuse(user, REFUSED_USER)?;

        let server = server(cluster, policy)?;
        let tls_server_name = text(cluster, "tls-server-name")?
            .map(|name| {
                ServerName::try_from(name).map_err(|_| invalid("tls-server-name", "it must be a host name"))
            })
            .transpose()?;
        let token = text(user, "token")?;
        if token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(invalid("token", "it must be printable ASCII without spaces"));
        }
        let identity = identity(user)?;
        if token.is_none() && identity.is_none() {
            return Err(KubeconfigError::Missing { field: "token or client-certificate-data" });
        }
        Ok(Self {
            ca: certificates(cluster, "certificate-authority-data")?,
            namespace: text(context, "namespace")?.unwrap_or_else(|| "default".to_owned()),
            server,
            tls_server_name,
            token,
            identity,
        })
    }

    /// The API server's URL.
    pub fn server(&self) -> &Uri {
        &self.server
    }
}

fn invalid(field: &'static str, reason: &'static str) -> KubeconfigError {
    KubeconfigError::Invalid { field, reason }
}

/// Reads a text field. Null and empty count as missing.
fn text(value: &Value, field: &'static str) -> Result<Option<String>, KubeconfigError> {
    match value.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Some(_) => Err(invalid(field, "it must be text")),
    }
}

/// Finds an entry such as `clusters: [{name: x, cluster: {...}}]`.
fn entry<'a>(
    config: &'a Value,
    list: &'static str,
    inner: &'static str,
    name: &str,
) -> Result<&'a Value, KubeconfigError> {
    let entries =
        config.get(list).and_then(Value::as_array).ok_or(KubeconfigError::Missing { field: list })?;
    let named =
        |entry: &&Value| entry.get("name").and_then(Value::as_str).is_some_and(|found| found.trim() == name);
    let mut found = entries.iter().filter(named);
    let entry = found.next().ok_or(KubeconfigError::Missing { field: inner })?;
    if found.next().is_some() {
        return Err(invalid(list, "the entry of the current context is there twice"));
    }
    entry.get(inner).filter(|value| value.is_object()).ok_or(KubeconfigError::Missing { field: inner })
}

fn refuse(value: &Value, fields: &[&'static str]) -> Result<(), KubeconfigError> {
    let given = |field: &&&'static str| match value.get(**field) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    };
    match fields.iter().find(given) {
        Some(field) => Err(KubeconfigError::NotAllowed { field }),
        None => Ok(()),
    }
}

fn server(cluster: &Value, policy: &AddressPolicy) -> Result<Uri, KubeconfigError> {
    let wrong = |reason| invalid("server", reason);
    let text = text(cluster, "server")?.ok_or(KubeconfigError::Missing { field: "server" })?;
    let uri: Uri = text.parse().map_err(|_| wrong("it must be a URL"))?;
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") => return Err(KubeconfigError::NotAllowed { field: "server over plain http" }),
        _ => return Err(wrong("it must begin with https://")),
    }
    let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(wrong("it must not have a user name or a query"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(wrong("it has no host"));
    }
    let port = match (authority.port_u16(), authority.port()) {
        (Some(port), _) => port,
        (None, Some(_)) => return Err(wrong("its port is no number")),
        (None, None) => 443,
    };
    match policy.denies_host(host, port) {
        Some(rule) => Err(KubeconfigError::Denied { rule: rule.to_owned() }),
        None => Ok(uri),
    }
}

fn base64(value: &Value, field: &'static str) -> Result<Option<Vec<u8>>, KubeconfigError> {
    let Some(text) = text(value, field)? else { return Ok(None) };
    let text: String = text.split_ascii_whitespace().collect();
    let bytes: ByteString =
        serde_json::from_value(Value::String(text)).map_err(|_| invalid(field, "it must be base64"))?;
    Ok(Some(bytes.0))
}

fn certificates(
    value: &Value,
    field: &'static str,
) -> Result<Option<Vec<CertificateDer<'static>>>, KubeconfigError> {
    let Some(pem) = base64(value, field)? else { return Ok(None) };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| invalid(field, "it must be PEM certificates"))?;
    if certificates.is_empty() {
        return Err(invalid(field, "it holds no PEM certificate"));
    }
    Ok(Some(certificates))
}

fn identity(user: &Value) -> Result<Option<Identity>, KubeconfigError> {
    const KEY: &str = "client-key-data";
    match (certificates(user, "client-certificate-data")?, base64(user, KEY)?) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(KubeconfigError::Missing { field: KEY }),
        (None, Some(_)) => Err(KubeconfigError::Missing { field: "client-certificate-data" }),
        (Some(chain), Some(key_pem)) => {
            PrivateKeyDer::from_pem_slice(&key_pem)
                .map_err(|_| invalid(KEY, "it must be an unencrypted PEM key"))?;
            Ok(Some(Identity { chain, key_pem }))
        }
    }
}
