//! The configuration file (YAML) and the ConfigMap with further watches.

mod message;

use crate::send::{
    Settings,
    proxy::{self, Choice, Proxy, SettingsError},
};
use message::{one_line, quoted};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tidewatch_tls::Files;
use tidewatch_wire::{Route, limits};

/// In bytes.
const MAX_FILE: u64 = 1024 * 1024;
/// Limit of file and ConfigMap together; each watch is a stream of the API server.
const MAX_WATCHES: usize = 256;
/// The name is a metric label and part of every event.
const MAX_WATCH_NAME: usize = 63;
/// The generation is part of requests.
const MAX_GENERATION: usize = 64;
/// In characters: the limit of a certificate's common name.
const MAX_RUNTIME_ID: usize = 64;

/// The configuration file. Unknown fields are errors: a typo would silently do nothing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The runtime's id for logs and the status page; the receiver uses the certificate.
    pub runtime_id: String,
    /// The receiver.
    pub receiver: Receiver,
    /// Admin endpoint such as `127.0.0.1:9090`; port 0 picks a free one.
    #[serde(deserialize_with = "address")]
    pub admin_address: SocketAddr,
    /// Kubeconfig file; default: the pod's service account, then `KUBECONFIG`.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Objects tracked per watch (default 100,000, about 200 bytes each). More are not reported, as the watch's
    /// condition states.
    #[serde(default = "default_max_objects")]
    pub max_objects_per_watch: usize,
    /// Names kept for other managers (default 200,000, about 200 bytes each). Without a name, deletions while the
    /// agent is down are not reported.
    #[serde(default = "default_max_names")]
    pub max_kept_names: usize,
    /// Seconds between list checks for lost events, 10 to 86,400 (default 60, longer for many objects).
    #[serde(default = "default_check_every")]
    pub check_every_seconds: u64,
    /// Identifies the installation for its installer; default: `TIDEWATCH_INSTALLATION`.
    #[serde(default)]
    pub installation: Option<String>,
    /// Fixed watches; required without a ConfigMap.
    #[serde(default)]
    pub watches: Vec<Watch>,
    /// The ConfigMap with further watches.
    #[serde(default)]
    pub config_map: Option<ConfigMapRef>,
}

/// Reference to a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The ConfigMap's key.
pub const CONFIG_MAP_KEY: &str = "watches.yaml";

/// Content of the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchSet {
    /// Identifies this configuration: 1 to 64 letters and digits.
    pub generation: String,
    /// The watches, possibly none.
    pub watches: Vec<Watch>,
}

/// Address and certificates for the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receiver {
    /// `https://host:port`.
    pub url: String,
    /// HTTP proxy `http://[user:password@]host:port`, or `direct`. Default: `HTTPS_PROXY` and `NO_PROXY`.
    #[serde(default)]
    pub proxy: Option<Choice>,
    /// PEM file: CAs of the receiver.
    pub ca_file: PathBuf,
    /// PEM file: the certificate; its common name is the runtime id. Required without enrolment.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// PEM file: the key. Required without enrolment.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The agent requests its certificate itself, instead of the two files.
    #[serde(default)]
    pub enrolment: Option<Enrolment>,
    /// `v3` (default), or `v2` for Go listeners.
    #[serde(default)]
    pub protocol: Protocol,
    /// Longest age of a connection in seconds, reduced randomly by up to half; 10 to 604,800 (default one day).
    #[serde(default = "default_connection_age")]
    pub connection_age_seconds: u64,
}

/// Names of the objects by which an agent gets its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Enrolment {
    /// Namespace of the Secret.
    pub namespace: String,
    /// The Secret in which the agent keeps key and certificate. It must exist.
    pub secret: String,
    /// The agent's certificate signing request.
    pub signing_request: String,
}

/// The source of the agent's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Files with CAs, certificate and key.
    Files(Files),
    /// A file with CAs; the agent requests the certificate.
    Enrolment {
        /// File of CAs.
        ca: PathBuf,
        /// Names of the objects.
        objects: Enrolment,
    },
}

/// Version of the contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Events are acknowledged after the reconcile.
    #[default]
    V3,
    /// Events are acknowledged by HTTP 200.
    V2,
}

