//! The API server of a kubeconfig, and the kubeconfig of the engine for it. Pure but for the file of a CA.

use std::net::IpAddr;

use anyhow::{Context, bail, ensure};
use k8s_openapi::ByteString;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tidewatch_engine::clusters::{AddressPolicy, RuntimeAccess};

/// Stands for the token in a printed kubeconfig.
pub(super) const TOKEN_PLACEHOLDER: &str = "TOKEN-OF-SECRET-tidewatch-system/tidewatch-engine-token";

/// An API server, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiServer {
    pub(super) url: String,
    /// Base64 of PEM. `None`: the server's certificate is a public one.
    ca: Option<String>,
    tls_server_name: Option<String>,
}

impl ApiServer {
    /// Returns the API server of the current context. `read` reads the file of a CA.
    pub(super) fn of(
        config: &Kubeconfig,
        read: impl Fn(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<Self> {
        let current = config.current_context.as_deref().filter(|name| !name.is_empty()).context(
            "the kubeconfig has no current context; set one with: kubectl config use-context NAME",
        )?;
        let context = config.contexts.iter().find(|context| context.name == current);
        let context = context
            .and_then(|context| context.context.as_ref())
            .with_context(|| format!("the kubeconfig has no context '{current}', its current one"))?;
        let cluster = config.clusters.iter().find(|cluster| cluster.name == context.cluster);
        let cluster = cluster
            .and_then(|cluster| cluster.cluster.as_ref())
            .with_context(|| format!("the kubeconfig has no cluster '{}'", context.cluster))?;
        if cluster.insecure_skip_tls_verify == Some(true) {
            bail!(
                "the kubeconfig skips the verification of the server (insecure-skip-tls-verify), which the \
                 engine never does; put the CA into certificate-authority-data"
            );
        }
        ensure!(
            cluster.proxy_url.is_none(),
            "the kubeconfig uses a proxy (proxy-url), which the engine does not; name an address that KCP \
             reaches with --server"
        );
        let ca = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
            (Some(data), _) => Some(data.clone()),
            (None, Some(file)) => json!(ByteString(read(file)?.into_bytes())).as_str().map(str::to_owned),
            (None, None) => None,
        };
        let url = cluster.server.clone().context("the kubeconfig's cluster has no server")?;
        Ok(Self { url, ca, tls_server_name: cluster.tls_server_name.clone() })
    }

    /// Returns the same server at another address.
    pub(super) fn at(self, url: Option<&str>) -> Self {
        match url {
            Some(url) => Self { url: url.to_owned(), ..self },
            None => self,
        }
    }

    /// Returns the domain of a runtime that has no registered one: the server's name, without a leading `api.`.
    pub(super) fn domain(&self, kyma: &str) -> String {
        let url = reqwest::Url::parse(&self.url).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default();
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let name = host.strip_prefix("api.").unwrap_or(host);
        if is_address || !name.contains('.') { format!("{kyma}.runtime.internal") } else { name.to_owned() }
    }

    /// Returns the engine's kubeconfig as YAML, with inline data only. Fails if the engine would refuse it.
    pub(super) fn kubeconfig(&self, kyma: &str, token: &str) -> anyhow::Result<String> {
        let mut cluster = json!({"server": self.url});
        for (field, value) in
            [("certificate-authority-data", &self.ca), ("tls-server-name", &self.tls_server_name)]
        {
            if let Some(value) = value {
                cluster[field] = Value::from(value.as_str());
            }
        }
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": kyma,
            "clusters": [{"name": kyma, "cluster": cluster}],
            "users": [{"name": "tidewatch-engine", "user": {"token": token}}],
            "contexts": [{"name": kyma, "context": {"cluster": kyma, "user": "tidewatch-engine"}}],
        });
        let text = serde_saphyr::to_string(&config)?;
        RuntimeAccess::parse(&text, &AddressPolicy::default())
            .context("the engine would refuse the kubeconfig made of this one")?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(current: &str, cluster: &Value) -> Kubeconfig {
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": current,
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}},
                         {"name": "lost", "context": {"cluster": "none", "user": "u"}}]});
        Kubeconfig::from_yaml(&config.to_string()).unwrap()
    }

    fn of(current: &str, cluster: &Value) -> anyhow::Result<ApiServer> {
        ApiServer::of(&config(current, cluster), |file| Ok(format!("pem of {file}")))
    }

    #[test]
    fn an_unusable_kubeconfig_is_refused_with_the_next_step() {
        let plain = json!({"server": "https://a"});
        for (current, cluster, expected) in [
            ("", plain.clone(), "kubectl config use-context"),
            ("missing", plain.clone(), "no context 'missing'"),
            ("lost", plain, "no cluster 'none'"),
            ("x", json!({}), "no server"),
            (
                "x",
                json!({"server": "https://a", "insecure-skip-tls-verify": true}),
                "certificate-authority-data",
            ),
            ("x", json!({"server": "https://a", "proxy-url": "http://p"}), "--server"),
        ] {
            let error = of(current, &cluster).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let plain_http = of("x", &json!({"server": "http://a"})).unwrap().kubeconfig("k", "t").unwrap_err();
        assert!(format!("{plain_http:#}").contains("server over plain http"), "{plain_http:#}");
    }

    #[test]
    fn the_engine_reads_the_kubeconfig_made_for_it() {
        let server = of("x", &json!({"server": "https://a.example:6443", "tls-server-name": "b"})).unwrap();
        let text = server.clone().kubeconfig("k", "t").unwrap();
        let access = RuntimeAccess::parse(&text, &AddressPolicy::default()).unwrap();
        assert_eq!(access.server().to_string(), "https://a.example:6443/");
        assert!(text.contains("tls-server-name"), "{text}");
        server.at(Some("https://b.example")).kubeconfig("k", TOKEN_PLACEHOLDER).unwrap();
    }

    #[test]
    fn a_ca_in_a_file_becomes_inline() {
        let server = of("x", &json!({"server": "https://a", "certificate-authority": "f"})).unwrap();
        assert_eq!(server.ca.as_deref(), Some("cGVtIG9mIGY="));
    }

    #[test]
    fn the_domain_comes_from_the_servers_name() {
        for (url, domain) in [
            ("https://api.c1.example.com", "c1.example.com"),
            ("https://c1.example.com:6443/path", "c1.example.com"),
            ("https://127.0.0.1:6443", "k.runtime.internal"),
            ("https://[::1]:6443", "k.runtime.internal"),
            ("https://localhost", "k.runtime.internal"),
        ] {
            assert_eq!(of("x", &json!({"server": url})).unwrap().domain("k"), domain, "{url}");
        }
    }
}
