//! Inline kubeconfigs and clients.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::{Client, Config, config::AuthInfo};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;

/// Longer than the bookmark interval, short enough to end a test with a hanging server.
const READ_TIMEOUT: Duration = Duration::from_mins(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn yaml(cluster: &str, url: &str, ca_pem: &str, user: &str, token: &str) -> String {
    // ByteString is base64 in JSON, and JSON is valid YAML.
    let ca = json!(ByteString(ca_pem.as_bytes().to_vec()));
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {cluster}\n  cluster:\n    server: {url}\n    certificate-authority-data: {ca}\n\
         users:\n\
         - name: {user}\n  user:\n    token: {token}\n\
         contexts:\n\
         - name: {cluster}\n  context:\n    cluster: {cluster}\n    user: {user}\n\
         current-context: {cluster}\n",
        user = json!(user),
    )
}

pub(super) fn client(url: &str, ca_pem: &str, token: &str) -> Result<Client> {
    let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).context("the CA is not PEM")?;
    let mut config = Config::new(url.parse().context("the API server's address is no URL")?);
    config.root_cert = Some(vec![ca.to_vec()]);
    config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(CONNECT_TIMEOUT);
    Client::try_from(config).context("cannot make a client")
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn a_kubeconfig_is_complete_and_inline() {
        let text = yaml("kcp", "https://127.0.0.1:6443", "PEM", "system:admin", "secret-token");
        let config = Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("kcp"));
        let context = config.contexts[0].context.as_ref().unwrap();
        assert_eq!((context.cluster.as_str(), context.user.as_deref()), ("kcp", Some("system:admin")));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("UEVN"));
        assert_eq!(cluster.certificate_authority, None);
        let user = config.auth_infos[0].auth_info.as_ref().unwrap();
        assert!(user.token.is_some());
        assert_eq!((&user.token_file, &user.client_certificate), (&None, &None));
    }
}