/// A watch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watch {
    /// Unique name of the watch.
    pub name: String,
    /// `engine` (default) or the manager that must acknowledge changes.
    #[serde(default = "engine")]
    pub route: String,
    /// API group; empty for core.
    #[serde(default)]
    pub group: String,
    /// API version; `*` (default) is the preferred one.
    #[serde(default = "any_version")]
    pub version: String,
    /// Plural resource name such as `deployments`.
    pub resource: String,
    /// The observed part.
    pub field: Field,
    /// Labels that objects must have.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Namespace; default: all, and cluster-scoped objects.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// The observed part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Field {
    /// Desired state.
    Spec,
    /// Actual state.
    Status,
}

/// Configuration errors.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Unreadable file.
    #[error("configuration {path:?} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is too large.
    #[error("configuration {0:?} is larger than {MAX_FILE} bytes; is it the right file?")]
    TooLarge(PathBuf),
    /// Unexpected YAML.
    #[error("configuration does not parse: {0}")]
    Parse(String),
    /// No text in the ConfigMap.
    #[error("the ConfigMap has no key {CONFIG_MAP_KEY}")]
    NoKey,
    /// Invalid value.
    #[error("configuration: {field} {problem}")]
    Value {
        /// The field, such as `watches[2].resource`.
        field: String,
        /// Problem and remedy.
        problem: String,
    },
}

fn engine() -> String {
    Route::engine().as_str().to_owned()
}

fn default_max_objects() -> usize {
    100_000
}

fn default_max_names() -> usize {
    Settings::default().max_names
}

fn default_connection_age() -> u64 {
    Settings::default().connection_age.as_secs()
}

fn default_check_every() -> u64 {
    60
}

/// Adds the field to the error.
fn address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let shown = quoted(&text);
    let problem = || format!("adminAddress {shown} must be an address and a port as \"127.0.0.1:9090\"");
    text.parse().map_err(|_| serde::de::Error::custom(problem()))
}

fn any_version() -> String {
    "*".to_owned()
}

impl Config {
    /// Returns the configuration of an agent within the receiver's process, which needs neither address nor certificate: `receiver` is
    /// unused.
    #[must_use]
    pub fn embedded(runtime_id: String, kubeconfig: Option<PathBuf>, config_map: ConfigMapRef) -> Self {
        let receiver = Receiver {
            url: String::new(),
            proxy: None,
            ca_file: PathBuf::new(),
            cert_file: None,
            key_file: None,
            enrolment: None,
            protocol: Protocol::V3,
            connection_age_seconds: default_connection_age(),
        };
        Self {
            runtime_id,
            receiver,
            admin_address: SocketAddr::from(([127, 0, 0, 1], 0)),
            kubeconfig,
            max_objects_per_watch: default_max_objects(),
            max_kept_names: default_max_names(),
            check_every_seconds: default_check_every(),
            installation: None,
            watches: Vec::new(),
            config_map: Some(config_map),
        }
    }

    /// Returns the reported installation, at most [`limits::CONFIGURATION_BYTES`]. `environment` looks up a variable.
    #[must_use]
    pub fn installation(&self, environment: impl Fn(&str) -> Option<String>) -> String {
        let given = self.installation.clone().or_else(|| environment("TIDEWATCH_INSTALLATION"));
        given.filter(|text| text.len() <= limits::CONFIGURATION_BYTES).unwrap_or_default()
    }

    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read(path)?)
    }

    /// Parses and checks a text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(text).map_err(|e| unreadable(&e))?;
        config.check()?;
        Ok(config)
    }

    /// Returns changed fields that need a restart.
    pub(crate) fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let Self { runtime_id, receiver, admin_address, kubeconfig, config_map, max_kept_names, .. } = self;
        let check_every = self.check_every_seconds;
        let same = [
            ("runtimeId", *runtime_id == other.runtime_id),
            ("receiver", *receiver == other.receiver),
            ("adminAddress", *admin_address == other.admin_address),
            ("kubeconfig", *kubeconfig == other.kubeconfig),
            ("configMap", *config_map == other.config_map),
            ("maxKeptNames", *max_kept_names == other.max_kept_names),
            ("checkEverySeconds", check_every == other.check_every_seconds),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(field, _)| field).collect()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Self {
            runtime_id,
            receiver,
            admin_address: _,
            kubeconfig: _,
            max_objects_per_watch,
            max_kept_names,
            check_every_seconds,
            installation,
            watches,
            config_map,
        } = self;
        if installation.as_ref().is_some_and(|text| text.len() > limits::CONFIGURATION_BYTES) {
            let most = limits::CONFIGURATION_BYTES;
            return Err(wrong("installation", format!("must have at most {most} bytes")));
        }
        if runtime_id.is_empty() || runtime_id.chars().count() > MAX_RUNTIME_ID {
            return Err(wrong("runtimeId", format!("must have 1 to {MAX_RUNTIME_ID} characters")));
        }
        receiver.endpoint()?;
        receiver.credentials()?;
        if !(10..=604_800).contains(&receiver.connection_age_seconds) {
            return Err(wrong("receiver.connectionAgeSeconds", "must be 10 to 604800"));
        }
        if *max_objects_per_watch == 0 {
            return Err(wrong("maxObjectsPerWatch", "must be at least 1"));
        }
        if *max_kept_names == 0 {
            return Err(wrong("maxKeptNames", "must be at least 1"));
        }
        if !(10..=86_400).contains(check_every_seconds) {
            return Err(wrong("checkEverySeconds", "must be 10 to 86400"));
        }
        if let Some(ConfigMapRef { namespace, name }) = config_map {
            if !is_name(namespace, 63, "-") {
                return Err(wrong("configMap.namespace", "is not a namespace's name"));
            }
            if !is_name(name, 253, "-.") {
                return Err(wrong("configMap.name", "is not an object's name"));
            }
        } else if watches.is_empty() {
            return Err(wrong("watches", "must list at least one watch, or configMap must name a ConfigMap"));
        }
        check_watches(watches)
    }
}

