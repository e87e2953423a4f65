//! Asks runtimes, with their kubeconfig Secrets, as the engine does.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use tidewatch_api::{
    Kyma,
    names::{AGENT_IDENTITY_SECRET, RUNTIME_NAMESPACE, conditions, labels},
};
use tidewatch_certs::secret::TLS_CRT;
use tidewatch_engine::clusters::{AddressPolicy, Connector, Limits, RuntimeAccess};

use super::{
    collect::asked,
    facts::{Access, Asked, Events, Runtime, Runtimes},
};
use crate::{
    clusters::pages,
    rights::{Right, missing_of_self},
    runtime::engine_rights,
};

/// Runtimes that are asked at the same time.
const CONCURRENT: usize = 8;
/// Time for all questions to one runtime.
const DEADLINE: Duration = Duration::from_secs(15);
/// Larger answers are not read. The Secret of an agent is far smaller.
const MAX_ANSWER: usize = 1024 * 1024;
/// Key of the kubeconfig in its Secret.
const KUBECONFIG: &str = "config";

/// Asks one runtime (`only`: Kyma's name or runtime id), or the first `limit` ones, unproven ones first.
pub(super) async fn runtimes(
    client: &Client,
    namespace: &str,
    only: Option<&str>,
    limit: usize,
    revoked: &BTreeMap<String, String>,
) -> Asked<Runtimes> {
    let kymas: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    let all = pages(ListParams::default(), async |params| kymas.list(params).await);
    let mut all = asked(all.await)?;
    if let Some(only) = only {
        all.retain(|kyma| kyma.name_any() == only || kyma.runtime_id() == Some(only));
    }
    let unknown = only.filter(|_| all.is_empty()).map(str::to_owned);
    all.sort_by_cached_key(|kyma| (events(kyma).is_some_and(|events| events.proven), kyma.name_any()));
    let more = all.len().saturating_sub(limit);
    all.truncate(limit);
    let mut secrets: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let with_kyma = ListParams::default().labels(labels::KYMA_NAME);
    let labelled = pages(with_kyma, async |params| api.list_metadata(params).await);
    for secret in asked(labelled.await)?.into_iter().map(|secret| secret.metadata) {
        if let Some(kyma) = secret.labels.as_ref().and_then(|all| all.get(labels::KYMA_NAME)) {
            secrets.entry(kyma.clone()).or_default().push(secret.name.unwrap_or_default());
        }
    }
    let asking = Asking {
        secrets: api,
        connector: Connector::new(Arc::new(AddressPolicy::default())),
        rights: engine_rights().unwrap_or_default(),
        revoked,
    };
    let checked = all.into_iter().map(|kyma| {
        let names = secrets.remove(&kyma.name_any()).unwrap_or_default();
        asking.runtime(kyma, names)
    });
    Ok(Runtimes { checked: stream::iter(checked).buffered(CONCURRENT).collect().await, more, unknown })
}

fn events(kyma: &Kyma) -> Option<Events> {
    let mut conditions = kyma.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|condition| condition.type_ == conditions::RUNTIME_EVENTS)?;
    Some(Events {
        proven: condition.status == "True",
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    })
}

struct Asking<'a> {
    revoked: &'a BTreeMap<String, String>,
    secrets: Api<Secret>,
    connector: Connector,
    rights: Vec<Right>,
}

impl Asking<'_> {
    async fn runtime(&self, kyma: Kyma, secrets: Vec<String>) -> Runtime {
        let access = if kyma.is_skipped() { Access::NoSecret } else { self.access(secrets).await };
        Runtime {
            revoked_since: kyma.runtime_id().and_then(|id| self.revoked.get(id)).cloned(),
            id: kyma.runtime_id().map(str::to_owned),
            has_domain: kyma.skr_domain().is_some(),
            is_skipped: kyma.is_skipped(),
            has_status: kyma.status.is_some(),
            events: events(&kyma),
            kyma: kyma.name_any(),
            access,
        }
    }

    async fn access(&self, mut names: Vec<String>) -> Access {
        if names.len() > 1 {
            return Access::Several(names);
        }
        let Some(name) = names.pop() else { return Access::NoSecret };
        let refused = |cause: String| Access::Refused { secret: name.clone(), cause };
        let secret = match asked(self.secrets.get(&name).await) {
            Ok(secret) => secret,
            Err(why) => return refused(format!("it cannot be read: {}", why.message)),
        };
        let Some(config) = secret.data.as_ref().and_then(|data| data.get(KUBECONFIG)) else {
            return refused(format!("it has no key '{KUBECONFIG}'"));
        };
        let parsed = RuntimeAccess::parse(&String::from_utf8_lossy(&config.0), self.connector.policy());
        let access = match parsed {
            Ok(access) => access,
            Err(error) => return refused(error.to_string()),
        };
        let limits = Limits { deadline: DEADLINE, response: MAX_ANSWER };
        let client = match self.connector.client(&access, limits) {
            Ok(client) => client.kube(),
            Err(error) => return refused(error.to_string()),
        };
        let missing = missing_of_self(&client, &self.rights);
        match tokio::time::timeout(DEADLINE, missing).await {
            Ok(Ok(missing)) => Access::Works { missing, certificate_ends: certificate_ends(&client).await },
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => Access::Unauthorized { secret: name },
            Ok(Err(error)) => Access::Silent { cause: tidewatch_telemetry::chain(&error).to_string() },
            Err(_) => Access::Silent { cause: format!("no answer within {} s", DEADLINE.as_secs()) },
        }
    }
}

/// Reads the end of the agent's certificate. The private key is not looked at.
async fn certificate_ends(runtime: &Client) -> Option<Timestamp> {
    let secrets: Api<Secret> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    let read = tokio::time::timeout(DEADLINE, secrets.get_opt(AGENT_IDENTITY_SECRET));
    let secret = read.await.ok()?.ok()??;
    let pem = secret.data?.remove(TLS_CRT)?;
    tidewatch_certs::validity(&pem.0).ok().map(|validity| validity.not_after)
}
