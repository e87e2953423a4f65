//! Signs the certificate signing request of a runtime's agent.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use serde_json::{Value, json};
use tidewatch_api::names::{AGENT_SIGNING_REQUEST, field_managers};
use tidewatch_certs::ClientRequest;
use tidewatch_planner::{
    agent_install::signing_request,
    enrolment::{Decision, Denial, Requester, decide},
    status::whole_seconds,
};

use crate::{
    authority::{Issuer, SignError},
    clusters::{
        Clusters, Gated,
        objects::{self, ObjectError},
    },
    config::{AgentInstall, EngineConfig},
    error::Error,
    index::KymaLookup,
    kcp::Kcp,
    outcome::{Next, Outcome, error_report},
    reconcile::{agent_install::is_proven, owners::RuntimeOwners},
    stages::{Stage, stage},
};

/// API group version of requests.
const API_VERSION: &str = "certificates.k8s.io/v1";
/// Subresource of the conditions Approved and Denied.
const APPROVAL: &str = "approval";

/// Time after an installation in which the agent's first request is expected.
const FIRST_REQUEST: Duration = Duration::from_mins(2);
/// Interval of looks for it.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(crate) struct AgentCertificateReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) owners: Arc<RuntimeOwners>,
}

/// The registered names of a runtime.
struct Registration {
    runtime: String,
    domain: String,
    /// A certificate from before is refused.
    created: Timestamp,
    is_revoked: bool,
}