impl WatchSet {
    /// Parses and checks a text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        if text.len() as u64 > MAX_FILE {
            return Err(wrong(CONFIG_MAP_KEY, format!("is larger than {MAX_FILE} bytes")));
        }
        let set: Self = serde_saphyr::from_str(text).map_err(|e| unreadable(&e))?;
        let plain = set.generation.chars().all(|c| c.is_ascii_alphanumeric());
        if set.generation.is_empty() || set.generation.len() > MAX_GENERATION || !plain {
            return Err(wrong("generation", format!("must be 1 to {MAX_GENERATION} letters and digits")));
        }
        check_watches(&set.watches)?;
        Ok(set)
    }
}

fn unreadable(error: &serde_saphyr::Error) -> ConfigError {
    ConfigError::Parse(one_line(&error.render_with_formatter(&serde_saphyr::UserMessageFormatter)))
}

pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > MAX_FILE {
        return Err(ConfigError::TooLarge(path.to_owned()));
    }
    Ok(text)
}

pub(crate) fn all_watches(file: &[Watch], set: &[Watch]) -> Result<Vec<Watch>, ConfigError> {
    let all: Vec<Watch> = file.iter().chain(set).cloned().collect();
    check_watches(&all)?;
    Ok(all)
}

fn check_watches(watches: &[Watch]) -> Result<(), ConfigError> {
    if watches.len() > MAX_WATCHES {
        return Err(wrong("watches", format!("must list at most {MAX_WATCHES} watches, all together")));
    }
    let mut names = BTreeSet::new();
    for (index, watch) in watches.iter().enumerate() {
        watch.check(&format!("watches[{index}]"))?;
        if !names.insert(&watch.name) {
            let problem = format!("{:?} is used by another watch; names must be unique", watch.name);
            return Err(wrong(format!("watches[{index}].name"), problem));
        }
    }
    Ok(())
}

