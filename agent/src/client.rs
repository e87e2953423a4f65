//! The client of the runtime's API server.

use crate::start_error::StartError;
use http::{HeaderValue, header::USER_AGENT};
use hyper_timeout::TimeoutConnector;
use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Client,
    client::{Body, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use std::{path::Path, time::Duration};
use tower::{BoxError, ServiceBuilder};

/// Ends half-open connections: idle watches receive a bookmark each minute. The first bookmark may take two minutes,
/// which costs a needless request.
const READ_TIMEOUT: Duration = Duration::from_secs(75);
/// Limit of each connection's read buffer; otherwise a list grows it to 256 KiB.
const READ_AHEAD: usize = 32 * 1024;

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const PROGRAM: &str = concat!("tidewatch-agent/", env!("CARGO_PKG_VERSION"));

pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<Client, StartError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|e| StartError::Kube(unusable(path, e)))?;
            if let Some(proxy) = proxy(&file) {
                let problem = format!("{proxy}: the API server cannot be reached through a proxy");
                return Err(StartError::Kube(problem.into()));
            }
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.map_err(|e| StartError::Kube(e.into()))?
        }
        None => kube::Config::infer().await.map_err(|e| StartError::Kube(e.into()))?,
    };
    // HTTPS_PROXY is for egress; the API server belongs to the runtime.
    config.proxy_url = None;
    config.headers.push((USER_AGENT, HeaderValue::from_static(PROGRAM)));
    connect(config).map_err(|e| StartError::Kube(e.into()))
}

/// Hides the file's text: the library quotes a line, which may hold credentials.
fn unusable(path: &Path, error: KubeconfigError) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        KubeconfigError::ReadConfig(error, file) => format!("{}: {error}", file.display()).into(),
        KubeconfigError::Parse(error) => {
            let line = error.location().map_or(0, |at| at.line());
            format!("line {line} of {} cannot be read", path.display()).into()
        }
        KubeconfigError::KindMismatch | KubeconfigError::ApiVersionMismatch => {
            format!("{} is no kubeconfig: it needs apiVersion v1 and kind Config", path.display()).into()
        }
        error => error.into(),
    }
}

fn proxy(file: &Kubeconfig) -> Option<&str> {
    let context =
        file.contexts.iter().find(|context| Some(&context.name) == file.current_context.as_ref())?;
    let name = &context.context.as_ref()?.cluster;
    file.clusters.iter().find(|cluster| cluster.name == *name)?.cluster.as_ref()?.proxy_url.as_deref()
}

/// Smaller read buffer than kube's client, and no retries: each watch has its own backoff.
fn connect(config: kube::Config) -> Result<Client, kube::Error> {
    let mut connector = TimeoutConnector::new(config.rustls_https_connector()?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    let client: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(READ_AHEAD).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use kube::config::{Cluster, Context, NamedCluster, NamedContext};
    use tidewatch_telemetry::chain;

    use super::*;

    fn file(current: &str) -> Kubeconfig {
        let cluster = |name: &str, proxy: Option<&str>| NamedCluster {
            name: name.into(),
            cluster: Some(Cluster { proxy_url: proxy.map(Into::into), ..Cluster::default() }),
            ..NamedCluster::default()
        };
        let context = |name: &str| NamedContext {
            name: name.into(),
            context: Some(Context { cluster: name.into(), ..Context::default() }),
            ..NamedContext::default()
        };
        Kubeconfig {
            current_context: Some(current.into()),
            clusters: vec![cluster("near", None), cluster("far", Some("http://proxy.example:3128"))],
            contexts: vec![context("near"), context("far")],
            ..Kubeconfig::default()
        }
    }

    #[test]
    fn only_the_current_clusters_proxy_is_used() {
        assert_eq!(proxy(&file("near")), None);
        assert_eq!(proxy(&file("far")), Some("http://proxy.example:3128"));
        assert_eq!(proxy(&Kubeconfig::default()), None);
    }

    #[tokio::test]
    async fn an_unreadable_kubeconfig_shows_none_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, "users:\n- user: {token: very-secret\n").unwrap();
        let message = chain(&client(Some(&file)).await.err().unwrap()).to_string();
        assert!(message.contains("line ") && !message.contains("very-secret"), "{message}");
        std::fs::remove_file(&file).unwrap();
        let message = chain(&client(Some(&file)).await.err().unwrap()).to_string();
        assert_eq!(message.matches("No such file").count(), 1, "{message}");
        assert!(message.contains(&file.display().to_string()), "{message}");
    }
}