impl AgentCertificateReconciler {
    /// Decides about the request of a Kyma's runtime. Looks again soon while there is none and the event path is not proven: an agent
    /// without a certificate cannot report its request.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Outcome, Error> {
        let Some(agents) = &self.config.agents else { return Ok(Outcome::done()) };
        let (kyma, reported) = {
            let state = self.kcp.index();
            (state.kymas.get(name), state.kymas.event_path(name).map(|path| path.proven))
        };
        let Some(kyma) = kyma.filter(|kyma| !kyma.is_skipped()) else { return Ok(Outcome::done()) };
        let is_proven = is_proven(&kyma, reported);
        let (Some(runtime), Some(domain)) = (kyma.runtime_id(), kyma.skr_domain()) else {
            return Ok(Outcome::waiting("the Kyma has no runtime id or no annotation skr-domain yet".into()));
        };
        let (is_unique, is_revoked) = {
            let state = self.kcp.index();
            let is_unique = matches!(state.kymas.runtime(runtime), KymaLookup::One { .. });
            (is_unique, state.revoked.as_ref().map(|revoked| revoked.contains(runtime)))
        };
        if !is_unique {
            return Ok(Outcome::waiting(format!("several Kymas have the runtime id {runtime}")));
        }
        let Some(is_revoked) = is_revoked else {
            return Ok(Outcome::recheck_soon("the revoked runtimes are not known yet".into()));
        };
        let created = kyma.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
        let registration =
            Registration { runtime: runtime.to_owned(), domain: domain.to_owned(), created, is_revoked };
        let Some(issuer) = agents.authority.issuer() else {
            return Ok(Outcome::recheck_soon("the CA is not loaded yet".into()));
        };
        let runtime = match self.owners.own_runtime(name).await? {
            Ok(runtime) => runtime,
            Err(outcome) => return Ok(outcome),
        };
        let id = signing_request();
        let request = match stage(Stage::ReadRuntime, objects::get(&runtime, &id)).await {
            Ok(request) => request,
            Err(error) => return self.clusters.failed_at(name, error),
        };
        let Some(request) = request else {
            return Ok(if is_proven { Outcome::done() } else { self.await_request(name) });
        };
        match self.decide(&runtime, &registration, agents, &issuer, request).await {
            // The agent replaces a decided or denied request, and cannot report that.
            Ok(outcome) if !is_proven && outcome.next == Next::OnEvent => {
                Ok(self.looked_at_again(name, outcome))
            }
            Ok(outcome) => Ok(outcome),
            Err(error) => self.clusters.failed_at(name, error),
        }
    }

    fn looked_at_again(&self, name: &str, outcome: Outcome) -> Outcome {
        match outcome.report() {
            Some(report) => Outcome::retried(report.clone(), "denied", None),
            None => self.await_request(name),
        }
    }

    /// A request comes soon after an installation.
    fn await_request(&self, name: &str) -> Outcome {
        let reason = "waiting for the agent's certificate signing request".to_owned();
        let installed = self.clusters.records.read(name, |record| record.agent_installed);
        match installed {
            Some(at) if at.elapsed() < FIRST_REQUEST => Outcome::after(LOOK_AGAIN, reason),
            _ => Outcome::recheck_soon(reason),
        }
    }

    async fn decide(
        &self,
        runtime: &Gated,
        registration: &Registration,
        agents: &AgentInstall,
        issuer: &Issuer,
        request: Value,
    ) -> Result<Outcome, ObjectError> {
        let request: CertificateSigningRequest =
            serde_json::from_value(request).map_err(|error| ObjectError::Malformed(error.to_string()))?;
        let (agent, uid) = (agents.settings.username(), request.metadata.uid.as_deref().unwrap_or_default());
        let requester =
            Requester { runtime: &registration.runtime, agent: &agent, is_revoked: registration.is_revoked };
        match decide(&request, requester) {
            Decision::None => Ok(Outcome::done()),
            Decision::Deny(denial) => self.deny(runtime, registration, uid, &denial).await,
            Decision::Sign { request, approve } => {
                let client = ClientRequest {
                    runtime_id: registration.runtime.clone(),
                    dns_names: vec![registration.domain.clone()],
                    organizations: Vec::new(),
                    validity: agents.lifetime,
                };
                let signed = match issuer.sign(&request, &client, registration.created, self.kcp.now()) {
                    Ok(signed) => signed,
                    Err(SignError::Request(error)) => {
                        let denial = Denial::Request(error.to_string());
                        return self.deny(runtime, registration, uid, &denial).await;
                    }
                    Err(SignError::Ca(error)) => {
                        let report = error_report(format!("{error}; check the receiver's CA"));
                        return Ok(Outcome::retried(report, "ca", None));
                    }
                };
                if approve {
                    let message = "the agent of this runtime has requested it";
                    self.write_condition(runtime, uid, "Approved", "AgentOfRuntime", message).await?;
                }
                let certificate = ByteString(signed.cert_pem.into_bytes());
                let body = body(uid, &json!({"certificate": certificate}));
                stage(
                    Stage::Apply,
                    objects::apply_subresource(runtime, "status", &body, field_managers::AGENT),
                )
                .await?;
                let (runtime, not_after) = (&registration.runtime, signed.not_after);
                tracing::info!(runtime, %not_after, "an agent has got its certificate");
                Ok(Outcome::done())
            }
        }
    }

    async fn deny(
        &self,
        runtime: &Gated,
        registration: &Registration,
        uid: &str,
        denial: &Denial,
    ) -> Result<Outcome, ObjectError> {
        let message = denial.to_string();
        tracing::warn!(
            runtime = registration.runtime,
            reason = denial.reason(),
            detail = message,
            "a certificate signing request was denied"
        );
        self.write_condition(runtime, uid, "Denied", denial.reason(), &message).await?;
        Ok(Outcome::failed(error_report(format!("a certificate signing request was denied: {message}"))))
    }

    async fn write_condition(
        &self,
        runtime: &Gated,
        uid: &str,
        type_: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), ObjectError> {
        let now = whole_seconds(self.kcp.now()).to_string();
        let condition = json!({"type": type_, "status": "True", "reason": reason, "message": message,
                               "lastUpdateTime": now, "lastTransitionTime": now});
        let body = body(uid, &json!({"conditions": [condition]}));
        stage(Stage::Apply, objects::apply_subresource(runtime, APPROVAL, &body, field_managers::AGENT)).await
    }
}

/// The status of exactly this request: an agent may have replaced it.
fn body(uid: &str, status: &Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "CertificateSigningRequest",
           "metadata": {"name": AGENT_SIGNING_REQUEST, "uid": uid}, "status": status})
}

#[cfg(test)]
mod tests;