impl Receiver {
    /// Returns the receiver's host and port.
    pub fn endpoint(&self) -> Result<(String, u16), ConfigError> {
        let problem = || wrong("receiver.url", format!("{} must be https://host:port", quoted(&self.url)));
        let uri: http::Uri = self.url.parse().map_err(|_| problem())?;
        let authority = uri.authority().ok_or_else(problem)?;
        let port = authority.port_u16().ok_or_else(problem)?;
        let plain =
            uri.scheme_str() == Some("https") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        if !plain || authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(problem());
        }
        Ok((authority.host().trim_matches(['[', ']']).to_owned(), port))
    }

    /// Returns the proxy, if any. `environment` looks up a variable.
    pub fn proxy(&self, environment: impl Fn(&str) -> Option<String>) -> Result<Option<Proxy>, ConfigError> {
        let (host, port) = self.endpoint()?;
        let chosen = proxy::choose(self.proxy.as_ref(), environment, &host, port);
        chosen.map_err(|error: SettingsError| wrong("HTTPS_PROXY", error.to_string()))
    }

    /// The source of the certificate: two files, or enrolment.
    pub fn credentials(&self) -> Result<Credentials, ConfigError> {
        let ca = self.ca_file.clone();
        match (self.cert_file.clone(), self.key_file.clone(), self.enrolment.clone()) {
            (Some(cert), Some(key), None) => Ok(Credentials::Files(Files { ca, cert, key })),
            (None, None, Some(objects)) => {
                let Enrolment { namespace, secret, signing_request } = &objects;
                if !is_name(namespace, 63, "-") {
                    return Err(wrong("receiver.enrolment.namespace", "is not a namespace's name"));
                }
                for (field, name) in [("secret", secret), ("signingRequest", signing_request)] {
                    if !is_name(name, 253, "-.") {
                        return Err(wrong(format!("receiver.enrolment.{field}"), "is not an object's name"));
                    }
                }
                Ok(Credentials::Enrolment { ca, objects })
            }
            _ => Err(wrong("receiver", "must have certFile and keyFile, or enrolment")),
        }
    }
}

impl Watch {
    /// Hash of the watch without its name; stable across builds.
    pub fn selection(&self) -> u64 {
        let Self { name: _, route, group, version, resource, field, labels, namespace } = self;
        let text = format!("{route:?} {group:?} {version:?} {resource:?} {field:?} {labels:?} {namespace:?}");
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    /// The label selector in the API server's syntax.
    pub fn selector(&self) -> Option<String> {
        let terms: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        (!terms.is_empty()).then(|| terms.join(","))
    }

    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let Self { name, route, group, version, resource, field: _, labels, namespace } = self;
        if !is_name(name, MAX_WATCH_NAME, "-.") {
            let problem = format!("{} must be 1 to {MAX_WATCH_NAME} of a-z, 0-9, - and .", quoted(name));
            return Err(wrong(format!("{at}.name"), problem));
        }
        if !is_name(route, 63, "-.") {
            return Err(wrong(format!("{at}.route"), "must be \"engine\" or a manager's name"));
        }
        if name == tidewatch_wire::v3::CANARY {
            return Err(wrong(
                format!("{at}.name"),
                format!("{name:?} is the agent's own; use another name"),
            ));
        }
        if resource.eq_ignore_ascii_case("secrets") && group.is_empty() {
            return Err(wrong(format!("{at}.resource"), "secrets are never watched; remove this watch"));
        }
        if !is_name(resource, 253, "-") {
            let problem = format!(
                "{} must be one resource's plural name in lower case, as \"deployments\"",
                quoted(resource)
            );
            return Err(wrong(format!("{at}.resource"), problem));
        }
        if !group.is_empty() && !is_name(group, 253, "-.") {
            return Err(wrong(
                format!("{at}.group"),
                format!("{} is not an API group, as \"apps\"", quoted(group)),
            ));
        }
        if version != "*" && !is_name(version, 63, "-") {
            let problem =
                format!("{} must be a version as \"v1\", or \"*\" for the preferred one", quoted(version));
            return Err(wrong(format!("{at}.version"), problem));
        }
        if namespace.as_ref().is_some_and(|n| !is_name(n, 63, "-")) {
            return Err(wrong(format!("{at}.namespace"), "is not a namespace's name"));
        }
        for (key, value) in labels {
            // Selector syntax would change the selection.
            let plain = |text: &str, also: &str| {
                text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || also.contains(c))
            };
            if key.is_empty() || key.len() > 317 || !plain(key, "/") || value.len() > 63 || !plain(value, "")
            {
                return Err(wrong(
                    format!("{at}.labels"),
                    format!("{}: {} is not a label", quoted(key), quoted(value)),
                ));
            }
        }
        Ok(())
    }
}

fn is_name(text: &str, longest: usize, also: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || also.contains(c);
    !text.is_empty() && text.len() <= longest && text.chars().all(allowed)
}

