//! Clients of the control plane and of runtimes, and messages about their failures.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::Args;
use kube::{
    Client,
    api::{ListParams, ObjectList},
    config::{KubeConfigOptions, Kubeconfig},
};
use tidewatch_api::names::KCP_NAMESPACE;

/// Field manager of the command line's writes.
pub(crate) const MANAGER: &str = "tidewatch";
const CONNECT: Duration = Duration::from_secs(5);
/// Longest silence within an answer.
const READ: Duration = Duration::from_secs(15);
/// Variable with the receiver's admin address.
pub(crate) const ADMIN_VARIABLE: &str = "RECEIVER_ADMIN_URL";
/// Objects of one list request.
const PAGE: u32 = 500;

/// The control plane that a command works on.
#[derive(Debug, Args)]
pub(crate) struct ControlPlane {
    /// Kubeconfig of the control plane (KCP) [default: as kubectl's].
    #[arg(long, visible_alias = "kcp-kubeconfig", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the receiver and its Kymas in the control plane.
    #[arg(long, default_value = KCP_NAMESPACE)]
    pub(crate) namespace: String,
}

impl ControlPlane {
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        kcp(self.kubeconfig.as_deref()).await
    }
}

/// Returns KCP's client by a file, or as kubectl finds it.
pub(crate) async fn kcp(file: Option<&Path>) -> anyhow::Result<Client> {
    build(kcp_config(file).await?)
}

/// Like [`kcp`], without the client.
pub(crate) async fn kcp_config(file: Option<&Path>) -> anyhow::Result<kube::Config> {
    match file {
        Some(path) => config_of(&read(path)?).await,
        None => {
            let config = kube::Config::infer();
            Ok(config.await.context(
                "there is no kubeconfig of the control plane; give --kcp-kubeconfig or set KUBECONFIG",
            )?)
        }
    }
}

/// Reads a kubeconfig. Its relative paths become absolute.
pub(crate) fn read(path: &Path) -> anyhow::Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| format!("{} is no kubeconfig", path.display()))
}

/// Returns a client of the current context.
pub(crate) async fn of_file(kubeconfig: &Kubeconfig) -> anyhow::Result<Client> {
    build(config_of(kubeconfig).await?)
}

async fn config_of(kubeconfig: &Kubeconfig) -> anyhow::Result<kube::Config> {
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await;
    config.context("the current context of the kubeconfig cannot be used")
}

pub(crate) fn build(mut config: kube::Config) -> anyhow::Result<Client> {
    tidewatch_oci::install_crypto_provider();
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    // Retries would hide an unreachable API server for minutes.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Parses the receiver's admin address. A slash at its end is dropped.
pub(crate) fn admin_url(text: &str) -> Result<String, String> {
    match reqwest::Url::parse(text) {
        Ok(url) if url.has_host() => Ok(text.trim_end_matches('/').to_owned()),
        _ => Err("it is no address such as http://127.0.0.1:8080".to_owned()),
    }
}

/// Lists objects page by page.
pub(crate) async fn pages<T: Clone>(
    params: ListParams,
    list: impl AsyncFn(&ListParams) -> Result<ObjectList<T>, kube::Error>,
) -> Result<Vec<T>, kube::Error> {
    let (mut params, mut items) = (params.limit(PAGE), Vec::new());
    loop {
        let page = list(&params).await?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(items),
        }
    }
}

/// A cluster that a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The control plane, for a command that works on a runtime too.
    Kcp,
    /// The control plane, for a [`ControlPlane`] command.
    KcpAlone,
    /// The runtime.
    Runtime,
}

impl Side {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kcp | Self::KcpAlone => "KCP",
            Self::Runtime => "the runtime",
        }
    }

    const fn flag(self) -> &'static str {
        match self {
            Self::Kcp => "--kcp-kubeconfig",
            Self::KcpAlone | Self::Runtime => "--kubeconfig",
        }
    }
}

/// Adds the next step to a failed call.
pub(crate) fn failed(side: Side, call: &str, error: &kube::Error) -> anyhow::Error {
    anyhow!("{call} failed: {}", explain(side, error))
}

/// Returns cause and next step of a failed call.
pub(crate) fn explain(side: Side, error: &kube::Error) -> String {
    let (name, flag) = (side.name(), side.flag());
    let kube::Error::Api(status) = error else {
        return format!("{name} does not answer ({}); check the network and {flag}", root(error));
    };
    let message = status.message.trim();
    match status.code {
        401 => format!("{name} refuses the credentials of {flag} (401); renew them"),
        403 => format!("{message}; use a {flag} whose user has this right"),
        404 if status.details.as_ref().is_some_and(|details| details.kind == "namespaces") => {
            format!("{message}; create the namespace, or name another one with --namespace")
        }
        // Only an unserved kind has a 404 without the name of an object.
        404 if status.details.as_ref().is_none_or(|details| details.name.is_empty()) => format!(
            "{name} does not serve this kind; install the CRDs: kubectl apply --server-side -f \
             deploy/charts/tidewatch/files/crds/"
        ),
        429 | 500..=599 => format!("{name} answers {}: {message}; run the command again", status.code),
        code => format!("{name} answers {code}: {message}"),
    }
}

/// Returns the innermost cause, which names the address or the certificate.
fn root(error: &kube::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Returns whether the API server has refused the call for want of a right.
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

#[cfg(test)]
mod tests {
    use kube::core::{Status, response::StatusDetails};

    use super::*;

    fn answer(code: u16, message: &str, kind: &str, name: &str) -> kube::Error {
        let details = StatusDetails {
            name: name.to_owned(),
            kind: kind.to_owned(),
            group: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        let details = (!kind.is_empty()).then_some(details);
        kube::Error::Api(Box::new(Status { details, ..Status::failure(message, "").with_code(code) }))
    }

    #[test]
    fn every_failed_call_names_the_cluster_and_the_next_step() {
        for (side, error, expected) in [
            (Side::Kcp, answer(401, "Unauthorized", "", ""), "--kcp-kubeconfig (401); renew them"),
            (
                Side::Runtime,
                answer(401, "Unauthorized", "", ""),
                "the runtime refuses the credentials of --kubeconfig",
            ),
            (
                Side::KcpAlone,
                answer(401, "Unauthorized", "", ""),
                "KCP refuses the credentials of --kubeconfig",
            ),
            (
                Side::Kcp,
                answer(403, "kymas is forbidden", "kymas", "k"),
                "kymas is forbidden; use a --kcp-kubeconfig",
            ),
            (Side::Kcp, answer(404, "404 page not found", "", ""), "install the CRDs: kubectl apply"),
            (
                Side::Kcp,
                answer(404, "namespaces \"x\" not found", "namespaces", "x"),
                "name another one with --namespace",
            ),
            (Side::Kcp, answer(503, "busy", "", ""), "KCP answers 503: busy; run the command again"),
            (Side::Kcp, answer(422, "invalid", "kymas", "k"), "KCP answers 422: invalid"),
            (
                Side::Runtime,
                kube::Error::Service("connection refused".into()),
                "the runtime does not answer (connection refused); check the network and --kubeconfig",
            ),
        ] {
            let message = failed(side, "reading", &error).to_string();
            assert!(message.starts_with("reading failed: ") && message.contains(expected), "{message}");
        }
    }
}