fn wrong(field: impl Into<String>, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value { field: field.into(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r"
runtimeId: runtime-1
receiver: {url: 'https://receiver.example:8443', caFile: ca.crt, certFile: tls.crt, keyFile: tls.key}
adminAddress: 127.0.0.1:0
watches:
  - name: kyma
    group: operator.kyma-project.io
    resource: kymas
    field: spec
    labels: {operator.kyma-project.io/watched-by: kyma}
  - {name: pods, version: v1, resource: pods, field: status, namespace: kyma-system}
";

    #[test]
    fn a_valid_config_file_is_read() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!((config.max_objects_per_watch, config.max_kept_names), (100_000, 200_000));
        assert_eq!((config.check_every_seconds, config.receiver.connection_age_seconds), (60, 86_400));
        assert_eq!(config.receiver.protocol, Protocol::V3);
        let v2 = Config::parse(&GOOD.replace("keyFile: tls.key", "keyFile: tls.key, protocol: v2"));
        assert_eq!(v2.unwrap().receiver.protocol, Protocol::V2);
        assert_eq!(config.receiver.endpoint().unwrap(), ("receiver.example".into(), 8443));
        let [kyma, pods] = &config.watches[..] else { panic!("two watches") };
        assert_eq!((kyma.version.as_str(), kyma.field), ("*", Field::Spec));
        assert_eq!(kyma.selector().as_deref(), Some("operator.kyma-project.io/watched-by=kyma"));
        assert_eq!((pods.group.as_str(), pods.selector(), pods.field), ("", None, Field::Status));
    }

    #[test]
    fn runtime_ids_are_counted_in_characters() {
        let with =
            |id: &str| Config::parse(&GOOD.replace("runtimeId: runtime-1", &format!("runtimeId: {id}")));
        assert!(with(&"ä".repeat(MAX_RUNTIME_ID)).is_ok());
        assert!(with(&"ä".repeat(MAX_RUNTIME_ID + 1)).is_err());
    }

    #[test]
    fn invalid_values_are_refused_by_field_name() {
        let cases = [
            ("runtimeId: runtime-1", "runtimeID: runtime-1", "runtimeID"),
            ("runtimeId: runtime-1", "runtimeId: ''", "runtimeId"),
            ("https://receiver.example:8443", "http://receiver.example:8443", "receiver.url"),
            ("https://receiver.example:8443", "https://receiver.example", "receiver.url"),
            ("https://receiver.example:8443", "https://receiver.example:8443/v3", "receiver.url"),
            ("https://receiver.example:8443", "https://a@receiver.example:8443", "receiver.url"),
            ("caFile", "proxy: 'https://a:hunter2@p:1', caFile", "http://host:port"),
            ("caFile", "proxy: 'http://a:hunter2@p:x', caFile", "http://[user:password@]host:port"),
            ("127.0.0.1:0", "localhost", "adminAddress"),
            ("resource: pods", "resource: secrets", "secrets are never watched"),
            ("resource: pods", "resource: Secrets", "secrets are never watched"),
            ("resource: pods", "resource: pods/status", "watches[1].resource"),
            ("resource: pods", "resource: '*'", "watches[1].resource"),
            ("name: pods", "name: kyma", "names must be unique"),
            ("name: pods", "name: 'po ds'", "watches[1].name"),
            ("version: v1", "version: ../x", "watches[1].version"),
            ("field: status", "field: data", "data"),
            ("keyFile: tls.key", "keyFile: tls.key, protocol: v1", "v1"),
            (
                "keyFile: tls.key",
                "keyFile: tls.key, connectionAgeSeconds: 9",
                "receiver.connectionAgeSeconds",
            ),
            ("field: status", "feld: status", "feld"),
            ("watched-by: kyma", "watched-by: 'kyma,x=y'", "watches[0].labels"),
            ("namespace: kyma-system", "namespace: 'a/b'", "watches[1].namespace"),
            ("namespace: kyma-system", "route: 'a/b'", "watches[1].route"),
            ("watches:", "configMap: {namespace: a/b, name: c}\nwatches:", "configMap.namespace"),
            ("watches:", "configMap: {namespace: a, name: C}\nwatches:", "configMap.name"),
            ("adminAddress", "maxObjectsPerWatch: 0\nadminAddress", "maxObjectsPerWatch"),
            ("adminAddress", "maxKeptNames: 0\nadminAddress", "maxKeptNames"),
            ("adminAddress", "checkEverySeconds: 1\nadminAddress", "checkEverySeconds"),
            ("watches:", "runtimeId: twice\nwatches:", "runtimeId"),
        ];
        for (good, bad, expected) in cases {
            assert!(GOOD.contains(good), "{good}");
            let error = Config::parse(&GOOD.replacen(good, bad, 1)).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{bad}: {error}");
            assert!(!error.contains("hunter2") && !error.contains("Options"), "{error}");
        }
        assert!(Config::parse("").is_err());
        assert!(Config::load(Path::new("/nonexistent")).unwrap_err().to_string().contains("/nonexistent"));
    }

    #[test]
    fn with_a_config_map_the_file_needs_no_watches() {
        let (head, watches) = GOOD.split_once("watches:").unwrap();
        assert!(Config::parse(head).unwrap_err().to_string().contains("watches must list at least one"));
        let config = Config::parse(&format!("{head}configMap: {{namespace: kyma-system, name: c}}")).unwrap();
        assert_eq!(config.config_map.unwrap().namespace, "kyma-system");

        let set = WatchSet::parse(&format!("generation: abc1\nwatches:{watches}")).unwrap();
        assert_eq!((set.watches.len(), set.watches[0].route.as_str()), (2, "engine"));
        assert!(WatchSet::parse("{generation: a, watches: []}").unwrap().watches.is_empty());
        for bad in
            ["", "{}", "{watches: []}", "{generation: '', watches: []}", "{generation: a/b, watches: []}"]
        {
            assert!(WatchSet::parse(bad).is_err(), "{bad}");
        }
        let secrets = "{generation: a, watches: [{name: a, resource: secrets, field: spec}]}";
        assert!(WatchSet::parse(secrets).unwrap_err().to_string().contains("secrets are never watched"));
        let problem = all_watches(&set.watches, &set.watches[1..]).unwrap_err().to_string();
        assert!(problem.contains("\"pods\" is used by another watch"), "{problem}");
        let many: Vec<Watch> =
            (0..=MAX_WATCHES).map(|n| Watch { name: format!("w{n}"), ..set.watches[0].clone() }).collect();
        assert!(all_watches(&many[..40], &many[40..]).is_err());
        assert!(all_watches(&many[..40], &many[41..]).is_ok());
    }

    #[test]
    fn settings_needing_a_restart_are_named() {
        let now = Config::parse(GOOD).unwrap();
        let live = Config::parse(&GOOD.replace("resource: pods", "resource: services")).unwrap();
        assert!(now.fixed_differences(&live).is_empty());
        let text = GOOD.replace("127.0.0.1:0", "127.0.0.1:1").replace("runtime-1", "runtime-2");
        assert_eq!(now.fixed_differences(&Config::parse(&text).unwrap()), ["runtimeId", "adminAddress"]);
    }

    #[test]
    fn a_proxy_comes_from_the_file_or_the_environment() {
        let environment = |name: &str| (name == "HTTPS_PROXY").then(|| "http://a:b@env:1".to_owned());
        let proxy = |text: &str| Config::parse(text).unwrap().receiver.proxy(environment).unwrap();
        assert_eq!(proxy(GOOD).unwrap().to_string(), "http://env:1");
        let own = GOOD.replace("caFile", "proxy: 'http://own:2', caFile");
        assert_eq!(proxy(&own).unwrap().to_string(), "http://own:2");
        assert_eq!(proxy(&GOOD.replace("caFile", "proxy: direct, caFile")), None);
        let error = Config::parse(GOOD).unwrap().receiver.proxy(|_| Some("ftp://a:b@c".into())).unwrap_err();
        assert!(error.to_string().contains("HTTPS_PROXY"), "{error}");
    }

    #[test]
    fn an_error_message_truncates_long_values() {
        let long = "x".repeat(5_000);
        for (value, meant) in
            [("127.0.0.1:0", "must be an address and a port"), ("kyma\n", "name "), ("spec", "")]
        {
            let message =
                Config::parse(&GOOD.replacen(value, &format!("{long}\n"), 1)).unwrap_err().to_string();
            assert!(message.len() < 500 && message.contains(meant), "{message}");
        }
        let message = Config::parse(&format!("{GOOD}\"\\e[31m\": 1")).unwrap_err().to_string();
        assert!(!message.contains(char::is_control), "{message:?}");
    }

    #[test]
    fn an_address_may_be_ipv6() {
        let config = Config::parse(&GOOD.replace("receiver.example", "[::1]")).unwrap();
        assert_eq!(config.receiver.endpoint().unwrap(), ("::1".into(), 8443));
    }
}
